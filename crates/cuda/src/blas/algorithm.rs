//! An algorithm of cuBLASLt by its attributes, which mean the same in every process; its 64 bytes do not.

use std::ffi::{c_int, c_void};
use std::fmt;

use super::api::{Algo, Api, Choice, Handle, call};
use super::plan::Descriptors;
use crate::error::Result;

/// The attributes of `cublasLtMatmulAlgoConfigAttributes_t` in their order.
const N_ATTRIBUTES: usize = 9;
/// The attributes whose type has 16 bits: the inner shape and the shape of a cluster.
const SHORT: [usize; 2] = [7, 8];
const REDUCTION: usize = 3;

/// An algorithm: its id, the tile, splits of the inner dim, how these are summed, the order of blocks, an option of its own,
/// stages, the shape of an instruction, and that of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Algorithm([u32; N_ATTRIBUTES]);

impl Algorithm {
    /// Of these attributes, in the order of cuBLASLt's numbers for them.
    pub const fn new(attributes: [u32; 9]) -> Algorithm {
        Algorithm(attributes)
    }

    /// Whether it sums splits in f32 and in one order: in the output they would be rounded between.
    pub(super) fn is_exact(&self) -> bool {
        [0, super::plan::SUMS_IN_F32].contains(&self.0[REDUCTION])
    }

    /// What the library chose.
    pub(super) fn of(api: &Api, algo: &Algo) -> Result<Algorithm> {
        let mut attributes = [0; N_ATTRIBUTES];
        for (i, value) in attributes.iter_mut().enumerate() {
            let (bytes, mut written) = (size(i), 0);
            let to: *mut c_void = (&raw mut *value).cast();
            // SAFETY: the value has at least as many bytes as are written. Numbers begin with their lowest byte.
            let status = unsafe { call!(api, config_get(algo, i as c_int, to, bytes, &mut written)) };
            api.check(status)?;
        }
        Ok(Algorithm(attributes))
    }

    /// As the library takes it for a product; none if this version of it or this GPU does not have it, or it needs more
    /// workspace.
    pub(super) fn build(
        &self,
        api: &Api,
        handle: Handle,
        of: &Descriptors,
        workspace_bytes: usize,
    ) -> Option<Algo> {
        let ([a, b, c, d], compute, scale) = (of.types, of.compute, super::plan::TYPE_F32);
        let mut algo = Choice::none().algo;
        let id = self.0[0] as c_int;
        // SAFETY: the pointer is valid for the call.
        let made = unsafe { call!(api, algo_init(handle, compute, scale, a, b, c, d, id, &mut algo)) };
        api.check(made).ok()?;
        // The id is read only.
        for (i, value) in self.0.iter().enumerate().skip(1) {
            let from: *const c_void = (&raw const *value).cast();
            // SAFETY: as many bytes are read as the value has at least.
            let set = unsafe { call!(api, config_set(&mut algo, i as c_int, from, size(i))) };
            api.check(set).ok()?;
        }
        // The answer is in the state as well, if the library writes one.
        let mut checked = Choice::none();
        checked.state = 0;
        let [b, a, d] = &of.layouts;
        let [desc, b, a, d] = [&of.desc, b, a, d].map(|owned| owned.handle);
        // SAFETY: all descriptors are live, and the pointers are valid for the call.
        let answer = unsafe { call!(api, algo_check(handle, desc, b, a, d, d, &algo, &mut checked)) };
        api.check(answer).ok()?;
        (checked.state == 0 && checked.workspace_bytes <= workspace_bytes).then_some(algo)
    }
}

fn size(attribute: usize) -> usize {
    if SHORT.contains(&attribute) { 2 } else { 4 }
}

impl fmt::Display for Algorithm {
    /// Its numbers with spaces between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join(" "))
    }
}
