//! The same bits on every CPU path that fuses multiplication and addition: 20 steps of training in f32, on one rank and on two.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oarlock::model::Decoder;
use oarlock::model::hf::HfConfig;
use oarlock::nn::{cross_entropy, names_of};
use oarlock::optim::Optim;
use oarlock::{Accelerator, AcceleratorConfig, Result, ShardingConfig, Tensor};
use oarlock_comm::Communicator;
use oarlock_tensor::DType;
use oarlock_tensor::cpu::{self, Isa};
use oarlock_tensor::ops::Mask;
use oarlock_tensor::ops::optimizer::Rule;

/// Positions of a row, and documents in it.
const LEN: usize = 48;
const DOCUMENTS: [usize; 3] = [29, 1, 18];
/// Rows of all ranks together.
const ROWS: usize = 2;
const STEPS: usize = 20;

/// What a run leaves: the bits of its losses, its gradient norms and its weights.
#[derive(Clone, Debug, PartialEq)]
struct Trained {
    losses: Vec<u64>,
    norms: Vec<u64>,
    weights: BTreeMap<String, Vec<u32>>,
}

/// Models with windows of attention, capped scores and logits, heads in groups, norms of queries and keys, and several
/// activations.
fn models() -> Vec<PathBuf> {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/families");
    ["gemma2", "gemma3_text", "mistral", "olmo2"].map(|name| families.join(name)).to_vec()
}

fn train(model: &Path, path: cpu::Path, dtype: DType, n_ranks: usize) -> Trained {
    let rank = |comm| train_rank(comm, model, path, dtype).unwrap();
    let mut ranks = oarlock_comm::shm::on_threads(n_ranks, rank).unwrap();
    let first = ranks.remove(0);
    assert!(ranks.iter().all(|other| other.weights == first.weights));
    first
}

fn train_rank(comm: Communicator, folder: &Path, path: cpu::Path, dtype: DType) -> Result<Trained> {
    let accelerator = Accelerator::over(
        comm.clone(),
        &AcceleratorConfig {
            shard: ShardingConfig { dtype, ..ShardingConfig::default() },
            // One rank has several threads, which change nothing either.
            threads: Some(4 - comm.world_size()),
            cpu_path: Some(path),
            ..AcceleratorConfig::default()
        },
    )?;
    let config = HfConfig::read(folder)?;
    let vocab = config.decoder().vocab_size;
    let model = Decoder::new(config.decoder().clone(), LEN)?;
    let adamw = Optim::new(&model, Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 3e-3, 0.1);
    let (model, optimizer) = accelerator.prepare((model, adamw))?;
    accelerator.load_pretrained(&model, folder)?;

    let starts: Vec<i32> = DOCUMENTS
        .iter()
        .scan(0, |start, &n| {
            let first = *start;
            *start += n;
            Some(std::iter::repeat_n(first as i32, n))
        })
        .flatten()
        .collect();
    let n_rows = ROWS / comm.world_size();
    let documents = Tensor::from_slice(&starts.repeat(n_rows), [n_rows, LEN], accelerator.device())?;
    let mut trained = Trained { losses: Vec::new(), norms: Vec::new(), weights: BTreeMap::new() };
    for step in 0..STEPS {
        let row = |row: usize| {
            (0..LEN).map(move |i| ((i * i + 7 * i * (step + 1) + 13 * row + step) % (vocab - 3)) as i32 + 3)
        };
        let ids: Vec<i32> = (0..n_rows).flat_map(|r| row(comm.rank() * n_rows + r)).collect();
        let is_last = |i: usize| i + 1 == LEN || starts[i] != starts[i + 1];
        let labels: Vec<i32> =
            (0..ids.len()).map(|i| if is_last(i % LEN) { -100 } else { ids[i + 1] }).collect();
        let x = Tensor::from_slice(&ids, [n_rows, LEN], accelerator.device())?;
        let mask = Mask::Documents(documents.clone());
        let logits = model.call(&x, |model, x| model.logits(x, &mask))?;
        let logits = logits.reshape([n_rows * LEN, vocab])?;
        let labels = Tensor::from_slice(&labels, [n_rows * LEN], accelerator.device())?;
        let loss = cross_entropy(&logits, &labels)?;
        accelerator.backward(&loss)?;
        let norm = accelerator.clip_grad_norm(&optimizer, 0.5)?.unwrap_or_default();
        optimizer.step()?;
        optimizer.zero_grad()?;
        trained.losses.push(loss.item::<f64>()?.to_bits());
        trained.norms.push(norm.to_bits());
    }
    for named in names_of(model.module()) {
        let values: Vec<f32> = named.param.weight()?.to_vec()?;
        trained.weights.insert(named.name, values.into_iter().map(f32::to_bits).collect());
    }
    comm.finish();
    Ok(trained)
}

fn paths(are_kept: impl Fn(cpu::Path) -> bool) -> Vec<cpu::Path> {
    Isa::available().into_iter().map(Isa::path).filter(|path| are_kept(*path)).collect()
}

fn assert_same(paths: &[cpu::Path], dtype: DType) {
    for model in models() {
        for n_ranks in [1, 2] {
            let (first, others) = paths.split_first().unwrap();
            let want = train(&model, *first, dtype, n_ranks);
            for path in others {
                let got = train(&model, *path, dtype, n_ranks);
                let what = format!("{}, {dtype}, {n_ranks} ranks: {path} and {first}", model.display());
                assert_eq!(got.losses, want.losses, "{what}");
                assert_eq!(got.norms, want.norms, "{what}");
                assert!(got.weights == want.weights, "{what}: weights");
            }
        }
    }
}

#[test]
fn f32_trains_the_same_bits_on_every_path_but_the_portable_one() {
    assert_same(&paths(|path| path != cpu::Path::Portable), DType::F32);
}

#[test]
#[ignore = "heavy"]
fn f16_trains_the_same_bits_on_every_path_but_the_portable_one() {
    assert_same(&paths(|path| path != cpu::Path::Portable), DType::F16);
}

#[test]
#[ignore = "heavy"]
fn bf16_trains_the_same_bits_where_no_instruction_multiplies_pairs() {
    let is_plain = |path| !matches!(path, cpu::Path::Portable | cpu::Path::Avx512Bf16);
    assert_same(&paths(is_plain), DType::BF16);
}

/// What this file compares is fine enough to see that the portable path rounds twice.
#[test]
fn the_portable_path_has_bits_of_its_own() {
    let model = &models()[0];
    let [two_roundings, one] =
        [cpu::Path::Portable, cpu::Path::PortableFma].map(|path| train(model, path, DType::F32, 1));
    assert_ne!(two_roundings.weights, one.weights);
    let losses = |of: Trained| of.losses.into_iter().map(f64::from_bits).collect::<Vec<_>>();
    for (x, y) in losses(two_roundings).into_iter().zip(losses(one)) {
        assert!((x - y).abs() < 1e-4, "{x} and {y}");
    }
}
