//! The rotary settings of `config.json`: `rope_parameters` of newer files, `rope_theta` and `rope_scaling` of older ones.

use std::path::Path;

use oarlock_config::config::RopeKind;
use oarlock_engine::Result;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::{LongRope, RopeScaling, Yarn};
use serde_json::{Map, Value, json};

use super::fields::{FieldWriter, Fields};
use crate::model::config::RopeSettings;

/// What a family means by rotary settings that are not written.
#[derive(Clone, Copy)]
pub(in crate::model) struct RopeDefaults {
    /// `rope_theta`.
    pub(in crate::model) theta: f64,
    /// `partial_rotary_factor`; `None`: the family turns whole heads, and knows no such field.
    pub(in crate::model) share: Option<f64>,
    /// `original_max_position_embeddings` beside the other settings of the model.
    pub(in crate::model) original_max_positions: Option<usize>,
}

/// Reads the settings that all layers have; `max_positions` is the model's.
pub(in crate::model) fn read(
    fields: &Fields<'_>,
    defaults: &RopeDefaults,
    max_positions: usize,
    style: RopeStyle,
) -> Result<RopeSettings> {
    let nested = one_of_both(fields)?;
    let name = "original_max_position_embeddings";
    let (beside, within) =
        (fields.count(name)?, nested.as_ref().map_or(Ok(None), |nested| nested.count(name))?);
    // Phi-3 has it beside the other settings; elsewhere transformers reads what stands among the rotary ones alone.
    let original = beside.or(defaults.original_max_positions);
    if defaults.original_max_positions.is_none() && beside.is_some() && beside != within {
        let remedy = "transformers reads it in rope_parameters (or rope_scaling) alone; write it there, and nowhere else";
        return Err(fields.wrong(name, remedy));
    }
    let defaults = RopeDefaults {
        theta: fields.number_or("rope_theta", defaults.theta)?,
        share: share(fields, defaults.share)?,
        original_max_positions: original,
    };
    read_object(nested.as_ref(), &defaults, max_positions, style)
}

/// What stands in `rope_parameters` or `rope_scaling`. An empty object is none.
///
/// # Errors
/// Both of them that say different things: transformers takes the older one, and whoever wrote the newer one meant that.
pub(in crate::model) fn one_of_both<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    let object = |name| -> Result<_> { Ok(fields.object(name)?.filter(|object| !object.is_empty())) };
    let (newer, older) = (object("rope_parameters")?, object("rope_scaling")?);
    // Where layers of two kinds have their own, older fields are those of full attention.
    let of_full = match (&newer, &older) {
        (Some(newer), Some(_)) => newer.object("full_attention")?,
        _ => None,
    };
    match (newer, older) {
        (Some(newer), Some(older)) if !of_full.as_ref().unwrap_or(&newer).says_as_much_as(&older) => Err(fields.wrong(
            "rope_scaling",
            "\"rope_parameters\" says something else; keep one of them (transformers would take rope_scaling)",
        )),
        (newer, older) => Ok(newer.or(older)),
    }
}

/// Lines for settings that also stand outside of the rotary ones with another value, which does not count there.
pub(super) fn overruled(path: &Path, fields: &Fields<'_>) -> Vec<String> {
    let Ok(Some(nested)) = one_of_both(fields) else { return Vec::new() };
    let kinds = ["full_attention", "sliding_attention"];
    let objects = kinds.iter().filter_map(|kind| nested.object(kind).ok().flatten());
    let objects: Vec<Fields<'_>> = objects.chain([nested]).collect();
    let warnings = |name: &str| {
        let outer = fields.number(name).ok().flatten()?;
        let inner = objects.iter().find_map(|object| object.number(name).ok().flatten())?;
        (inner != outer).then(|| {
            format!(
                "note: {}: \"{name}\" is {outer}, and {inner} among the rotary settings, which counts, as in transformers",
                path.display()
            )
        })
    };
    ["rope_theta", "partial_rotary_factor"].into_iter().filter_map(warnings).collect()
}

/// Reads the settings in an object such as `rope_parameters`.
pub(in crate::model) fn read_object(
    object: Option<&Fields<'_>>,
    defaults: &RopeDefaults,
    max_positions: usize,
    style: RopeStyle,
) -> Result<RopeSettings> {
    let RopeDefaults { theta, share: default, original_max_positions } = *defaults;
    let Some(fields) = object else {
        return Ok(RopeSettings { theta, style, share: default.unwrap_or(1.0), scaling: RopeScaling::None });
    };
    Ok(RopeSettings {
        theta: fields.number_or("rope_theta", theta)?,
        style,
        share: share(fields, default)?.unwrap_or(1.0),
        scaling: scaling(fields, original_max_positions, max_positions)?,
    })
}

fn share(fields: &Fields<'_>, default: Option<f64>) -> Result<Option<f64>> {
    let name = "partial_rotary_factor";
    match (fields.number(name)?, default) {
        (Some(share), None) if share != 1.0 => {
            Err(fields.wrong(name, "heads are turned as a whole: only 1.0 is supported"))
        }
        (written, Some(default)) => Ok(Some(written.unwrap_or(default))),
        (_, None) => Ok(None),
    }
}

fn scaling(fields: &Fields<'_>, original: Option<usize>, max_positions: usize) -> Result<RopeScaling> {
    let key = if fields.has("rope_type") { "rope_type" } else { "type" };
    let factor = || match fields.number("factor")? {
        Some(factor) => Ok(factor),
        None => {
            Err(fields.wrong("factor", "this kind of rotary scaling needs it: give a number, such as 4.0"))
        }
    };
    let trained = || match original {
        Some(n) => Ok(n),
        None => fields.count_or("original_max_position_embeddings", max_positions),
    };
    let divisors = |name: &str| match fields.numbers(name)? {
        Some(numbers) => Ok(numbers.into()),
        None => Err(fields.wrong(name, "this kind of rotary scaling needs it: give a list of numbers")),
    };
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
            let plain = Yarn::new(fields.number_or("factor", stretch)?, original_max_positions);
            RopeScaling::Yarn(Yarn {
                beta_fast: fields.number_or("beta_fast", plain.beta_fast)?,
                beta_slow: fields.number_or("beta_slow", plain.beta_slow)?,
                attention_factor: fields.number("attention_factor")?,
                mscale: fields.number("mscale")?,
                mscale_all_dim: fields.number("mscale_all_dim")?,
                truncate: fields.flag_or("truncate", plain.truncate)?,
                ..plain
            })
        }
        // Phi-3's first files call it "su".
        "longrope" | "su" => {
            let original_max_positions = trained()?;
            let stretch = max_positions as f64 / original_max_positions as f64;
            RopeScaling::LongRope(LongRope {
                short_factor: divisors("short_factor")?,
                long_factor: divisors("long_factor")?,
                original_max_positions,
                factor: fields.number_or("factor", stretch)?,
                attention_factor: fields.number("attention_factor")?,
            })
        }
        _ => {
            return Err(
                fields.wrong(key, "supported are default, linear, dynamic, llama3, yarn and longrope")
            );
        }
    })
}

/// The length of a model's pretraining, where a scaling says it.
pub(super) fn original_max_positions(scaling: &RopeScaling) -> Option<usize> {
    match scaling {
        RopeScaling::Llama3 { original_max_positions, .. } => Some(*original_max_positions),
        RopeScaling::Yarn(yarn) => Some(yarn.original_max_positions),
        RopeScaling::LongRope(long) => Some(long.original_max_positions),
        RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Dynamic { .. } => None,
    }
}

/// A scaling by a factor for a model that was made for `original` positions, as LLaMA-Factory sets it.
pub(super) fn scaled(kind: RopeKind, original: usize, by: usize) -> RopeScaling {
    let factor = by as f64;
    match kind {
        RopeKind::Linear => RopeScaling::Linear { factor },
        // The length counts from which the base grows, and that is the new one.
        RopeKind::Dynamic => {
            RopeScaling::Dynamic { factor, original_max_positions: original.saturating_mul(by) }
        }
        RopeKind::Yarn => RopeScaling::Yarn(Yarn::new(factor, original)),
        RopeKind::Llama3 => RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: original,
        },
    }
}

/// The settings as the object `rope_parameters`; a share of 1 is left out.
pub(in crate::model) fn write(rope: &RopeSettings) -> Map<String, Value> {
    let (kind, details) = match &rope.scaling {
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
        RopeScaling::LongRope(long) => (
            "longrope",
            json!({
                "short_factor": &*long.short_factor,
                "long_factor": &*long.long_factor,
                "original_max_position_embeddings": long.original_max_positions,
                "factor": long.factor,
                "attention_factor": long.attention_factor,
            }),
        ),
    };
    let Value::Object(mut object) = details else { return Map::new() };
    object.retain(|_, value| !value.is_null());
    if rope.share != 1.0 {
        object.insert("partial_rotary_factor".to_string(), json!(rope.share));
    }
    object.insert("rope_theta".to_string(), json!(rope.theta));
    object.insert("rope_type".to_string(), json!(kind));
    object
}

impl FieldWriter {
    /// Writes rotary settings as `rope_parameters`, and in the fields that transformers 4 reads.
    pub(in crate::model) fn set_rope(&mut self, rope: &RopeSettings) {
        let mut parameters = self.take_object("rope_parameters");
        parameters.extend(write(rope));
        self.fields.insert("rope_parameters".to_owned(), Value::Object(parameters));
        self.set_older_rope(rope);
    }

    /// Writes rotary settings in the fields that transformers 4 reads, and later ones take for the same.
    pub(in crate::model) fn set_older_rope(&mut self, rope: &RopeSettings) {
        let mut scaling = write(rope);
        scaling.remove("rope_theta");
        if let Some(share) = scaling.remove("partial_rotary_factor") {
            self.set("partial_rotary_factor", share);
        }
        // Phi-3 refuses any other field there.
        if self.fields.get("model_type").is_some_and(|kind| kind == "phi3") {
            scaling.retain(|name, _| ["short_factor", "long_factor"].contains(&name.as_str()));
            if !scaling.is_empty() {
                scaling.insert("type".to_owned(), json!("longrope"));
            }
        }
        self.set("rope_theta", json!(rope.theta));
        match rope.scaling {
            RopeScaling::None => self.remove("rope_scaling"),
            _ => self.set("rope_scaling", Value::Object(scaling)),
        }
    }
}
