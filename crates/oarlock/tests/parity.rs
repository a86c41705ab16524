//! Training against transformers + torch: the loss and gradient norm of every step of the golden trajectories
//! (`tests/golden/train-*`, written by bench/golden/make_trajectory.py), however a step is split over ranks and
//! micro-batches.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock::data::{Loader, Packing, RowSettings, Rows, Sampler, Source, TokenCache, Tokenizer};
use oarlock::model::{Decoder, HfConfig};
use oarlock::train::{NextToken, StepReport, train_step};
use oarlock::weights::SafetensorsSource;
use oarlock::{Accelerator, AcceleratorConfig, Result, ShardingConfig, optim};
use oarlock_comm::Communicator;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_tensor::DType;
use oarlock_tensor::cpu::difference::largest_difference;
use serde_json::Value;

const MODELS: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// How a step of four rows is split: ranks, rows of a rank in a micro-batch, micro-batches.
const SPLITS: [(usize, u64, u64); 5] = [(1, 4, 1), (1, 2, 2), (1, 1, 4), (2, 2, 1), (2, 1, 2)];

struct Golden {
    dir: PathBuf,
    settings: Value,
    rows: Arc<Rows>,
}

impl Golden {
    fn open(name: &str) -> Golden {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("train-{name}"));
        let text = std::fs::read_to_string(dir.join("trajectory.json")).unwrap();
        let settings: Value = serde_json::from_str(&text).unwrap();
        let tokenizer = Tokenizer::open(&dir).unwrap();
        let source = Source::resolve("text.jsonl", &dir, None).unwrap();
        let caches = tempfile::tempdir().unwrap();
        let cache = TokenCache::build(caches.path(), &source, &tokenizer, &mut |_| ()).unwrap();
        let cache = Arc::new(TokenCache::open(&cache.path).unwrap());
        let len = settings["cutoff_len"].as_u64().unwrap() as usize;
        let packing = RowSettings { packing: Packing::Concat, len, special: tokenizer.special() };
        Golden { dir, settings, rows: Arc::new(Rows::new(cache, &packing).unwrap()) }
    }

    fn number(&self, key: &str) -> f64 {
        self.settings[key].as_f64().unwrap()
    }

    /// What torch computed: the losses and gradient norms of the run with this decay.
    fn expected(&self, weight_decay: f64, bf16: bool) -> (Vec<f64>, Vec<f64>) {
        let runs = self.settings["runs"].as_array().unwrap();
        let run = runs.iter().find(|run| run["weight_decay"] == weight_decay && run["bf16"] == bf16).unwrap();
        let numbers = |key: &str| run[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        (numbers("loss"), numbers("grad_norm"))
    }

    /// What we compute: one report a step, as every rank sees it.
    fn train(
        &self,
        dtype: DType,
        weight_decay: f64,
        (ranks, rows, accumulation): (usize, u64, u64),
    ) -> Vec<StepReport> {
        let rank = |comm| self.rank(comm, dtype, weight_decay, rows, accumulation).unwrap();
        let reports = oarlock_comm::shm::on_threads(ranks, rank).unwrap();
        assert!(reports.iter().all(|of_rank| of_rank == &reports[0]), "the ranks disagree");
        reports.into_iter().next().unwrap()
    }

    fn rank(
        &self,
        comm: Communicator,
        dtype: DType,
        weight_decay: f64,
        rows: u64,
        accumulation: u64,
    ) -> Result<Vec<StepReport>> {
        let settings = AcceleratorConfig {
            shard: ShardingConfig { dtype, ..ShardingConfig::default() },
            threads: Some(1),
            ..AcceleratorConfig::default()
        };
        let accelerator = Accelerator::over(comm.clone(), &settings)?;
        let hf = HfConfig::read(&self.dir)?;
        let model = Decoder::new(hf.decoder().clone(), self.rows.row_len())?;
        let weights = SafetensorsSource::open(&self.dir, &hf, &model)?;
        let lr = self.number("learning_rate");
        let adamw = optim::adamw(&model).lr(lr).weight_decay(weight_decay).no_decay_of_vectors(&model);
        let (model, optimizer) = accelerator.prepare_with_weights((model, adamw), Box::new(weights))?;
        let sampler = Sampler {
            len: self.rows.n_rows(),
            seed: 0,
            shuffle: false,
            world: comm.world_size() as u64,
            rank: comm.rank() as u64,
            micro_batch: rows,
            accumulation,
            lengths: None,
        };
        let mut loader = Loader::new(self.rows.clone(), sampler, 0)?;
        let max_grad_norm = self.number("max_grad_norm");
        let n_steps = self.expected(weight_decay, false).0.len();
        let mut timer = PhaseTimer::new();
        let mut step = || {
            let window = loader.next_step()?;
            train_step(
                &accelerator,
                &NextToken::PLAIN,
                &model,
                &optimizer,
                &window.batches,
                max_grad_norm,
                &mut timer,
            )
        };
        let reports = (0..n_steps).map(|_| step()).collect();
        comm.finish();
        reports
    }
}

/// The largest distance between the losses of two runs.
fn apart(ours: &[StepReport], theirs: impl IntoIterator<Item = f64>) -> f64 {
    let ours: Vec<f64> = ours.iter().map(StepReport::loss).collect();
    largest_difference(&ours, &theirs.into_iter().collect::<Vec<f64>>()).unwrap()
}

fn assert_follows(ours: &[StepReport], (losses, norms): &(Vec<f64>, Vec<f64>), what: &str) {
    assert_eq!(ours.len(), losses.len(), "{what}");
    for (step, report) in ours.iter().enumerate() {
        let (loss, norm) = (report.loss() - losses[step], report.grad_norm / norms[step] - 1.0);
        assert!(
            loss.abs() < 1e-4,
            "{what}, step {}: loss {} instead of {}",
            step + 1,
            report.loss(),
            losses[step]
        );
        assert!(
            norm.abs() < 1e-3,
            "{what}, step {}: norm {} instead of {}",
            step + 1,
            report.grad_norm,
            norms[step]
        );
    }
}

#[test]
fn every_split_follows_torch_in_f32_and_agrees_with_the_others() {
    for name in MODELS {
        let golden = Golden::open(name);
        let whole = golden.train(DType::F32, 0.0, SPLITS[0]);
        for split in SPLITS {
            let ours = golden.train(DType::F32, 0.0, split);
            assert_follows(&ours, &golden.expected(0.0, false), &format!("{name} {split:?}"));
            let far = apart(&ours, whole.iter().map(StepReport::loss));
            assert!(far < 1e-5, "{name} {split:?}: {far} from the unsplit run");
        }
    }
}

#[test]
fn weight_decay_follows_torch_and_spares_biases_and_norms() {
    for name in MODELS {
        let golden = Golden::open(name);
        for split in [(1, 4, 1), (2, 2, 1)] {
            let ours = golden.train(DType::F32, 0.1, split);
            assert_follows(&ours, &golden.expected(0.1, false), &format!("{name} {split:?}, decay 0.1"));
        }
    }
}

#[test]
fn bf16_stays_near_f32_and_its_splits_near_each_other() {
    for name in MODELS {
        let golden = Golden::open(name);
        let whole = golden.train(DType::BF16, 0.0, SPLITS[0]);
        for split in SPLITS {
            let ours = golden.train(DType::BF16, 0.0, split);
            let far = apart(&ours, golden.expected(0.0, false).0);
            assert!(far < 2e-2, "{name} {split:?}: {far} from torch in f32");
            let far = apart(&ours, whole.iter().map(StepReport::loss));
            assert!(far < 5e-3, "{name} {split:?}: {far} from the unsplit run");
        }
    }
}

#[test]
fn an_autocast_run_of_torch_is_as_far_from_f32_as_ours() {
    for name in MODELS {
        let golden = Golden::open(name);
        let ours = golden.train(DType::BF16, 0.0, SPLITS[0]);
        let exact = golden.expected(0.0, false).0;
        let torch = golden.expected(0.0, true).0;
        let torch_apart = largest_difference(&torch, &exact).unwrap();
        let ours_apart = apart(&ours, exact);
        assert!(ours_apart < 3.0 * torch_apart, "{name}: {ours_apart} from f32 where torch is {torch_apart}");
    }
}
