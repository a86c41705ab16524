//! Machine code in a context, and its kernels.

use std::ffi::{CString, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use super::api::{Handle, call};
use super::context::Context;
use super::limits::KernelNeeds;
use crate::error::{Error, Result};
use crate::kernel::Instance;

const MOST_THREADS: c_int = 0;
const STATIC_SHARED: c_int = 1;
const LOCAL_BYTES: c_int = 3;
const REGISTERS: c_int = 4;
const MOST_DYNAMIC_SHARED: c_int = 8;

/// Machine code that was loaded. Its kernels keep it.
#[derive(Clone)]
pub struct Module(Arc<Loaded>);

struct Loaded {
    context: Context,
    handle: Handle,
}

// SAFETY: the driver's functions may be called from any thread; a handle is only a name.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Module {
    pub(super) fn new(context: &Context, cubin: &[u8]) -> Result<Module> {
        // A cubin says its own length. An image of text ends with zero, so one is added for what is not a cubin.
        let image = [cubin, &[0]].concat();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the image lives until the call returns, and ends with zero; the pointer is valid for the call.
        unsafe { call!(context.enter()?, module_load(&mut handle, image.as_ptr().cast())) }?;
        Ok(Module(Arc::new(Loaded { context: context.clone(), handle })))
    }

    /// The code of an instance.
    ///
    /// # Errors
    /// The driver's own if there is none of its name.
    pub fn function(&self, instance: &Instance) -> Result<Function> {
        let name = instance.name();
        let symbol = CString::new(name.as_str()).unwrap_or_default();
        let mut handle = std::ptr::null_mut();
        let api = self.0.context.enter()?;
        // SAFETY: the module is live, the name ends with zero, and the pointer is valid for the call.
        unsafe { call!(api, module_function(&mut handle, self.0.handle, symbol.as_ptr())) }?;
        let get = |attribute| attribute_of(&self.0.context, handle, attribute);
        let needs = KernelNeeds {
            threads: get(MOST_THREADS)?,
            registers: get(REGISTERS)?,
            static_shared_bytes: get(STATIC_SHARED)? as usize,
        };
        let shared_bytes = Mutex::new(needs.usual_shared_bytes(self.0.context.limits()));
        Ok(Function { module: self.clone(), instance: instance.clone(), name, handle, needs, shared_bytes })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once, after its functions. The driver waits for launches that run its code.
        self.context.end(|api| unsafe {
            (api.module_unload.call)(self.handle);
        });
    }
}

/// A kernel that can be launched.
pub struct Function {
    module: Module,
    instance: Instance,
    name: String,
    handle: Handle,
    needs: KernelNeeds,
    /// What it may have of dynamic shared memory now. Locked while that changes, so that it never gets less.
    shared_bytes: Mutex<usize>,
}

// SAFETY: as for modules.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// What it is in the table.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.module.0.context
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn wrong(&self, reason: String) -> Error {
        Error::Launch { kernel: self.name.clone(), reason }
    }

    /// What its code takes of a GPU.
    pub fn needs(&self) -> &KernelNeeds {
        &self.needs
    }

    /// Bytes of a thread that do not fit into registers.
    ///
    /// # Errors
    /// The driver's own.
    pub fn local_bytes(&self) -> Result<u32> {
        attribute_of(self.context(), self.handle, LOCAL_BYTES)
    }

    /// Lets it have so much dynamic shared memory.
    pub(super) fn allow_shared(&self, bytes: usize) -> Result<()> {
        let mut allowed = self.shared_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes <= *allowed {
            return Ok(());
        }
        let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let api = self.context().enter()?;
        // SAFETY: the function is live; the driver checks the value.
        unsafe { call!(api, function_set(self.handle, MOST_DYNAMIC_SHARED, value)) }?;
        *allowed = bytes;
        Ok(())
    }
}

/// What the driver knows about a function of a live module.
fn attribute_of(context: &Context, function: Handle, attribute: c_int) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: the function is live, and the pointer is valid for the call.
    unsafe { call!(context.enter()?, function_get(&mut value, attribute, function)) }?;
    Ok(u32::try_from(value).unwrap_or_default())
}
