//! `all_to_all` as an op with a gradient.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_comm::{Communicator, Ready, Region, Sharing};
use oarlock_tensor::{DType, Error, Result, Tensor, bf16, f16, ops};

/// The group of ranks, and the memory in which they meet.
pub(super) struct Exchange {
    pub(super) comm: Communicator,
    /// What is sent and what comes, in regions that grow: all ranks exchange equal sizes in one order.
    regions: Mutex<Option<[Region; 2]>>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange(rank {} of {})", self.comm.rank(), self.comm.world_size())
    }
}

impl Exchange {
    pub(super) fn new(comm: Communicator) -> Exchange {
        Exchange { comm, regions: Mutex::new(None) }
    }

    /// Block `j` of x `[n, ..]` goes to rank `j`, and block `j` of what comes is rank `j`'s. The gradient goes back the same
    /// way, for a transposition is its own inverse.
    pub(super) fn exchange(self: &Arc<Self>, x: &Tensor) -> Result<Tensor> {
        let [there, back] = [self.clone(), self.clone()];
        ops::custom_linear("all_to_all", x, move |x| there.run(x), move |grad| back.run(grad))
    }

    fn run(&self, x: &Tensor) -> Result<Tensor> {
        if x.device().is_dry() {
            return Tensor::zeros(*x.shape(), x.dtype(), x.device());
        }
        let hook = |error: oarlock_comm::Error| Error::Hook(Box::new(error));
        let bytes = x.n_elems() * x.dtype().size();
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let [from, to] = match regions.take_if(|[from, _]| from.bytes() >= bytes) {
            Some(regions) => regions,
            None => {
                let region = |name| self.comm.allocate(name, bytes, Sharing::PerRank).map_err(hook);
                [region("all_to_all: sent")?, region("all_to_all: received")?]
            }
        };
        from.write(0, &x.to_bytes()?).map_err(hook)?;
        let elements = 0..x.n_elems();
        let sent = self.comm.all_to_all(&from, &to, x.dtype(), elements, Ready::now()).map_err(hook)?;
        sent.wait().map_err(hook)?;
        let received = match x.dtype() {
            DType::F32 => received::<f32>(&to, x),
            DType::BF16 => received::<bf16>(&to, x),
            DType::F16 => received::<f16>(&to, x),
            DType::I32 => received::<i32>(&to, x),
        };
        *regions = Some([from, to]);
        received
    }
}

/// What has come, in the shape of what was sent.
fn received<T: oarlock_tensor::Element>(to: &Region, x: &Tensor) -> Result<Tensor> {
    let mut values = vec![T::zeroed(); x.n_elems()];
    to.read(0, bytemuck::cast_slice_mut::<T, u8>(&mut values))
        .map_err(|error| Error::Hook(Box::new(error)))?;
    Tensor::from_slice(&values, *x.shape(), x.device())
}
