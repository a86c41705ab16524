//! `quantization_config` of `config.json`: how the files of a folder hold quantized weights.

use oarlock_tensor::cpu::quantized::Format;
use serde_json::{Value, json};

use super::bitsandbytes::{is_nested, name_of};
use super::fields::Fields;
use crate::error::Result;
use crate::weights::StoredQuantization;

/// The name of the field.
pub(super) const FIELD: &str = "quantization_config";

/// What the settings of a model say, if they say anything.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<StoredQuantization>> {
    let Some(inner) = fields.object(FIELD)? else { return Ok(None) };
    let refused = |told: String| fields.wrong(FIELD, told);
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
                    let told =
                        format!("its checkpoint_format \"{other}\" is not supported, only gptq and gptq_v2");
                    return Err(refused(told));
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
