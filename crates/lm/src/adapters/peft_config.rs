//! `adapter_config.json` as PEFT reads and writes it.

use std::path::Path;

use oarlock_config::config::{
    AdapterConfig, AdapterKind, LoraConfig, LoraInit, OftBlocks, OftConfig, Targets,
};
use oarlock_config::json;
use oarlock_engine::{Error, Result};
use serde_json::{Map, Value, json};

use super::targeted::Targeted;

/// The version of PEFT whose files these are.
const PEFT_VERSION: &str = "0.18.1";

/// How PEFT writes the start of PiSSA, and what stands before the number of its iterations.
const PISSA: &str = "pissa";
const NITER: &str = "_niter_";

/// Settings that change what an adapter computes and that are not there, with the values at which they change nothing.
const PLAIN: [(&str, &[&str]); 16] = [
    ("peft_type", &["\"LORA\"", "\"OFT\""]),
    ("bias", &["\"none\""]),
    ("lora_bias", &["false"]),
    ("fan_in_fan_out", &["false"]),
    ("use_qalora", &["false"]),
    ("layer_replication", &["null"]),
    ("trainable_token_indices", &["null", "[]", "{}"]),
    ("target_parameters", &["null", "[]"]),
    ("alora_invocation_tokens", &["null"]),
    ("arrow_config", &["null"]),
    ("megatron_config", &["null"]),
    ("use_bdlora", &["null", "false"]),
    ("monteclora_config", &["null"]),
    ("coft", &["false"]),
    ("block_share", &["false"]),
    ("use_cayley_neumann", &["true"]),
];

/// Settings that change nothing of what an adapter computes, or that are read below.
const KNOWN: [&str; 32] = [
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eps",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "init_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "module_dropout",
    "modules_to_save",
    "num_cayley_neumann_terms",
    "oft_block_size",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
    "velora_config",
];

/// What the file says.
#[derive(Debug)]
pub(super) struct PeftConfig {
    pub(super) config: AdapterConfig,
    /// `base_model_name_or_path`.
    pub(super) base: Option<String>,
    /// The layers that have an adapter; none where the file leaves them to PEFT.
    pub(super) targeted: Option<Targeted>,
    /// Warnings: settings that nothing reads.
    pub(super) notes: Vec<String>,
}

/// Reads the file. PEFT's defaults stand for what is not written.
///
/// # Errors
/// A broken file, another kind of adapter, or a setting that is not supported.
pub(super) fn read(path: &Path) -> Result<PeftConfig> {
    let text =
        oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES).map_err(Error::io("read", path))?;
    let bad = |problem: String| Error::bad_file(path, problem);
    let fields: Map<String, Value> =
        json::from_str(&text).map_err(|e| bad(format!("{e}; expected the JSON object of a PEFT adapter")))?;
    for (name, plain) in PLAIN {
        if let Some(value) = fields.get(name)
            && !plain.contains(&value.to_string().as_str())
        {
            return Err(bad(format!("\"{name}\" is {value}; only {} is supported", plain.join(" or "))));
        }
    }
    if !fields.contains_key("peft_type") {
        return Err(bad("\"peft_type\" is missing; expected \"LORA\" or \"OFT\"".to_owned()));
    }
    let wrong = |name: &str, expected: &str| {
        bad(format!("\"{name}\" is {}; expected {expected}", fields.get(name).unwrap_or(&Value::Null)))
    };
    let flag = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(wrong(name, "true or false")),
    };
    // PEFT computes with none of them as null.
    let number = |name: &str, default: f64| match fields.get(name) {
        None => Ok(default),
        Some(value) => {
            value.as_f64().filter(|n| n.is_finite() && *n >= 0.0).ok_or_else(|| wrong(name, "a number"))
        }
    };
    let names = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one.clone()]),
        Some(Value::Array(list)) => list
            .iter()
            .map(|one| one.as_str().map(str::to_owned).ok_or_else(|| wrong(name, "a list of names")))
            .collect(),
        Some(_) => Err(wrong(name, "a list of names")),
    };
    let pattern = |name: &str| -> Result<Vec<(String, f64)>> {
        let Some(Value::Object(patterns)) = fields.get(name) else {
            return match fields.get(name) {
                None | Some(Value::Null) => Ok(Vec::new()),
                Some(_) => Err(wrong(name, "an object of names and numbers")),
            };
        };
        patterns
            .iter()
            .map(|(key, value)| match value.as_f64().filter(|n| n.is_finite() && *n > 0.0) {
                Some(_) if key.contains(['^', '$', '*', '+', '?', '(', '[', '{', '|', '\\']) => Err(bad(
                    format!("\"{name}\" has the regular expression {key:?}; only names are supported"),
                )),
                Some(number) => Ok((key.clone(), number)),
                None => Err(wrong(name, "an object of names and numbers above 0")),
            })
            .collect()
    };
    let whole = |name: &str, default: f64, least: f64| {
        let found = number(name, default)?;
        let is_whole = found >= least && found.fract() == 0.0;
        if is_whole {
            Ok(found as usize)
        } else {
            Err(wrong(name, &format!("a whole number from {least} on")))
        }
    };
    let dropout = |name: &str| {
        let found = number(name, 0.0)?;
        if found < 1.0 { Ok(found as f32) } else { Err(wrong(name, "a number below 1")) }
    };
    let kind = if fields.get("peft_type").is_some_and(|kind| kind == "OFT") {
        if !fields.contains_key("oft_block_size") {
            return Err(bad(
                "has no \"oft_block_size\"; rotations that PEFT wrote before its version 0.14 are others"
                    .to_owned(),
            ));
        }
        AdapterKind::Oft(OftConfig {
            blocks: match (whole("r", 0.0, 0.0)?, whole("oft_block_size", 32.0, 0.0)?) {
                (0, size) if size > 0 => OftBlocks::Size(size),
                (count, 0) if count > 0 => OftBlocks::Count(count),
                // Files of an adapter in use have both.
                (_, size) => OftBlocks::Size(size),
            },
            dropout: dropout("module_dropout")?,
            terms: whole("num_cayley_neumann_terms", 5.0, 3.0)?,
        })
    } else {
        let ranks = pattern("rank_pattern")?;
        AdapterKind::Lora(LoraConfig {
            rank: whole("r", 8.0, 1.0)?,
            alpha: Some(number("lora_alpha", 8.0)?),
            dropout: dropout("lora_dropout")?,
            rank_pattern: ranks.into_iter().map(|(key, rank)| (key, rank as usize)).collect(),
            alpha_pattern: pattern("alpha_pattern")?,
            use_rslora: flag("use_rslora")?,
            use_dora: flag("use_dora")?,
            init: init(fields.get("init_lora_weights")).map_err(bad)?,
        })
    };
    let says_something = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    let is_known = |name: &str| KNOWN.contains(&name) || PLAIN.iter().any(|(plain, _)| *plain == name);
    let unknown = fields.iter().filter(|(name, value)| !is_known(name) && says_something(value));
    let unknown: Vec<String> = unknown.map(|(name, value)| format!("\"{name}\": {value}")).collect();
    let notes = match unknown.is_empty() {
        true => Vec::new(),
        false => vec![format!(
            "warning: of {} nothing reads {}; if it changes what the adapter computes, that is missing here",
            path.display(),
            unknown.join(", ")
        )],
    };
    let modules_to_save = names("modules_to_save")?;
    let listed = names("target_modules")?;
    Ok(PeftConfig {
        base: fields.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_owned),
        targeted: Targeted::read(&fields, &modules_to_save).map_err(bad)?,
        notes,
        // Which layers these are the weights say.
        config: AdapterConfig { kind, targets: Targets::Named(listed), modules_to_save },
    })
}

/// How an adapter began, which says what of the weights its base lacks.
fn init(value: Option<&Value>) -> std::result::Result<LoraInit, String> {
    let Some(Value::String(name)) = value else { return Ok(LoraInit::Kaiming) };
    // PEFT takes capital letters as well.
    let name = name.to_lowercase();
    match (name.strip_prefix(PISSA), name.as_str()) {
        (Some(""), _) => Ok(LoraInit::Pissa { iterations: None }),
        (Some(rest), _) => match rest.strip_prefix(NITER).and_then(|n| n.parse().ok()) {
            Some(n) => Ok(LoraInit::Pissa { iterations: Some(n) }),
            None => {
                Err(format!("\"init_lora_weights\" is {name:?}; expected \"pissa\" or \"pissa_niter_16\""))
            }
        },
        (None, "corda" | "olora" | "loftq") => Err(format!(
            "\"init_lora_weights\" is {name:?}, which changes the base; convert the adapter to an ordinary one with PEFT \
             (`path_initial_model_for_weight_conversion`)"
        )),
        (None, "gaussian") => Ok(LoraInit::Gaussian),
        (None, _) => Ok(LoraInit::Kaiming),
    }
}

/// The text of the file. `targets` are the names of the layers, `modules_to_save` those of the modules that are trained as
/// a whole.
pub(super) fn write(
    config: &AdapterConfig,
    base: &str,
    targets: &[String],
    modules_to_save: &[String],
) -> String {
    let to_save = if modules_to_save.is_empty() { Value::Null } else { json!(modules_to_save) };
    let mut fields = json!({
        "auto_mapping": null,
        "base_model_name_or_path": base,
        "bias": "none",
        "exclude_modules": null,
        "fan_in_fan_out": false,
        "inference_mode": true,
        "layers_pattern": null,
        "layers_to_transform": null,
        "modules_to_save": to_save,
        "peft_version": PEFT_VERSION,
        "revision": null,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
    });
    let of_kind = match &config.kind {
        AdapterKind::Lora(lora) => lora_fields(lora),
        AdapterKind::Oft(oft) => oft_fields(oft),
    };
    if let (Value::Object(fields), Value::Object(of_kind)) = (&mut fields, of_kind) {
        fields.extend(of_kind);
        fields.sort_keys();
    }
    format!("{fields:#}\n")
}

/// A share without the digits that f32 adds, so that 0.1 stays 0.1.
fn share(dropout: f32) -> f64 {
    dropout.to_string().parse().unwrap_or(f64::from(dropout))
}

fn oft_fields(config: &OftConfig) -> Value {
    let (count, size) = match config.blocks {
        OftBlocks::Count(count) => (count, 0),
        OftBlocks::Size(size) => (0, size),
    };
    json!({
        "block_share": false,
        "coft": false,
        "eps": 6e-5,
        "init_weights": true,
        "module_dropout": share(config.dropout),
        "num_cayley_neumann_terms": config.terms,
        "oft_block_size": size,
        "peft_type": "OFT",
        "r": count,
        "use_cayley_neumann": true,
    })
}

fn lora_fields(config: &LoraConfig) -> Value {
    // PEFT writes whole numbers as such.
    let number = |x: f64| if x.fract() == 0.0 { json!(x as i64) } else { json!(x) };
    let alpha = config.alpha.unwrap_or(2.0 * config.rank as f64);
    let ranks: Map<String, Value> =
        config.rank_pattern.iter().map(|(key, rank)| (key.clone(), json!(rank))).collect();
    let alphas: Map<String, Value> =
        config.alpha_pattern.iter().map(|(key, alpha)| (key.clone(), number(*alpha))).collect();
    json!({
        "alora_invocation_tokens": null,
        "alpha_pattern": alphas,
        "arrow_config": null,
        "corda_config": null,
        "ensure_weight_tying": false,
        "eva_config": null,
        "init_lora_weights": match config.init {
            LoraInit::Kaiming => json!(true),
            LoraInit::Gaussian => json!("gaussian"),
            LoraInit::Pissa { iterations: None } => json!(PISSA),
            LoraInit::Pissa { iterations: Some(n) } => json!(format!("{PISSA}{NITER}{n}")),
        },
        "layer_replication": null,
        "loftq_config": {},
        "lora_alpha": number(alpha),
        "lora_bias": false,
        "lora_dropout": share(config.dropout),
        "megatron_config": null,
        "megatron_core": "megatron.core",
        "peft_type": "LORA",
        "qalora_group_size": 16,
        "r": config.rank,
        "rank_pattern": ranks,
        "target_parameters": null,
        "trainable_token_indices": null,
        "use_dora": config.use_dora,
        "use_qalora": false,
        "use_rslora": config.use_rslora,
    })
}
