//! The rotary settings of `config.json`: `rope_parameters` of newer files, `rope_theta` and `rope_scaling` of older ones.

use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::{RopeScaling, Yarn};
use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::error::Result;
use crate::model::RopeSettings;

/// Reads the settings with transformers' defaults; `theta` is the family's.
pub(super) fn read(
    fields: &Fields<'_>,
    theta: f64,
    max_positions: usize,
    style: RopeStyle,
) -> Result<RopeSettings> {
    let theta = fields.number_or("rope_theta", theta)?;
    let nested = match fields.object("rope_parameters")? {
        Some(object) => Some(object),
        None => fields.object("rope_scaling")?,
    };
    for holder in [Some(*fields), nested].into_iter().flatten() {
        if holder.number("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
            return Err(
                holder.wrong("partial_rotary_factor", "heads are turned as a whole: only 1.0 is supported")
            );
        }
    }
    let Some(nested) = nested else { return Ok(RopeSettings { theta, style, scaling: RopeScaling::None }) };
    let theta = nested.number_or("rope_theta", theta)?;
    Ok(RopeSettings { theta, style, scaling: scaling(&nested, max_positions)? })
}

fn scaling(fields: &Fields<'_>, max_positions: usize) -> Result<RopeScaling> {
    let key = if fields.has("rope_type") { "rope_type" } else { "type" };
    let factor = || match fields.number("factor")? {
        Some(factor) => Ok(factor),
        None => {
            Err(fields.wrong("factor", "this kind of rotary scaling needs it: give a number, such as 4.0"))
        }
    };
    let trained = || fields.count_or("original_max_position_embeddings", max_positions);
    Ok(match fields.text(key)?.unwrap_or("default") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: factor()? },
        "dynamic" => RopeScaling::Dynamic { factor: factor()?, original_max_positions: max_positions },
        "llama3" => RopeScaling::Llama3 {
            factor: factor()?,
            low_freq_factor: fields.number_or("low_freq_factor", 1.0)?,
            high_freq_factor: fields.number_or("high_freq_factor", 4.0)?,
            original_max_positions: trained()?,
        },
        "yarn" => {
            let original_max_positions = trained()?;
            let stretch = max_positions as f64 / original_max_positions as f64;
            RopeScaling::Yarn(Yarn {
                factor: fields.number_or("factor", stretch)?,
                original_max_positions,
                beta_fast: fields.number_or("beta_fast", 32.0)?,
                beta_slow: fields.number_or("beta_slow", 1.0)?,
                attention_factor: fields.number("attention_factor")?,
                mscale: fields.number("mscale")?,
                mscale_all_dim: fields.number("mscale_all_dim")?,
                truncate: fields.flag_or("truncate", true)?,
            })
        }
        _ => return Err(fields.wrong(key, "supported are default, linear, dynamic, llama3 and yarn")),
    })
}

/// The settings as the object `rope_parameters`.
pub(super) fn write(rope: &RopeSettings) -> Map<String, Value> {
    let (kind, details) = match rope.scaling {
        RopeScaling::None => ("default", json!({})),
        RopeScaling::Linear { factor } => ("linear", json!({ "factor": factor })),
        RopeScaling::Dynamic { factor, .. } => ("dynamic", json!({ "factor": factor })),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => (
            "llama3",
            json!({
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_positions,
            }),
        ),
        RopeScaling::Yarn(yarn) => (
            "yarn",
            json!({
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.original_max_positions,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "attention_factor": yarn.attention_factor,
                "mscale": yarn.mscale,
                "mscale_all_dim": yarn.mscale_all_dim,
                "truncate": yarn.truncate,
            }),
        ),
    };
    let Value::Object(mut object) = details else { return Map::new() };
    object.retain(|_, value| !value.is_null());
    object.insert("rope_theta".to_string(), json!(rope.theta));
    object.insert("rope_type".to_string(), json!(kind));
    object
}
