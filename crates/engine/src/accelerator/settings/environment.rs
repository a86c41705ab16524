//! What `accelerate launch` and the launchers from code tell a program through variables.

use oarlock_config::dialect::accelerate::{USE_FSDP, asks, fsdp};
use oarlock_tensor::{DType, DeviceKind};

use super::config::AcceleratorConfig;
use crate::distributed::rank::{self, MIXED_PRECISION};
use crate::shard::ShardingConfig;
use crate::{Error, Result};

const USE_DEEPSPEED: &str = "ACCELERATE_USE_DEEPSPEED";

const FSDP_RECOMPUTES: &str = "FSDP_ACTIVATION_CHECKPOINTING";

const ACCUMULATION: &str = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";

/// A configuration with what the launcher of this rank, one of so many, says. As in the original the precision and FSDP's
/// settings count where the program names none, and the number of accumulation steps counts over the program's.
///
/// # Errors
/// A variable whose value makes no sense; it is named.
pub(crate) fn apply(config: &AcceleratorConfig, ranks: usize) -> Result<AcceleratorConfig> {
    with(config, ranks, &rank::variable)
}

/// What the launcher asks for and a program does not take from it.
pub(crate) fn without_effect(config: &AcceleratorConfig) -> Vec<String> {
    not_taken(config, &rank::variable)
}

fn not_taken(config: &AcceleratorConfig, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut notes = Vec::new();
    if asks(USE_DEEPSPEED, lookup).is_some() && !has_plugin(config) {
        notes.push(format!(
            "{USE_DEEPSPEED} is set and has no effect: a program takes DeepSpeed's settings from `deepspeed_plugin` in its \
             AcceleratorConfig"
        ));
    }
    if asks(USE_FSDP, lookup).is_some() && asks(FSDP_RECOMPUTES, lookup).is_some() {
        notes.push(format!(
            "{FSDP_RECOMPUTES} is set and has no effect: the model of a program says what it recomputes"
        ));
    }
    notes
}

fn has_plugin(config: &AcceleratorConfig) -> bool {
    config.deepspeed_plugin.is_some() || !config.deepspeed_plugins.is_empty()
}

fn with(
    config: &AcceleratorConfig,
    ranks: usize,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<AcceleratorConfig> {
    // A variable that is empty is one that is not set.
    let said = |name| lookup(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
    let mut config = config.clone();
    let on_cpu =
        asks("ACCELERATE_USE_CPU", lookup).is_some() || said("DS_ACCELERATOR").as_deref() == Some("cpu");
    if config.device == DeviceKind::Auto && on_cpu {
        config.device = DeviceKind::Cpu;
    }
    if config.mixed_precision.is_none()
        && let Some(value) = said(MIXED_PRECISION)
    {
        config.mixed_precision = precision(&value)?;
    }
    // A launcher that leaves it open, as for DeepSpeed, says "auto": the program's number counts.
    if let Some(value) = said(ACCUMULATION).filter(|value| value != "auto") {
        config.gradient_accumulation.num_steps = match value.parse::<usize>() {
            Ok(steps) if steps > 0 => steps,
            _ => return Err(wrong(ACCUMULATION, &value, "a whole number from 1 on, or auto")),
        };
    }
    if config.shard == ShardingConfig::default()
        && !has_plugin(&config)
        && let Some(shard) = fsdp(lookup, ranks)?
    {
        // FSDP has no size that follows from the model's.
        config.shard = shard.resolve(DType::F32, 0);
    }
    Ok(config)
}

/// The dtype of a precision in the words of Accelerate; none for "no".
fn precision(value: &str) -> Result<Option<DType>> {
    match value.to_lowercase().as_str() {
        "no" => Ok(None),
        "bf16" => Ok(Some(DType::BF16)),
        "fp16" => Ok(Some(DType::F16)),
        "fp8" => Err(wrong(MIXED_PRECISION, value, "no, fp16 or bf16; no processor here multiplies in fp8")),
        _ => Err(wrong(MIXED_PRECISION, value, "no, fp16 or bf16")),
    }
}

fn wrong(name: &str, value: &str, expected: &str) -> Error {
    Error::Usage(format!(
        "{name}={value}: expected {expected}; the variable comes from `accelerate launch` or from the script that \
         starts this program"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Wrap;
    use crate::shard::{Lifetime, Placements};
    use crate::{DeepSpeedPlugin, GradientAccumulation};

    fn message(config: AcceleratorConfig, variables: &[(&str, &str)]) -> Result<(Option<DType>, usize)> {
        let lookup =
            |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
        let config = with(&config, 2, &lookup)?;
        Ok((config.mixed_precision, config.gradient_accumulation.num_steps))
    }

    #[test]
    fn the_launcher_names_what_the_program_leaves_open_and_wins_where_the_original_lets_it() {
        let program = AcceleratorConfig {
            mixed_precision: Some(DType::F32),
            gradient_accumulation: GradientAccumulation::steps(3),
            ..AcceleratorConfig::default()
        };
        let variables = [(MIXED_PRECISION, "BF16"), (ACCUMULATION, "4")];
        assert_eq!(message(AcceleratorConfig::default(), &variables).unwrap(), (Some(DType::BF16), 4));
        assert_eq!(message(program.clone(), &variables).unwrap(), (Some(DType::F32), 4));
        let variables = [(MIXED_PRECISION, "no"), (ACCUMULATION, "auto")];
        assert_eq!(message(AcceleratorConfig::default(), &variables).unwrap(), (None, 1));
        assert_eq!(message(program, &[(ACCUMULATION, "")]).unwrap(), (Some(DType::F32), 3));
    }

    #[test]
    fn fsdp_of_the_launcher_counts_where_the_program_divides_nothing() {
        let variables = [
            ("ACCELERATE_USE_FSDP", "true"),
            ("FSDP_VERSION", "1"),
            ("FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"),
            ("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"),
            ("FSDP_TRANSFORMER_CLS_TO_WRAP", "Block,Head"),
            ("FSDP_MIN_NUM_PARAMS", "100000000"),
        ];
        let shard = |config: &AcceleratorConfig, variables: &[(&str, &str)]| {
            let lookup = |name: &str| {
                variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
            };
            with(config, 2, &lookup).map(|config| config.shard)
        };
        let unset = AcceleratorConfig::default();
        let message = shard(&unset, &variables).unwrap();
        assert_eq!(
            (message.placements, message.lifetime),
            (Placements::PARAMETERS, Lifetime::ForwardToBackward)
        );
        assert_eq!(message.wrap, Wrap::Transformer(vec!["Block".to_owned(), "Head".to_owned()]));
        assert_eq!(
            shard(&unset, &variables[1..]).unwrap(),
            ShardingConfig::default(),
            "nothing asks for FSDP"
        );
        let own = ShardingConfig { placements: Placements::GRADIENTS, ..ShardingConfig::default() };
        let program = AcceleratorConfig { shard: own.clone(), ..AcceleratorConfig::default() };
        assert_eq!(shard(&program, &variables).unwrap(), own);
        let plugin = AcceleratorConfig {
            deepspeed_plugin: Some(DeepSpeedPlugin::default()),
            ..AcceleratorConfig::default()
        };
        assert_eq!(shard(&plugin, &variables).unwrap(), ShardingConfig::default());
        let wrong = [("ACCELERATE_USE_FSDP", "true"), ("FSDP_AUTO_WRAP_POLICY", "SIZE_BASED")];
        let message = shard(&unset, &wrong).unwrap_err().to_string();
        assert!(message.contains("FSDP_AUTO_WRAP_POLICY: `auto_wrap_policy` takes one of"), "{message}");
    }

    #[test]
    fn what_a_program_does_not_take_from_the_launcher_is_said() {
        let notes = |config: &AcceleratorConfig, variables: &[(&str, &str)]| {
            let lookup = |name: &str| {
                variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
            };
            not_taken(config, &lookup)
        };
        let unset = AcceleratorConfig::default();
        let plugin =
            AcceleratorConfig { deepspeed_plugin: Some(DeepSpeedPlugin::default()), ..unset.clone() };
        let deepspeed = [("ACCELERATE_USE_DEEPSPEED", "true"), ("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")];
        let said = notes(&unset, &deepspeed);
        assert!(said.len() == 1 && said[0].starts_with("ACCELERATE_USE_DEEPSPEED is set"), "{said:?}");
        assert!(notes(&plugin, &deepspeed).is_empty());
        let fsdp =
            |recomputes| [("ACCELERATE_USE_FSDP", "true"), ("FSDP_ACTIVATION_CHECKPOINTING", recomputes)];
        let said = notes(&unset, &fsdp("true"));
        assert!(said.len() == 1 && said[0].starts_with("FSDP_ACTIVATION_CHECKPOINTING is set"), "{said:?}");
        assert!(notes(&unset, &fsdp("false")).is_empty());
    }

    #[test]
    fn a_value_that_makes_no_sense_is_told_with_its_variable() {
        for (name, value, expected) in [
            (MIXED_PRECISION, "bf61", "ACCELERATE_MIXED_PRECISION=bf61: expected no, fp16 or bf16"),
            (
                MIXED_PRECISION,
                "fp8",
                "ACCELERATE_MIXED_PRECISION=fp8: expected no, fp16 or bf16; no processor",
            ),
            (
                ACCUMULATION,
                "0",
                "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=0: expected a whole number from 1 on",
            ),
            (ACCUMULATION, "two", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=two: expected a whole number"),
        ] {
            let error = message(AcceleratorConfig::default(), &[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
