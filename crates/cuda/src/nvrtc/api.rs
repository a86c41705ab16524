//! The functions of libnvrtc, as `nvrtc.h` declares them.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// `NVRTC_ERROR_COMPILATION`.
pub(super) const COMPILATION_ERROR: c_int = 6;

type Handle = *mut c_void;
type Strings = *const *const c_char;

/// The functions that are used.
pub(super) struct Api {
    pub(super) version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(*mut Handle, *const c_char, *const c_char, c_int, Strings, Strings) -> c_int,
    compile: unsafe extern "C" fn(Handle, c_int, Strings) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    /// Last, so that the functions go before their library.
    _library: Library,
}

impl Api {
    /// Loads a file and finds its functions; the text of the loader's error otherwise.
    pub(super) fn load(file: &Path) -> Result<Api, String> {
        load_builtins(file);
        let text = |error: libloading::Error| error.to_string();
        // SAFETY: libnvrtc's initialization has no conditions.
        let library = unsafe { Library::open(Some(file), RTLD_NOW) }.map_err(text)?;
        // SAFETY: the types are those of nvrtc.h, which every version since 11.1 has.
        unsafe {
            Ok(Api {
                version: *library.get(b"nvrtcVersion\0").map_err(text)?,
                error_string: *library.get(b"nvrtcGetErrorString\0").map_err(text)?,
                create: *library.get(b"nvrtcCreateProgram\0").map_err(text)?,
                compile: *library.get(b"nvrtcCompileProgram\0").map_err(text)?,
                destroy: *library.get(b"nvrtcDestroyProgram\0").map_err(text)?,
                log_size: *library.get(b"nvrtcGetProgramLogSize\0").map_err(text)?,
                log: *library.get(b"nvrtcGetProgramLog\0").map_err(text)?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize\0").map_err(text)?,
                cubin: *library.get(b"nvrtcGetCUBIN\0").map_err(text)?,
                _library: library,
            })
        }
    }

    /// The name of an error.
    pub(super) fn error_name(&self, code: c_int) -> String {
        // SAFETY: the function takes any number and returns a string that lives forever.
        unsafe { CStr::from_ptr((self.error_string)(code)) }.to_string_lossy().into_owned()
    }
}

/// libnvrtc loads its second file by name alone, and finds it outside of the system's folders only if it is loaded
/// already. It stays loaded.
fn load_builtins(file: &Path) {
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
            (api.create)(&mut handle, source.0.as_ptr(), source.1.as_ptr(), n, texts.as_ptr(), names.as_ptr())
        };
        if code == 0 { Ok(Program { api, handle }) } else { Err(("nvrtcCreateProgram", code)) }
    }

    /// Compiles it; the compiler's code is 0 where that went well.
    pub(super) fn compile(&self, options: &[CString]) -> c_int {
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the handle is a program's; the strings live until the call returns.
        unsafe { (self.api.compile)(self.handle, options.len() as c_int, options.as_ptr()) }
    }

    /// What the compiler said.
    pub(super) fn log(&self) -> Vec<u8> {
        let mut log = self.bytes(self.api.log_size, self.api.log).unwrap_or_default();
        log.pop_if(|last| *last == 0);
        log
    }

    /// The code.
    pub(super) fn cubin(&self) -> Result<Vec<u8>, Failure> {
        self.bytes(self.api.cubin_size, self.api.cubin).map_err(|code| ("nvrtcGetCUBIN", code))
    }

    fn bytes(
        &self,
        size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, c_int> {
        let mut n = 0;
        // SAFETY: the handle is a program's, and the pointer is valid for the call.
        let code = unsafe { size(self.handle, &mut n) };
        if code != 0 {
            return Err(code);
        }
        let mut bytes = vec![0u8; n];
        // SAFETY: the function writes as many bytes as the one before has said.
        let code = unsafe { get(self.handle, bytes.as_mut_ptr().cast()) };
        if code == 0 { Ok(bytes) } else { Err(code) }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is a program's, and nobody uses it afterwards.
        unsafe { (self.api.destroy)(&mut self.handle) };
    }
}
