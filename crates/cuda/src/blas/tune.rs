//! The algorithms that cuBLASLt has for a product, and how long each takes.

use super::plan::{Key, Plan};
use super::product::Product;
use super::{Algorithm, Blas, Engine, Shape, Tuned, expect};
use crate::error::{Error, Result};

/// Runs before those that count: the clock of the GPU rises, and what is read is where it will be.
const WARM: usize = 3;

impl Blas {
    /// The algorithms that cuBLASLt proposes, the one it would take first; none without cuBLASLt, or where it has none.
    ///
    /// # Errors
    /// As [`Blas::multiply`].
    pub fn candidates(&self, product: &Product<'_>, wanted: usize) -> Result<Vec<Algorithm>> {
        expect(self.stream.context(), product)?;
        let dims = product.check()?;
        let Engine::CublasLt(lt) = &self.engine else { return Ok(Vec::new()) };
        if dims.m == 0 {
            return Ok(Vec::new());
        }
        self.stream.context().enter()?;
        let (key, state) = (Key::new(product, dims), lt.state());
        let handle = state.handle.handle;
        match Plan::candidates(&lt.api, handle, product, &key, lt.workspace.bytes(), wanted) {
            Err(Error::NoAlgorithm { .. }) => Ok(Vec::new()),
            found => found,
        }
    }

    /// The milliseconds that a product takes with an algorithm, by events around `runs` of them; none if the library refuses
    /// it. Plans that were made before are forgotten.
    ///
    /// # Errors
    /// As [`Blas::multiply`].
    pub fn time(
        &self,
        shape: Shape,
        product: &Product<'_>,
        algorithm: Algorithm,
        runs: usize,
    ) -> Result<Option<f32>> {
        let mut tuned = Tuned::default();
        tuned.insert(shape, algorithm);
        self.tune(tuned);
        for _ in 0..WARM {
            self.multiply(product)?;
        }
        if let Engine::CublasLt(lt) = &self.engine
            && lt.state().plans.values().any(|way| !way.is_of_table())
        {
            return Ok(None);
        }
        self.stream.milliseconds(runs, || self.multiply(product)).map(Some)
    }
}
