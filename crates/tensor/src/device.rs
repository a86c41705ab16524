//! A device is a value: the kernels to use, and the pool that its memory comes from.
//!
//! A *dry* device does everything but the work: ops check shapes, record and allocate as they would, so the arena's
//! accounts are exactly those of a real run, but there is no memory behind its tensors and no kernel runs.

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
    dry: bool,
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
        Device(Arc::new(Inner { kind, dry: false, arena: Arena::new(), profile: Profile::default() }))
    }

    /// A stand-in for the CPU that only counts: what a model would take of memory and do of work, in no time and
    /// without the memory. Its tensors have no values; whoever asks for them gets an error.
    pub fn dry(isa: Isa, par: Par) -> Device {
        let kind = Kind::Cpu(Cpu { isa, par });
        Device(Arc::new(Inner { kind, dry: true, arena: Arena::dry(), profile: Profile::default() }))
    }

    /// A dry device with the kernels and threads of this one, and an empty pool.
    pub fn as_dry(&self) -> Device {
        let Kind::Cpu(cpu) = &self.0.kind;
        Device::dry(cpu.isa, cpu.par.clone())
    }

    /// Whether this is a device that only counts.
    pub fn is_dry(&self) -> bool {
        self.0.dry
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0.kind
    }

    /// The door to the kernels, for all ops: runs `f`, and books it under `op` when the profile is on. A dry device
    /// only books it.
    pub(crate) fn run<R: Default>(
        &self,
        op: &'static str,
        flops: u64,
        bytes: u64,
        f: impl FnOnce(&Cpu) -> Result<R>,
    ) -> Result<R> {
        self.run_or(R::default(), op, flops, bytes, f)
    }

    /// As [`Device::run`], with what a dry device takes for the result.
    pub(crate) fn run_or<R>(
        &self,
        dry: R,
        op: &'static str,
        flops: u64,
        bytes: u64,
        f: impl FnOnce(&Cpu) -> Result<R>,
    ) -> Result<R> {
        if self.0.dry {
            self.0.profile.time(op, flops, bytes, || ());
            return Ok(dry);
        }
        let Kind::Cpu(cpu) = &self.0.kind;
        self.0.profile.time(op, flops, bytes, || f(cpu))
    }

    /// What the kernels run on, for the sizes of their scratch space.
    pub(crate) fn kernels(&self) -> &Cpu {
        let Kind::Cpu(cpu) = &self.0.kind;
        cpu
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
        let cpu = self.kernels();
        let dry = if self.0.dry { "dry " } else { "" };
        format!("{dry}cpu, {}, {} thread(s)", cpu.isa.path(), cpu.par.n_threads())
    }

    /// Whether it is this device.
    pub fn same(&self, other: &Device) -> bool {
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
