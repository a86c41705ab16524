//! `config.json`: what it says of a decoder, and how it is written back with all that it said besides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oarlock_config::config::RopeArgs;
use oarlock_config::json;
use oarlock_engine::checkpoint::weights::{Located, MappedFiles, StoredForm, StoredQuantization};
use oarlock_engine::nn::SparsityConfig;
use oarlock_engine::{Error, Result};
use oarlock_tensor::DType;
use serde_json::{Map, Value, json};

use super::fields::{FieldWriter, Fields, RequestedFields};
use super::{heads, quantization, rope, sparsity, unread};
use crate::gguf;
use crate::model::config::{DecoderConfig, Family};
use crate::model::family;

/// The settings of a Hugging Face folder.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfig {
    decoder: DecoderConfig,
    special: SpecialTokens,
    quantization: Option<StoredQuantization>,
    value_head_dropout: Option<f32>,
    /// The vocabulary of the files, and whether they share the embedding with the output weights, where the model has grown.
    stored: Option<(usize, bool)>,
    /// Where it was read.
    folder: Option<PathBuf>,
    /// Warnings about how the folder was read.
    notes: Vec<String>,
    /// The file as it was read: what is not understood here is written back as it came.
    fields: Map<String, Value>,
}

/// The token ids with a meaning that `config.json` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Each of them ends a text.
    pub eos: Vec<u32>,
    /// Fills a row.
    pub pad: Option<u32>,
}

impl HfConfig {
    /// Reads `config.json` of a folder, or the file itself.
    ///
    /// # Errors
    /// [`Error::BadFile`] with the line and the field: broken JSON, a wrong type, a setting or a kind of model that is
    /// not supported; [`Error::Io`] when there is no such file.
    pub fn read(path: &Path) -> Result<HfConfig> {
        let is_folder = path.is_dir() || gguf::is_gguf(path);
        let file = if is_folder { path.join("config.json") } else { path.to_path_buf() };
        let text =
            gguf::read_text(&file, oarlock_comm::MAX_CONFIG_BYTES).map_err(Error::io("read", &file))?;
        let mut config = HfConfig::parse(&file, &text)?;
        config.folder = is_folder.then(|| path.to_owned());
        if is_folder && path.join("adapter_config.json").is_file() {
            config.notes.push(format!(
                "warning: {} holds an adapter beside the model (adapter_config.json), which is not read; name the folder as an \
                 adapter where it is to be used",
                path.display()
            ));
        }
        if is_folder && config.decoder.tie_embeddings && heads::differ(path, &|name| config.stored(name)) {
            config.decoder.tie_embeddings = false;
            config.notes.push(format!(
                "warning: {} says \"tie_word_embeddings\": true, and the weights hold an embedding and output weights that \
                 differ; both are kept, as in transformers",
                file.display()
            ));
        }
        Ok(config)
    }

    /// The folder that it is of, where it was read from one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Adds to the warnings.
    pub(crate) fn note(&mut self, notes: impl IntoIterator<Item = String>) {
        self.notes.extend(notes);
    }

    /// Warnings about how the folder was read: parts of it that were not, and what it contradicts itself in.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn parse(path: &Path, text: &str) -> Result<HfConfig> {
        let map: Map<String, Value> = json::from_str(text).map_err(|e| {
            Error::bad_file(path, format!("{e}; expected the JSON object of a Hugging Face model"))
        })?;
        let asked = RequestedFields::default();
        let fields = Fields::new(path, text, &map, &asked);
        let Some(family) = fields.text("model_type")?.and_then(Family::of) else {
            return Err(unknown(&fields, Family::model_types()));
        };
        let sparse_attention = sparsity::read(&fields)?;
        let decoder = DecoderConfig { sparse_attention, ..family.read(&fields)? };
        let decoder = checked(path, &fields, decoder)?;
        let first = |name, default| -> Result<Option<u32>> {
            match fields.has(name) {
                true => Ok(fields.token_ids(name)?.and_then(|ids| ids.first().copied())),
                false => Ok(default),
            }
        };
        let eos = match fields.has("eos_token_id") {
            true => fields.token_ids("eos_token_id")?.unwrap_or_default(),
            false => family.eos.to_vec(),
        };
        let special = SpecialTokens {
            bos: first("bos_token_id", family.bos)?,
            eos,
            pad: first("pad_token_id", family.pad)?,
        };
        let quantization = quantization::read(&fields)?;
        let value_head_dropout = value_head_dropout(path, &fields)?;
        let notes = unread::of(path, &fields);
        let (stored, folder) = (None, None);
        Ok(HfConfig {
            decoder,
            special,
            quantization,
            value_head_dropout,
            stored,
            folder,
            notes,
            fields: map,
        })
    }

    /// A new model from fields of a config.json that stand in no folder; `of` is where, for messages. `model_type` is one
    /// of [`Family::new_model_types`].
    ///
    /// # Errors
    /// As [`HfConfig::read`].
    pub fn from_fields(of: &str, map: &Map<String, Value>, special: SpecialTokens) -> Result<HfConfig> {
        let asked = RequestedFields::default();
        let fields = Fields::new(Path::new(of), "", map, &asked);
        let Some(decoder) = fields.text("model_type")?.and_then(|name| Family::read_new(name, &fields))
        else {
            return Err(unknown(&fields, Family::new_model_types()));
        };
        let decoder = checked(Path::new(of), &fields, decoder?)?;
        let notes = unread::of(Path::new(of), &fields);
        Ok(HfConfig { notes, ..HfConfig::new(decoder, special) })
    }

    /// Settings that come from no file.
    pub fn new(decoder: DecoderConfig, special: SpecialTokens) -> HfConfig {
        HfConfig {
            decoder,
            special,
            quantization: None,
            value_head_dropout: None,
            stored: None,
            folder: None,
            notes: Vec::new(),
            fields: Map::new(),
        }
    }

    /// The same with a larger vocabulary than the files of the folder have. Where `unties`, the output weights are the
    /// embedding's no more, and begin as these.
    #[must_use]
    pub fn with_vocab_size(mut self, vocab_size: usize, unties: bool) -> HfConfig {
        self.stored.get_or_insert((self.decoder.vocab_size, self.decoder.tie_embeddings));
        self.decoder.vocab_size = vocab_size;
        self.decoder.tie_embeddings &= !unties;
        self
    }

    /// Whether the vocabulary was made larger.
    pub fn has_grown(&self) -> bool {
        self.stored.is_some()
    }

    /// The settings of the files as they are.
    pub(crate) fn as_stored(&self) -> HfConfig {
        let mut own = self.clone();
        if let Some((vocab_size, ties)) = own.stored.take() {
            own.decoder.vocab_size = vocab_size;
            own.decoder.tie_embeddings = ties;
        }
        own
    }

    /// The same with sparse attention, as a run says it.
    #[must_use]
    pub fn with_sparse_attention(mut self, sparsity: SparsityConfig) -> HfConfig {
        self.decoder.sparse_attention = Some(sparsity);
        self
    }

    /// The same for sequences of up to `max_len`, where that is more than what the model was made for: LLaMA-Factory's
    /// `rope_scaling`, with its factor, the next whole number. Without a length the factor is 2, as in its inference.
    ///
    /// # Errors
    /// A family whose files cannot say so.
    pub fn with_rope_scaling(mut self, RopeArgs { kind, max_len }: RopeArgs) -> Result<HfConfig> {
        let kinds = self.decoder.rotary_kinds();
        let [(known, _)] = kinds.as_slice() else {
            return Err(Error::Model(
                "rope_scaling: the layers of this model turn positions in several ways; write the scaling into its config.json"
                    .to_owned(),
            ));
        };
        let original = rope::original_max_positions(&known.scaling).unwrap_or(self.decoder.max_positions);
        if let Some(max_len) = max_len.filter(|max_len| *max_len <= original) {
            self.notes.push(format!(
                "note: rope_scaling changes nothing: cutoff_len is {max_len}, and the model was made for {original}"
            ));
            return Ok(self);
        }
        let factor = max_len.map_or(2, |max_len| max_len.div_ceil(original));
        let longest = original.saturating_mul(factor);
        let scaling = rope::scaled(kind, original, factor);
        self.decoder.max_positions = longest;
        self.decoder.layers.iter_mut().for_each(|layer| layer.attention.rope.scaling = scaling.clone());
        // What is saved is to say the same.
        let written = HfConfig::parse(Path::new("config.json"), &self.to_json(DType::F32));
        if written.is_ok_and(|written| written.decoder.layers == self.decoder.layers) {
            self.notes.push(format!(
                "rope_scaling: {} with the factor {factor}, for sequences of up to {longest} instead of {original}",
                rope::write(&self.decoder.layers[0].attention.rope)["rope_type"].as_str().unwrap_or_default()
            ));
            return Ok(self);
        }
        Err(Error::Model(format!(
            "rope_scaling: models of the family {} know no such scaling",
            self.decoder.family.model_type
        )))
    }

    /// The decoder that it describes.
    pub fn decoder(&self) -> &DecoderConfig {
        &self.decoder
    }

    /// What the folder's files call a parameter.
    pub fn stored(&self, name: &str) -> String {
        self.decoder.family.stored(&self.decoder, name)
    }

    /// What the file says of quantized weights.
    pub(super) fn quantization_fields(&self) -> Option<&Map<String, Value>> {
        self.fields.get(quantization::FIELD)?.as_object()
    }

    /// How the files of the folder hold quantized weights, where they do.
    pub fn quantization(&self) -> Option<StoredQuantization> {
        self.quantization
    }

    /// The dropout before the value head of a reward model, which TRL reads as `summary_dropout_prob`.
    pub fn value_head_dropout(&self) -> Option<f32> {
        self.value_head_dropout
    }

    /// The token ids with a meaning.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The labels of a classifier: `num_labels`, or as many as `id2label` has, or transformers' 2.
    pub fn n_labels(&self) -> usize {
        let field = |name: &str| self.fields.get(name);
        let written = field("num_labels").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let listed = || field("id2label").and_then(Value::as_object).map(Map::len);
        written.or_else(listed).unwrap_or(2)
    }

    /// The Python files beside `config.json` that the folder's own model class needs (`auto_map`).
    pub(super) fn code_files(&self) -> Vec<String> {
        let classes =
            self.fields.get("auto_map").and_then(Value::as_object).into_iter().flat_map(Map::values);
        let module = |class: &Value| Some(format!("{}.py", class.as_str()?.split_once('.')?.0));
        // Only these: another folder's files are never read, and nothing is written outside of a model's folder.
        let is_beside = |name: &String| {
            !name.starts_with('.') && Path::new(name).file_name().is_some_and(|base| base == name.as_str())
        };
        let mut files: Vec<String> = classes.filter_map(module).filter(is_beside).collect();
        files.sort();
        files.dedup();
        files
    }

    /// `config.json` for weights of `dtype`: everything that was read but how weights were quantized, and every setting
    /// written out.
    pub fn to_json(&self, dtype: DType) -> String {
        pretty(&self.written(dtype))
    }

    /// The same for weights that are quantized, as `quantization` says.
    pub(super) fn to_quantized_json(&self, dtype: DType, quantization: Value) -> String {
        let mut fields = self.written(dtype);
        fields.insert(quantization::FIELD.to_owned(), quantization);
        pretty(&fields)
    }

    fn written(&self, dtype: DType) -> Map<String, Value> {
        let mut writer = FieldWriter::new(self.fields.clone());
        let family = self.decoder.family;
        writer.set("model_type", json!(family.model_type));
        writer.set("vocab_size", json!(self.decoder.vocab_size));
        writer.set("bos_token_id", json!(self.special.bos));
        writer.set("eos_token_id", json_ids(&self.special.eos));
        writer.set("pad_token_id", json!(self.special.pad));
        family.write(&self.decoder, &mut writer);
        sparsity::write(self.decoder.sparse_attention.as_ref(), &mut writer);
        writer.set_where_absent("architectures", json!([family.class]));
        writer.remove("torch_dtype");
        writer.remove(quantization::FIELD);
        writer.set("dtype", json!(dtype_name(dtype)));
        writer.finish()
    }

    /// `generation_config.json` where none can be taken over.
    pub(crate) fn generation_json(&self) -> String {
        let mut fields = Map::new();
        fields.insert("_from_model_config".to_string(), json!(true));
        let ids = [
            ("bos", json!(self.special.bos)),
            ("eos", json_ids(&self.special.eos)),
            ("pad", json!(self.special.pad)),
        ];
        for (name, id) in ids {
            if !id.is_null() {
                fields.insert(format!("{name}_token_id"), id);
            }
        }
        pretty(&fields)
    }
}

/// What a family has read, where it can be built.
fn checked(path: &Path, fields: &Fields<'_>, decoder: DecoderConfig) -> Result<DecoderConfig> {
    family::refuse_unsupported(fields)?;
    decoder.check().map_err(|e| Error::bad_file(path, e.to_string()))?;
    Ok(decoder)
}

fn value_head_dropout(path: &Path, fields: &Fields<'_>) -> Result<Option<f32>> {
    let name = "summary_dropout_prob";
    match fields.number(name)? {
        Some(p) if !(0.0..1.0).contains(&p) => {
            Err(Error::bad_file(path, format!("\"{name}\" is {p}; expected a number from 0 on, below 1")))
        }
        p => Ok(p.map(|p| p as f32)),
    }
}

/// A kind of model that none of `supported` is.
fn unknown(fields: &Fields<'_>, supported: impl Iterator<Item = &'static str>) -> Error {
    let mut names: Vec<&str> = supported.collect();
    let last = names.pop().unwrap_or_default();
    fields.wrong("model_type", format!("supported are {} and {last}, all dense", names.join(", ")))
}

fn json_ids(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [id] => json!(id),
        ids => json!(ids),
    }
}

/// The name of a dtype in `config.json`.
pub(super) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        DType::I32 => "int32",
    }
}

/// Sorted by name, as transformers writes it.
fn pretty(fields: &Map<String, Value>) -> String {
    let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
    // Maps with string keys always become JSON.
    serde_json::to_string_pretty(&sorted).unwrap_or_default() + "\n"
}

impl StoredForm for HfConfig {
    fn title(&self) -> &str {
        "config.json"
    }

    fn stored(&self, name: &str) -> String {
        HfConfig::stored(self, name)
    }

    fn files(&self, dir: &Path) -> Result<Option<MappedFiles>> {
        gguf::is_gguf(dir).then(|| gguf::map_weights(dir)).transpose()
    }

    fn quantization(&self) -> Option<StoredQuantization> {
        self.quantization
    }

    fn contradictions(&self, dir: &Path, found: &BTreeMap<String, Located>) -> Vec<String> {
        let fields = self.quantization_fields();
        fields.map_or_else(Vec::new, |fields| quantization::contradictions(dir, fields, found))
    }

    fn explain_missing(&self, names: &[String]) -> Option<String> {
        let output = self.stored("lm_head.weight");
        (names == [output.as_str()]).then(|| {
            format!(
                "lacks the output weights {output}; where they are the embedding's, set \"tie_word_embeddings\" to true in \
                 config.json"
            )
        })
    }
}
