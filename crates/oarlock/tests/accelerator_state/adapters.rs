//! Models with adapters: checkpoints and files without the frozen base.

use std::collections::BTreeMap;
use std::path::Path;

use oarlock::checkpoint::{Manifest, Problem};
use oarlock::deepspeed::{self, Config, InitializeArgs};
use oarlock::nn::{self, Forward, Init, Linear, Module, Unit};
use oarlock::weights::{Differences, Strict};
use oarlock::{
    Accelerator, AcceleratorConfig, DType, Frozen, Prepared, PreparedOptimizer, ProjectConfiguration, Result,
    SaveModel, Tensor, optim,
};

use super::{WAYS, config, on_ranks, problem};

/// A frozen linear layer with a trained update of low rank.
#[derive(Module)]
struct Lora {
    #[module(name = "")]
    base: Linear,
    lora_a: Linear,
    lora_b: Linear,
}

#[derive(Module)]
struct Net {
    up: Unit<Lora>,
    head: Unit<Linear>,
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let x = self
            .up
            .call(x, |up, x| up.base.forward(x)?.add(&up.lora_b.forward(&up.lora_a.forward(x)?)?)?.tanh())?;
        self.head.forward(&x)
    }
}

fn net() -> Result<Net> {
    let base = Linear::new(70, 90)?;
    nn::freeze(&base);
    let lora_b = Linear::new(3, 90)?.no_bias().init(Init::Zeros);
    let up = Unit::new(Lora { base, lora_a: Linear::new(70, 3)?.no_bias(), lora_b });
    Ok(Net { up, head: Unit::new(Linear::new(90, 2)?) })
}

/// The base that the adapters are trained on.
fn base(accelerator: &Accelerator, salt: f32) -> Result<BTreeMap<String, Tensor>> {
    let values = |n: usize| (0..n).map(|i| (i as f32 + salt).sin() / 9.0).collect::<Vec<f32>>();
    let device = accelerator.device();
    Ok(BTreeMap::from([
        ("up.weight".to_owned(), Tensor::from_slice(&values(70 * 90), [90, 70], device)?),
        ("up.bias".to_owned(), Tensor::from_slice(&values(90), [90], device)?),
    ]))
}

fn prepared(accelerator: &Accelerator, salt: f32) -> Result<(Prepared<Net>, PreparedOptimizer)> {
    let net = net()?;
    let adam = optim::adamw(&net).lr(0.01);
    let (net, adam) = accelerator.prepare((net, adam))?;
    let differences = accelerator.load_state_dict_with(&net, &base(accelerator, salt)?, Strict::No)?;
    assert_eq!(differences.missing.len(), 4);
    Ok((net, adam))
}

/// Losses of steps, whose batches depend on their number.
fn train(
    accelerator: &Accelerator,
    net: &Prepared<Net>,
    adam: &PreparedOptimizer,
    steps: std::ops::Range<usize>,
) -> Result<Vec<u32>> {
    let mut losses = Vec::new();
    for step in steps {
        let x: Vec<f32> = (0..140).map(|i| ((i + 7 * step) as f32).cos()).collect();
        let x = Tensor::from_slice(&x, [2, 70], accelerator.device())?;
        let loss = net.forward(&x)?.square()?.mean_all()?;
        accelerator.backward(&loss)?;
        adam.step()?;
        losses.push(loss.item::<f32>()?.to_bits());
    }
    Ok(losses)
}

fn one_micro_batch(way: usize, frozen: Frozen) -> AcceleratorConfig {
    AcceleratorConfig {
        gradient_accumulation: Default::default(),
        project: ProjectConfiguration { frozen, ..ProjectConfiguration::default() },
        ..config(WAYS[way].0, WAYS[way].1)
    }
}

fn names(manifest: &Manifest) -> Vec<&str> {
    manifest.parameters.keys().map(String::as_str).collect()
}

#[test]
fn a_checkpoint_without_the_base_resumes_as_a_whole_one_does() {
    let folder = tempfile::tempdir().unwrap();
    for (way, (world, other)) in [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1)].into_iter().enumerate() {
        let dir = |frozen: Frozen| folder.path().join(format!("{way}-{frozen:?}"));
        let whole = [Frozen::Auto, Frozen::Include].map(|frozen| {
            on_ranks(world, &one_micro_batch(way, frozen), |accelerator| {
                let (net, adam) = prepared(accelerator, 0.5).unwrap();
                train(accelerator, &net, &adam, 0..3).unwrap();
                accelerator.save_state(Some(&dir(frozen))).unwrap();
                train(accelerator, &net, &adam, 3..6).unwrap()
            })
        });
        assert_eq!(whole[0], whole[1]);
        let without = Manifest::open(&dir(Frozen::Auto)).unwrap();
        assert_eq!(
            names(&without),
            ["head.bias", "head.weight", "up.lora_a.weight", "up.lora_b.weight"],
            "the head is trained"
        );
        let frozen: Vec<&String> = without.frozen.keys().collect();
        assert_eq!(frozen, ["up.bias", "up.weight"]);
        assert_eq!(names(&Manifest::open(&dir(Frozen::Include)).unwrap()).len(), 6);
        // On the same ranks, and on others in another placement.
        for (ranks, placement) in [(world, way), (other, 4 - way)] {
            let resumed = [Frozen::Auto, Frozen::Include].map(|frozen| {
                on_ranks(ranks, &one_micro_batch(placement, Frozen::Auto), |accelerator| {
                    let (net, adam) = prepared(accelerator, 0.5).unwrap();
                    accelerator.load_state(Some(&dir(frozen))).unwrap();
                    train(accelerator, &net, &adam, 3..6).unwrap()
                })
            });
            assert_eq!(resumed[0], resumed[1], "{way} on {ranks}");
            if ranks == world {
                assert_eq!(resumed[0], whole[0], "{way}");
            }
        }
    }
}

#[test]
fn another_base_is_refused_and_the_loop_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let config = one_micro_batch(4, Frozen::Auto);
    on_ranks(2, &config, |accelerator| {
        let (_net, _adam) = prepared(accelerator, 0.5).unwrap();
        accelerator.save_state(Some(&dir)).unwrap();
    });
    on_ranks(2, &config, |accelerator| {
        let (net, _adam) = prepared(accelerator, 0.25).unwrap();
        let before = accelerator.get_state_dict(&net).unwrap()["up.lora_a.weight"].to_vec::<f32>().unwrap();
        let error = accelerator.load_state(Some(&dir)).unwrap_err();
        let Problem::OtherBase(other) = problem(error) else { panic!("another problem") };
        assert_eq!((other.n_different, other.n, other.name.as_str()), (2, 2, "up.bias"));
        assert!(other.found != other.expected && other.found.len() == 16);
        let after = accelerator.get_state_dict(&net).unwrap();
        assert_eq!(after["up.lora_a.weight"].to_vec::<f32>().unwrap(), before);
        // With the base it is taken.
        let base = base(accelerator, 0.5).unwrap();
        accelerator.load_state_dict_with(&net, &base, Strict::No).unwrap();
        accelerator.load_state(Some(&dir)).unwrap();
    });
    // In bf16 the same base has other bits.
    let halves = AcceleratorConfig { mixed_precision: Some(DType::BF16), ..config };
    on_ranks(1, &halves, |accelerator| {
        let (_net, _adam) = prepared(accelerator, 0.5).unwrap();
        let message = accelerator.load_state(Some(&dir)).unwrap_err().to_string();
        assert!(message.contains("resume in f32"), "{message}");
    });
}

#[test]
fn files_of_adapters_go_beside_their_base() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, whole) = (folder.path().join("adapters"), folder.path().join("whole"));
    let saved = on_ranks(2, &one_micro_batch(4, Frozen::Auto), |accelerator| {
        let (net, adam) = prepared(accelerator, 0.5).unwrap();
        train(accelerator, &net, &adam, 0..3).unwrap();
        accelerator.save_model(&net, &alone, &SaveModel::default()).unwrap();
        let all = SaveModel { frozen: Frozen::Include, ..SaveModel::default() };
        accelerator.save_model(&net, &whole, &all).unwrap();
        train(accelerator, &net, &adam, 3..4).unwrap()
    });
    let tensors = |dir: &Path| {
        let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
        safetensors::SafeTensors::deserialize(&bytes).unwrap().names().len()
    };
    assert_eq!((tensors(&alone), tensors(&whole)), (4, 6));
    on_ranks(1, &one_micro_batch(0, Frozen::Auto), |accelerator| {
        for dir in [&alone, &whole] {
            let (net, adam) = prepared(accelerator, 0.5).unwrap();
            let differences = accelerator.load_model_with(&net, dir, Strict::No).unwrap();
            assert_eq!(differences.missing.len(), if dir == &alone { 2 } else { 0 });
            assert_eq!(differences.other_base, None);
            let losses = train(accelerator, &net, &adam, 3..4).unwrap();
            assert_eq!(losses[0], saved[0][0]);
        }
    });
    // Beside another base, and beside the same one in other bits.
    on_ranks(2, &one_micro_batch(4, Frozen::Auto), |accelerator| {
        let (net, _adam) = prepared(accelerator, 0.25).unwrap();
        let other = accelerator.load_pretrained(&net, &alone).unwrap().other_base.unwrap();
        assert_eq!((other.n_different, other.n, other.name.as_str()), (2, 2, "up.bias"));
        assert!(other.to_string().contains("load the base that they were trained on"), "{other}");
        assert_eq!(accelerator.load_model_with(&net, &whole, Strict::No).unwrap(), Differences::default());
    });
    let halves = AcceleratorConfig { mixed_precision: Some(DType::BF16), ..one_micro_batch(0, Frozen::Auto) };
    on_ranks(1, &halves, |accelerator| {
        let (net, _adam) = prepared(accelerator, 0.5).unwrap();
        let other = accelerator.load_model_with(&net, &alone, Strict::No).unwrap().other_base.unwrap();
        assert!(other.to_string().contains("trained in f32, and this model computes in bf16"), "{other}");
    });
}

#[test]
fn an_engine_excludes_frozen_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let config = one_micro_batch(0, Frozen::Auto);
    let engine = |accelerator: &Accelerator, salt: f32| {
        let text = r#"{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
                       "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}"#;
        let mut args = InitializeArgs::new(net().unwrap(), Config::from_text("adapters", text).unwrap());
        args.accelerator = Some(accelerator.clone());
        let (engine, ()) = deepspeed::initialize(args).unwrap();
        let base = base(accelerator, salt).unwrap();
        accelerator.load_state_dict_with(engine.model(), &base, Strict::No).unwrap();
        engine
    };
    on_ranks(2, &config, |accelerator| {
        let engine = engine(accelerator, 0.5);
        engine.save_checkpoint(dir, Some("adapters"), &1).unwrap();
        engine.save_checkpoint_with(dir, Some("whole"), &2, Frozen::Include).unwrap();
        engine.save_checkpoint_with(dir, Some("excluded"), &3, Frozen::Exclude).unwrap();
        engine.save_16bit_model(dir, None).unwrap();
        engine.save_16bit_model_with(dir, Some("adapters.safetensors"), Frozen::Exclude).unwrap();
    });
    for (name, n) in [("model.safetensors", 6), ("adapters.safetensors", 4)] {
        let bytes = std::fs::read(dir.join(name)).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!((header.tensors().len(), header.metadata().is_some()), (n, n == 4), "{name}");
    }
    for (tag, n) in [("adapters", 4), ("whole", 6), ("excluded", 4)] {
        assert_eq!(names(&Manifest::open(&dir.join(tag)).unwrap()).len(), n, "{tag}");
    }
    on_ranks(1, &config, |accelerator| {
        let same = engine(accelerator, 0.5);
        let adapters = dir.join("adapters.safetensors");
        let differences = accelerator.load_model_with(same.model(), &adapters, Strict::No).unwrap();
        assert_eq!((differences.missing.len(), differences.other_base), (2, None));
        assert_eq!(same.load_checkpoint::<i32>(dir, None).unwrap().unwrap().1, 3);
        let other = engine(accelerator, 0.75);
        assert_eq!(other.load_checkpoint::<i32>(dir, Some("whole")).unwrap().unwrap().1, 2);
        let third = engine(accelerator, 0.75);
        assert!(third.load_checkpoint::<i32>(dir, Some("adapters")).is_err());
    });
}
