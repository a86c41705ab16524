//! The functions of libnvrtc, as `nvrtc.h` declares them.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::binding::{Function, binding, string};

/// `NVRTC_ERROR_COMPILATION`.
pub(super) const COMPILATION_ERROR: c_int = 6;

/// `nvrtcResult`; 0 is success.
pub(super) type Code = c_int;
type Handle = *mut c_void;
type Strings = *const *const c_char;

binding! { Nvrtc;
    -> Code {
        version: "nvrtcVersion" (*mut c_int, *mut c_int);
        create: "nvrtcCreateProgram" (*mut Handle, *const c_char, *const c_char, c_int, Strings, Strings);
        compile: "nvrtcCompileProgram" (Handle, c_int, Strings);
        destroy: "nvrtcDestroyProgram" (*mut Handle);
        log_size: "nvrtcGetProgramLogSize" (Handle, *mut usize);
        log: "nvrtcGetProgramLog" (Handle, *mut c_char);
        cubin_size: "nvrtcGetCUBINSize" (Handle, *mut usize);
        cubin: "nvrtcGetCUBIN" (Handle, *mut c_char);
    }
    -> *const c_char {
        error_string: "nvrtcGetErrorString" (Code);
    }
    optional -> Code {
        n_archs: "nvrtcGetNumSupportedArchs" (*mut c_int);
        archs: "nvrtcGetSupportedArchs" (*mut c_int);
    }
}

impl Api {
    /// The architectures that it knows, as 90 for sm_90; none where it is too old to tell.
    pub(super) fn known_archs(&self) -> Option<Vec<u32>> {
        let (count, list) = (self.n_archs.as_ref()?, self.archs.as_ref()?);
        let mut n = 0;
        // SAFETY: the pointer is valid for the call.
        let counted = unsafe { (count.call)(&mut n) };
        let mut archs = vec![0; usize::try_from(n).ok().filter(|_| counted == 0)?];
        // SAFETY: the function writes as many numbers as the one before has said.
        let listed = unsafe { (list.call)(archs.as_mut_ptr()) };
        (listed == 0).then(|| archs.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect())
    }

    /// The name of an error.
    pub(super) fn error_name(&self, code: c_int) -> String {
        // SAFETY: the function takes any number, and its strings live forever.
        unsafe { string((self.error_string.call)(code)) }.unwrap_or_else(|| format!("nvrtcResult {code}"))
    }
}

/// libnvrtc loads its second file by name alone, and finds it outside of the system's folders only if it is loaded
/// already. It stays loaded.
pub(super) fn load_builtins(file: &Path) {
    let Some(Ok(folder)) = file.parent().map(std::fs::read_dir) else { return };
    for entry in folder.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("libnvrtc-builtins.so") {
            // SAFETY: the file holds data for libnvrtc; its initialization has no conditions.
            if let Ok(library) = unsafe { Library::open(Some(entry.path()), RTLD_NOW | RTLD_GLOBAL) } {
                std::mem::forget(library);
            }
        }
    }
}

/// A program between its source and its code.
pub(super) struct Program<'a> {
    api: &'a Api,
    handle: Handle,
}

/// The function that failed, and its code.
type Failure = (&'static str, c_int);

impl<'a> Program<'a> {
    /// A program of a text and its name, with headers.
    pub(super) fn new(
        api: &'a Api,
        source: &(CString, CString),
        headers: &[(CString, CString)],
    ) -> Result<Program<'a>, Failure> {
        let texts: Vec<_> = headers.iter().map(|(text, _)| text.as_ptr()).collect();
        let names: Vec<_> = headers.iter().map(|(_, name)| name.as_ptr()).collect();
        let mut handle = ptr::null_mut();
        let n = headers.len() as c_int;
        // SAFETY: all strings end with zero and live until the call returns; there are `n` of both kinds.
        let code = unsafe {
            (api.create.call)(
                &mut handle,
                source.0.as_ptr(),
                source.1.as_ptr(),
                n,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        if code == 0 { Ok(Program { api, handle }) } else { Err((api.create.name, code)) }
    }

    /// Compiles it; the compiler's code is 0 where that went well.
    pub(super) fn compile(&self, options: &[CString]) -> c_int {
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the handle is a program's; the strings live until the call returns.
        unsafe { (self.api.compile.call)(self.handle, options.len() as c_int, options.as_ptr()) }
    }

    /// What the compiler said.
    pub(super) fn log(&self) -> Vec<u8> {
        let mut log = self.bytes(&self.api.log_size, &self.api.log).unwrap_or_default();
        log.pop_if(|last| *last == 0);
        log
    }

    /// The code.
    pub(super) fn cubin(&self) -> Result<Vec<u8>, Failure> {
        self.bytes(&self.api.cubin_size, &self.api.cubin)
    }

    fn bytes(
        &self,
        size: &Function<unsafe extern "C" fn(Handle, *mut usize) -> Code>,
        get: &Function<unsafe extern "C" fn(Handle, *mut c_char) -> Code>,
    ) -> Result<Vec<u8>, Failure> {
        let mut n = 0;
        // SAFETY: the handle is a program's, and the pointer is valid for the call.
        let code = unsafe { (size.call)(self.handle, &mut n) };
        if code != 0 {
            return Err((size.name, code));
        }
        let mut bytes = vec![0u8; n];
        // SAFETY: the function writes as many bytes as the one before has said.
        let code = unsafe { (get.call)(self.handle, bytes.as_mut_ptr().cast()) };
        if code == 0 { Ok(bytes) } else { Err((get.name, code)) }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is a program's, and nobody uses it afterward.
        unsafe { (self.api.destroy.call)(&mut self.handle) };
    }
}
