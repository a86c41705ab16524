//! Sequences that are divided over ranks train as whole ones do, with a share of the activations.

use oarlock_tensor::cpu::difference::{largest_difference, largest_difference_by};
use std::path::{Path, PathBuf};

use oarlock::model::{Decoder, HfConfig, Recompute};
use oarlock::nn::{Pattern, SparsityConfig};
use oarlock::shard::Placements;
use oarlock::train::Inputs;
use oarlock::{Accelerator, AcceleratorConfig, Batch, Result, ShardingConfig, optim};

use crate::ranks::on_ranks;

const LEN: usize = 60;
const STEPS: usize = 3;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/train-llama")
}

/// Two rows of tokens, with documents or not, each group of ranks its own.
fn batch(seed: usize, documents: bool) -> Batch {
    let n = 2 * LEN;
    let ids: Vec<i32> = (0..n).map(|i| ((i + 31 * seed) * 7919 % 300) as i32).collect();
    let labels: Vec<i32> =
        (0..n).map(|i| if i % LEN + 1 < LEN && i % 7 > 0 { ids[i + 1] } else { -100 }).collect();
    let starts = (0..n).map(|i| if i % LEN < 23 { 0 } else { 23 }).collect();
    let n_targets = labels.iter().filter(|label| **label >= 0).count();
    Batch {
        input_ids: ids,
        labels,
        doc_start: documents.then_some(starts),
        rows: 2,
        len: LEN,
        n_targets,
        ..Batch::default()
    }
}

#[derive(Clone, Copy)]
struct Case {
    documents: bool,
    recompute: Recompute,
    is_sparse: bool,
}

const PLAIN: Case = Case { documents: false, recompute: Recompute::None, is_sparse: false };

/// The losses of some steps, the weights after them, and the most bytes of activations.
type Trained = (Vec<f64>, Vec<f32>, usize);

fn train(accelerator: &Accelerator, case: Case) -> Result<Trained> {
    let mut hf = HfConfig::read(&folder())?;
    if case.is_sparse {
        let pattern = Pattern::Fixed {
            num_local_blocks: 2,
            num_global_blocks: 1,
            attention: oarlock::nn::Direction::Unidirectional,
            horizontal_global_attention: false,
            num_different_global_patterns: 2,
        };
        let config = SparsityConfig { different_layout_per_head: true, ..SparsityConfig::new(pattern) };
        hf = hf.with_sparse_attention(config);
    }
    let mut model = Decoder::new(hf.decoder().clone(), 64)?;
    model.set_recompute(case.recompute);
    let sequence = accelerator.sequence_parallel();
    let parts = sequence.map_or(1, |sequence| sequence.size());
    if let Some(sequence) = sequence {
        model.set_sequence_parallel(sequence)?;
    }
    let optimizer = optim::adamw(&model).lr(1e-2);
    let (model, optimizer) = accelerator.prepare((model, optimizer))?;
    accelerator.load_pretrained(&model, folder())?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        // Of a step with four micro-batches, whatever ranks there are.
        let groups = accelerator.num_processes() / parts;
        let own = accelerator.process_index() / parts;
        let mut window: Vec<Batch> = (0..4)
            .filter(|micro| micro % groups == own)
            .map(|micro| batch(10 * step + micro, case.documents))
            .collect();
        if let Some(sequence) = sequence {
            window.iter_mut().for_each(|batch| batch.keep_part(sequence.rank(), sequence.size()));
        }
        let n_targets: usize = window.iter().map(|batch| batch.n_targets).sum();
        accelerator.accumulation_window(&optimizer, n_targets as f64)?;
        let mut sum = 0.0;
        for batch in &window {
            let inputs = Inputs::new(batch, accelerator.device())?;
            let loss = model.loss(&inputs.ids, |model, ids| model.loss(ids, &inputs.labels, &inputs.mask))?;
            sum += loss.sum()?;
            accelerator.backward(&loss)?;
        }
        let sums = accelerator.communicator().all_gather_bytes(&sum.to_le_bytes())?;
        losses.push(sums.iter().map(|sum| f64::from_le_bytes(sum[..].try_into().unwrap())).sum());
        accelerator.clip_grad_norm(&optimizer, 1.0)?;
        optimizer.step()?;
    }
    let usage = accelerator.device().arena().usage();
    let peak = usage.iter().filter(|usage| usage.0 == "activation").map(|usage| usage.1.peak_bytes).sum();
    let weights = accelerator.get_state_dict(&model)?;
    let mut values = Vec::new();
    for weight in weights.values() {
        values.extend(weight.to_f32_vec()?);
    }
    Ok((losses, values, peak))
}

fn on(world: usize, parts: usize, shard: ShardingConfig, case: Case) -> Trained {
    let config = AcceleratorConfig {
        shard,
        sequence_parallel_size: parts,
        threads: Some(1),
        seed: Some(3),
        ..AcceleratorConfig::default()
    };
    let mut ranks = on_ranks(world, config, move |accelerator| train(accelerator, case));
    ranks.swap_remove(0).unwrap()
}

fn assert_same(whole: &Trained, divided: &Trained, of: &str) {
    let apart = largest_difference_by(&whole.0, &divided.0, |a, b| (a - b).abs() / a.abs()).unwrap();
    assert!(apart < 1e-4, "{of}: losses {:?} and {:?}", whole.0, divided.0);
    let far = largest_difference(&whole.1, &divided.1).unwrap();
    // Adam turns what is left of a gradient near zero into a step of its learning rate.
    let mean: f64 = whole.1.iter().zip(&divided.1).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>()
        / whole.1.len() as f64;
    assert!(far < 2e-2 && mean < 1e-5, "{of}: {far} {mean}");
}

#[test]
fn a_training_is_that_of_whole_sequences() {
    let sharded = ShardingConfig { placements: Placements::PARAMETERS, ..ShardingConfig::default() };
    for case in [
        PLAIN,
        Case { documents: true, ..PLAIN },
        Case { is_sparse: true, ..PLAIN },
        Case { documents: true, recompute: Recompute::Units { every: 1 }, ..PLAIN },
    ] {
        let whole = on(1, 1, ShardingConfig::default(), case);
        // Two parts; four, where two ranks share a head of keys and values; two groups of two.
        for (world, parts) in [(2, 2), (4, 4), (4, 2)] {
            let of = format!(
                "{world} ranks, {parts} parts, documents {}, sparse {}",
                case.documents, case.is_sparse
            );
            assert_same(&whole, &on(world, parts, ShardingConfig::default(), case), &of);
        }
        assert_same(&whole, &on(2, 2, sharded.clone(), case), "sharded");
    }
}

#[test]
fn activations_of_a_rank_are_its_share() {
    let [whole, half, quarter] = [1, 2, 4].map(|n| on(n, n, ShardingConfig::default(), PLAIN).2 as f64);
    println!("activations: {whole} bytes whole, {half} of 2 parts, {quarter} of 4");
    assert!(half < 0.6 * whole && quarter < 0.4 * whole, "{whole} {half} {quarter}");
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let config = |parts| AcceleratorConfig {
        sequence_parallel_size: parts,
        threads: Some(1),
        ..AcceleratorConfig::default()
    };
    let said = |world, parts| {
        let mut ranks = on_ranks(world, config(parts), |accelerator| train(accelerator, PLAIN).map(|_| ()));
        ranks.swap_remove(0).unwrap_err().to_string()
    };
    assert!(said(3, 2).contains("sequence_parallel_size is 2, which does not divide the 3 ranks"));
    assert!(said(3, 3).contains("a layer has 4 heads and 2 of keys and values"));
}
