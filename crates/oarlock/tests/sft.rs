//! Supervised fine-tuning against LLaMA-Factory's encoding and torch: the loss and gradient norm of every step of a golden
//! trajectory (`tests/golden/sft-llama`, written by bench/golden/make_sft_trajectory.py), however it is split, sharded and
//! laid out in rows.

use std::sync::Arc;

use oarlock::config::{ChatArgs, TokenLossArgs};
use oarlock::data::{
    Chat, Encoder, Loader, Packing, RowReport, RowSettings, Rows, Sampler, Source, TokenCache, Tokenizer,
};
use oarlock::model::{Decoder, HfConfig};
use oarlock::shard::{Placements, ShardingConfig};
use oarlock::train::{NextToken, StepReport, train_step};
use oarlock::weights::SafetensorsSource;
use oarlock::{Accelerator, AcceleratorConfig, optim};
use oarlock_comm::Communicator;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_tensor::cpu::difference::{largest_difference, largest_difference_by};
use oarlock_tensor::ops::TokenLoss;

use crate::common::golden;
use serde_json::Value;

/// How the records become rows, and how a step takes them.
#[derive(Clone, Copy)]
pub struct Run {
    packing: Packing,
    row_len: usize,
    max_samples: Option<u64>,
    ranks: usize,
    rows: u64,
    accumulation: u64,
    placements: Placements,
    steps: usize,
    loss: TokenLossArgs,
}

/// As the golden trajectory: four conversations a step on one rank.
pub const GOLDEN: Run = Run {
    packing: Packing::Examples,
    row_len: 56,
    max_samples: None,
    ranks: 1,
    rows: 4,
    accumulation: 1,
    placements: Placements::WHOLE,
    steps: 30,
    loss: TokenLossArgs { kind: TokenLoss::CrossEntropy, neftune_alpha: None, accuracy: false },
};

fn settings() -> Value {
    let folder = golden().with_file_name("sft-llama");
    serde_json::from_str(&std::fs::read_to_string(folder.join("trajectory.json")).unwrap()).unwrap()
}

pub fn data(run: &Run) -> (Arc<Rows>, RowReport) {
    let tokenizer = Tokenizer::open(golden()).unwrap();
    let args = ChatArgs {
        template: Some("default".into()),
        enable_thinking: Some(true),
        split_special_tokens: true,
        ..ChatArgs::default()
    };
    let cutoff_len = settings()["cutoff_len"].as_u64().unwrap() as usize;
    let chat = Chat::new(&tokenizer, &golden(), &args, cutoff_len).unwrap();
    let folder = golden().with_file_name("sft-llama");
    let source = Source::resolve("conversations.jsonl", &folder, run.max_samples).unwrap();
    let caches = tempfile::tempdir().unwrap();
    let encoder = Encoder::sft(&tokenizer, &chat);
    let cache = TokenCache::build(caches.path(), &source, encoder, &mut |_| ()).unwrap();
    let cache = TokenCache::open(&cache.path).unwrap();
    let report = cache.report().unwrap().unwrap();
    let settings = RowSettings { packing: run.packing, len: run.row_len, special: tokenizer.special() };
    (Arc::new(Rows::new(Arc::new(cache), &settings).unwrap()), report)
}

fn train(run: &Run) -> Vec<StepReport> {
    let rows = data(run).0;
    let reports = oarlock_comm::shm::on_threads(run.ranks, |comm| rank(comm, run, &rows)).unwrap();
    assert!(reports.iter().all(|of_rank| of_rank == &reports[0]), "the ranks disagree");
    reports.into_iter().next().unwrap()
}

fn rank(comm: Communicator, run: &Run, rows: &Arc<Rows>) -> Vec<StepReport> {
    let settings = settings();
    let number = |key: &str| settings[key].as_f64().unwrap();
    let options = ShardingConfig { placements: run.placements, ..ShardingConfig::default() };
    let config = AcceleratorConfig { shard: options, threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
    let hf = HfConfig::read(&golden()).unwrap();
    let model = Decoder::for_rows(hf.decoder().clone(), 56, run.row_len * run.rows as usize).unwrap();
    let weights = SafetensorsSource::open(&golden(), &hf, &model).unwrap();
    let adamw = optim::adamw(&model).lr(number("learning_rate")).weight_decay(0.0);
    let (model, optimizer) = accelerator.prepare_with_weights((model, adamw), Box::new(weights)).unwrap();
    let sampler = Sampler {
        len: rows.n_rows(),
        seed: 0,
        shuffle: false,
        world: comm.world_size() as u64,
        rank: comm.rank() as u64,
        micro_batch: run.rows,
        accumulation: run.accumulation,
        lengths: None,
    };
    let mut loader = Loader::new(rows.clone(), sampler, 0).unwrap();
    let mut timer = PhaseTimer::new();
    let objective = NextToken { args: run.loss, seed: 42 };
    let mut step = || {
        let window = loader.next_step().unwrap();
        let clip = number("max_grad_norm");
        train_step(&accelerator, &objective, &model, &optimizer, &window.batches, clip, &mut timer).unwrap()
    };
    let reports = (0..run.steps).map(|_| step()).collect();
    comm.finish();
    reports
}

/// The largest distances between losses and, relative, gradient norms.
fn apart(ours: &[StepReport], losses: &[f64], norms: &[f64]) -> (f64, f64) {
    let of = |value: fn(&StepReport) -> f64| ours.iter().map(value).collect::<Vec<f64>>();
    let relative = |a: f64, b: f64| (a / b - 1.0).abs();
    (
        largest_difference(&of(StepReport::loss), losses).unwrap(),
        largest_difference_by(&of(|report| report.grad_norm), norms, relative).unwrap(),
    )
}

fn numbers(key: &str) -> Vec<f64> {
    settings()[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn every_split_and_placement_follows_the_original() {
    let (losses, norms) = (numbers("loss"), numbers("grad_norm"));
    for (what, run) in [
        ("one rank", GOLDEN),
        ("two micro-batches", Run { rows: 2, accumulation: 2, ..GOLDEN }),
        ("two ranks, ZeRO-3", Run { ranks: 2, rows: 2, placements: Placements::PARAMETERS, ..GOLDEN }),
        (
            "two ranks, ZeRO-1",
            Run { ranks: 2, rows: 1, accumulation: 2, placements: Placements::OPTIMIZER, ..GOLDEN },
        ),
        ("padded rows", Run { packing: Packing::Truncate, ..GOLDEN }),
    ] {
        let (loss, norm) = apart(&train(&run), &losses, &norms);
        println!("{what}: losses within {loss:.1e}, norms within {norm:.1e}");
        assert!(loss < 1e-4 && norm < 1e-3, "{what}: losses within {loss}, norms within {norm}");
    }
}

/// transformers' label smoothing, and LLaMA-Factory's DFT and EAFT (bench/golden/make_sft_losses.py).
#[test]
fn losses_of_tokens_follow_the_originals() {
    let file = golden().with_file_name("sft-llama").join("losses.json");
    let originals: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    for (name, kind) in [
        ("smoothed", TokenLoss::Smoothed(0.1)),
        ("dft", TokenLoss::ByProbability),
        ("eaft", TokenLoss::ByEntropy { alpha: 1.0 }),
    ] {
        let numbers = |key: &str| -> Vec<f64> {
            originals[name][key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
        };
        let loss = TokenLossArgs { kind, ..TokenLossArgs::default() };
        let split = Run { ranks: 2, rows: 1, accumulation: 2, placements: Placements::PARAMETERS, ..GOLDEN };
        for (what, run) in [("one rank", GOLDEN), ("two ranks, ZeRO-3", split)] {
            let (loss, norm) = apart(&train(&Run { loss, ..run }), &numbers("loss"), &numbers("grad_norm"));
            println!("{name}, {what}: losses within {loss:.1e}, norms within {norm:.1e}");
            assert!(loss < 1e-4 && norm < 1e-3, "{name}, {what}: {loss} {norm}");
        }
    }
}

/// The noise of an example depends on its place in the run alone, and on its own length, not on what shares its batch.
#[test]
fn noise_is_the_same_however_a_step_is_split() {
    let loss = TokenLossArgs { neftune_alpha: Some(5.0), ..TokenLossArgs::default() };
    let run = Run { loss, steps: 8, ..GOLDEN };
    let plain = train(&Run { steps: 8, ..GOLDEN });
    let noisy = train(&run);
    let (losses, norms): (Vec<f64>, Vec<f64>) = noisy.iter().map(|r| (r.loss(), r.grad_norm)).unzip();
    let (apart_from_plain, _) = apart(&plain, &losses, &norms);
    assert!(apart_from_plain > 1e-4, "{apart_from_plain}");
    for run in [
        Run { rows: 2, accumulation: 2, ..run },
        Run { rows: 1, accumulation: 2, ranks: 2, placements: Placements::PARAMETERS, ..run },
    ] {
        let (loss, norm) = apart(&train(&run), &losses, &norms);
        assert!(loss < 1e-5 && norm < 1e-4, "{loss} {norm}");
    }
}

#[test]
fn packed_rows_train_as_the_same_examples_apart() {
    // Every step takes all of twelve conversations, packed or not.
    let apart_rows = train(&Run { max_samples: Some(12), rows: 12, steps: 10, ..GOLDEN });
    let packed = Run { packing: Packing::Knapsack, row_len: 130, max_samples: Some(12), steps: 10, ..GOLDEN };
    let n_bins = data(&packed).0.n_rows();
    assert!((4..9).contains(&n_bins), "{n_bins}");
    let (losses, norms): (Vec<f64>, Vec<f64>) =
        apart_rows.iter().map(|step| (step.loss(), step.grad_norm)).unzip();
    for run in [Run { rows: n_bins, ..packed }, Run { rows: 1, accumulation: n_bins, ranks: 2, ..packed }] {
        let (loss, norm) = apart(&train(&run), &losses, &norms);
        assert!(loss < 1e-5 && norm < 1e-4, "losses within {loss}, norms within {norm}");
    }
}

#[test]
fn the_report_counts_what_the_original_encodes() {
    let (rows, report) = data(&GOLDEN);
    let settings = settings();
    let count = |key: &str| settings[key].as_u64().unwrap();
    assert_eq!((report.tokens, report.trained), (count("tokens"), count("trained")));
    assert_eq!((report.rows, report.examples, report.n_dropped()), (120, 120, 0));
    assert!(report.cut > 20 && report.cut_answers > 0, "{report:?}");
    assert_eq!((0..rows.n_rows()).map(|row| rows.tokens_in(row) as u64).sum::<u64>(), report.tokens);
    assert_eq!((0..rows.n_rows()).map(|row| rows.n_targets(row) as u64).sum::<u64>(), report.trained);
    assert_eq!(report.guessed, [("sharegpt".to_owned(), 120)]);
}

#[test]
fn rows_that_cannot_be_used_are_dropped_with_their_place_and_none_left_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::open(golden()).unwrap();
    let chat = Chat::new(&tokenizer, &golden(), &ChatArgs::default(), 100).unwrap();
    let encoder = Encoder::sft(&tokenizer, &chat);
    let build = |lines: &[&str]| {
        std::fs::write(folder.path().join("rows.jsonl"), lines.join("\n")).unwrap();
        let source = Source::resolve("rows.jsonl", folder.path(), None).unwrap();
        let built = TokenCache::build(folder.path(), &source, encoder, &mut |_| ())?;
        TokenCache::open(&built.path)?.report()
    };
    let good = r#"{"instruction": "a", "output": "b"}"#;
    let (no_answer, order) = (
        r#"{"instruction": "a"}"#,
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}"#,
    );
    let report = build(&[good, no_answer, order, no_answer]).unwrap().unwrap();
    assert_eq!((report.rows, report.examples, report.n_dropped()), (4, 1, 3));
    let message = report.lines(100).join("\n");
    assert!(message.contains("4 rows: 1 examples of"), "{message}");
    assert!(message.contains("2 rows dropped: it has no answer (the first is "), "{message}");
    assert!(message.contains("rows.jsonl:2)") && message.contains("rows.jsonl:3)"), "{message}");
    assert!(message.contains("3 rows were read as alpaca"), "{message}");
    let error = build(&[no_answer]).unwrap_err().to_string();
    assert!(error.contains("Cannot find valid samples: none of 1 rows"), "{error}");
    // No template and none in the tokenizer: the layout that adds nothing.
    assert!(chat.describe().starts_with("template empty"), "{}", chat.describe());
}
