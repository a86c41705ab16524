//! Rotary positions in GGUF: the base, how it is scaled, and the tensors that hold factors of each frequency.

use oarlock_engine::Result;
use serde_json::Value;

use super::keys::Keys;
use super::settings::Settings;
use crate::gguf::{llama3_divisors, long_attention};

/// Writes the keys of an architecture with heads of this size.
///
/// # Errors
/// A scaling that GGUF has no keys for.
pub(super) fn write(architecture: &str, head_dim: u32, keys: &mut Keys<'_>) -> Result<()> {
    let settings = keys.settings;
    let default = if architecture == "gemma3" { 1e6 } else { 1e4 };
    let theta = settings.rope_f32("rope_theta")?.unwrap_or(default);
    keys.set("rope.freq_base", theta)?;
    if architecture == "gemma3" {
        let local = settings.sliding_rope("rope_theta").or_else(|| settings.get("rope_local_base_freq"));
        keys.set("rope.freq_base_swa", local.and_then(Value::as_f64).unwrap_or(1e4) as f32)?;
    }
    let share = match architecture {
        "glm4" => Some(settings.rope_f32("partial_rotary_factor")?.unwrap_or(0.5)),
        "phi3" => Some(settings.rope_f32("partial_rotary_factor")?.unwrap_or(1.0)),
        "llama" => Some(1.0),
        _ => None,
    };
    if let Some(share) = share {
        keys.set("rope.dimension_count", (head_dim as f32 * share) as u32)?;
    }
    let factor = settings.rope_f32("factor")?;
    let original =
        settings.rope("original_max_position_embeddings").and_then(Value::as_u64).map(|n| n as u32);
    match kind(settings) {
        None | Some("default" | "llama3") => {}
        Some("linear") => {
            keys.set("rope.scaling.type", "linear")?;
            keys.set("rope.scaling.factor", factor.unwrap_or(1.0))?;
        }
        Some("yarn") => {
            keys.set("rope.scaling.type", "yarn")?;
            keys.set("rope.scaling.factor", factor.unwrap_or(1.0))?;
            let longest = settings.required_u32("max_position_embeddings")?;
            keys.set("rope.scaling.original_context_length", original.unwrap_or(longest))?;
            for (name, key) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
                if let Some(beta) = settings.rope_f32(name)? {
                    keys.set(&format!("rope.scaling.{key}"), beta)?;
                }
            }
            if settings.rope("mscale").is_some() || settings.rope("attention_factor").is_some() {
                return Err(settings.refuse("its yarn has an attention factor of its own"));
            }
        }
        Some("longrope" | "su") => {
            keys.set("rope.scaling.type", "longrope")?;
            let longest = settings.required_u32("max_position_embeddings")?;
            let original = original.unwrap_or(longest);
            keys.set("rope.scaling.original_context_length", original)?;
            keys.set("rope.scaling.attn_factor", long_attention(longest, original))?;
        }
        Some(other) => return Err(settings.refuse(format_args!("there is no key for rope scaling {other}"))),
    }
    Ok(())
}

/// The kind of scaling that a model has.
fn kind(settings: &Settings) -> Option<&str> {
    settings.rope("rope_type").or_else(|| settings.rope("type")).and_then(Value::as_str)
}

/// Tensors that hold factors of the frequencies, which no file of Hugging Face has.
///
/// # Errors
/// Factors that are missing or no numbers.
pub(super) fn tensors(architecture: &str, settings: &Settings) -> Result<Vec<(String, Vec<f32>)>> {
    match kind(settings) {
        Some("llama3") if architecture == "llama" => {
            Ok(vec![("rope_freqs.weight".to_owned(), llama3(settings)?)])
        }
        Some("llama3") => Err(settings.refuse(format_args!("{architecture} has no rope scaling llama3"))),
        Some("longrope" | "su") if architecture == "phi3" => {
            [("long_factor", "rope_factors_long.weight"), ("short_factor", "rope_factors_short.weight")]
                .into_iter()
                .map(|(name, tensor)| {
                    let list = settings.rope(name).and_then(Value::as_array);
                    let floats =
                        |list: &Vec<Value>| list.iter().map(|x| x.as_f64().map(|x| x as f32)).collect();
                    let factors: Option<Vec<f32>> = list.and_then(floats);
                    let factors = factors
                        .ok_or_else(|| settings.refuse(format_args!("{name} is no list of numbers")))?;
                    Ok((tensor.to_owned(), factors))
                })
                .collect()
        }
        Some("longrope" | "su") => {
            Err(settings.refuse(format_args!("{architecture} has no rope scaling longrope")))
        }
        _ => Ok(Vec::new()),
    }
}

/// What each wavelength of Llama 3 is divided by.
fn llama3(settings: &Settings) -> Result<Vec<f32>> {
    let number = |name: &str, default: f32| settings.rope_f32(name).map(|x| f64::from(x.unwrap_or(default)));
    let (factor, low, high) =
        (number("factor", 8.0)?, number("low_freq_factor", 1.0)?, number("high_freq_factor", 4.0)?);
    let old = number("original_max_position_embeddings", 8192.0)?;
    let theta = number("rope_theta", 10_000.0)?;
    Ok(llama3_divisors(theta, settings.head_dim()?, (factor, low, high), old))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Llama 3.2 1B, as transformers computes it: short waves stay, long ones are 32 times as long.
    #[test]
    fn frequencies_of_llama_3() {
        let settings = Settings::of(json!({
            "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 64, "rope_theta": 500_000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192},
        }));
        let factors = llama3(&settings).unwrap();
        assert_eq!((factors.len(), factors[0], factors[31]), (32, 1.0, 32.0));
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]));
        // Wavelength 2π·500000^(36/64) = 10,050: longer than 8192. And 2π·500000^(30/64) = 2,951, between the bounds.
        assert_eq!(factors[18], 32.0);
        let wavelength = 2.0 * std::f64::consts::PI * 500_000f64.powf(30.0 / 64.0);
        let smooth = (8192.0 / wavelength - 1.0) / 3.0;
        let expected = 1.0 / ((1.0 - smooth) / 32.0 + smooth);
        assert!((f64::from(factors[15]) - expected).abs() < 1e-5, "{} {expected}", factors[15]);
    }

    #[test]
    fn the_factor_of_longrope_is_that_of_the_paper() {
        assert_eq!(long_attention(4096, 4096), 1.0);
        assert!((long_attention(131_072, 4096) - 1.190_238).abs() < 1e-6);
    }
}
