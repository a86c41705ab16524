//! Weights in and out: slices, dtypes, every complaint about a folder, and saves that fail.

use std::collections::HashMap;
use std::ops::Range;

use oarlock_engine::checkpoint::weights::*;
use oarlock_engine::nn::{NamedParam, names_of};
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_tensor::{Init, Shape};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};

use super::*;
use crate::model::Decoder;

fn decoder_of(dir: &Path) -> (HfConfig, Decoder) {
    let config = HfConfig::read(dir).unwrap();
    let decoder = Decoder::new(config.decoder().clone(), 8).unwrap();
    (config, decoder)
}

/// A copy of a golden folder of one file whose tensors `edit` may change.
fn edited(
    name: &str,
    edit: impl FnOnce(&mut HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>),
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(golden(name).join("config.json"), dir.path().join("config.json")).unwrap();
    let bytes = std::fs::read(golden(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: HashMap<_, _> = file
        .iter()
        .map(|(name, t)| (name.to_string(), (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
        .collect();
    edit(&mut tensors);
    let views = tensors.iter().map(|(n, (d, s, b))| (n.clone(), TensorView::new(*d, s.clone(), b).unwrap()));
    serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

fn open(dir: &Path) -> Result<SafetensorsSource, Error> {
    let (config, decoder) = decoder_of(dir);
    SafetensorsSource::open(dir, &config, &decoder)
}

fn read(source: &mut dyn WeightSource, named: &NamedParam, elements: Range<usize>) -> Vec<f32> {
    let mut out = vec![0.0; elements.len()];
    source.read(&ParamSlice::of(named, elements), &mut out).unwrap();
    out
}

#[test]
fn slices_join_to_the_whole_in_every_dtype() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let model = load(&golden("qwen2"), DType::F32);
        let dir = tempfile::tempdir().unwrap();
        let options = SaveOptions::new(dtype, None);
        let mut copies = WorkingCopies::of(&model.decoder);
        save_pretrained(dir.path(), &model.config, &model.decoder, &mut copies, &options).unwrap();
        let mut source = open(dir.path()).unwrap();
        for named in names_of(&model.decoder) {
            let n = named.param.shape().n_elems();
            let whole = read(&mut source, &named, 0..n);
            let parts: Vec<f32> = [0..n / 3, n / 3..n / 3, n / 3..n]
                .into_iter()
                .flat_map(|r| read(&mut source, &named, r))
                .collect();
            assert_eq!(whole, parts);
            let round = |x: &f32| match dtype {
                DType::BF16 => half::bf16::from_f32(*x).to_f32(),
                DType::F16 => half::f16::from_f32(*x).to_f32(),
                _ => *x,
            };
            assert_eq!(
                whole,
                read(&mut copies, &named, 0..n).iter().map(round).collect::<Vec<_>>(),
                "{}",
                named.name
            );
        }
    }
}

#[test]
fn reading_what_was_not_opened_is_refused() {
    let mut source = open(&golden("qwen2")).unwrap();
    let mut read = |name: &str, sizes: &[usize], elements: Range<usize>| {
        let slice = ParamSlice { name, shape: Shape::new(sizes).unwrap(), init: Init::Ones, elements };
        source.read(&slice, &mut [0.0; 16])
    };
    assert!(read("model.norm.weight", &[16], 0..16).is_ok());
    assert!(read("model.norm.weight", &[16], 8..24).is_err());
    assert!(read("model.norm.bias", &[16], 0..16).is_err());
    assert!(read("model.norm.weight", &[4, 4], 0..16).is_err());
}

#[test]
fn tables_and_second_copies_of_tied_weights_do_no_harm() {
    let dir = edited("minimind", |t| {
        t.insert("lm_head.weight".to_string(), t["model.embed_tokens.weight"].clone());
        t.insert(
            "model.layers.0.self_attn.rotary_emb.inv_freq".to_string(),
            (Dtype::F32, vec![1], vec![0; 4]),
        );
        t.insert("model.freqs_cos".to_string(), (Dtype::F32, vec![1], vec![0; 4]));
    });
    open(dir.path()).unwrap();
}

#[test]
fn all_that_is_wrong_with_the_weights_is_told_at_once() {
    let dir = edited("qwen3", |t| {
        t.retain(|name, _| !name.contains("layers.1."));
        t.insert("model.layers.0.mlp.experts.weight".to_string(), (Dtype::F32, vec![1], vec![0; 4]));
        t.insert("model.norm.weight".to_string(), (Dtype::F32, vec![2, 2], vec![0; 16]));
        t.insert("lm_head.weight".to_string(), (Dtype::I64, vec![61, 16], vec![0; 61 * 16 * 8]));
    });
    let error = message(open(dir.path()));
    assert!(error.starts_with(&dir.path().display().to_string()), "{error}");
    for part in [
        "lacks weights that config.json asks for: model.layers.1.input_layernorm.weight, ",
        " and 6 more; it holds weights that config.json does not ask for: model.layers.0.mlp.experts.weight; it",
        "model.norm.weight [2, 2] (config.json asks for [16])",
        "lm_head.weight of I64 (supported are F32, F64, BF16 and F16)",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let dir = edited("qwen3", |t| drop(t.remove("lm_head.weight")));
    assert!(
        message(open(dir.path()))
            .contains("lacks the output weights lm_head.weight; where they are the embedding's")
    );
}

#[test]
fn broken_files_are_named_with_the_reason() {
    let dir = edited("qwen3", |_| {});
    let path = dir.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for (bytes, reason) in
        [(&whole[..whole.len() - 5], "damaged or cut off"), (&whole[..3], "header"), (b"", "header")]
    {
        std::fs::write(&path, bytes).unwrap();
        let error = message(open(dir.path()));
        assert!(error.contains("model.safetensors: ") && error.contains(reason), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(message(open(dir.path())).contains("holds no model.safetensors"));
    std::fs::write(dir.path().join("pytorch_model.bin"), b"").unwrap();
    assert!(message(open(dir.path())).contains("only safetensors files are read"));
    let index = dir.path().join("model.safetensors.index.json");
    for (text, part) in [
        ("{", "EOF"),
        ("{}", "\"weight_map\" is missing"),
        (r#"{"weight_map": {"a": "../b.safetensors"}}"#, "expected the name of a file beside it"),
        (r#"{"weight_map": {"a": "b.safetensors"}}"#, "cannot read"),
        (
            r#"{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}"#,
            "\"a\" stands twice with two values",
        ),
    ] {
        std::fs::write(&index, text).unwrap();
        let error = message(open(dir.path()));
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn an_index_that_contradicts_its_files_is_told() {
    let from = golden("llama");
    let model = load(&from, DType::F32);
    let dir = tempfile::tempdir().unwrap();
    let mut copies = WorkingCopies::of(&model.decoder);
    let shards = SaveOptions { dtype: DType::F32, max_shard_bytes: 12_000, side_files_from: Some(&from) };
    save_pretrained(dir.path(), &model.config, &model.decoder, &mut copies, &shards).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let listed: Value = serde_json::from_str(&std::fs::read_to_string(&index).unwrap()).unwrap();
    let warnings = |edit: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut changed = listed.clone();
        edit(changed["weight_map"].as_object_mut().unwrap());
        std::fs::write(&index, changed.to_string()).unwrap();
        open(dir.path()).map_or_else(|error| error.to_string(), |source| source.notes().join("\n"))
    };
    assert_eq!(warnings(&|_| ()), "");
    let said = warnings(&|map| {
        drop(map.insert("model.extra.weight".into(), "model-00001-of-00003.safetensors".into()))
    });
    assert!(said.contains("where it says they are, there are no model.extra.weight"), "{said}");
    let said = warnings(&|map| {
        drop(map.insert("model.norm.weight".into(), "model-00001-of-00003.safetensors".into()))
    });
    assert!(said.contains("there are no model.norm.weight"), "{said}");
    let said = warnings(&|map| drop(map.remove("model.norm.weight")));
    assert!(said.contains("it does not name, what is read all the same: model.norm.weight"), "{said}");
    // Both forms at once: one is read, and the other one is said not to be.
    let whole = SaveOptions { max_shard_bytes: SaveOptions::MAX_SHARD_BYTES, ..shards };
    let other = tempfile::tempdir().unwrap();
    save_pretrained(other.path(), &model.config, &model.decoder, &mut copies, &whole).unwrap();
    std::fs::rename(other.path().join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let said = warnings(&|_| ());
    assert!(said.contains("lies beside model.safetensors, which is read, as in transformers"), "{said}");
    // Who asks for the model hears of it.
    assert_eq!(load(dir.path(), DType::F32).config.notes().join("\n"), said);
}

/// A source that fails at the last weight.
struct Failing(WorkingCopies);

impl WeightSource for Failing {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<(), Error> {
        if slice.name == "model.norm.weight" {
            return Err(Error::Usage("lost".to_string()));
        }
        self.0.read(slice, out)
    }
}

/// The names in a folder, but for the record of what is whose.
fn listing(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(dir).unwrap().map(name).collect();
    names.retain(|name| name != oarlock_engine::disk::RECORD);
    names.sort();
    names
}

#[test]
fn a_failed_save_leaves_the_folder_and_a_good_one_removes_stale_shards() {
    let from = golden("llama");
    let model = load(&from, DType::F32);
    let dir = tempfile::tempdir().unwrap();
    let mut copies = WorkingCopies::of(&model.decoder);
    let shards = SaveOptions { dtype: DType::F32, max_shard_bytes: 12_000, side_files_from: Some(&from) };
    save_pretrained(dir.path(), &model.config, &model.decoder, &mut copies, &shards).unwrap();
    let before = listing(dir.path());
    let contents =
        |dir: &Path| before.iter().map(|name| std::fs::read(dir.join(name)).unwrap()).collect::<Vec<_>>();
    let old = contents(dir.path());
    assert!(before.contains(&"model-00001-of-00003.safetensors".to_string()), "{before:?}");
    assert!(before.contains(&"generation_config.json".to_string()));

    let whole = SaveOptions { max_shard_bytes: SaveOptions::MAX_SHARD_BYTES, dtype: DType::BF16, ..shards };
    let failing = &mut Failing(WorkingCopies::of(&model.decoder));
    let error = message(save_pretrained(dir.path(), &model.config, &model.decoder, failing, &whole));
    assert_eq!(error, "lost");
    let integers = SaveOptions { dtype: DType::I32, ..whole };
    assert!(
        message(save_pretrained(dir.path(), &model.config, &model.decoder, &mut copies, &integers))
            .contains("as i32")
    );
    assert_eq!((listing(dir.path()), contents(dir.path())), (before.clone(), old));

    save_pretrained(dir.path(), &model.config, &model.decoder, &mut copies, &whole).unwrap();
    assert_eq!(listing(dir.path()), ["config.json", "generation_config.json", "model.safetensors"]);
    assert_eq!(json(&dir.path().join("config.json"))["dtype"], "bfloat16");
}

const NO_GROWTH: &str = "OARLOCK_TEST_NO_GROWTH";

/// Runs in a child process of the test below, whose files may not grow beyond a few pages.
#[test]
#[ignore = "needs the limit that a_full_disk_is_a_clean_error sets"]
fn child_where_no_file_may_grow() {
    if std::env::var_os(NO_GROWTH).is_none() {
        return;
    }
    let model = load(&golden("qwen2"), DType::F32);
    let dir = tempfile::tempdir().unwrap();
    let options = SaveOptions::new(DType::F32, None);
    let mut copies = WorkingCopies::of(&model.decoder);
    let error = message(save_pretrained(dir.path(), &model.config, &model.decoder, &mut copies, &options));
    assert!(error.contains("cannot write") && error.contains("model.safetensors: File too large"), "{error}");
    assert!(listing(dir.path()).is_empty());
    println!("passed where no file may grow");
}

#[test]
fn a_full_disk_is_a_clean_error() {
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact \"$1\" --ignored --nocapture";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).arg(std::env::current_exe().unwrap());
    command.arg("model::hf::tests::weights::child_where_no_file_may_grow").env(NO_GROWTH, "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("passed where no file may grow"), "{output:?}");
}

#[test]
fn a_folder_with_its_own_model_class_keeps_the_code() {
    let dir = edited("minimind", |_| {});
    let path = dir.path().join("config.json");
    let mut config = json(&path);
    config["auto_map"] =
        serde_json::json!({ "AutoConfig": "model_x.Config", "AutoModelForCausalLM": "model_x.Model" });
    std::fs::write(&path, config.to_string()).unwrap();
    std::fs::write(dir.path().join("model_x.py"), "pass").unwrap();
    let model = load(dir.path(), DType::F32);
    let to = tempfile::tempdir().unwrap();
    let options =
        SaveOptions { dtype: DType::F32, max_shard_bytes: 1 << 30, side_files_from: Some(dir.path()) };
    save_pretrained(
        to.path(),
        &model.config,
        &model.decoder,
        &mut WorkingCopies::of(&model.decoder),
        &options,
    )
    .unwrap();
    assert_eq!(
        listing(to.path()),
        ["config.json", "generation_config.json", "model.safetensors", "model_x.py"]
    );
}

#[test]
fn output_weights_beside_a_tied_embedding_are_kept_where_they_differ() {
    let with_head = |negated: bool| {
        edited("train-llama", |tensors| {
            let (dtype, shape, mut bytes) = tensors["model.embed_tokens.weight"].clone();
            if negated {
                bytes.iter_mut().skip(3).step_by(4).for_each(|byte| *byte ^= 0x80);
            }
            tensors.insert("lm_head.weight".to_owned(), (dtype, shape, bytes));
        })
    };
    let same = with_head(false);
    let config = HfConfig::read(same.path()).unwrap();
    assert!(config.decoder().tie_embeddings && config.notes().is_empty());

    let other = with_head(true);
    let model = load(other.path(), DType::F32);
    assert!(!model.config.decoder().tie_embeddings);
    let notes = model.config.notes();
    assert!(notes.len() == 1 && notes[0].contains("differ; both are kept"), "{notes:?}");
    let values = |model: &LoadedModel, name: &str| {
        let named = names_of(&model.decoder).into_iter().find(|named| named.name == name).unwrap();
        named.param.weight().unwrap().to_vec::<f32>().unwrap()
    };
    let (embedding, head) = (values(&model, "model.embed_tokens.weight"), values(&model, "lm_head.weight"));
    assert!(embedding.iter().zip(&head).all(|(a, b)| *a == -b));

    // What is written says so, and is read without a word.
    let dir = tempfile::tempdir().unwrap();
    let options = SaveOptions::new(DType::F32, None);
    let mut copies = WorkingCopies::of(&model.decoder);
    save_pretrained(dir.path(), &model.config, &model.decoder, &mut copies, &options).unwrap();
    let again = load(dir.path(), DType::F32);
    assert!(!again.config.decoder().tie_embeddings && again.config.notes().is_empty());
    assert_eq!(values(&again, "lm_head.weight"), head);
}
