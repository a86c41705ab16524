//! Times training steps without saves, with saves in the background, and with saves that are waited for.
//!
//! `cargo run --release --example save_cost -- FOLDER [ranks] [steps] [hidden] [layers]`

use std::path::Path;
use std::time::Instant;

use oarlock::checkpoint::{ClientState, Contents, Saver};
use oarlock::model::hf::{HfConfig, SaveOptions};
use oarlock::model::{Decoder, DecoderConfig};
use oarlock::shard::{Engine, ShardingConfig};
use oarlock::train::Inputs;
use oarlock::{Accelerator, AcceleratorConfig, Batch, Result, optim};
use oarlock_tensor::DType;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let folder = args.first().map_or("save_cost", String::as_str);
    let (ranks, steps, hidden, layers) = (number(1, 2), number(2, 6), number(3, 512), number(4, 8));
    let rank = |comm| rank(&comm, Path::new(folder), steps, config(hidden, layers));
    oarlock_comm::shm::try_on_threads(ranks, rank)?.into_iter().collect()
}

fn config(hidden: usize, layers: usize) -> DecoderConfig {
    let config = DecoderConfig::llama(6400, hidden, layers, 1024).with_layers(|layer| {
        layer.mlp.intermediate_size = hidden * 11 / 4;
        layer.attention.n_kv_heads = (hidden / 256).max(1);
    });
    DecoderConfig { tie_embeddings: true, ..config }
}

/// Saves without training.
const ALONE: usize = 10;

/// The processor time of this process, in the hundredths of seconds that Linux counts.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// What happens beside the run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Saves {
    None,
    Background,
    Waiting,
}

fn rank(comm: &oarlock_comm::Communicator, folder: &Path, steps: usize, config: DecoderConfig) -> Result<()> {
    let shard = ShardingConfig { dtype: DType::BF16, ..ShardingConfig::default() };
    let settings = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(comm.clone(), &settings)?;
    let hf = HfConfig::new(config.clone(), Default::default());
    let (rows, len) = (4, 512);
    let model = Decoder::new(config, len)?;
    let adamw = optim::adamw(&model).lr(5e-4).weight_decay(0.0);
    let (model, optimizer) = accelerator.prepare((model, adamw))?;
    let input_ids: Vec<i32> =
        (0..rows * len).map(|i| ((i * 7919 + comm.rank() * 31) * 104_729 % 6400) as i32).collect();
    let labels: Vec<i32> =
        (0..rows * len).map(|i| if i % len + 1 < len { input_ids[i + 1] } else { -100 }).collect();
    let data = Batch {
        input_ids,
        labels,
        doc_start: None,
        rows,
        len,
        n_targets: rows * (len - 1),
        ..Batch::default()
    };
    let main = accelerator.is_main_process();
    let mut saver = Saver::default();
    let options = SaveOptions::new(DType::BF16, None);
    let contents = || -> Result<Contents> {
        let model = Some(hf.files_of(model.module(), &options)?);
        Ok(Contents { model, ..Contents::state(ClientState::default()) })
    };
    let bytes = (optimizer.with_engine(Engine::n_params)? * (12 + 2)) as f64;
    // Saves alone, first: how fast they are, and how much of the processors' time they take.
    let (mut fastest, busy) = (f64::INFINITY, cpu_seconds());
    for _ in 0..ALONE {
        comm.barrier()?;
        let begin = Instant::now();
        accelerator.begin_save(&mut saver, &folder.join("checkpoint-1"), contents()?)?;
        saver.finish(comm)?;
        fastest = fastest.min(begin.elapsed().as_secs_f64());
    }
    if main {
        println!(
            "{:.0} MB a save: {:.1} ms, {:.0} MB/s; {:.1} ms of processor time over all ranks",
            bytes / 1e6,
            1e3 * fastest,
            bytes / fastest / 1e6,
            1e3 * (cpu_seconds() - busy) / ALONE as f64
        );
    }
    let mut least = [f64::INFINITY; 3];
    for _ in 0..3 {
        for saves in [Saves::None, Saves::Background, Saves::Waiting] {
            comm.barrier()?;
            let begin = Instant::now();
            for step in 0..steps {
                accelerator.accumulation_window(&optimizer, data.n_targets as f64)?;
                let inputs = Inputs::new(&data, accelerator.device())?;
                let loss =
                    model.loss(&inputs.ids, |model, ids| model.loss(ids, &inputs.labels, &inputs.mask))?;
                accelerator.backward(&loss)?;
                accelerator.clip_grad_norm(&optimizer, 1.0)?;
                optimizer.step()?;
                saver.poll(comm)?;
                if saves != Saves::None && step % 3 == 0 {
                    accelerator.begin_save(&mut saver, &folder.join("checkpoint-1"), contents()?)?;
                    if saves == Saves::Waiting {
                        saver.finish(comm)?;
                    }
                }
            }
            saver.finish(comm)?;
            least[saves as usize] = least[saves as usize].min(begin.elapsed().as_secs_f64());
        }
    }
    if main {
        let [none, background, waiting] = least;
        println!(
            "{steps} steps: {none:.3} s without saves, {background:.3} s in the background, {waiting:.3} s waiting"
        );
        println!(
            "saving in the background costs {:.1} % of waiting",
            100.0 * (background - none) / (waiting - none)
        );
    }
    comm.finish();
    Ok(())
}
