//! Gemma 3, its text models: as Gemma 2 without the cap on scores, with norms on heads, five layers with a sliding window
//! for each that sees all, and a rotary base for each kind of layer.

use oarlock_engine::Result;
use oarlock_tensor::cpu::rope::RopeStyle;
use serde_json::{Value, json};

use super::gemma2;
use super::standard;
use super::standard::Defaults;
use crate::model::config::{DecoderConfig, Family, LayerConfig, QkNorm};
use crate::model::hf::fields::{FieldWriter, Fields};
use crate::model::hf::rope::{self, RopeDefaults};

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    layer_class: "Gemma3DecoderLayer",
    bos: Some(2),
    eos: &[1],
    pad: Some(0),
    read,
    write,
    stored: gemma2::stored,
    fresh: &[("gemma3_text", read)],
};

const DEFAULTS: Defaults = Defaults { vocab_size: 262_208, max_positions: 131_072, ..gemma2::DEFAULTS };

/// The kinds of layers with their fields of older files, and their bases.
const FULL: (&str, &str, f64) = ("full_attention", "rope_theta", 1e6);
const SLIDING: (&str, &str, f64) = ("sliding_attention", "rope_local_base_freq", 1e4);

fn read(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let pattern = fields.count_or("sliding_window_pattern", 6)?.max(1);
    let config = gemma2::read_common(fields, &FAMILY, &DEFAULTS, |index| (index + 1) % pattern != 0)?;
    rope::one_of_both(fields)?;
    let nested = fields.object("rope_parameters")?;
    let rope = |(kind, theta, default): (&str, &str, f64)| {
        let object = match &nested {
            Some(nested) => nested.object(kind)?,
            None if kind == FULL.0 => fields.object("rope_scaling")?,
            None => None,
        };
        let theta = fields.number_or(theta, default)?;
        let defaults = RopeDefaults { theta, ..standard::LLAMA.rope };
        rope::read_object(object.as_ref(), &defaults, config.max_positions, RopeStyle::Half)
    };
    let (full, sliding) = (rope(FULL)?, rope(SLIDING)?);
    let logit_cap = gemma2::read_cap(fields, "final_logit_softcapping", None)?;
    let windowed = standard::windowed(fields, config.layers.len(), |index| (index + 1) % pattern != 0)?;
    let mut windowed = windowed.into_iter();
    let config = config.with_layers(|layer| {
        layer.attention.qk_norm = QkNorm::PerHead;
        layer.attention.rope = if windowed.next() == Some(true) { sliding.clone() } else { full.clone() };
    });
    Ok(DecoderConfig { logit_cap, ..config })
}

fn write(config: &DecoderConfig, layer: &LayerConfig, fields: &mut FieldWriter) {
    gemma2::write_common(config, layer, fields);
    let mut parameters = fields.take_object("rope_parameters");
    let of = |windowed: bool| {
        let mut layers = config.layers.iter().map(|layer| &layer.attention);
        layers.find(|attention| attention.window.is_some() == windowed).map(|attention| &attention.rope)
    };
    for ((kind, ..), rope) in [(FULL, of(false)), (SLIDING, of(true))] {
        parameters.extend(rope.map(|rope| (kind.to_owned(), Value::Object(rope::write(rope)))));
    }
    fields.set("rope_parameters", Value::Object(parameters));
    for older in [FULL.1, SLIDING.1, "rope_scaling"] {
        fields.remove(older);
    }
    if let Some(rope) = of(false) {
        fields.set_older_rope(rope);
    }
    if let Some(rope) = of(true) {
        fields.set(SLIDING.1, json!(rope.theta));
    }
}
