//! Adapters against PEFT: the golden folders and numbers of `tests/golden/adapters`, written by
//! bench/golden/make_adapters.py upon the model of `tests/golden/train-llama`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oarlock::adapters::{
    Adaptation, AdaptedModule, AdaptedSource, Adapter, AdapterConfig, LoraConfig, LoraInit, LowRank,
    OftBlocks, OftConfig, Targets, adapt, adapt_quantized, adapter_files, load_for_inference,
};
use oarlock::config::{RopeArgs, RopeKind};
use oarlock::export::{ExportOptions, export};
use oarlock::model::{Decoder, HfConfig, LoadedModel};
use oarlock::nn::{self, Mask};
use oarlock::shard::{Placements, WeightSource};
use oarlock::weights::{QuantizedLayers, SafetensorsSource};
use oarlock::{
    Accelerator, AcceleratorConfig, DType, DataLoaderConfiguration, Prepared, PreparedOptimizer, ReduceOp,
    Result, ShardingConfig, Tensor, optim,
};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::cpu::quantized::{Code, Format};
use oarlock_tensor::{Device, Par, RopeScaling};
use serde_json::Value;

use crate::ranks::on_ranks;

pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn numbers(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden("adapters").join(name)).unwrap()).unwrap()
}

pub fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

pub fn rows(value: &Value) -> Vec<Vec<i32>> {
    let row = |row: &Value| floats(row).into_iter().map(|id| id as i32).collect();
    value.as_array().unwrap().iter().map(row).collect()
}

fn device() -> Device {
    Device::cpu(Isa::detect(), Par::solo())
}

/// A base with an adapter beside it, in f32.
pub fn beside(base: &Path, adapter: &Path) -> LoadedModel {
    let hf = HfConfig::read(base).unwrap();
    let mut decoder = Decoder::new(hf.decoder().clone(), 64).unwrap();
    let adapter = Adapter::open(adapter, &hf, &mut decoder).unwrap();
    let weights = SafetensorsSource::open(base, &hf, &decoder).unwrap();
    let mut source = AdaptedSource::new(Box::new(weights), &decoder, 0, &device());
    let adaptation = Adaptation::of(&adapter);
    adapt(&mut decoder, &adaptation).unwrap();
    source = source.continuing(Some(adapter));
    oarlock::model::hf::load_from(hf, decoder, &mut source, &device(), DType::F32, 64).unwrap()
}

/// Whether a model says what is `expected` of the golden numbers.
pub fn check(model: &LoadedModel, golden: &Value, expected: &str) {
    let ids = rows(&golden["ids"]);
    let places = floats(&golden["places"]);
    let shape = [ids.len(), ids[0].len()];
    let ids = Tensor::from_slice(&ids.concat(), shape, &model.device).unwrap();
    let logits = model.decoder.logits(&ids, &Mask::Causal).unwrap().to_vec::<f32>().unwrap();
    let vocab = model.config.decoder().vocab_size;
    let found = logits.chunks(shape[1] * vocab).flat_map(|row| {
        places.iter().flat_map(|place| row[*place as usize * vocab..][..vocab].to_vec()).collect::<Vec<f32>>()
    });
    let expected_values = floats(&golden[expected]);
    let mut n = 0;
    for (found, expected) in found.zip(&expected_values) {
        assert!((f64::from(found) - expected).abs() < 1e-4, "{n}: {found} {expected}");
        n += 1;
    }
    assert_eq!(n, expected_values.len());
}

#[test]
fn logits_are_those_of_peft_beside_the_base_and_merged_into_it() {
    let merged = |names: &[&str]| {
        let dirs: Vec<PathBuf> = names.iter().map(|name| golden("adapters").join(name)).collect();
        load_for_inference(&golden("train-llama"), &dirs, &device(), DType::F32, 64).unwrap()
    };
    let numbers = numbers("logits.json");
    let check = |model: LoadedModel, expected: &str| check(&model, &numbers, expected);
    check(merged(&[]), "base");
    for name in ["lora", "rslora", "dora", "pissa", "oft", "oft_blocks"] {
        check(beside(&golden("train-llama"), &golden("adapters").join(name)), name);
        check(merged(&[name]), &format!("{name}_merged"));
    }
    check(merged(&["lora", "dora"]), "lora_then_dora");
    check(merged(&["dora", "oft"]), "dora_then_oft");
}

pub fn placement(name: &str) -> ShardingConfig {
    ShardingConfig {
        placements: match name {
            "DDP" => Placements::WHOLE,
            "ZeRO-2" => Placements::GRADIENTS,
            _ => Placements::PARAMETERS,
        },
        ..ShardingConfig::default()
    }
}

fn pissa(rank: usize) -> LoraConfig {
    LoraConfig { rank, alpha: Some(8.0), init: LoraInit::Pissa { iterations: None }, ..LoraConfig::default() }
}

/// Training runs of PEFT: the model, the folders in which adapters begin, and the numbers.
#[derive(Clone)]
pub struct PeftRuns {
    pub base: PathBuf,
    pub adapters: PathBuf,
    pub numbers: Value,
    /// The rank of an adapter of PiSSA, whose beginning the base says.
    pub rank: usize,
    /// The weights of the base are quantized while they are read, for computations in this format.
    pub quantized: Option<(Format, DType)>,
}

impl PeftRuns {
    fn of_llama() -> PeftRuns {
        let (base, adapters) = (golden("train-llama"), golden("adapters"));
        PeftRuns { base, adapters, numbers: numbers("train.json"), rank: 4, quantized: None }
    }
}

/// The losses of a model that continues an adapter.
fn train(
    accelerator: &Accelerator,
    trainings: &PeftRuns,
    name: &str,
    out: Option<&Path>,
) -> Result<Vec<f64>> {
    let PeftRuns { base, adapters, numbers: golden_numbers, rank, quantized } = trainings;
    let hf = HfConfig::read(base)?;
    let mut decoder = Decoder::new(hf.decoder().clone(), 24)?;
    // The base says how PiSSA begins.
    let adapter = match name {
        "pissa" => None,
        _ => Some(Adapter::open(&adapters.join(format!("first_{name}")), &hf, &mut decoder)?),
    };
    let mut weights: Box<dyn WeightSource> = Box::new(SafetensorsSource::open(base, &hf, &decoder)?);
    let adaptation = match &adapter {
        None => Adaptation::new(&mut decoder, &hf, &pissa(*rank).into())?,
        Some(adapter) => Adaptation::of(adapter),
    };
    match *quantized {
        None => adapt(&mut decoder, &adaptation)?,
        Some((format, dtype)) => {
            let layers = QuantizedLayers::All(format);
            let quantized = adapt_quantized(&mut decoder, &adaptation, &layers, dtype)?;
            weights = Box::new(quantized.source(weights, accelerator.device()));
        }
    }
    let source = AdaptedSource::new(weights, &decoder, 0, accelerator.device());
    let lr = golden_numbers["learning_rate"].as_f64().unwrap();
    let decay = golden_numbers["weight_decay"].as_f64().unwrap();
    let adamw = optim::adamw(&decoder).lr(lr).weight_decay(decay);
    let source = Box::new(source.beside(&adaptation).continuing(adapter));
    let (model, optimizer): (Prepared<Decoder>, _) =
        accelerator.prepare_with_weights((decoder, adamw), source)?;
    let n_steps = floats(&golden_numbers["losses"][name]).len();
    let losses = losses_of_steps(accelerator, &model, &optimizer, &rows(&golden_numbers["rows"]), n_steps)?;
    if let Some(out) = out {
        let called = base.file_name().and_then(|name| name.to_str()).unwrap();
        let files = adapter_files(&hf, model.module(), &adaptation, called, None)?;
        accelerator.save_pretrained(&model, out, files)?;
    }
    Ok(losses)
}

/// The losses of steps on batches of four rows, of which each rank has its share.
pub fn losses_of_steps(
    accelerator: &Accelerator,
    model: &Prepared<Decoder>,
    optimizer: &PreparedOptimizer,
    rows: &[Vec<i32>],
    n_steps: usize,
) -> Result<Vec<f64>> {
    let mut losses = Vec::new();
    for step in 0..n_steps {
        let batch = &rows[step % 2 * 4..][..4];
        let share = 4 / accelerator.num_processes();
        let own = &batch[share * accelerator.process_index()..][..share];
        let tokens =
            |from: usize| -> Vec<i32> { own.iter().flat_map(|row| row[from..from + 23].to_vec()).collect() };
        let ids = Tensor::from_slice(&tokens(0), [share, 23], accelerator.device())?;
        let next = Tensor::from_slice(&tokens(1), [share, 23], accelerator.device())?;
        let logits = model.call(&ids, |model, ids| model.logits(ids, &Mask::Causal))?;
        let loss = nn::cross_entropy(&logits, &next)?;
        accelerator.backward(&loss)?;
        optimizer.step()?;
        losses.push(f64::from(accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item::<f32>()?));
    }
    Ok(losses)
}

fn losses(world: usize, options: ShardingConfig, name: &'static str, out: Option<PathBuf>) -> Vec<f64> {
    losses_of(&PeftRuns::of_llama(), world, options, name, out)
}

/// The losses of one of the run runs on so many ranks.
pub fn losses_of(
    trainings: &PeftRuns,
    world: usize,
    options: ShardingConfig,
    name: &'static str,
    out: Option<PathBuf>,
) -> Vec<f64> {
    let trainings = trainings.clone();
    let config = AcceleratorConfig {
        shard: options,
        threads: Some(1),
        dataloader: DataLoaderConfiguration::default(),
        ..AcceleratorConfig::default()
    };
    let all =
        on_ranks(world, config, move |accelerator| train(accelerator, &trainings, name, out.as_deref()));
    all.into_iter().map(|losses| losses.unwrap()).next().unwrap()
}

#[test]
fn losses_are_those_of_peft_on_any_ranks_and_in_any_placement() {
    for name in ["lora", "dora", "pissa", "oft"] {
        let expected = floats(&numbers("train.json")["losses"][name]);
        for (world, way) in [(1, "DDP"), (2, "DDP"), (2, "ZeRO-2"), (2, "ZeRO-3")] {
            let found = losses(world, placement(way), name, None);
            assert_eq!(found.len(), expected.len());
            for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!((found - expected).abs() < 1e-4, "{name} {way} {step}: {found} {expected}");
            }
        }
    }
}

/// LoRA beside a base in bf16, as PEFT trains under autocast. Seen: 9.3e-3.
#[test]
fn losses_in_bf16_are_those_of_peft() {
    let shard = ShardingConfig { dtype: DType::BF16, ..ShardingConfig::default() };
    let expected = floats(&numbers("low_precision.json")["lora_bf16"]);
    let far = largest_difference(&losses(1, shard, "lora", None), &expected).unwrap();
    assert!(far < 2e-2, "{far:e}");
}

/// QLoRA beside a base in nf4, as bitsandbytes, PEFT and torch train it. Seen: 1.9e-4 in f32; 3.8e-2 in bf16, where two ranks
/// are as far from one as both are from PEFT.
#[test]
fn losses_beside_four_bits_are_those_of_bitsandbytes_and_peft() {
    let format = Format::FourBit { code: Code::Nf4, nested: true };
    for (name, dtype, bound) in [("qlora", DType::F32, 4e-4), ("qlora_bf16", DType::BF16, 5e-2)] {
        let expected = floats(&numbers("low_precision.json")[name]);
        let trainings = PeftRuns { quantized: Some((format, dtype)), ..PeftRuns::of_llama() };
        for world in [1, 2] {
            let shard = ShardingConfig { dtype, ..ShardingConfig::default() };
            let found = losses_of(&trainings, world, shard, "lora", None);
            let far = largest_difference(&found, &expected).unwrap();
            assert!(far < bound, "{name} on {world}: {far:e}");
        }
        // The base itself is another one.
        let plain = floats(&numbers("train.json")["losses"]["lora"]);
        assert!(largest_difference(&plain, &expected).unwrap() > 1e-3);
    }
}

pub fn tensors(dir: &Path) -> BTreeMap<String, (Vec<usize>, String)> {
    let bytes = std::fs::read(dir.join("adapter_model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let one = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        (name, (view.shape().to_vec(), format!("{:?}", view.dtype())))
    };
    file.tensors().into_iter().map(one).collect()
}

#[test]
fn what_is_written_has_the_keys_the_shapes_and_the_settings_of_peft() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["lora", "dora", "pissa", "oft"] {
        let out = folder.path().join(name);
        losses(2, placement("ZeRO-3"), name, Some(out.clone()));
        let first = golden("adapters").join(format!("first_{name}"));
        assert_eq!(tensors(&out), tensors(&first), "{name}");
        let config = |dir: &Path| -> Value {
            serde_json::from_str(&std::fs::read_to_string(dir.join("adapter_config.json")).unwrap()).unwrap()
        };
        assert_eq!(config(&out), config(&first), "{name}");
        // And it is read again.
        let hf = HfConfig::read(&golden("train-llama")).unwrap();
        let mut decoder = Decoder::new(hf.decoder().clone(), 24).unwrap();
        Adapter::open(&out, &hf, &mut decoder).unwrap();
    }
}

#[test]
fn an_export_is_one_model_that_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let adapters = [golden("adapters").join("lora"), golden("adapters").join("dora")];
    let base = golden("train-llama");
    let n_positions = HfConfig::read(&base).unwrap().decoder().max_positions;
    for (dtype, bound) in [(DType::F32, 1e-4), (DType::BF16, 0.5)] {
        let out = folder.path().join(dtype.to_string());
        let options = ExportOptions {
            model: &base,
            adapters: &adapters,
            quantized: None,
            out: &out,
            max_shard_bytes: 60_000,
            dtype: Some(dtype),
            dequantizes: false,
            overwrite: false,
            chat: None,
            rope_scaling: None,
        };
        let exported = export(&options, &device()).unwrap();
        assert!(exported.compared.difference < bound, "{:?}", exported.compared);
        assert!(exported.compared.positions > 0 && exported.n_elems > 30_000);
        for name in ["config.json", "tokenizer.json", "Modelfile", "generation_config.json"] {
            assert!(exported.files.iter().any(|file| file == name) && out.join(name).is_file(), "{name}");
        }
        assert!(out.join("model.safetensors.index.json").is_file());
        if dtype == DType::F32 {
            let written = load_for_inference(&out, &[], &device(), DType::F32, 64).unwrap();
            check(&written, &numbers("logits.json"), "lora_then_dora");
        }
    }
    let same = ExportOptions {
        model: &base,
        adapters: &[],
        quantized: None,
        out: &base,
        max_shard_bytes: 1,
        dtype: None,
        dequantizes: false,
        overwrite: false,
        chat: None,
        rope_scaling: None,
    };
    assert!(export(&same, &device()).unwrap_err().to_string().contains("name another folder"));
    // The written model is the scaled one, which is what it is compared with.
    let out = folder.path().join("longer");
    for (max_len, factor) in [(None, 2.0), (Some(1), 1.0), (Some(4 * n_positions), 4.0)] {
        let rope_scaling = Some(RopeArgs { kind: RopeKind::Linear, max_len });
        let longer =
            ExportOptions { out: &out, rope_scaling, overwrite: true, max_shard_bytes: 1 << 20, ..same };
        assert!(export(&longer, &device()).unwrap().compared.difference < 1e-4);
        let written = HfConfig::read(&out).unwrap();
        assert_eq!(written.decoder().max_positions, n_positions * factor as usize);
        let scaling = match factor {
            1.0 => RopeScaling::None,
            _ => RopeScaling::Linear { factor },
        };
        assert_eq!(written.decoder().layers[0].attention.rope.scaling, scaling);
    }
}

#[test]
fn targets_are_names_or_all() {
    let hf = HfConfig::read(&golden("train-llama")).unwrap();
    let mut decoder = Decoder::new(hf.decoder().clone(), 24).unwrap();
    let mut new = |config: AdapterConfig| Adaptation::new(&mut decoder, &hf, &config);
    let low_rank = |rank, scale| AdaptedModule::LowRank(LowRank { rank, scale });
    let all = new(AdapterConfig::default()).unwrap();
    assert_eq!(all.modules.len(), 14);
    assert!(all.modules.values().all(|module| *module == low_rank(8, 2.0)));
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let targets =
        |names: &[&str]| AdapterConfig { targets: Targets::Named(named(names)), ..AdapterConfig::default() };
    let whole = |names: &[&str]| AdapterConfig { modules_to_save: named(names), ..AdapterConfig::default() };
    let patterns = LoraConfig {
        rank_pattern: vec![("q_proj".to_owned(), 4)],
        alpha_pattern: vec![("layers.1.self_attn.q_proj".to_owned(), 6.0)],
        use_rslora: true,
        ..LoraConfig::default()
    };
    let some = targets(&["q_proj", "layers.1.mlp.up_proj"]);
    let some = new(AdapterConfig { targets: some.targets, ..patterns.into() }).unwrap();
    let paths: Vec<&str> = some.modules.keys().map(String::as_str).collect();
    let expected =
        ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj", "model.layers.1.self_attn.q_proj"];
    assert_eq!(paths, expected);
    assert_eq!(some.modules[expected[0]], low_rank(4, 8.0));
    assert_eq!(some.modules[expected[2]], low_rank(4, 3.0));
    assert_eq!(new(whole(&["norm"])).unwrap().whole.into_iter().collect::<Vec<_>>(), ["model.norm"]);
    // Blocks that do not divide the inputs (32, and 80 of down_proj) give way to the nearest ones that do.
    for (blocks, hidden, inner) in [(OftBlocks::Size(10), 8, 10), (OftBlocks::Count(4), 8, 20)] {
        let of = new(OftConfig { blocks, ..OftConfig::default() }.into()).unwrap();
        assert_eq!(of.modules[expected[0]], AdaptedModule::Rotated(hidden));
        assert_eq!(of.modules["model.layers.0.mlp.down_proj"], AdaptedModule::Rotated(inner));
    }
    for (config, message) in [
        (
            targets(&["query"]),
            "lora_target: the model has no linear layer query; choose from down_proj, gate_proj",
        ),
        (targets(&["embed_tokens"]), "additional_target"),
        // The embedding is the output weights, too.
        (targets(&["lm_head"]), "would untie them"),
        (whole(&["embed_tokens"]), "would untie them"),
        (whole(&["score"]), "no module score"),
    ] {
        assert!(new(config).unwrap_err().to_string().contains(message), "{message}");
    }
}

/// A copy of a folder, of which a JSON file may be changed.
fn copied(from: &Path, to: &Path, json: &str, edit: impl FnOnce(&mut Value)) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let path = to.join(json);
    let mut value: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    edit(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

/// What is told of an adapter beside a base, or why it is none of its.
fn message(adapter: &Path, base: &Path) -> std::result::Result<String, String> {
    let hf = HfConfig::read(base).unwrap();
    let mut decoder = Decoder::new(hf.decoder().clone(), 8).unwrap();
    let adapter = Adapter::open(adapter, &hf, &mut decoder).map_err(|e| e.to_string())?;
    Ok(adapter.notes().join("\n"))
}

#[test]
fn an_adapter_knows_the_model_that_it_was_trained_beside() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Written here, and by PEFT beside a folder that is there, and beside one that is not.
    losses(1, placement("DDP"), "lora", Some(at("ours")));
    let base = at("base");
    copied(&golden("train-llama"), &base, "config.json", |_| ());
    let name = |to: &'static str, base: String| {
        copied(&golden("adapters/first_lora"), &at(to), "adapter_config.json", |config| {
            config["base_model_name_or_path"] = base.into();
        });
    };
    name("peft", base.display().to_string());
    name("moved", "elsewhere/train-llama".to_owned());
    name("hub", "someone/Other-1B".to_owned());
    copied(&base, &at("moved/train-llama"), "config.json", |_| ());
    copied(&base, &at("mistral"), "config.json", |config| {
        config["model_type"] = "mistral".into();
        config["sliding_window"] = Value::Null;
    });
    copied(&golden("train-llama"), &at("other"), "config.json", |_| ());
    let mut weights = std::fs::read(at("other/model.safetensors")).unwrap();
    let n = weights.len();
    // The last half of the file: signs of weights.
    weights[n / 2..].iter_mut().skip(3).step_by(4).for_each(|byte| *byte ^= 0x80);
    std::fs::write(at("other/model.safetensors"), weights).unwrap();

    for adapter in ["ours", "peft", "moved"] {
        assert_eq!(message(&at(adapter), &at("moved/train-llama")).unwrap(), "", "{adapter}");
    }
    for adapter in ["ours", "peft"] {
        let said = message(&at(adapter), &at("other")).unwrap();
        assert!(
            said.contains("whose weights are not those of") && said.contains("other"),
            "{adapter}: {said}"
        );
        let said = message(&at(adapter), &at("mistral")).unwrap_err();
        assert!(said.contains("another kind of model") && said.contains("(llama, 2 layers of 32)"), "{said}");
    }
    let said = message(&at("hub"), &base).unwrap();
    assert!(said.contains("was trained beside someone/Other-1B by its adapter_config.json"), "{said}");
}

#[test]
fn settings_that_contradict_the_weights_are_refused_and_unknown_ones_told() {
    let folder = tempfile::tempdir().unwrap();
    let base = golden("train-llama");
    let of = |name: &str, edit: &dyn Fn(&mut Value)| {
        let to = folder.path().join("adapter");
        copied(&golden("adapters").join(name), &to, "adapter_config.json", |config| edit(config));
        message(&to, &base)
    };
    let set =
        |name: &str, key: &'static str, value: Value| of(name, &move |config| config[key] = value.clone());
    let list = |names: &[&str]| Value::from(names.to_vec());
    for (said, expected) in [
        (set("lora", "r", 1_000_000_000.into()), "says the rank 1000000000 for model.layers.0"),
        (set("lora", "r", 2.into()), "and its weights there have the rank 4"),
        (set("lora", "r", Value::Null), "\"r\" is null; expected a number"),
        (set("lora", "lora_alpha", Value::Null), "\"lora_alpha\" is null; expected a number"),
        (
            set("rslora", "rank_pattern", serde_json::json!({})),
            "says the rank 4 for model.layers.1.self_attn.q_proj",
        ),
        (set("lora", "target_modules", list(&["nothing"])), "which is none of them"),
        (set("lora", "target_modules", list(&["q_proj", "v_proj"])), "which is none of them"),
        (
            set("rslora", "target_modules", list(&["q_proj", "v_proj", "o_proj"])),
            "names q_proj, v_proj, o_proj in target_modules, and the weights hold no adapter of \
             model.layers.0.self_attn.o_proj",
        ),
        (
            set("rslora", "layers_to_transform", 1.into()),
            "an adapter of model.layers.0.self_attn.q_proj, which is none of",
        ),
        (
            of("rslora", &|config| {
                config["layers_to_transform"] = serde_json::json!([0, 1]);
                config["layers_pattern"] = "blocks".into();
            }),
            "of the blocks 0, 1 (layers_to_transform), and the weights hold an adapter of model.layers.0",
        ),
        (set("rslora", "exclude_modules", list(&["v_proj"])), "without v_proj (exclude_modules)"),
        (set("rslora", "target_modules", ".*q_proj".into()), "an adapter of model.layers.0.self_attn.v_proj"),
        (
            set("rslora", "target_modules", ".*[qvo]_proj".into()),
            "no adapter of model.layers.0.self_attn.o_proj",
        ),
        (set("rslora", "target_modules", "all-linear".into()), "no adapter of model.layers.0"),
        (set("lora", "modules_to_save", list(&["norm"])), "names norm in modules_to_save"),
        (set("dora", "use_dora", false.into()), "says use_dora: false, and the weights hold magnitudes"),
        (set("lora", "use_dora", true.into()), "lacks model.layers.0"),
        (
            set("oft", "oft_block_size", 16.into()),
            "(oft_block_size, r), and its weights there are of blocks of",
        ),
        (set("lora", "peft_type", "OFT".into()), "oft_block_size"),
        (set("lora", "bias", "all".into()), "only \"none\" is supported"),
    ] {
        let said = said.unwrap_err();
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let to = folder.path().join("twice");
    copied(&golden("adapters/lora"), &to, "adapter_config.json", |_| ());
    let path = to.join("adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen('{', "{\"lora_alpha\": 1,", 1)).unwrap();
    let said = message(&to, &base).unwrap_err();
    assert!(said.contains("\"lora_alpha\" stands twice with two values"), "{said}");
    for (said, expected) in [
        (set("lora", "new_setting", serde_json::json!({"a": 1})), "nothing reads \"new_setting\": {\"a\":1}"),
        (set("lora", "lora_ga_config", "x".into()), "nothing reads \"lora_ga_config\": \"x\""),
        (
            set("rslora", "target_modules", list(&["q_proj", "v_proj", "query"])),
            "target_modules of the adapter names query, which the model does not have",
        ),
        (
            set("lora", "alpha_pattern", serde_json::json!({"query": 3})),
            "alpha_pattern of the adapter names query, and no layer of that name has an adapter",
        ),
        (set("rslora", "layers_to_transform", serde_json::json!([1, 0])), ""),
        (set("lora", "newer_setting", Value::Null), ""),
        (set("lora", "newer_setting", false.into()), ""),
        (set("rslora", "target_modules", ".*[qv]_proj".into()), ""),
    ] {
        let said = said.unwrap();
        assert!(
            if expected.is_empty() { said.is_empty() } else { said.contains(expected) },
            "{expected}: {said}"
        );
    }
}
