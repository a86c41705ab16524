//! Folders that become GGUF files, and what is refused.

use std::fs;
use std::path::PathBuf;

use oarlock_comm::MappedFile;
use oarlock_engine::checkpoint::weights::SafetensorsSource;
use oarlock_engine::checkpoint::weights::{MappedFiles, floats, weight_files};
use oarlock_engine::nn::names_of;
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_gguf::{Gguf, TensorType};
use serde_json::{Value, json};

use super::*;
use crate::data::Tokenizer;
use crate::model::{Decoder, HfConfig};

/// A byte-level tokenizer of so many tokens, the last of them special.
fn byte_level(n: usize) -> Value {
    let mut vocab = serde_json::Map::new();
    (0..n - 2).for_each(|id| drop(vocab.insert(char::from(b'!' + id as u8).to_string(), json!(id))));
    vocab.insert("AB".to_owned(), json!(n - 2));
    json!({
        "version": "1.0", "normalizer": null, "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "added_tokens": [{"id": n - 1, "content": "<|end|>", "special": true, "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["A", "B"]], "ignore_merges": false},
    })
}

/// A copy of a golden model with a tokenizer, and its settings changed.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(name: &str, change: impl Fn(&mut Value)) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden").join(name);
        fs::create_dir(folder.path().join("model")).unwrap();
        let this = Folder(folder);
        for entry in fs::read_dir(&golden).unwrap().flatten() {
            let name = entry.file_name();
            if name.to_string_lossy().starts_with("model") {
                fs::copy(entry.path(), this.model().join(name)).unwrap();
            }
        }
        let mut config: Value =
            serde_json::from_str(&fs::read_to_string(golden.join("config.json")).unwrap()).unwrap();
        change(&mut config);
        let n_tokens = config["vocab_size"].as_u64().unwrap() as usize;
        this.write("config.json", &config);
        this.write("tokenizer.json", &byte_level(n_tokens));
        this.write("tokenizer_config.json", &json!({"eos_token": "<|end|>"}));
        this
    }

    fn model(&self) -> PathBuf {
        self.0.path().join("model")
    }

    /// The weights as the files hold them.
    fn stored(&self) -> MappedFiles {
        let names = weight_files(&self.model()).unwrap();
        MappedFiles::open(names.iter().map(|name| self.model().join(name))).unwrap()
    }

    fn original(&self, name: &str) -> Vec<f32> {
        let stored = self.stored();
        let located = &stored.tensors[name];
        let mut out = vec![0.0; located.shape.iter().product()];
        floats(name, located.dtype, &stored.files[located.file][located.bytes.clone()], &mut out).unwrap();
        out
    }

    fn write(&self, name: &str, value: &Value) {
        fs::write(self.model().join(name), value.to_string()).unwrap();
    }

    fn export(&self, mix: Mix) -> Result<WrittenGguf> {
        write_gguf(&self.model(), &self.0.path().join("model.gguf"), mix, None, false)
    }

    fn refused(&self) -> String {
        self.export(Mix::F32).unwrap_err().to_string()
    }
}

fn values(gguf: &Gguf<&[u8]>, name: &str) -> (Vec<u64>, Vec<f32>) {
    let tensor = gguf.tensor(name).unwrap();
    let mut out = vec![0.0; tensor.dims().iter().product::<u64>() as usize];
    let rows = tensor.dims().iter().skip(1).product();
    tensor.dequantize_rows(0, rows, &mut out).unwrap();
    (tensor.dims().to_vec(), out)
}

/// Takes out of the settings of a golden model what GGUF cannot say.
fn free(config: &mut Value) {
    config["query_pre_attn_scalar"] = config["head_dim"].clone();
    if config["model_type"] == "mistral" {
        config["sliding_window"] = Value::Null;
    }
    if config["model_type"] == "gemma3_text" || config["model_type"] == "gemma2" {
        config.as_object_mut().unwrap().remove("layer_types");
    }
}

/// Golden models of all families: they are written in every mix, and no tensor of the files is left over.
#[test]
fn every_family_has_a_place_for_every_tensor() {
    for (name, architecture, n_more) in [
        ("llama", "llama", 1),
        ("families/mistral", "llama", 0),
        ("qwen2", "qwen2", 0),
        ("qwen3", "qwen3", 0),
        ("families/phi3", "phi3", 2),
        ("families/gemma2", "gemma2", 0),
        ("families/gemma3_text", "gemma3", 0),
        ("families/glm4", "glm4", 0),
    ] {
        let folder = Folder::new(name, free);
        let written = folder.export(Mix::F32).unwrap_or_else(|error| panic!("{name}: {error}"));
        let map = MappedFile::open(&written.path).unwrap();
        let gguf = Gguf::new(&map[..]).unwrap();
        assert_eq!(gguf.require::<&str>("general.architecture").unwrap(), architecture);
        let stored = folder.stored();
        assert_eq!(written.types[0].1, stored.tensors.len() + n_more, "{name}");
        assert_eq!(written.notes.len(), if architecture == "phi3" { 2 } else { 0 }, "{name}");
        for mix in [Mix::BF16, Mix::Q8_0, Mix::Q4_K_M] {
            folder.export(mix).unwrap_or_else(|error| panic!("{name} {}: {error}", mix.name()));
        }
    }
}

/// What was written is read as the same model: settings, every bit of every weight, tokens.
#[test]
fn a_file_is_read_as_the_model_that_it_was_written_from() {
    let all = ["llama", "families/mistral", "qwen2", "qwen3", "families/phi3", "families/gemma2"];
    for name in all.into_iter().chain(["families/gemma3_text", "families/glm4"]) {
        let folder = Folder::new(name, free);
        let path = folder.export(Mix::F32).unwrap().path;
        let (own, read) = (HfConfig::read(&folder.model()).unwrap(), HfConfig::read(&path).unwrap());
        assert_eq!(read.notes(), [""; 0], "{name}");
        let (a, b) = (own.decoder(), read.decoder());
        assert_eq!((&a.layers, &a.final_norm), (&b.layers, &b.final_norm), "{name}");
        assert_eq!((a.logit_cap, a.embedding_scale), (b.logit_cap, b.embedding_scale), "{name}");
        assert_eq!((a.vocab_size, a.max_positions), (b.vocab_size, b.max_positions), "{name}");
        let decoders = [a, b].map(|config| Decoder::new(config.clone(), 8).unwrap());
        let mut expected = SafetensorsSource::open(&folder.model(), &own, &decoders[0]).unwrap();
        let mut found = SafetensorsSource::open(&path, &read, &decoders[1]).unwrap();
        for named in names_of(&decoders[1]) {
            let n_elems = named.param.shape().n_elems();
            let mut values = [vec![0.0; n_elems], vec![0.0; n_elems]];
            expected.read(&ParamSlice::of(&named, 0..n_elems), &mut values[0]).unwrap();
            found.read(&ParamSlice::of(&named, 0..n_elems), &mut values[1]).unwrap();
            // Gemma's norms lose bits that are far below 1 when 1 is added.
            let loses = named.name.contains("norm") && name.contains("gemma");
            let is_same = |(a, b): (&f32, &f32)| {
                a.to_bits() == b.to_bits() || (loses && (a - b).abs() <= f32::EPSILON / 2.0)
            };
            let [expected, whole] = &values;
            assert!(expected.iter().zip(whole).all(is_same), "{name}: {}", named.name);
            // Parts that begin and end within rows.
            let mut part = vec![0.0; n_elems - n_elems / 3 - n_elems / 5];
            found.read(&ParamSlice::of(&named, n_elems / 3..n_elems - n_elems / 5), &mut part).unwrap();
            assert_eq!(part, whole[n_elems / 3..n_elems - n_elems / 5], "{name}: {}", named.name);
        }
        let [own, read] = [&folder.model(), &path].map(|dir| Tokenizer::open(dir).unwrap());
        for text in ["AB<|end|>ABBA", "", "+-AB <|end|>"] {
            assert_eq!(own.encode(text).unwrap(), read.encode(text).unwrap(), "{name}: {text}");
        }
        assert_eq!((own.special().eos, own.special().bos), (read.special().eos, read.special().bos));
    }
}

/// As llama-gguf-split makes two files of one: tensors of each in their order, keys in the first.
#[test]
fn a_file_in_two_parts_has_the_same_weights() {
    let folder = Folder::new("qwen3", |_| {});
    let whole = folder.export(Mix::Q8_0).unwrap().path;
    let bytes = fs::read(&whole).unwrap();
    let gguf = Gguf::new(&bytes[..]).unwrap();
    let part = |number: usize| folder.0.path().join(format!("m-0000{number}-of-00002.gguf"));
    let half = gguf.n_tensors() / 2;
    for number in [1, 2] {
        let mut metadata = if number == 1 { Metadata::of(&gguf).unwrap() } else { Metadata::new() };
        metadata.set("general.quantization_version", 2_u32).unwrap();
        metadata.set("split.no", number as u16 - 1).unwrap();
        metadata.set("split.count", 2_u16).unwrap();
        metadata.set("split.tensors.count", gguf.n_tensors() as i32).unwrap();
        let of_part = || gguf.tensors().enumerate().filter(|(i, _)| (*i < half) == (number == 1));
        let plan = |tensor: oarlock_gguf::Tensor<'_>| {
            TensorPlan::new(tensor.name(), tensor.dims().to_vec(), tensor.tensor_type())
        };
        let plans = of_part().map(|(_, tensor)| plan(tensor)).collect();
        let mut writer = oarlock_gguf::Writer::begin(Vec::new(), &metadata, plans).unwrap();
        of_part().for_each(|(_, tensor)| writer.write_blocks(tensor.data()).unwrap());
        fs::write(part(number), writer.finish().unwrap()).unwrap();
    }
    let hf = HfConfig::read(&part(1)).unwrap();
    let decoder = Decoder::new(hf.decoder().clone(), 8).unwrap();
    let [mut expected, mut found] =
        [&whole, &part(1)].map(|path| SafetensorsSource::open(path, &hf, &decoder).unwrap());
    for named in names_of(&decoder) {
        let n_elems = named.param.shape().n_elems();
        let [mut a, mut b] = [vec![0.0; n_elems], vec![1.0; n_elems]];
        expected.read(&ParamSlice::of(&named, 0..n_elems), &mut a).unwrap();
        found.read(&ParamSlice::of(&named, 0..n_elems), &mut b).unwrap();
        assert_eq!(a, b, "{}", named.name);
    }
}

/// By hand from the layout: row 2j + s of a head is row s·d/2 + j of Hugging Face.
#[test]
fn rows_of_llama_take_turns_and_norms_of_gemma_are_one_more() {
    let folder = Folder::new("llama", |_| {});
    let written = folder.export(Mix::F32).unwrap();
    let map = MappedFile::open(&written.path).unwrap();
    let gguf = Gguf::new(&map[..]).unwrap();
    let original = |name: &str| folder.original(name);
    let (dims, q) = values(&gguf, "blk.0.attn_q.weight");
    let expected = original("model.layers.0.self_attn.q_proj.weight");
    let (row, head) = (dims[0] as usize, 8);
    for at in 0..dims[1] as usize {
        let (head_at, j, s) = (at / head * head, at % head / 2, at % 2);
        let from = head_at + s * head / 2 + j;
        assert_eq!(q[at * row..][..row], expected[from * row..][..row], "row {at}");
    }
    assert_eq!(values(&gguf, "blk.0.attn_v.weight").1, original("model.layers.0.self_attn.v_proj.weight"));
    assert_eq!(values(&gguf, "rope_freqs.weight").0, [4]);

    let folder = Folder::new("families/gemma2", |config| {
        config["query_pre_attn_scalar"] = config["head_dim"].clone();
        config.as_object_mut().unwrap().remove("layer_types");
    });
    let written = folder.export(Mix::F32).unwrap();
    let map = MappedFile::open(&written.path).unwrap();
    let gguf = Gguf::new(&map[..]).unwrap();
    let expected = folder.original("model.norm.weight");
    let found = values(&gguf, "output_norm.weight").1;
    assert!(found.iter().zip(&expected).all(|(a, b)| *a == b + 1.0));
}

#[test]
fn the_tokenizer_is_in_the_file() {
    let folder = Folder::new("qwen2", |_| {});
    let n_rows =
        serde_json::from_str::<Value>(&fs::read_to_string(folder.model().join("config.json")).unwrap())
            .unwrap()["vocab_size"]
            .as_u64()
            .unwrap() as usize;
    // Fewer tokens than the embedding has rows.
    folder.write("tokenizer.json", &byte_level(n_rows - 3));
    fs::write(folder.model().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let written = folder.export(Mix::F16).unwrap();
    let map = MappedFile::open(&written.path).unwrap();
    let gguf = Gguf::new(&map[..]).unwrap();
    let text = |key: &str| gguf.require::<&str>(&format!("tokenizer.{key}")).unwrap().to_owned();
    assert_eq!((text("ggml.model"), text("ggml.pre")), ("gpt2".to_owned(), "gpt-2".to_owned()));
    assert_eq!(text("chat_template"), "{{ messages[0].content }}");
    assert_eq!(gguf.require::<u32>("tokenizer.ggml.eos_token_id").unwrap() as usize, n_rows - 4);
    let (_, kinds) = gguf.metadata().find(|(key, _)| *key == "tokenizer.ggml.token_type").unwrap();
    let shown = format!("{kinds:?}");
    assert!(!shown.is_empty());
    assert_eq!(gguf.tensor("token_embd.weight").unwrap().tensor_type(), TensorType::F16);
    assert_eq!(gguf.tensor("output_norm.weight").unwrap().tensor_type(), TensorType::F32);
}

#[test]
fn what_gguf_cannot_say_is_refused_with_the_reason() {
    let folder = Folder::new("families/mistral", |_| {});
    assert!(folder.refused().contains("no key for its sliding window of 7 tokens"), "{}", folder.refused());
    let folder = Folder::new("families/olmo2", |_| {});
    assert!(
        folder.refused().contains("olmo2 has no tensor model.layers.0.self_attn.o_proj.bias"),
        "{}",
        folder.refused()
    );
    let folder = Folder::new("families/gemma2", |config| config["query_pre_attn_scalar"] = json!(99));
    assert!(folder.refused().contains("query_pre_attn_scalar is 99, and llama.cpp computes with 12"));
    let folder = Folder::new("qwen2", |config| {
        config["rope_parameters"] = json!({"rope_type": "dynamic", "factor": 2.0})
    });
    assert!(folder.refused().contains("no key for rope scaling dynamic"), "{}", folder.refused());

    let folder = Folder::new("qwen2", |_| {});
    let n = 61;
    let change = |change: &dyn Fn(&mut Value)| {
        let mut tokenizer = byte_level(n);
        change(&mut tokenizer);
        folder.write("tokenizer.json", &tokenizer);
        folder.refused()
    };
    for (edit, message) in [
        (
            &(|t: &mut Value| t["pre_tokenizer"] = json!({"type": "Whitespace"})) as &dyn Fn(&mut Value),
            "no name for the rule",
        ),
        (&|t: &mut Value| t["normalizer"] = json!({"type": "Lowercase"}), "no normalizer"),
        (&|t: &mut Value| t["model"]["type"] = json!("Unigram"), "only BPE is there"),
        (
            &|t: &mut Value| (t["model"]["ignore_merges"], t["model"]["merges"]) = (json!(true), json!([])),
            "its ignore_merges is true, llama.cpp has false for gpt-2, and the merges do not make the token \"AB\"",
        ),
        (&|t: &mut Value| t["added_tokens"][0]["id"] = json!(100_000), "the embedding has"),
        (&|t: &mut Value| t["added_tokens"][0]["content"] = json!("A"), "are both \"A\""),
    ] {
        let refused = change(edit);
        assert!(
            refused.contains(message) && refused.contains("GGUF cannot hold this tokenizer"),
            "{message}: {refused}"
        );
    }
    fs::remove_file(folder.model().join("tokenizer.json")).unwrap();
    assert!(folder.refused().contains("holds no tokenizer.json"));
}

#[test]
fn a_file_that_another_program_wrote_stays() {
    let folder = Folder::new("qwen2", |_| {});
    let out = folder.0.path().join("model.gguf");
    folder.export(Mix::F32).unwrap();
    folder.export(Mix::F16).unwrap();
    fs::write(&out, "mine").unwrap();
    let refused = folder.refused();
    assert!(
        refused.contains("was not written by an export") && refused.contains("overwrite_output_dir"),
        "{refused}"
    );
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    write_gguf(&folder.model(), &out, Mix::F32, None, true).unwrap();
}
