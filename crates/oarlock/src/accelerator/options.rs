//! How an engine holds a model, from the plain values of a configuration.

use oarlock_tensor::DType;

use crate::config::{self, Precision, ShardArgs, ShardGroup};
use crate::nn::Wrap;
use crate::shard::{Lifetime, Offload, Options, Placement, Placements};

/// How an engine holds a model of this hidden size, which counts only where sizes follow from it.
pub fn engine_options(shard: &ShardArgs, precision: Precision, hidden_size: usize) -> Options {
    let ShardArgs { optimizer, gradients, parameters, lifetime, group, .. } = *shard;
    Options {
        dtype: dtype(precision),
        placements: Placements {
            optimizer: placement(optimizer),
            gradients: placement(gradients),
            parameters: placement(parameters),
        },
        lifetime: match lifetime {
            config::Lifetime::OneUse => Lifetime::OneUse,
            config::Lifetime::ForwardToBackward => Lifetime::ForwardToBackward,
        },
        group: match group {
            ShardGroup::World | ShardGroup::Machine => None,
            ShardGroup::Ranks(ranks) => Some(ranks),
        },
        by_machine: group == ShardGroup::Machine,
        secondary: shard.secondary,
        wrap: wrap(&shard.wrap),
        prefetch_elems: shard.prefetch.of(hidden_size),
        max_live_elems: shard.max_live.of(hidden_size),
        persistence_elems: shard.persistence.of(hidden_size),
        reduce_bucket_elems: shard.reduce_bucket.of(hidden_size),
        reduce_dtype: shard.reduce_precision.map_or(DType::F32, dtype),
        offload_optimizer: offload(shard.offload_optimizer.as_ref()),
        offload_params: offload(shard.offload_parameters.as_ref()),
        ..Options::default()
    }
}

/// Which of a model's units are units.
pub fn wrap(wrap: &config::Wrap) -> Wrap {
    match wrap {
        config::Wrap::Declared => Wrap::Declared,
        config::Wrap::Classes(classes) => Wrap::Transformer(classes.clone()),
        config::Wrap::Size(least) => Wrap::Size(*least),
        config::Wrap::None => Wrap::None,
    }
}

fn dtype(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
    }
}

fn placement(placement: config::Placement) -> Placement {
    match placement {
        config::Placement::Whole => Placement::Whole,
        config::Placement::Sharded => Placement::Sharded,
    }
}

/// Files, where state is to lie there; the host's memory is where CPU ranks have it anyway.
fn offload(offload: Option<&config::Offload>) -> Option<Offload> {
    match offload? {
        config::Offload::Cpu => None,
        config::Offload::Nvme { path, sub_group_elems, buffers } => {
            Some(Offload { dir: path.clone(), sub_group_elems: *sub_group_elems, buffers: *buffers })
        }
    }
}
