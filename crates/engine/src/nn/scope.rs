//! Forward passes of modules as scopes of the device's profile.

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_tensor::{Device, Scope};

use super::module::Module;

/// Runs a forward pass of a module as a scope, which a profile tells from those of other modules of its kind.
pub fn in_scope<M: Module, R>(module: &M, device: &Device, forward: impl FnOnce() -> R) -> R {
    device.profile().scope(|| Scope { name: module.kind(), id: address_of(module) }, forward)
}

/// The time of a module in scopes that were kept; `None` where its passes are not scopes.
pub fn time_of(module: &dyn Module, times: &BTreeMap<Scope, Duration>) -> Option<Duration> {
    times.get(&Scope { name: module.kind(), id: address_of(module) }).copied()
}

fn address_of(module: &dyn Module) -> usize {
    std::ptr::from_ref(module).cast::<()>().addr()
}
