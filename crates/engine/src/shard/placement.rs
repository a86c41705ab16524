//! Placements: whether a kind of state is whole on each rank or sharded over them, and what a
//! [`ShardingConfig`] says of them on a device. Every strategy of data parallelism is a row of this table:
//!
//! ```text
//! strategy                  optimizer  gradients  parameters  gathered copy lives
//! DDP, ZeRO-0, NO_SHARD     whole      whole      whole       always
//! ZeRO-1                    sharded    whole      whole       always
//! ZeRO-2                    sharded    sharded    whole       always
//! SHARD_GRAD_OP             sharded    sharded    sharded     from forward to backward
//! ZeRO-3, FULL_SHARD        sharded    sharded    sharded     one use
//! ```
//!
//! HYBRID_SHARD and MiCS are the last two inside groups of ranks ([`ShardingConfig::group`]); hpZ is the last with a second
//! copy, sharded inside groups ([`ShardingConfig::secondary`]).

use oarlock_tensor::Device;

use crate::nn::Wrap;
use crate::{Error, Result};
pub use oarlock_config::config::{
    Gather, Lifetime, Offload, Placement, Placements, Quantized, ShardingConfig, Untouched,
};

/// What of a configuration there is on a device: state of the CPU is in main memory anyway.
pub(super) fn on_device(mut config: ShardingConfig, device: &Device) -> ShardingConfig {
    if !device.is_cuda() {
        config.offload_optimizer = config.offload_optimizer.filter(Offload::is_in_files);
        config.offload_params = config.offload_params.filter(Offload::is_in_files);
    }
    config
}

/// Whether the CPU beside a device runs the optimizer.
pub(super) fn updates_beside(config: &ShardingConfig, device: &Device) -> bool {
    device.is_cuda() && config.offload_optimizer.is_some()
}

/// Looks for what a stage of a pipeline cannot have: micro-batches are in flight there in any order, and nothing may
/// move during their passes.
///
/// # Errors
/// What, and what to do.
pub(crate) fn check_stage(config: &ShardingConfig) -> Result<()> {
    if config.placements.gradients == Placement::Sharded {
        return Err(Error::Usage(
            "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism, as in DeepSpeed: use stage 0 or 1 (NO_SHARD in \
             FSDP's terms)"
                .to_owned(),
        ));
    }
    if config.wrap != Wrap::Declared {
        return Err(Error::Usage(
            "a wrap policy other than that of the model's layers does not go with pipeline parallelism"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Looks for what contradicts itconfig.
///
/// # Errors
/// What, and what to do.
pub fn check_sharding(config: &ShardingConfig, world_size: usize) -> Result<()> {
    let wrong = |what: String| Err(Error::Usage(what));
    let Placements { optimizer, gradients, parameters } = config.placements;
    if (gradients, optimizer) == (Placement::Sharded, Placement::Whole)
        || (parameters, gradients) == (Placement::Sharded, Placement::Whole)
    {
        return wrong("sharded parameters need sharded gradients, and those a sharded optimizer".to_string());
    }
    for (what, size) in [("sharding group", config.group), ("secondary group", config.secondary)] {
        if let Some(size) = size
            && (size == 0 || !world_size.is_multiple_of(size))
        {
            return wrong(format!("{world_size} ranks cannot be split into {what}s of {size}"));
        }
    }
    if config.group.is_some() && gradients == Placement::Whole {
        return wrong("a sharding group needs sharded gradients".to_string());
    }
    if config.group.is_some() && config.secondary.is_some() {
        return wrong("give a sharding group or a secondary group, not both".to_string());
    }
    if config.quantized.any() && parameters == Placement::Whole {
        return wrong(
            "quantized weights and gradients (ZeRO++) need sharded parameters (ZeRO-3)".to_string(),
        );
    }
    let in_files = |offload: &Option<Offload>| offload.as_ref().is_some_and(Offload::is_in_files);
    if in_files(&config.offload_params) && parameters == Placement::Whole {
        return wrong("parameters can be offloaded only where they are sharded (ZeRO-3)".to_string());
    }
    if in_files(&config.offload_optimizer) && optimizer == Placement::Whole {
        return wrong("the optimizer can be offloaded only where it is sharded (ZeRO-1 to 3)".to_string());
    }
    let reduce_dtype = config.reduces_in();
    if !config.dtype.is_float() || !reduce_dtype.is_float() {
        return wrong(format!("cannot train in {} and reduce in {reduce_dtype}", config.dtype));
    }
    if config.reduce_bucket_elems == 0 {
        return wrong("a reduction of no elements: reduce_bucket_size must be at least 1".to_string());
    }
    Ok(())
}
