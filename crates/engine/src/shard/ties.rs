//! The gradients of parameters that several stages of a pipeline share, summed over these stages.

use oarlock_tensor::DType;
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;

use crate::Result;
use crate::shard::order::ready;
use crate::shard::passes::Core;
use crate::shard::stage::TiedGroup;

impl Core {
    /// Sums the gradients of tied parameters over their stages, after those over the data.
    pub fn reduce_ties(&self) -> Result<()> {
        for group in self.groups.iter().filter(|group| group.trainable) {
            let (Some(TiedGroup { tie, region }), Some(grads)) = (&group.tied, group.params.grads()) else {
                continue;
            };
            let (updated, sums) = (group.state.updated.clone(), region.flat());
            let (own, sum) = (
                Part { flat: &grads, range: updated.clone() },
                Part { flat: &sums, range: 0..updated.len() },
            );
            transfer::copy(&self.device, DType::F32, &own, &sum)?;
            tie.comm.all_reduce(region, DType::F32, 0..updated.len(), ready(&sums)?)?.precede_launches()?;
            transfer::copy(&self.device, DType::F32, &sum, &own)?;
        }
        Ok(())
    }
}
