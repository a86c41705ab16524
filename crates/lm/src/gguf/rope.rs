//! Rotary positions of a GGUF file in the fields of Hugging Face.

use serde_json::{Map, Value, json};

use super::model_keys::{ModelKeys, decimal};
use super::parts::Found;

/// How far factors of a file may be from those of the formula that they are taken for, relatively: single precision.
const TOLERANCE: f64 = 1e-5;

/// Writes the fields.
///
/// # Errors
/// A scaling that these fields cannot say.
pub(super) fn read(keys: &ModelKeys<'_>, fields: &mut Map<String, Value>) -> Found<()> {
    let architecture = keys.architecture.name;
    let head_dim = fields.get("head_dim").and_then(Value::as_u64).unwrap_or_default();
    let theta = keys.get::<f32>("rope.freq_base")?.unwrap_or(10_000.0);
    let turned = keys.get::<u64>("rope.dimension_count")?.unwrap_or(head_dim);
    let share = turned as f64 / head_dim.max(1) as f64;
    fields.insert("rope_theta".to_owned(), decimal(theta));
    match architecture {
        "glm4" | "phi3" => drop(fields.insert("partial_rotary_factor".to_owned(), json!(share))),
        _ if turned == head_dim => {}
        _ => {
            return Err(format!(
                "rope.dimension_count is {turned}, and heads of {architecture} have {head_dim} elements"
            ));
        }
    }
    if architecture == "gemma3" {
        let local = keys.get::<f32>("rope.freq_base_swa")?.unwrap_or(10_000.0);
        fields.insert("rope_local_base_freq".to_owned(), decimal(local));
    }
    if let Some(scaling) = scaling(keys, fields, theta, head_dim)? {
        fields.insert("rope_scaling".to_owned(), scaling);
    }
    Ok(())
}

/// `rope_scaling`, where positions are scaled.
fn scaling(
    keys: &ModelKeys<'_>,
    fields: &mut Map<String, Value>,
    theta: f32,
    head_dim: u64,
) -> Found<Option<Value>> {
    let factor = keys.get::<f32>("rope.scaling.factor")?;
    // What files of long ago say instead.
    let factor = factor.or(keys.get::<f32>("rope.scale_linear")?).filter(|factor| *factor != 0.0);
    let original = keys.get::<u64>("rope.scaling.original_context_length")?;
    let longest = fields.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or_default();
    let kind = keys.get::<&str>("rope.scaling.type")?;
    if let Some(divisors) = keys.vector("rope_freqs.weight")? {
        return llama3(&divisors, f64::from(theta), head_dim);
    }
    let attention = keys.get::<f32>("rope.scaling.attn_factor")?;
    let divisors = (keys.vector("rope_factors_short.weight")?, keys.vector("rope_factors_long.weight")?);
    if let (Some(short), Some(long)) = divisors {
        let original =
            original.ok_or("rope.scaling.original_context_length is missing beside rope_factors_long")?;
        fields.insert("original_max_position_embeddings".to_owned(), json!(original));
        let list = |divisors: &[f32]| divisors.iter().map(|x| decimal(*x)).collect::<Value>();
        let mut said =
            json!({"rope_type": "longrope", "short_factor": list(&short), "long_factor": list(&long)});
        // What follows from the lengths is not said.
        let usual = long_attention(longest as u32, original as u32);
        if let Some(attention) = attention.filter(|attention| (attention - usual).abs() > 1e-6) {
            said["attention_factor"] = decimal(attention);
        }
        return Ok(Some(said));
    }
    if attention.is_some_and(|attention| attention != 1.0) {
        return Err(format!(
            "rope.scaling.attn_factor is {attention:?}; expected 1, or rope factors beside it"
        ));
    }
    match (kind, factor) {
        (None | Some("none" | "linear"), None | Some(1.0)) | (Some("none"), _) => Ok(None),
        (None | Some("linear"), Some(factor)) => {
            Ok(Some(json!({"rope_type": "linear", "factor": decimal(factor)})))
        }
        (Some("yarn"), factor) => {
            let mut said = json!({
                "rope_type": "yarn",
                "factor": decimal(factor.unwrap_or(1.0)),
                "original_max_position_embeddings": original.unwrap_or(longest),
            });
            for (name, key) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
                if let Some(beta) = keys.get::<f32>(&format!("rope.scaling.{key}"))? {
                    said[name] = decimal(beta);
                }
            }
            for (key, expected) in [("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0)] {
                if keys.get::<f32>(&format!("rope.scaling.{key}"))?.is_some_and(|x| x != expected) {
                    return Err(format!(
                        "rope.scaling.{key} is not {expected}, and config.json has no field for it"
                    ));
                }
            }
            Ok(Some(said))
        }
        (Some(other), _) => Err(format!("rope.scaling.type is {}, which is not known", other.escape_debug())),
    }
}

/// The settings of Llama 3 by which wavelengths are divided so. Files hold the divisors alone.
fn llama3(divisors: &[f32], theta: f64, head_dim: u64) -> Found<Option<Value>> {
    let factor = divisors.last().copied().map_or(1.0, f64::from);
    if divisors.iter().all(|x| *x == 1.0) {
        return Ok(None);
    }
    let other =
        || "the tensor rope_freqs.weight does not hold the divisors of Llama 3's rope scaling".to_owned();
    if divisors.len() as u64 != head_dim / 2 {
        return Err(other());
    }
    let (low, high) = (1.0, 4.0);
    // Each divisor between 1 and the factor tells how long texts were in pretraining.
    let wavelength =
        |i: usize| 2.0 * std::f64::consts::PI * libm::pow(theta, 2.0 * i as f64 / head_dim as f64);
    let between = divisors
        .iter()
        .position(|x| f64::from(*x) > 1.0 + TOLERANCE && f64::from(*x) < factor * (1.0 - TOLERANCE));
    let original = between.map_or(8192.0, |i| {
        let smooth = (1.0 / f64::from(divisors[i]) - 1.0 / factor) / (1.0 - 1.0 / factor);
        (wavelength(i) * (smooth * (high - low) + low)).round()
    });
    let expected = llama3_divisors(theta, head_dim as u32, (factor, low, high), original);
    let fits = |(found, expected): (&f32, &f32)| {
        (f64::from(*found) - f64::from(*expected)).abs() <= TOLERANCE * f64::from(*expected)
    };
    if !divisors.iter().zip(&expected).all(fits) {
        return Err(other());
    }
    Ok(Some(json!({
        "rope_type": "llama3", "factor": decimal(factor as f32), "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original as u64,
    })))
}

/// By what LongRoPE multiplies cosines and sines (Ding et al. 2024).
pub(crate) fn long_attention(longest: u32, original: u32) -> f32 {
    let scale = f64::from(longest) / f64::from(original.max(1));
    if scale <= 1.0 {
        1.0
    } else {
        libm::sqrt(1.0 + libm::log(scale) / libm::log(f64::from(original))) as f32
    }
}

/// What each wavelength of Llama 3 is divided by (Llama 3.1; `_compute_llama3_parameters` of transformers), with its factors
/// for long, low and high frequencies, after a pretraining with texts of `original` tokens.
pub(crate) fn llama3_divisors(
    theta: f64,
    head_dim: u32,
    (factor, low, high): (f64, f64, f64),
    original: f64,
) -> Vec<f32> {
    let of = |i: u32| {
        let frequency = libm::pow(theta, -2.0 * f64::from(i) / f64::from(head_dim));
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..head_dim / 2).map(|i| of(i) as f32).collect()
}
