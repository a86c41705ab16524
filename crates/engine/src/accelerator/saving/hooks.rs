//! Functions that a loop has registered, in the order in which they came.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Hooks of one kind, such as those before a save.
pub(crate) struct Hooks<F: ?Sized>(Arc<Mutex<Vec<Arc<F>>>>);

impl<F: ?Sized> Default for Hooks<F> {
    fn default() -> Hooks<F> {
        Hooks(Arc::default())
    }
}

impl<F: ?Sized + Send + Sync + 'static> Hooks<F> {
    pub fn add(&self, hook: Arc<F>) -> HookHandle {
        let (list, own) = (Arc::downgrade(&self.0), Arc::downgrade(&hook));
        lock(&self.0).push(hook);
        HookHandle(Box::new(move || {
            if let Some(list) = list.upgrade() {
                lock(&list).retain(|hook| !std::ptr::addr_eq(Arc::as_ptr(hook), own.as_ptr()));
            }
        }))
    }

    /// All of them; a hook that runs may register or remove hooks.
    pub fn all(&self) -> Vec<Arc<F>> {
        lock(&self.0).clone()
    }
}

fn lock<F: ?Sized>(hooks: &Mutex<Vec<Arc<F>>>) -> MutexGuard<'_, Vec<Arc<F>>> {
    hooks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A hook that was registered; it stays when this is dropped.
pub struct HookHandle(Box<dyn FnOnce() + Send + Sync>);

impl HookHandle {
    /// Takes the hook away.
    pub fn remove(self) {
        (self.0)();
    }
}
