//! Preferences, paired and unpaired, and rewards against LLaMA-Factory's encoding and torch: the loss, the gradient norm
//! and the metrics of every step of golden trajectories (`tests/golden/preference`, written by
//! bench/golden/make_preference.py), however they are split and sharded.

use oarlock::adapters::{Adaptation, AdaptedSource, Adapter, adapt};
use oarlock::config::{ChatArgs, ExampleKind, KtoArgs, PreferenceArgs, PreferenceLoss};
use oarlock::data::{
    Chat, Encoder, Loader, Packing, RowReport, RowSettings, Rows, Sampler, Source, TokenCache, Tokenizer,
    eval_batches,
};
use oarlock::model::{Decoder, HfConfig, ValueHeadSource};
use oarlock::shard::{Placements, ShardingConfig, WeightSource};
use oarlock::train::{
    Evaluation, Kto, Objective, Preference, Reference, Reward, StepReport, evaluate, train_step,
};
use oarlock::weights::SafetensorsSource;
use oarlock::{Accelerator, AcceleratorConfig, optim};
use oarlock_comm::Communicator;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_tensor::cpu::difference::largest_difference_by;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::golden;
use serde_json::Value;

/// How steps are taken.
#[derive(Clone, Copy)]
struct Split {
    ranks: usize,
    rows: u64,
    accumulation: u64,
    placements: Placements,
    steps: usize,
}

/// As the golden trajectories: six pairs a step on one rank.
const GOLDEN: Split = Split { ranks: 1, rows: 6, accumulation: 1, placements: Placements::WHOLE, steps: 30 };

/// What is optimized.
#[derive(Clone)]
enum Loss {
    Pairs(PreferenceArgs),
    UnpairedPreference(KtoArgs),
    Reward,
}

fn folder() -> PathBuf {
    golden().with_file_name("preference")
}

fn trajectories() -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder().join("trajectory.json")).unwrap()).unwrap()
}

pub fn data(examples: ExampleKind) -> (Arc<Rows>, RowReport) {
    let tokenizer = Tokenizer::open(golden()).unwrap();
    let args = ChatArgs {
        template: Some("default".into()),
        enable_thinking: Some(true),
        split_special_tokens: true,
        examples,
        ..ChatArgs::default()
    };
    let key = if examples == ExampleKind::Pairs { "cutoff_len" } else { "judged_cutoff_len" };
    let cutoff_len = trajectories()[key].as_u64().unwrap() as usize;
    let chat = Chat::new(&tokenizer, &golden(), &args, cutoff_len).unwrap();
    let name = if examples == ExampleKind::Pairs { "pairs" } else { "judged" };
    let source = Source::resolve(name, &folder(), None).unwrap();
    let caches = tempfile::tempdir().unwrap();
    let cache =
        TokenCache::build(caches.path(), &source, Encoder::sft(&tokenizer, &chat), &mut |_| ()).unwrap();
    let cache = TokenCache::open(&cache.path).unwrap();
    let report = cache.report().unwrap().unwrap();
    let len = if examples == ExampleKind::Pairs { 2 * cutoff_len } else { cutoff_len };
    let settings = RowSettings { packing: Packing::Examples, len, special: tokenizer.special() };
    (Arc::new(Rows::new(Arc::new(cache), &settings).unwrap()), report)
}

fn train(loss: &Loss, with_adapter: bool, split: &Split) -> Vec<StepReport> {
    let rows = data(if matches!(loss, Loss::UnpairedPreference(_)) {
        ExampleKind::UnpairedPreferences
    } else {
        ExampleKind::Pairs
    })
    .0;
    let rank = |comm| rank(comm, loss, with_adapter, split, &rows);
    let reports = oarlock_comm::shm::on_threads(split.ranks, rank).unwrap();
    assert!(reports.iter().all(|of_rank| of_rank == &reports[0]), "the ranks disagree");
    reports.into_iter().next().unwrap()
}

fn rank(
    comm: Communicator,
    loss: &Loss,
    with_adapter: bool,
    split: &Split,
    rows: &Arc<Rows>,
) -> Vec<StepReport> {
    let options = ShardingConfig { placements: split.placements, ..ShardingConfig::default() };
    let config = AcceleratorConfig { shard: options, threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
    let hf = HfConfig::read(&golden()).unwrap();
    let decoder = || Decoder::for_rows(hf.decoder().clone(), 56, 56 * 2 * 7).unwrap();
    let weights = |model: &Decoder| -> Box<dyn WeightSource> {
        Box::new(SafetensorsSource::open(&golden(), &hf, model).unwrap())
    };
    let mut model = decoder();
    let mut source = weights(&model);
    if with_adapter {
        let dir = golden().with_file_name("adapters").join("lora");
        let adapter = Adapter::open(&dir, &hf, &mut model).unwrap();
        source = Box::new(
            AdaptedSource::new(source, &model, 0, accelerator.device()).continuing(Some(adapter.clone())),
        );
        let adaptation =
            Adaptation { with_reference: !matches!(loss, Loss::Reward), ..Adaptation::of(&adapter) };
        adapt(&mut model, &adaptation).unwrap();
    }
    if matches!(loss, Loss::Reward) {
        model.add_value_head(0.0).unwrap();
        let head = ValueHeadSource::new(source, Some(&folder()), (32, 0), accelerator.device());
        source = Box::new(head.unwrap());
    }
    let adamw = optim::adamw(&model).lr(1e-3).weight_decay(0.0);
    let prepared = accelerator.prepare_with_weights((model, adamw), source).unwrap();
    let reference = || match with_adapter {
        true => Reference::SameWeights,
        false => {
            let second = decoder();
            let weights = weights(&second);
            Reference::Second(accelerator.prepare_with_weights(second, weights).unwrap())
        }
    };
    let reports = match loss {
        Loss::Pairs(args) if !args.loss.has_reference() => {
            steps(&accelerator, &Preference::new(args.clone(), Reference::Absent), &prepared, split, rows)
        }
        Loss::Pairs(args) => {
            steps(&accelerator, &Preference::new(args.clone(), reference()), &prepared, split, rows)
        }
        Loss::UnpairedPreference(args) => {
            steps(&accelerator, &Kto::new(args.clone(), reference()), &prepared, split, rows)
        }
        Loss::Reward => steps(&accelerator, &Reward, &prepared, split, rows),
    };
    comm.finish();
    reports
}

fn steps(
    accelerator: &Accelerator,
    objective: &dyn Objective,
    (model, optimizer): &(oarlock::Prepared<Decoder>, oarlock::PreparedOptimizer),
    split: &Split,
    rows: &Arc<Rows>,
) -> Vec<StepReport> {
    let (world, rank) = (accelerator.num_processes() as u64, accelerator.process_index() as u64);
    let sampler = Sampler {
        len: rows.n_rows(),
        seed: 0,
        shuffle: false,
        world,
        rank,
        micro_batch: split.rows,
        accumulation: split.accumulation,
        lengths: None,
    };
    let mut loader = Loader::new(rows.clone(), sampler, 0).unwrap();
    let mut timer = PhaseTimer::new();
    let mut step = || {
        let window = loader.next_step().unwrap();
        train_step(accelerator, objective, model, optimizer, &window.batches, 1.0, &mut timer).unwrap()
    };
    let reports: Vec<StepReport> = (0..split.steps).map(|_| step()).collect();
    // Every example counts once, also where some ranks have none left.
    let batches = eval_batches(rows.clone(), world, rank, 7).unwrap();
    let Evaluation { totals, loss } = evaluate(accelerator, objective, model, batches).unwrap();
    assert!((loss / totals.loss() - 1.0).abs() < 0.2, "{loss} {}", totals.loss());
    assert_eq!(totals.weight, rows.n_rows() as f64);
    assert!(totals.loss().is_finite() && totals.means().iter().all(|(_, mean)| mean.is_finite()));
    reports
}

fn pairs(loss: PreferenceLoss) -> Loss {
    Loss::Pairs(PreferenceArgs { loss, ..PreferenceArgs::default() })
}

/// The golden runs by name.
fn runs() -> Vec<(&'static str, Loss, bool)> {
    let more = PreferenceArgs { label_smoothing: 0.1, ftx: 0.2, ..PreferenceArgs::default() };
    let simpo = PreferenceArgs { loss: PreferenceLoss::Simpo, beta: 2.0, ..PreferenceArgs::default() };
    let kto = KtoArgs::default();
    let weighed = KtoArgs { chosen_weight: 1.5, rejected_weight: 0.5, ..kto.clone() };
    vec![
        ("sigmoid", pairs(PreferenceLoss::Sigmoid), false),
        ("hinge", pairs(PreferenceLoss::Hinge), false),
        ("ipo", pairs(PreferenceLoss::Ipo), false),
        ("orpo", pairs(PreferenceLoss::Orpo), false),
        ("simpo", Loss::Pairs(simpo), false),
        ("sigmoid_more", Loss::Pairs(more), false),
        ("sigmoid_lora", pairs(PreferenceLoss::Sigmoid), true),
        ("kto", Loss::UnpairedPreference(kto.clone()), false),
        ("kto_weights", Loss::UnpairedPreference(weighed), false),
        ("kto_lora", Loss::UnpairedPreference(kto), true),
        ("rm", Loss::Reward, false),
        ("rm_lora", Loss::Reward, true),
    ]
}

/// The largest distances from a golden run: of losses, relative ones of gradient norms, and of metrics.
fn apart(ours: &[StepReport], golden: &Value) -> (f64, f64, f64) {
    let number = |key: &str, step: usize| golden[key][step].as_f64().unwrap();
    let golden_of = |key: &str| (0..ours.len()).map(|step| number(key, step)).collect::<Vec<f64>>();
    let own = |value: fn(&StepReport) -> f64| ours.iter().map(value).collect::<Vec<f64>>();
    // Losses of IPO are in the tens.
    let of_size = |a: f64, b: f64| (a - b).abs() / b.abs().max(1.0);
    let relative = |a: f64, b: f64| (a / b - 1.0).abs();
    let loss = largest_difference_by(&own(StepReport::loss), &golden_of("loss"), of_size).unwrap();
    let norms = own(|report| report.grad_norm);
    let norm = largest_difference_by(&norms, &golden_of("grad_norm"), relative).unwrap();
    let (mut found_metrics, mut expected_metrics) = (Vec::new(), Vec::new());
    for (name, points) in golden["metrics"].as_object().unwrap() {
        for point in points
            .as_array()
            .unwrap()
            .iter()
            .filter(|point| (point[0].as_u64().unwrap() as usize) < ours.len())
        {
            let means = ours[point[0].as_u64().unwrap() as usize].totals.means();
            let found =
                means.iter().find(|(own, _)| own == name).unwrap_or_else(|| panic!("no metric {name}"));
            found_metrics.push(found.1);
            expected_metrics.push(point[1].as_f64().unwrap());
        }
    }
    let metric = largest_difference_by(&found_metrics, &expected_metrics, of_size).unwrap();
    (loss, norm, metric)
}

#[test]
fn every_loss_follows_the_original() {
    let golden = trajectories();
    for (name, loss, with_adapter) in runs() {
        let (loss, norm, metric) = apart(&train(&loss, with_adapter, &GOLDEN), &golden["runs"][name]);
        println!("{name}: losses within {loss:.1e}, norms within {norm:.1e}, metrics within {metric:.1e}");
        assert!(loss < 1e-4 && norm < 2e-3 && metric < 1e-3, "{name}: {loss} {norm} {metric}");
    }
}

#[test]
#[ignore = "heavy"]
fn every_split_and_placement_follows_the_original() {
    let golden = trajectories();
    let splits = [
        Split { rows: 3, accumulation: 2, ..GOLDEN },
        Split { ranks: 2, rows: 3, placements: Placements::PARAMETERS, ..GOLDEN },
        Split { ranks: 2, rows: 1, accumulation: 3, placements: Placements::GRADIENTS, ..GOLDEN },
        Split { ranks: 3, rows: 2, placements: Placements::OPTIMIZER, ..GOLDEN },
        Split { ranks: 3, rows: 1, accumulation: 2, placements: Placements::PARAMETERS, ..GOLDEN },
    ];
    let chosen = ["sigmoid", "orpo", "sigmoid_lora", "kto", "kto_lora", "rm"];
    for (name, loss, with_adapter) in runs().into_iter().filter(|(name, ..)| chosen.contains(name)) {
        for (index, split) in splits.iter().enumerate() {
            let split = Split { steps: 12, ..*split };
            let (loss, norm, metric) = apart(&train(&loss, with_adapter, &split), &golden["runs"][name]);
            assert!(
                loss < 1e-4 && norm < 2e-3 && metric < 1e-3,
                "{name}, split {index}: {loss} {norm} {metric}"
            );
        }
    }
}

#[test]
fn every_placement_has_the_same_bits() {
    let of_placement = |loss: &Loss, with_adapter: bool, placements: Placements| {
        train(loss, with_adapter, &Split { ranks: 2, rows: 3, steps: 6, placements, ..GOLDEN })
    };
    for (loss, with_adapter) in [
        (pairs(PreferenceLoss::Sigmoid), false),
        (pairs(PreferenceLoss::Sigmoid), true),
        (Loss::UnpairedPreference(KtoArgs::default()), false),
        (Loss::Reward, true),
    ] {
        let whole = of_placement(&loss, with_adapter, Placements::WHOLE);
        for placements in [Placements::OPTIMIZER, Placements::GRADIENTS, Placements::PARAMETERS] {
            assert_eq!(of_placement(&loss, with_adapter, placements), whole, "{placements:?}");
        }
    }
}

#[test]
fn a_model_that_is_its_reference_begins_with_the_announced_loss() {
    for (args, with_adapter) in [
        (PreferenceArgs::default(), false),
        (PreferenceArgs::default(), true),
        (PreferenceArgs { bco_weight: 0.5, label_smoothing: 0.2, ..PreferenceArgs::default() }, true),
        (PreferenceArgs { loss: PreferenceLoss::Ipo, ..PreferenceArgs::default() }, false),
    ] {
        let expected = Preference::new(args.clone(), Reference::Absent).first_loss().unwrap();
        let first = train(&Loss::Pairs(args.clone()), with_adapter, &Split { steps: 1, ..GOLDEN });
        let found = first[0].loss();
        assert!((found - expected).abs() < 1e-6 * expected.max(1.0), "{args:?}: {found} and {expected}");
    }
}

/// The reference counts all tokens, as in TRL: only where alpha is 1 a model begins with the rewards of its reference.
#[test]
fn length_desensitization_leaves_the_reference_whole() {
    let rewards = |alpha: f32| {
        let args = PreferenceArgs { ld_alpha: Some(alpha), ..PreferenceArgs::default() };
        let means = train(&Loss::Pairs(args), false, &Split { steps: 1, ..GOLDEN })[0].totals.means();
        let of = |name: &str| means.iter().find(|(known, _)| *known == name).unwrap().1;
        [of("rewards/chosen"), of("rewards/rejected")]
    };
    assert!(rewards(1.0).iter().all(|reward| reward.abs() < 1e-5), "{:?}", rewards(1.0));
    // Log-probabilities that count half are larger ones.
    assert!(rewards(0.5).iter().all(|reward| *reward >= 0.0) && rewards(0.5).iter().sum::<f64>() > 0.1);
}

#[test]
fn the_report_counts_what_the_original_encodes() {
    let (rows, report) = data(ExampleKind::Pairs);
    let golden = trajectories();
    let count = |key: &str| golden[key].as_u64().unwrap();
    assert_eq!((report.tokens, report.trained), (count("tokens"), count("trained")));
    assert_eq!((report.rows, report.examples, report.n_dropped()), (60, 60, 0));
    assert_eq!((0..rows.n_rows()).map(|row| rows.n_targets(row) as u64).sum::<u64>(), report.trained);
    let (_, report) = data(ExampleKind::UnpairedPreferences);
    assert!(report.unpaired == 60 && (20..50).contains(&report.wanted), "{report:?}");
    assert!(
        report
            .lines(48)
            .iter()
            .any(|line| line.ends_with("answers are not wanted") || line.contains("are wanted"))
    );
}
