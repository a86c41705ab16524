//! `quantization_config` of `config.json`: how the files of a folder hold quantized weights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use oarlock_engine::Result;
use oarlock_engine::checkpoint::weights::{Located, StoredQuantization, some_of};
use oarlock_tensor::cpu::quantized::{Code, Format};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::fields::Fields;

/// The name of the field.
pub(super) const FIELD: &str = "quantization_config";

/// What the settings of a model say, if they say anything.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<StoredQuantization>> {
    let Some(inner) = fields.object(FIELD)? else { return Ok(None) };
    let refused = |warnings: String| fields.wrong(FIELD, warnings);
    let flag = |name: &str| inner.flag_or(name, false);
    let group = || match inner.value("group_size").and_then(Value::as_i64) {
        // All inputs are one group.
        Some(-1) => Ok(usize::MAX),
        Some(n) if n > 0 => Ok(n as usize),
        None => Ok(128),
        Some(n) => Err(refused(format!("a group_size of {n} is none"))),
    };
    let method = inner.text("quant_method")?;
    let bits = inner.count("bits")?;
    match method {
        Some("bitsandbytes") | None if flag("load_in_4bit")? && flag("load_in_8bit")? => {
            Err(refused("load_in_4bit and load_in_8bit are both true; remove one of them".to_owned()))
        }
        Some("bitsandbytes") | None if flag("load_in_4bit")? => Ok(Some(StoredQuantization::FourBit)),
        Some("bitsandbytes") | None if flag("load_in_8bit")? => Ok(Some(StoredQuantization::EightBit)),
        Some("gptq") => {
            let bits = bits.unwrap_or(4);
            if ![2, 4, 8].contains(&bits) {
                return Err(refused(format!(
                    "GPTQ weights of {bits} bits are not supported, only of 2, 4 and 8"
                )));
            }
            let zeros_less_one = match inner.text("checkpoint_format")?.unwrap_or("gptq") {
                "gptq" => true,
                "gptq_v2" => false,
                other => {
                    let warnings =
                        format!("its checkpoint_format \"{other}\" is not supported, only gptq and gptq_v2");
                    return Err(refused(warnings));
                }
            };
            Ok(Some(StoredQuantization::Gptq { bits: bits as u32, group_size: group()?, zeros_less_one }))
        }
        Some("awq") => {
            let version = inner.text("version")?.unwrap_or("gemm");
            let plain = bits.unwrap_or(4) == 4 && version.eq_ignore_ascii_case("gemm");
            if !plain || !inner.flag_or("zero_point", true)? {
                return Err(refused(
                    "of AWQ, weights of 4 bits with zero points of the version gemm are supported".to_owned(),
                ));
            }
            Ok(Some(StoredQuantization::Awq { group_size: group()? }))
        }
        other => {
            let found = other.map_or(String::new(), |method| format!(" of quant_method \"{method}\""));
            Err(refused(format!(
                "its weights{found} are not read, only those of bitsandbytes, GPTQ and AWQ; take the original model, \
                 which can be quantized while it is read (quantization_bit: 4)"
            )))
        }
    }
}

/// The layers that stay as they are, as bitsandbytes, and as AWQ calls their list.
const LEFT_OUT: [&str; 2] = ["llm_int8_skip_modules", "modules_to_not_convert"];

/// Lines for what the `fields` of `config.json` in `dir` say of quantized weights that those `found` in the files are not. The files have
/// the word, as in transformers.
pub(super) fn contradictions(
    dir: &Path,
    fields: &Map<String, Value>,
    found: &BTreeMap<String, Located>,
) -> Vec<String> {
    let packed = || found.iter().filter(|(_, located)| located.is_quantized());
    let four_bit = || found.iter().filter_map(|(name, located)| Some((name, located.four_bit()?)));
    let path = dir.join("config.json");
    let warnings = |names: Option<String>, says: &str, are: &str| {
        let names = names?;
        let path = path.display();
        Some(format!("warning: {path}: {FIELD} says {says}, and {are}: {names}; what the files hold counts"))
    };
    if packed().next().is_none() {
        let of = some_of(found.keys());
        return warnings(of, "that weights are quantized", "none of the files' is").into_iter().collect();
    }
    let mut lines = Vec::new();
    if let Some(kind) = fields.get("bnb_4bit_quant_type").and_then(Value::as_str) {
        let others = four_bit().filter(|(_, (format, _))| name_of(*format) != kind);
        let says = format!("\"bnb_4bit_quant_type\": \"{kind}\"");
        lines.push(warnings(some_of(others.map(|(name, _)| name)), &says, "these are of another type"));
    }
    if let Some(nested) = fields.get("bnb_4bit_use_double_quant").and_then(Value::as_bool) {
        let others = four_bit().filter(|(_, (format, _))| is_nested(*format) != nested);
        let says = format!("\"bnb_4bit_use_double_quant\": {nested}");
        let are = if nested {
            "the scales of these are not quantized"
        } else {
            "the scales of these are quantized"
        };
        lines.push(warnings(some_of(others.map(|(name, _)| name)), &says, are));
    }
    if let Some(storage) = fields.get("bnb_4bit_quant_storage").and_then(Value::as_str) {
        let others = four_bit().filter(|(_, (_, dtype))| !is_called(*dtype, storage));
        let says = format!("\"bnb_4bit_quant_storage\": \"{storage}\"");
        lines.push(warnings(
            some_of(others.map(|(name, _)| name)),
            &says,
            "these are stored as another type",
        ));
    }
    let left_out = LeftOut::of(fields);
    let names = packed().map(|(name, _)| name).filter(|name| left_out.has(name));
    lines.push(warnings(some_of(names), "that some layers are not quantized", "these are"));
    // Of layers of a kind, others of which are quantized.
    let kinds: BTreeSet<&str> = packed().map(|(name, _)| kind_of(name)).collect();
    let plain = found.iter().filter(|(name, located)| {
        let is_matrix = !located.is_quantized() && located.shape.len() == 2 && name.ends_with(".weight");
        is_matrix && kinds.contains(kind_of(name)) && !left_out.has(name)
    });
    let names = some_of(plain.map(|(name, _)| name));
    lines.push(warnings(
        names,
        "of no layer but the output weights that it is not quantized",
        "these are not",
    ));
    lines.into_iter().flatten().collect()
}

/// The layers of which settings say that they are not quantized.
struct LeftOut<'a>(Vec<&'a str>);

impl LeftOut<'_> {
    fn of(fields: &Map<String, Value>) -> LeftOut<'_> {
        let lists = LEFT_OUT.iter().filter_map(|key| fields.get(*key)?.as_array());
        LeftOut(lists.flatten().filter_map(Value::as_str).collect())
    }

    /// Whether one of the names begins or ends the layer's, as in transformers.
    fn has(&self, weight: &str) -> bool {
        let layer = weight.strip_suffix(".weight").unwrap_or(weight);
        self.0.iter().any(|name| layer.starts_with(name) || layer.ends_with(name))
    }
}

/// The last name of a layer, such as `q_proj`.
fn kind_of(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight).rsplit('.').next().unwrap_or_default()
}

/// Whether torch calls a dtype so.
fn is_called(dtype: Dtype, name: &str) -> bool {
    let own = match dtype {
        Dtype::U8 => "uint8",
        Dtype::I8 => "int8",
        Dtype::F16 => "float16",
        Dtype::BF16 => "bfloat16",
        Dtype::F32 => "float32",
        // Others are not storage of bitsandbytes.
        _ => return false,
    };
    name.trim_start_matches("torch.") == own
}

/// What transformers reads of quantized weights of bitsandbytes.
pub(super) fn quantized_json(format: Format) -> Value {
    let is_int8 = format == Format::Int8;
    json!({
        "quant_method": "bitsandbytes",
        "load_in_4bit": !is_int8,
        "load_in_8bit": is_int8,
        "bnb_4bit_quant_type": if is_int8 { "fp4" } else { name_of(format) },
        "bnb_4bit_use_double_quant": is_nested(format),
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_threshold": 6.0,
        "llm_int8_skip_modules": null,
        "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false,
    })
}

/// Whether scales are quantized as well.
pub(super) fn is_nested(format: Format) -> bool {
    matches!(format, Format::FourBit { nested: true, .. })
}

/// What bitsandbytes calls the code of a format.
pub(super) fn name_of(format: Format) -> &'static str {
    match format {
        Format::FourBit { code: Code::Nf4, .. } => "nf4",
        Format::FourBit { code: Code::Fp4, .. } => "fp4",
        Format::Int8 => "int8",
        Format::Blocks(_) => "blocks",
    }
}
