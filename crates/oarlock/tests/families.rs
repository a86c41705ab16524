//! The model families against transformers + torch (`tests/golden/families`, written by bench/golden/make_families.py):
//! logits, 20 training steps, generation with a cache, and the folders that are written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oarlock::model::hf::HfConfig;
use oarlock::model::{
    Decoder, LoadedModel, SaveOptions, SequenceClassifier, load_for_inference, save_pretrained,
};
use oarlock::nn::{Module, cross_entropy, names_of};
use oarlock::optim::Optim;
use oarlock::weights::WorkingCopies;
use oarlock::{Accelerator, AcceleratorConfig, Tensor};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::ops::Mask;
use oarlock_tensor::ops::optimizer::Rule;
use oarlock_tensor::{DType, Device, Par};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// As in the script.
const BATCH: usize = 2;
const STEPS: usize = 20;
const LR: f64 = 2e-3;
const EPS: f64 = 1e-4;
const SAMPLES: usize = 48;

/// A tensor of a file, as f64.
#[derive(Debug, PartialEq)]
struct Stored {
    sizes: Vec<usize>,
    values: Vec<f64>,
}

fn read(path: &Path) -> BTreeMap<String, Stored> {
    let bytes = std::fs::read(path).unwrap();
    let values = |view: &safetensors::tensor::TensorView<'_>| -> Vec<f64> {
        let data = view.data();
        match view.dtype() {
            safetensors::Dtype::I32 => {
                data.as_chunks().0.iter().map(|&b| f64::from(i32::from_le_bytes(b))).collect()
            }
            safetensors::Dtype::F32 => {
                data.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()
            }
            safetensors::Dtype::BF16 => {
                let upper = |&[a, b]: &[u8; 2]| f64::from(f32::from_le_bytes([0, 0, a, b]));
                data.as_chunks().0.iter().map(upper).collect()
            }
            _ => data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
        }
    };
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors
        .iter()
        .map(|(name, view)| (name.to_owned(), Stored { sizes: view.shape().to_vec(), values: values(&view) }))
        .collect()
}

struct Family {
    name: String,
    dir: PathBuf,
    golden: BTreeMap<String, Stored>,
}

impl Family {
    fn all() -> Vec<Family> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/families");
        let mut dirs: Vec<PathBuf> = root.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        dirs.sort();
        let family = |dir: PathBuf| Family {
            name: dir.file_name().unwrap().to_str().unwrap().to_owned(),
            golden: read(&dir.join("golden.safetensors")),
            dir,
        };
        dirs.into_iter().map(family).collect()
    }

    /// Ids of all rows, and the length of a row.
    fn ids(&self) -> (Vec<i32>, usize) {
        let ids = &self.golden["ids"];
        (ids.values.iter().map(|&id| id as i32).collect(), ids.sizes[1])
    }

    fn load(&self) -> LoadedModel {
        let device = Device::cpu(Isa::detect(), Par::solo());
        load_for_inference(&self.dir, &device, DType::F32, self.ids().1).unwrap()
    }
}

/// A llama with dynamic rotary scaling, whose rows are longer than its `max_position_embeddings`.
fn dynamic() -> Family {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dynamic_rope");
    Family { name: "dynamic_rope".to_owned(), golden: read(&dir.join("golden.safetensors")), dir }
}

fn logits(model: &LoadedModel, ids: &[i32]) -> Vec<f32> {
    let ids = Tensor::from_slice(ids, [1, ids.len()], &model.device).unwrap();
    model.decoder.logits(&ids, &Mask::Causal).unwrap().to_vec().unwrap()
}

fn apart(ours: &[f32], theirs: &[f64]) -> f64 {
    largest_difference(ours, theirs).unwrap()
}

#[test]
fn logits_are_those_of_transformers() {
    for family in Family::all().into_iter().chain([dynamic()]) {
        let (ids, len) = family.ids();
        let far = apart(&logits(&family.load(), &ids[..len]), &family.golden["logits"].values);
        println!("{}: logits {far:.1e} from those of transformers", family.name);
        assert!(far < 1e-4, "{}: {far}", family.name);
    }
}

#[test]
fn an_answer_with_a_cache_is_that_of_the_whole_text() {
    for family in Family::all() {
        let (ids, len) = family.ids();
        let model = family.load();
        let whole = logits(&model, &ids[..len]);
        let vocab = whole.len() / len;
        let mut cache = model.decoder.empty_cache(len, DType::F32, &model.device).unwrap();
        // All positions are turned as in the whole.
        cache.iter_mut().for_each(|layer| layer.expect_prompt(len));
        let (mut at, mut far) = (0, 0.0);
        // A beginning of several tokens, and then one after the other.
        for n in [9].into_iter().chain([1].repeat(len - 9)) {
            let part = Tensor::from_slice(&ids[at..at + n], [1, n], &model.device).unwrap();
            let next: Vec<f32> = model.decoder.next_logits(&part, &mut cache).unwrap().to_vec().unwrap();
            at += n;
            let expected: Vec<f64> =
                whole[(at - 1) * vocab..at * vocab].iter().map(|x| f64::from(*x)).collect();
            far = apart(&next, &expected).max(far);
        }
        assert!(far < 1e-5, "{}: {far}", family.name);
    }
}

/// What transformers computes with a cache as well: keys stay as they were turned, and each pass turns its own by the length
/// of then.
#[test]
fn with_dynamic_scaling_a_cache_keeps_its_keys_as_in_transformers() {
    let family = dynamic();
    let (ids, len) = family.ids();
    let model = family.load();
    assert_eq!(model.n_positions, len);
    let expected = &family.golden["cached"].values;
    let vocab = expected.len() / (len - 8);
    // The beginning in one pass, and in parts that know how long it is.
    for parts in [vec![9], vec![4, 5]] {
        let mut cache = model.decoder.empty_cache(len, DType::F32, &model.device).unwrap();
        cache.iter_mut().for_each(|layer| layer.expect_prompt(9));
        let mut at = 0;
        for n in parts.into_iter().chain([1].repeat(len - 9)) {
            let part = Tensor::from_slice(&ids[at..at + n], [1, n], &model.device).unwrap();
            let next: Vec<f32> = model.decoder.next_logits(&part, &mut cache).unwrap().to_vec().unwrap();
            at += n;
            if at >= 9 {
                let far = apart(&next, &expected[(at - 9) * vocab..(at - 8) * vocab]);
                assert!(far < 1e-4, "{at}: {far}");
            }
        }
    }
    // Several answers at once, each with a cache of its own.
    let of = |n: usize| {
        let mut cache = model.decoder.empty_cache(len, DType::F32, &model.device).unwrap();
        let part = Tensor::from_slice(&ids[..n], [1, n], &model.device).unwrap();
        model.decoder.next_logits(&part, &mut cache).unwrap();
        cache
    };
    let (mut first, mut second) = (of(9), of(9));
    for at in 9..len {
        let token = Tensor::from_slice(&[ids[at], ids[at]], [2, 1], &model.device).unwrap();
        let mut caches = [&mut first[..], &mut second[..]];
        let next = model.decoder.next_logits_of_each(&token, &mut caches).unwrap().to_vec::<f32>().unwrap();
        for row in next.chunks(vocab) {
            let far = apart(row, &expected[(at - 8) * vocab..(at - 7) * vocab]);
            assert!(far < 1e-4, "{at}: {far}");
        }
    }
}

/// The sequences of a row count, not the row.
#[test]
fn short_sequences_in_a_long_row_are_turned_as_alone() {
    for family in [dynamic(), Family::all().into_iter().find(|family| family.name == "phi3").unwrap()] {
        let (ids, len) = family.ids();
        let model = family.load();
        let half = len / 2;
        let vocab = model.config.decoder().vocab_size;
        let starts: Vec<i32> = (0..len).map(|at| if at < half { 0 } else { half as i32 }).collect();
        let mask = Mask::Documents(Tensor::from_slice(&starts, [1, len], &model.device).unwrap());
        let row = Tensor::from_slice(&ids[..len], [1, len], &model.device).unwrap();
        let together: Vec<f32> = model.decoder.logits(&row, &mask).unwrap().to_vec().unwrap();
        for (part, found) in ids[..len].chunks(half).zip(together.chunks(half * vocab)) {
            let alone: Vec<f64> = logits(&model, part).into_iter().map(f64::from).collect();
            let far = apart(found, &alone);
            assert!(far < 1e-4, "{}: {far}", family.name);
        }
    }
}

/// With rows of the language model's head as its own, a classifier says what transformers says after the last token.
#[test]
fn a_classifier_of_every_family_scores_the_last_token() {
    const LABELS: usize = 3;
    for family in Family::all() {
        let config = HfConfig::read(&family.dir).unwrap();
        let (ids, len) = family.ids();
        let bytes = std::fs::read(family.dir.join("model.safetensors")).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors = stored.tensors();
        let ending =
            |end: &str| tensors.iter().find(|(name, _)| name.ends_with(end)).map(|(_, view)| view.clone());
        let head = ending("lm_head.weight").or_else(|| ending("embed_tokens.weight")).unwrap();
        let &[rows, hidden] = head.shape() else { panic!("{}: {:?}", family.name, head.shape()) };
        let labels = &head.data()[..head.data().len() / rows * LABELS];
        let score = TensorView::new(head.dtype(), vec![LABELS, hidden], labels).unwrap();
        tensors.push(("score.weight".to_owned(), score));
        let folder = tempfile::tempdir().unwrap();
        let file = safetensors::serialize(tensors, None).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        std::fs::copy(family.dir.join("config.json"), folder.path().join("config.json")).unwrap();

        let accelerator =
            Accelerator::new(&AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() })
                .unwrap();
        let classifier = SequenceClassifier::with_labels(&config, LABELS, len).unwrap();
        let classifier = accelerator.prepare(classifier).unwrap();
        let found = accelerator.load_pretrained(&classifier, folder.path()).unwrap();
        assert!(found.missing.is_empty(), "{}: {:?}", family.name, found.missing);
        let row = Tensor::from_slice(&ids[..len], [1, len], accelerator.device()).unwrap();
        let mut scores: Vec<f32> = classifier.forward(&row).unwrap().to_vec().unwrap();
        // The language model bounds its logits, and a classifier does not.
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(family.dir.join("config.json")).unwrap()).unwrap();
        if let Some(bound) = json["final_logit_softcapping"].as_f64().map(|bound| bound as f32) {
            scores.iter_mut().for_each(|score| *score = bound * (*score / bound).tanh());
        }
        let is_real = |id: &i32| config.special().pad.is_none_or(|pad| i64::from(*id) != i64::from(pad));
        let last = ids[..len].iter().rposition(is_real).unwrap();
        let golden = &family.golden["logits"].values;
        let vocab = golden.len() / len;
        let far = apart(&scores, &golden[last * vocab..][..LABELS]);
        assert!(far < 1e-4, "{}: {far}", family.name);
    }
}

/// The elements of a weight that the script samples.
fn sampled(values: &[f32]) -> Vec<f32> {
    let n = SAMPLES.min(values.len());
    (0..n).map(|i| values[i * values.len() / n]).collect()
}

#[test]
fn twenty_steps_are_those_of_torch() {
    for family in Family::all().into_iter().chain([dynamic()]) {
        let (ids, len) = family.ids();
        let accelerator =
            Accelerator::new(&AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() })
                .unwrap();
        let config = HfConfig::read(&family.dir).unwrap();
        let model = Decoder::new(config.decoder().clone(), len).unwrap();
        let optimizer = Optim::new(&model, Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: EPS }, LR, 0.0);
        let (model, optimizer) = accelerator.prepare((model, optimizer)).unwrap();
        let differences = accelerator.load_pretrained(&model, &family.dir).unwrap();
        assert_eq!(differences, Default::default(), "{}", family.name);
        let rows = ids.len() / len;
        let mut losses = Vec::new();
        for step in 0..STEPS {
            let batch: Vec<i32> =
                (0..BATCH).flat_map(|row| ids[(step * BATCH + row) % rows * len..][..len].to_vec()).collect();
            let labels: Vec<i32> =
                (0..batch.len()).map(|i| if i % len + 1 < len { batch[i + 1] } else { -100 }).collect();
            let x = Tensor::from_slice(&batch, [BATCH, len], accelerator.device()).unwrap();
            let logits = model.call(&x, |model, x| model.logits(x, &Mask::Causal)).unwrap();
            let logits = logits.reshape([BATCH * len, logits.shape().last()]).unwrap();
            let labels = Tensor::from_slice(&labels, [BATCH * len], accelerator.device()).unwrap();
            let loss = cross_entropy(&logits, &labels).unwrap();
            accelerator.backward(&loss).unwrap();
            optimizer.step().unwrap();
            optimizer.zero_grad().unwrap();
            losses.push(loss.item::<f64>().unwrap());
        }
        let far = largest_difference(&losses, &family.golden["losses"].values).unwrap();
        println!("{}: losses {far:.1e} from those of torch", family.name);
        assert!(far < 1e-4, "{}: losses {far} apart", family.name);

        let folder = tempfile::tempdir().unwrap();
        let mut weights = WorkingCopies::of(model.module());
        save(folder.path(), &config, model.module(), &mut weights, DType::F32);
        let ours = read(&folder.path().join("model.safetensors"));
        for (name, expected) in &family.golden {
            let Some(name) = name.strip_prefix("after.") else { continue };
            let values: Vec<f32> = ours[name].values.iter().map(|x| *x as f32).collect();
            let far = apart(&sampled(&values), &expected.values);
            assert!(far < 1e-4, "{}: {name} is {far} from torch after {STEPS} steps", family.name);
        }
    }
}

fn save(dir: &Path, config: &HfConfig, model: &dyn Module, weights: &mut WorkingCopies, dtype: DType) {
    let options = SaveOptions { dtype, max_shard_bytes: 1 << 30, side_files_from: None };
    save_pretrained(dir, config, model, weights, &options).unwrap();
}

#[test]
fn written_folders_hold_what_transformers_wrote() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("families");
    // What another build of the tests has left.
    let _ = std::fs::remove_dir_all(&root);
    for family in Family::all() {
        let model = family.load();
        let expected = read(&family.dir.join("model.safetensors"));
        // With all that was read, and from the description alone.
        let bare = HfConfig::new(model.config.decoder().clone(), model.config.special().clone());
        for (name, config) in [(family.name.clone(), &model.config), (format!("{}.bare", family.name), &bare)]
        {
            let dir = root.join(&name);
            save(&dir, config, &model.decoder, &mut WorkingCopies::of(&model.decoder), DType::BF16);
            assert!(read(&dir.join("model.safetensors")) == expected, "{name}: the weights are others");
            let again = HfConfig::read(&dir).unwrap();
            assert_eq!(again.decoder(), model.decoder.config(), "{name}");
            assert_eq!(again.special(), model.config.special(), "{name}");
        }
        let json = |dir: &Path| -> serde_json::Value {
            serde_json::from_str(&std::fs::read_to_string(dir.join("config.json")).unwrap()).unwrap()
        };
        let (ours, theirs) = (json(&root.join(&family.name)), json(&family.dir));
        for (field, value) in theirs.as_object().unwrap() {
            // Rotary settings gain what transformers derives.
            if field != "rope_parameters" {
                assert_eq!(&ours[field], value, "{}: {field}", family.name);
            }
        }
    }
}

#[test]
fn parameters_are_the_tensors_of_the_files() {
    for family in Family::all() {
        let model = family.load();
        let stored = read(&family.dir.join("model.safetensors"));
        for named in names_of(&model.decoder) {
            let Some(tensor) = stored.get(&model.config.stored(&named.name)) else { continue };
            let ours: Vec<f32> = named.param.weight().unwrap().to_vec().unwrap();
            assert_eq!(named.param.shape().sizes(), tensor.sizes, "{}: {}", family.name, named.name);
            assert_eq!(apart(&ours, &tensor.values), 0.0, "{}: {}", family.name, named.name);
        }
    }
}
