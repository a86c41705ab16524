//! How `prepare` divides a loader among the ranks.

use std::sync::Arc;

use super::collate::Collator;
use super::core::Codec;
use super::dataset::Data;
use super::loader::{DataLoader, Division};
use super::prepared::PreparedLoader;
use crate::nn::nested::{Nested, Parcel};
use crate::{Ends, Error, Plan, Prepare, Result};

impl<I, C> Prepare for DataLoader<I, C>
where
    I: Send + 'static,
    C: Collator<I>,
    C::Batch: Nested,
{
    type Prepared = PreparedLoader<C::Batch>;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        self.order()?;
        if let Some(batch_size) = self.settings.batch_size {
            let ranks = match plan.accelerator.inner.config.dataloader.split_batches {
                true => plan.accelerator.data_ranks().world_size(),
                false => 1,
            };
            plan.add_batch_size(batch_size.div_ceil(ranks));
        }
        Ok(())
    }

    fn finish(mut self, plan: &Plan) -> Result<PreparedLoader<C::Batch>> {
        let accelerator = &plan.accelerator;
        let config = &accelerator.inner.config.dataloader;
        let (rank, world) = (accelerator.data_ranks().rank(), accelerator.data_ranks().world_size());
        let division = Division {
            rank,
            world,
            split: config.split_batches,
            // A rank alone waits for nobody.
            even: config.even_batches && world > 1,
            together: config.ends == Ends::Together,
        };
        let is_divided = self.is_divided(division, config.dispatch_batches == Some(true))?;
        let dispatches = config.dispatch_batches.unwrap_or(self.is_stream()) && world > 1 && !is_divided;
        let seed = config.data_seed.unwrap_or(accelerator.seed());
        let rule =
            if is_divided { Division { together: division.together, ..Division::NONE } } else { division };
        let mut core = self.core(rule, accelerator.device().clone(), seed)?;
        (core.rank, core.order.divided) = (rank, is_divided.then_some(world));
        core.accelerator = Some(accelerator.clone());
        if dispatches {
            // Each rank takes part in sending, so all end together.
            core.rule.together = true;
            core.codec = Some(Codec { pack: C::Batch::pack, unpack: C::Batch::unpack });
            let mut parcel = Parcel::new(accelerator.device());
            core.order.n_samples().pack(&mut parcel)?;
            let n = accelerator.data_ranks().broadcast_bytes(0, parcel.bytes())?;
            if self.settings.sampler.is_none() && self.settings.batch_sampler.is_none() {
                core.order.n_at_root = Option::unpack(&mut Parcel::open(n, accelerator.device()))?;
            }
        } else if let Some(n) = core.order.n_samples()
            && core.together().is_none()
        {
            accelerator.data_ranks().agree("the number of samples of a data set", n as u64)?;
        }
        // Not the loader itself: it holds the accelerator.
        accelerator.inner.saved.add_part("dataloader", Arc::new(core.order.clone()));
        Ok(PreparedLoader::of(core))
    }
}

impl<I: Send + 'static, C> DataLoader<I, C> {
    /// Whether the samples are those of this rank already: the sampler's, or those of a stream that divides itself,
    /// which it does here.
    fn is_divided(&mut self, division: Division, dispatches: bool) -> Result<bool> {
        let Division { rank, world, split, .. } = division;
        if let Some(replica) = self.replica() {
            if (replica.rank, replica.world) != (rank, world) {
                return Err(Error::Usage(format!(
                    "data loader: its sampler gives the samples of rank {} of {}, and this is rank {rank} of {world}; \
                     leave the sampler away, since `prepare` divides the data set among the ranks by itself",
                    replica.rank, replica.world
                )));
            }
            if split {
                return Err(Error::Usage(format!(
                    "data loader: split_batches divides each batch among {world} ranks, and its sampler gives the samples \
                     of one; leave the sampler away, or split_batches"
                )));
            }
            return Ok(true);
        }
        let shard = match &self.data {
            Data::Stream(dataset) if world > 1 && !split && !dispatches => dataset.shard(rank, world),
            _ => None,
        };
        let is_divided = shard.is_some();
        if let Some(shard) = shard {
            self.data = Data::Stream(shard);
        }
        Ok(is_divided)
    }
}
