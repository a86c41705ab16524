//! What `oarlock export FILE.yaml` writes: the keys of LLaMA-Factory's export.

use std::path::PathBuf;

use oarlock::adapters::Quantized;
use oarlock::config::{ChatArgs, RopeArgs, RopeKind};
use oarlock::settings::problem::{Problem, Problems};
use oarlock::settings::resolve::{self, Settings};
use oarlock_tensor::DType;

use super::build::chat;
use super::written::Layer;
use super::{finetuning, quantization, table};

/// A model to export.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportArgs {
    /// The folder of the base.
    pub model: PathBuf,
    /// The adapters that are merged into it.
    pub adapters: Vec<PathBuf>,
    /// What is done with the base in few bits.
    pub quantized: Option<Quantized>,
    /// The folder to write to.
    pub out: PathBuf,
    /// The most bytes of weights in one file.
    pub max_shard_bytes: u64,
    /// The dtype of the weights; `None` stands for that of the base.
    pub dtype: Option<DType>,
    /// Whether files may be replaced that no earlier export wrote.
    pub overwrite: bool,
    /// The template that is named.
    pub chat: Option<ChatArgs>,
    /// How positions are scaled.
    pub rope_scaling: Option<RopeArgs>,
    /// The keys that are written and that no export follows.
    pub idle: Vec<&'static str>,
}

/// A problem with the folder to write to, where a layer names it.
pub fn folder_problem(layers: &[Layer], message: String, help: String) -> Problem {
    let (mut settings, mut problems) = (Settings::of(table::KEYS), Problems::default());
    for layer in layers {
        resolve::add(layer, &mut settings, &table::unknown, &mut problems);
    }
    settings.problem(message, &["export_dir"]).help(help)
}

/// The keys that an export follows, or refuses.
const FOLLOWED: [&str; 22] = [
    "adapter_folder",
    "adapter_name_or_path",
    "default_system",
    "double_quantization",
    "enable_thinking",
    "export_dequantized",
    "export_dir",
    "export_hub_model_id",
    "export_legacy_format",
    "export_quantization_bit",
    "export_size",
    "finetuning_type",
    "infer_dtype",
    "model_name_or_path",
    "overwrite_output_dir",
    "preserve_thinking",
    "quantization_bit",
    "quantization_method",
    "quantization_type",
    "rope_scaling",
    "template",
    "tool_format",
];

/// What layers of settings say together.
///
/// # Errors
/// Everything that is wrong, all at once.
pub fn export(layers: &[Layer]) -> Result<ExportArgs, Problems> {
    if let Some(problem) = table::newer_format(layers) {
        return Err(problem.into());
    }
    let (mut settings, mut problems) = (Settings::of(table::KEYS), Problems::default());
    for layer in layers {
        resolve::add(layer, &mut settings, &table::unknown, &mut problems);
    }
    for (name, what) in
        [("model_name_or_path", "the folder of a model"), ("export_dir", "the folder to write to")]
    {
        if !settings.get(name).is_written() {
            let problem = Problem::new(format!("`{name}` is missing"));
            problems.push(problem.help(format!("write `{name}: …`, {what}")));
        }
    }
    let adapters = finetuning::adapters(&settings);
    let mut refuse = |message: &str, names: &[&str], help: &str| {
        settings.report(&mut problems, message, names, help);
    };
    // The folder of an adapter says its kind. The original would take it for full where no word is said.
    if !adapters.is_empty()
        && settings.get("finetuning_type").is_written()
        && !["lora", "oft"].contains(&settings.word("finetuning_type"))
    {
        refuse(
            "an adapter is of finetuning_type lora or oft only",
            &["adapter_name_or_path", "finetuning_type"],
            "write `finetuning_type: lora`, or remove adapter_name_or_path",
        );
    }
    if settings.said("export_quantization_bit").is_some() {
        let (message, help) = match adapters.is_empty() {
            true => (
                "`export_quantization_bit` is not supported: it asks for weights of GPTQ, which need data",
                "write `quantization_bit: 4` or `8` for weights of bitsandbytes",
            ),
            false => ("Please merge adapters before quantizing the model.", "remove export_quantization_bit"),
        };
        refuse(message, &["export_quantization_bit"], help);
    }
    let dequantizes = settings.bool("export_dequantized");
    let bits = settings.count("quantization_bit");
    if dequantizes && bits.is_none() {
        refuse(
            "`export_dequantized` needs `quantization_bit`",
            &["export_dequantized"],
            "write the format of the weights that the adapter was trained against",
        );
    }
    if let (Some(_), false, false) = (bits, adapters.is_empty(), dequantizes) {
        refuse(
            "Cannot merge adapters to a quantized model.",
            &["quantization_bit"],
            "remove it to merge into the unquantized weights, or write `export_dequantized: true` to merge into what the \
             quantized weights stand for, which is what the adapter was trained against",
        );
    }
    if bits.is_some() && adapters.len() > 1 {
        refuse(
            "a quantized model takes a single adapter",
            &["adapter_name_or_path", "quantization_bit"],
            "merge them into the unquantized model, one after the other",
        );
    }
    let quantized = match bits {
        Some(bits @ (4 | 8)) if quantization::method(&settings) == "bnb" => {
            let (kind, nested) = (settings.word("quantization_type"), settings.bool("double_quantization"));
            let format = quantization::format(bits, kind, nested);
            Some(if dequantizes { Quantized::Dequantized(format) } else { Quantized::Packed(format) })
        }
        Some(_) => {
            refuse(
                "only `quantization_bit` 4 and 8 with `quantization_method: bnb` are there",
                &["quantization_bit", "quantization_method"],
                "write `quantization_bit: 4` or `quantization_bit: 8`, or remove it",
            );
            None
        }
        None => None,
    };
    if settings.bool("export_legacy_format") {
        refuse(
            "`export_legacy_format: true` asks for a pickle, which runs code when it is read; only safetensors are written",
            &["export_legacy_format"],
            "remove it",
        );
    }
    if settings.said("export_hub_model_id").is_some() {
        refuse(
            "`export_hub_model_id` is not supported: nothing is sent to a hub",
            &["export_hub_model_id"],
            "remove it",
        );
    }
    let dtype = match settings.word("infer_dtype") {
        "auto" => None,
        "float32" => Some(DType::F32),
        "bfloat16" => Some(DType::BF16),
        "float16" => Some(DType::F16),
        other => {
            let message = format!("`infer_dtype` is {other}");
            refuse(&message, &["infer_dtype"], "write auto, float32, bfloat16 or float16");
            None
        }
    };
    // Fractions of a gigabyte count as well.
    let shard_bytes = (settings.f64("export_size") * 1e9).max(1.0) as u64;
    // A length that is written says how far, as in LLaMA-Factory.
    let max_len = settings.said("cutoff_len").map(|_| settings.usize("cutoff_len"));
    let kind = settings.said("rope_scaling").and_then(|_| RopeKind::named(settings.word("rope_scaling")));
    let args = ExportArgs {
        model: PathBuf::from(settings.word("model_name_or_path")),
        out: PathBuf::from(settings.word("export_dir")),
        adapters,
        quantized,
        max_shard_bytes: shard_bytes,
        dtype,
        overwrite: settings.bool("overwrite_output_dir"),
        chat: settings.said("template").map(|_| chat(&settings)),
        rope_scaling: kind.map(|kind| RopeArgs { kind, max_len }),
        idle: (table::KEYS.iter().map(|key| key.name))
            .filter(|name| settings.get(name).is_written() && !FOLLOWED.contains(name))
            .filter(|name| kind.is_none() || *name != "cutoff_len")
            .collect(),
    };
    problems.into_result(|| args)
}

#[cfg(test)]
mod tests {
    use oarlock_tensor::cpu::quantized::{Code, Format};

    use super::super::{Words, written};
    use super::*;

    fn read(line: &str) -> Result<ExportArgs, Problems> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        export(&written::arguments(&Words::new(&words)).unwrap().layers().unwrap())
    }

    #[test]
    fn a_file_of_llama_factory_is_read() {
        let args = read(
            "model_name_or_path=m adapter_name_or_path=a,b template=llama3 finetuning_type=lora export_dir=o \
             export_size=2 export_device=cpu export_legacy_format=false trust_remote_code=true infer_dtype=bfloat16",
        );
        let expected = ExportArgs {
            model: "m".into(),
            adapters: vec!["a".into(), "b".into()],
            quantized: None,
            out: "o".into(),
            max_shard_bytes: 2_000_000_000,
            dtype: Some(DType::BF16),
            overwrite: false,
            chat: Some(ChatArgs { template: Some("llama3".into()), ..ChatArgs::default() }),
            rope_scaling: None,
            idle: vec!["trust_remote_code", "export_device"],
        };
        let mut args = args.unwrap();
        if let Some(chat) = &mut args.chat {
            (chat.enable_thinking, chat.split_special_tokens) = (None, false);
        }
        assert_eq!(args, expected);
        assert_eq!(read("model_name_or_path=m export_dir=o").unwrap().max_shard_bytes, 5_000_000_000);
        let small = read("model_name_or_path=m export_dir=o export_size=0.25").unwrap();
        assert_eq!(small.max_shard_bytes, 250_000_000);
        let longer = |words: &str| read(&format!("model_name_or_path=m export_dir=o {words}")).unwrap();
        let scaled = |max_len| Some(RopeArgs { kind: RopeKind::Yarn, max_len });
        assert_eq!(longer("rope_scaling=yarn").rope_scaling, scaled(None));
        let to = longer("rope_scaling=yarn cutoff_len=4096");
        assert_eq!((to.rope_scaling, to.idle), (scaled(Some(4096)), Vec::new()));
        assert_eq!(longer("cutoff_len=4096").idle, ["cutoff_len"]);
    }

    #[test]
    fn what_cannot_be_exported_is_refused_all_at_once() {
        let told = |line: &str| read(line).unwrap_err().to_string();
        let all = told(
            "export_legacy_format=true export_hub_model_id=x export_quantization_bit=4 infer_dtype=int8",
        );
        for part in
            ["`model_name_or_path` is missing", "`export_dir` is missing", "pickle", "hub", "GPTQ", "int8"]
        {
            assert!(all.contains(part), "{part}: {all}");
        }
        let both = told(
            "model_name_or_path=m export_dir=o adapter_name_or_path=a export_quantization_bit=4 finetuning_type=full",
        );
        assert!(both.contains("Please merge adapters before quantizing the model."), "{both}");
        assert!(both.contains("finetuning_type lora or oft only"), "{both}");
        const BASE: &str = "model_name_or_path=m export_dir=o";
        for (words, part) in [
            ("quantization_bit=4 adapter_name_or_path=a", "Cannot merge adapters to a quantized model."),
            ("quantization_bit=4 adapter_name_or_path=a,b export_dequantized=true", "a single adapter"),
            ("export_dequantized=true", "`export_dequantized` needs `quantization_bit`"),
            ("quantization_bit=3", "only `quantization_bit` 4 and 8"),
            ("quantization_bit=4 quantization_method=hqq", "only `quantization_bit` 4 and 8"),
        ] {
            let told = told(&format!("{BASE} {words}"));
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    #[test]
    fn weights_of_4_bits_are_written_or_merged_into() {
        let quantized =
            |words: &str| read(&format!("model_name_or_path=m export_dir=o {words}")).unwrap().quantized;
        let nf4 = Format::FourBit { code: Code::Nf4, nested: true };
        assert_eq!(quantized("quantization_bit=4"), Some(Quantized::Packed(nf4)));
        assert_eq!(quantized("quantization_bit=8"), Some(Quantized::Packed(Format::Int8)));
        let merged = "quantization_bit=4 adapter_name_or_path=a export_dequantized=true quantization_type=fp4 \
                      double_quantization=false";
        let fp4 = Format::FourBit { code: Code::Fp4, nested: false };
        assert_eq!(quantized(merged), Some(Quantized::Dequantized(fp4)));
    }
}
