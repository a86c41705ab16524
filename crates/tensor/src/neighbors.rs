//! Parameters that lie one behind the other in the buffers of their home, as one parameter: a GPU multiplies by all of them at
//! once.

use std::sync::Arc;

use oarlock_kernels::{DType, Error, Result};

use crate::param::{GradSlot, Param, ParamHome, Store};
use crate::shape::Shape;
use crate::tape::Tape;
use crate::tensor::Tensor;

impl Param {
    /// The rows of all of these, one after the other, as one parameter that has its weights and gradients where they have
    /// theirs; `None` where these do not follow each other without a gap in one home.
    ///
    /// # Errors
    /// A parameter without a home.
    pub fn side_by_side(params: &[&Param]) -> Result<Option<Param>> {
        let Some(first) = params.first() else { return Ok(None) };
        let (slot, [_, row @ ..]) = (first.slot()?, first.shape().sizes()) else { return Ok(None) };
        let Some(begin) = slot.home.place(slot.index).map(|place| place.start) else { return Ok(None) };
        let (mut end, mut rows, mut indices) = (begin, 0, Vec::with_capacity(params.len()));
        for param in params {
            let (other, sizes) = (param.slot()?, param.shape().sizes());
            let place = other.home.place(other.index).filter(|place| place.start == end);
            let Some(place) = place.filter(|_| Arc::ptr_eq(&slot.home, &other.home) && sizes[1..] == *row)
            else {
                return Ok(None);
            };
            (end, rows) = (place.end, rows + sizes[0]);
            indices.push(other.index);
        }
        let sizes: Vec<usize> = [&[rows], row].concat();
        let shape = Shape::new(&sizes)?;
        let all = Param::new(shape, first.init());
        all.settle(Arc::new(Neighbors { home: slot.home, indices, first: begin, shape }), 0);
        Ok(Some(all))
    }
}

/// The home of all of them together.
struct Neighbors {
    home: Arc<dyn ParamHome>,
    /// Their numbers there, in order; there is one at least.
    indices: Vec<usize>,
    /// The first element of the first of them.
    first: usize,
    shape: Shape,
}

impl ParamHome for Neighbors {
    fn weight(&self, _index: usize) -> Result<Tensor> {
        self.home.weight(self.indices[0])?.lent_on(self.shape)
    }

    fn grad(&self, _index: usize) -> Result<Option<GradSlot>> {
        let (mut stores, mut last) = (Vec::with_capacity(self.indices.len()), None::<GradSlot>);
        for &index in &self.indices {
            // The buffer is lent to one at a time.
            drop(last.take());
            let Some(slot) = self.home.grad(index)? else { return Ok(None) };
            stores.push(slot.store);
            last = Some(slot);
        }
        // Some may have been used by themselves before: then the others have a gradient of nothing, to which this one is added.
        if stores.contains(&Store::Add) && stores.contains(&Store::Overwrite) {
            drop(last.take());
            let device = self.home.weight(self.indices[0])?.device().clone();
            for (&index, _) in
                self.indices.iter().zip(&stores).filter(|(_, store)| **store == Store::Overwrite)
            {
                let Some(mut slot) = self.home.grad(index)? else { return Ok(None) };
                slot.store = Store::Overwrite;
                let zeros = Tensor::zeros([slot.n_elems()], DType::F32, &device)?;
                slot.put(&zeros)?;
            }
            last = self.home.grad(self.indices[self.indices.len() - 1])?;
        }
        Ok(last.map(|slot| slot.beginning_at(self.first)))
    }

    fn gradient(&self, _index: usize) -> Result<Option<Tensor>> {
        Err(Error::Usage("the gradients of neighbors are read one by one".to_owned()))
    }

    fn trainable(&self, _index: usize) -> bool {
        self.home.trainable(self.indices[0])
    }

    fn active_tape(&self) -> Option<Tape> {
        self.home.active_tape()
    }
}
