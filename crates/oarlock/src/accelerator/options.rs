//! How an engine holds a model, from the plain values of a configuration.

use oarlock_tensor::DType;

use crate::config::{ShardArgs, ShardGroup};
use crate::shard::{Options, Placements};

/// How an engine holds a model of this hidden size, which counts only where sizes follow from it.
pub fn engine_options(shard: &ShardArgs, dtype: DType, hidden_size: usize) -> Options {
    let ShardArgs { optimizer, gradients, parameters, lifetime, group, .. } = *shard;
    Options {
        dtype,
        placements: Placements { optimizer, gradients, parameters },
        lifetime,
        group: match group {
            ShardGroup::World | ShardGroup::Machine => None,
            ShardGroup::Ranks(ranks) => Some(ranks),
        },
        by_machine: group == ShardGroup::Machine,
        secondary: shard.secondary,
        wrap: shard.wrap.clone(),
        prefetch_elems: shard.prefetch.of(hidden_size),
        max_live_elems: shard.max_live.of(hidden_size),
        persistence_elems: shard.persistence.of(hidden_size),
        reduce_bucket_elems: shard.reduce_bucket.of(hidden_size),
        overlap: shard.overlap,
        reduce_dtype: shard.reduce_dtype.unwrap_or(DType::F32),
        quantized: shard.quantized,
        offload_optimizer: shard.offload_optimizer.clone(),
        offload_params: shard.offload_parameters.clone(),
        ..Options::default()
    }
}
