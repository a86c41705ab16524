//! A device is a value: the kernels to use, and the pool that its memory comes from.

use std::sync::Arc;

use crate::arena::{Arena, Buffer};
use crate::cpu::{Cpu, Isa};
use crate::error::Result;
use crate::par::Par;
use crate::profile::Profile;

/// Where tensors live and ops run. Cloning gives another handle to the same device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    kind: Kind,
    arena: Arena,
    profile: Profile,
}

/// The kinds of device; ops choose their kernels by it.
pub(crate) enum Kind {
    Cpu(Cpu),
}

impl Device {
    /// The CPU, on the given code path, with the given threads.
    pub fn cpu(isa: Isa, par: Par) -> Device {
        let kind = Kind::Cpu(Cpu { isa, par });
        Device(Arc::new(Inner { kind, arena: Arena::new(), profile: Profile::default() }))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    /// The pool of this device's memory.
    pub fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// The times of the ops run on this device, when switched on.
    pub fn profile(&self) -> &Profile {
        &self.0.profile
    }

    /// What the kernels run on, in words.
    pub fn describe(&self) -> String {
        match self.kind() {
            Kind::Cpu(cpu) => format!("cpu, {}, {} thread(s)", cpu.isa.path(), cpu.par.n_threads()),
        }
    }

    pub(crate) fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Scratch space for one kernel call.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Buffer> {
        self.0.arena.allocate(bytes, "scratch")
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}
