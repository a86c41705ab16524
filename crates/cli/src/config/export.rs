//! What `oarlock export FILE.yaml` writes: the keys of LLaMA-Factory's export.

use super::table as keys;
use std::path::{Path, PathBuf};

use oarlock::config::{ChatArgs, RopeArgs, RopeKind};
use oarlock::export::{Mix, Quantized};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::{self, Settings};
use oarlock_lm::gguf::is_gguf;
use oarlock_tensor::DType;

use super::build::chat;
use super::written::Layer;
use super::{finetuning, hub, quantization, table};

/// A model to export.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportArgs {
    /// The folder of the base.
    pub model: PathBuf,
    /// The adapters that are merged into it.
    pub adapters: Vec<PathBuf>,
    /// What is done with the base in few bits.
    pub quantized: Option<Quantized>,
    /// Whether adapters may be merged into what the blocks of a quantized GGUF file stand for.
    pub dequantizes: bool,
    /// The folder to write to.
    pub out: PathBuf,
    /// The most bytes of weights in one file.
    pub max_shard_bytes: u64,
    /// The dtype of the weights; `None` stands for that of the base.
    pub dtype: Option<DType>,
    /// Whether files may be replaced that no earlier export wrote.
    pub overwrite: bool,
    /// The types of a GGUF file that is written as well.
    pub gguf: Option<Mix>,
    /// What its blocks are rounded by.
    pub importance: Option<ImportanceArgs>,
    /// The type of a GGUF file of the adapter, which alone is written then.
    pub gguf_adapter: Option<Mix>,
    /// The template that is named.
    pub chat: Option<ChatArgs>,
    /// How positions are scaled.
    pub rope_scaling: Option<RopeArgs>,
    /// The keys that are written and that no export follows.
    pub idle: Vec<&'static str>,
}

/// How much the columns of weights matter.
#[derive(Clone, Debug, PartialEq)]
pub enum ImportanceArgs {
    /// As this file says.
    File(PathBuf),
    /// As it is found on texts.
    Collected {
        /// The data sets.
        dataset: String,
        /// The folder of `dataset_info.json`.
        dataset_dir: PathBuf,
        /// The most rows.
        n_rows: usize,
        /// The most tokens of a row.
        row_tokens: usize,
    },
}

/// A problem with the folder to write to, where a layer names it.
pub fn folder_problem(layers: &[Layer], message: String, help: String) -> Problem {
    let (mut settings, mut problems) = (Settings::of(table::KEYS), Problems::default());
    for layer in layers {
        resolve::add(layer, &mut settings, &table::unknown, &mut problems);
    }
    settings.problem(message, &[keys::EXPORT_DIR.row]).help(help)
}

/// The keys that an export follows, or refuses.
const FOLLOWED: [&Row; 25] = [
    keys::ADAPTER_FOLDER.row,
    keys::ADAPTER_NAME_OR_PATH.row,
    keys::DEFAULT_SYSTEM.row,
    keys::DOUBLE_QUANTIZATION.row,
    keys::ENABLE_THINKING.row,
    keys::EXPORT_DEQUANTIZED.row,
    keys::EXPORT_DIR.row,
    keys::EXPORT_HUB_MODEL_ID.row,
    keys::EXPORT_LEGACY_FORMAT.row,
    keys::EXPORT_QUANTIZATION_BIT.row,
    keys::EXPORT_SIZE.row,
    keys::FINETUNING_TYPE.row,
    keys::GGUF.row,
    keys::GGUF_ADAPTER.row,
    keys::IMATRIX.row,
    keys::INFER_DTYPE.row,
    keys::MODEL_NAME_OR_PATH.row,
    keys::OVERWRITE_OUTPUT_DIR.row,
    keys::PRESERVE_THINKING.row,
    keys::QUANTIZATION_BIT.row,
    keys::QUANTIZATION_METHOD.row,
    keys::QUANTIZATION_TYPE.row,
    keys::ROPE_SCALING.row,
    keys::TEMPLATE.row,
    keys::TOOL_FORMAT.row,
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
    for (key, what) in
        [(keys::MODEL_NAME_OR_PATH, "the folder of a model"), (keys::EXPORT_DIR, "the folder to write to")]
    {
        if !settings.setting(key).is_written() {
            let problem = Problem::new(format!("`{key}` is missing"));
            problems.push(problem.help(format!("write `{key}: …`, {what}")));
        }
    }
    let adapters = finetuning::adapters(&settings);
    let mut refuse = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(&mut problems, message, keys, help);
    };
    // The folder of an adapter says its kind. The original would take it for full where no word is said.
    if !adapters.is_empty()
        && settings.setting(keys::FINETUNING_TYPE).is_written()
        && !["lora", "oft"].contains(&settings.get(keys::FINETUNING_TYPE))
    {
        refuse(
            "an adapter is of finetuning_type lora or oft only",
            &[keys::ADAPTER_NAME_OR_PATH.row, keys::FINETUNING_TYPE.row],
            "write `finetuning_type: lora`, or remove adapter_name_or_path",
        );
    }
    if settings.said(keys::EXPORT_QUANTIZATION_BIT).is_some() {
        let (message, help) = match adapters.is_empty() {
            true => (
                "`export_quantization_bit` is not supported: it asks for weights of GPTQ, which need data",
                "write `quantization_bit: 4` or `8` for weights of bitsandbytes",
            ),
            false => ("Please merge adapters before quantizing the model.", "remove export_quantization_bit"),
        };
        refuse(message, &[keys::EXPORT_QUANTIZATION_BIT.row], help);
    }
    let dequantizes = settings.get(keys::EXPORT_DEQUANTIZED);
    let bits = settings.get(keys::QUANTIZATION_BIT);
    // Of a hub a file in GGUF is named behind a colon.
    let base = settings.word(keys::MODEL_NAME_OR_PATH);
    let of_blocks = base.contains(':') || is_gguf(Path::new(base));
    if dequantizes && bits.is_none() && !of_blocks {
        refuse(
            "`export_dequantized` needs `quantization_bit`, or a GGUF file as the base",
            &[keys::EXPORT_DEQUANTIZED.row],
            "write the format of the weights that the adapter was trained against",
        );
    }
    if let (Some(_), false, false) = (bits, adapters.is_empty(), dequantizes) {
        refuse(
            "Cannot merge adapters to a quantized model.",
            &[keys::QUANTIZATION_BIT.row],
            "remove it to merge into the unquantized weights, or write `export_dequantized: true` to merge into what the \
             quantized weights stand for, which is what the adapter was trained against",
        );
    }
    if bits.is_some() && adapters.len() > 1 {
        refuse(
            "a quantized model takes a single adapter",
            &[keys::ADAPTER_NAME_OR_PATH.row, keys::QUANTIZATION_BIT.row],
            "merge them into the unquantized model, one after the other",
        );
    }
    let quantized = match bits {
        Some(bits @ (4 | 8)) if quantization::method(&settings) == "bnb" => {
            let (kind, nested) =
                (settings.get(keys::QUANTIZATION_TYPE), settings.get(keys::DOUBLE_QUANTIZATION));
            let format = quantization::format(bits, kind, nested);
            Some(if dequantizes { Quantized::Dequantized(format) } else { Quantized::Packed(format) })
        }
        Some(_) => {
            refuse(
                "only `quantization_bit` 4 and 8 with `quantization_method: bnb` are there",
                &[keys::QUANTIZATION_BIT.row, keys::QUANTIZATION_METHOD.row],
                "write `quantization_bit: 4` or `quantization_bit: 8`, or remove it",
            );
            None
        }
        None => None,
    };
    if settings.get(keys::EXPORT_LEGACY_FORMAT) {
        refuse(
            "`export_legacy_format: true` asks for a pickle, which runs code when it is read; only safetensors are written",
            &[keys::EXPORT_LEGACY_FORMAT.row],
            "remove it",
        );
    }
    if settings.said(keys::EXPORT_HUB_MODEL_ID).is_some() {
        refuse(
            "`export_hub_model_id` is not supported: nothing is sent to a hub",
            &[keys::EXPORT_HUB_MODEL_ID.row],
            "remove it",
        );
    }
    let dtype = match settings.word(keys::INFER_DTYPE) {
        "auto" => None,
        "float32" => Some(DType::F32),
        "bfloat16" => Some(DType::BF16),
        "float16" => Some(DType::F16),
        other => {
            let message = format!("`infer_dtype` is {other}");
            refuse(&message, &[keys::INFER_DTYPE.row], "write auto, float32, bfloat16 or float16");
            None
        }
    };
    if settings.said(keys::GGUF).is_some() && matches!(quantized, Some(Quantized::Packed(_))) {
        refuse(
            "a GGUF file is made of unquantized weights",
            &[keys::GGUF.row, keys::QUANTIZATION_BIT.row],
            "remove one of them",
        );
    }
    let gguf = settings.get(keys::GGUF).and_then(Mix::from_name);
    let gguf_adapter = settings.get(keys::GGUF_ADAPTER).and_then(Mix::from_name);
    if gguf_adapter.is_some() && adapters.len() != 1 {
        refuse(
            "`gguf_adapter` takes a single adapter",
            &[keys::ADAPTER_NAME_OR_PATH.row, keys::GGUF_ADAPTER.row],
            "write `adapter_name_or_path: …`, the folder of one",
        );
    }
    if gguf_adapter.is_some() && (gguf.is_some() || quantized.is_some()) {
        refuse(
            "`gguf_adapter` merges nothing and writes no model",
            &[keys::GGUF.row, keys::GGUF_ADAPTER.row, keys::QUANTIZATION_BIT.row],
            "remove one of them",
        );
    }
    if settings.said(keys::IMATRIX).is_some() && gguf.is_none() {
        refuse(
            "`imatrix` needs `gguf`",
            &[keys::IMATRIX.row],
            "write `gguf: q4_k_m` or another type of blocks",
        );
    }
    if settings.said(keys::IMATRIX).is_some() && settings.said(keys::EXPORT_QUANTIZATION_DATASET).is_some() {
        refuse(
            "the importance matrix is read or collected, and not both",
            &[keys::EXPORT_QUANTIZATION_DATASET.row, keys::IMATRIX.row],
            "remove one of them",
        );
    }
    let importance = importance(&settings, gguf);
    let out = PathBuf::from(settings.word(keys::EXPORT_DIR));
    let model = hub::local(&settings, settings.word(keys::MODEL_NAME_OR_PATH));
    let real = |path: &PathBuf| path.canonicalize().ok();
    if let Some(own) = real(&out)
        && let Some(read) =
            [&model].into_iter().chain(&adapters).find(|path| real(path).as_ref() == Some(&own))
    {
        let message = format!("`export_dir` is `{}`, whose weights are read", read.display());
        refuse(&message, &[keys::EXPORT_DIR.row], "name another folder");
    }
    // Fractions of a gigabyte count as well.
    let shard_bytes = (settings.get(keys::EXPORT_SIZE) * 1e9).max(1.0) as u64;
    // A length that is written says how far, as in LLaMA-Factory.
    let max_len = settings.said(keys::CUTOFF_LEN).map(|_| settings.get(keys::CUTOFF_LEN));
    let kind =
        settings.said(keys::ROPE_SCALING).and_then(|_| RopeKind::named(settings.word(keys::ROPE_SCALING)));
    let of_importance = [
        keys::DATASET_DIR.name(),
        keys::EXPORT_QUANTIZATION_DATASET.name(),
        keys::EXPORT_QUANTIZATION_MAXLEN.name(),
        keys::EXPORT_QUANTIZATION_NSAMPLES.name(),
    ];
    let args = ExportArgs {
        model,
        out,
        adapters,
        quantized,
        dequantizes: dequantizes && bits.is_none(),
        max_shard_bytes: shard_bytes,
        dtype,
        overwrite: settings.get(keys::OVERWRITE_OUTPUT_DIR),
        gguf,
        gguf_adapter,
        chat: settings.said(keys::TEMPLATE).map(|_| chat(&settings)),
        rope_scaling: kind.map(|kind| RopeArgs { kind, max_len }),
        idle: (settings.iter().filter(|setting| setting.is_written()))
            .map(|setting| setting.key.name)
            .filter(|name| !FOLLOWED.iter().any(|key| key.name == *name))
            .filter(|name| kind.is_none() || *name != keys::CUTOFF_LEN.name())
            .filter(|name| importance.is_none() || !of_importance.contains(name))
            .collect(),
        importance: importance.clone(),
    };
    problems.into_result(|| args)
}

/// What the blocks of a GGUF file are rounded by. Types that are no blocks of few bits are not.
fn importance(settings: &Settings, gguf: Option<Mix>) -> Option<ImportanceArgs> {
    gguf.filter(|mix| !matches!(mix, Mix::F32 | Mix::F16 | Mix::BF16 | Mix::Q8_0))?;
    if settings.said(keys::IMATRIX).is_some() {
        return Some(ImportanceArgs::File(PathBuf::from(settings.word(keys::IMATRIX))));
    }
    settings.said(keys::EXPORT_QUANTIZATION_DATASET)?;
    Some(ImportanceArgs::Collected {
        dataset: settings.word(keys::EXPORT_QUANTIZATION_DATASET).to_owned(),
        dataset_dir: PathBuf::from(settings.word(keys::DATASET_DIR)),
        n_rows: settings.get(keys::EXPORT_QUANTIZATION_NSAMPLES),
        row_tokens: settings.get(keys::EXPORT_QUANTIZATION_MAXLEN),
    })
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
            dequantizes: false,
            out: "o".into(),
            max_shard_bytes: 2_000_000_000,
            dtype: Some(DType::BF16),
            overwrite: false,
            gguf: None,
            importance: None,
            gguf_adapter: None,
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
        let error = |line: &str| read(line).unwrap_err().to_string();
        let all = error(
            "export_legacy_format=true export_hub_model_id=x export_quantization_bit=4 infer_dtype=int8",
        );
        for part in
            ["`model_name_or_path` is missing", "`export_dir` is missing", "pickle", "hub", "GPTQ", "int8"]
        {
            assert!(all.contains(part), "{part}: {all}");
        }
        let both = error(
            "model_name_or_path=m export_dir=o adapter_name_or_path=a export_quantization_bit=4 finetuning_type=full",
        );
        assert!(both.contains("Please merge adapters before quantizing the model."), "{both}");
        assert!(both.contains("finetuning_type lora or oft only"), "{both}");
        let own = std::env::temp_dir();
        let own = own.display();
        for words in [
            format!("model_name_or_path={own} export_dir={own}/."),
            format!("model_name_or_path=m adapter_name_or_path={own} export_dir={own}"),
        ] {
            assert!(error(&words).contains("whose weights are read"), "{words}");
        }
        const BASE: &str = "model_name_or_path=m export_dir=o";
        for (words, part) in [
            ("quantization_bit=4 adapter_name_or_path=a", "Cannot merge adapters to a quantized model."),
            ("quantization_bit=4 adapter_name_or_path=a,b export_dequantized=true", "a single adapter"),
            ("export_dequantized=true", "`export_dequantized` needs `quantization_bit`"),
            ("quantization_bit=3", "only `quantization_bit` 4 and 8"),
            ("quantization_bit=4 quantization_method=hqq", "only `quantization_bit` 4 and 8"),
            ("gguf_adapter=f16", "`gguf_adapter` takes a single adapter"),
            ("gguf_adapter=f16 adapter_name_or_path=a gguf=q8_0", "merges nothing and writes no model"),
            ("imatrix=m.gguf", "`imatrix` needs `gguf`"),
            ("gguf=q4_k_m imatrix=m.gguf export_quantization_dataset=d", "read or collected, and not both"),
        ] {
            let error = error(&format!("{BASE} {words}"));
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn blocks_are_rounded_by_a_matrix_that_is_read_or_collected() {
        let args = |words: &str| read(&format!("model_name_or_path=m export_dir=o {words}")).unwrap();
        let read = args("gguf=q4_k_m imatrix=m.dat");
        assert_eq!((read.importance, read.idle), (Some(ImportanceArgs::File("m.dat".into())), vec![]));
        let found =
            args("gguf=q2_k_s export_quantization_dataset=a,b export_quantization_nsamples=7 dataset_dir=d");
        let expected = ImportanceArgs::Collected {
            dataset: "a,b".to_owned(),
            dataset_dir: "d".into(),
            n_rows: 7,
            row_tokens: 1024,
        };
        assert_eq!((found.importance, found.idle), (Some(expected), vec![]));
        let whole = args("gguf=q8_0 export_quantization_dataset=a");
        assert_eq!((whole.importance, whole.idle), (None, vec!["export_quantization_dataset"]));
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
