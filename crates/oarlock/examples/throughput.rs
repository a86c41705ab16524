//! Times the training step of a MiniMind-class model on synthetic tokens, with a profile by op.
//!
//! `cargo run --release --example throughput -- [bf16|f32] [ranks] [steps] [hidden] [layers] [batch] [seq] [none|units|units2|attention|mlp|parts]`

use std::time::Instant;

use oarlock::model::{Decoder, DecoderConfig, Recompute};
use oarlock::train::Inputs;
use oarlock::{Accelerator, AcceleratorConfig, Batch, Result, ShardingConfig, optim};
use oarlock_tensor::DType;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let dtype = if args.first().is_some_and(|a| a == "f32") { DType::F32 } else { DType::BF16 };
    let (ranks, steps, hidden, layers) = (number(1, 2), number(2, 6), number(3, 512), number(4, 8));
    let (batch, seq) = (number(5, 4), number(6, 512));
    let recompute = recompute(args.get(7).map_or("none", String::as_str))?;
    let rank = |comm| rank(comm, dtype, steps, hidden, layers, batch, seq, recompute);
    oarlock_comm::shm::try_on_threads(ranks, rank)?.into_iter().collect()
}

fn recompute(word: &str) -> Result<Recompute> {
    Ok(match word {
        "none" => Recompute::None,
        "units" => Recompute::Units { every: 1 },
        "units2" => Recompute::Units { every: 2 },
        "attention" => Recompute::Parts { attention: true, mlp: false },
        "mlp" => Recompute::Parts { attention: false, mlp: true },
        "parts" => Recompute::Parts { attention: true, mlp: true },
        _ => return Err(oarlock::Error::Usage(format!("\"{word}\" is no way to recompute"))),
    })
}

fn rank(
    comm: oarlock_comm::Communicator,
    dtype: DType,
    steps: usize,
    hidden: usize,
    layers: usize,
    batch: usize,
    seq: usize,
    recompute: Recompute,
) -> Result<()> {
    let start = Instant::now();
    let config = AcceleratorConfig {
        shard: ShardingConfig { dtype, ..ShardingConfig::default() },
        threads: Some(1),
        seed: Some(0),
        ..AcceleratorConfig::default()
    };
    let accelerator = Accelerator::over(comm.clone(), &config)?;
    let mut model = Decoder::new(
        DecoderConfig {
            tie_embeddings: true,
            ..DecoderConfig::llama(6400, hidden, layers, 1024).with_layers(|layer| {
                layer.mlp.intermediate_size = hidden * 11 / 4;
                layer.attention.n_kv_heads = (hidden / 256).max(1);
            })
        },
        seq,
    )?;
    model.set_recompute(recompute);
    let adamw = optim::adamw(&model).lr(5e-4).weight_decay(0.0);
    let (model, optimizer) = accelerator.prepare((model, adamw))?;
    let ids: Vec<i32> =
        (0..batch * seq).map(|i| ((i * 7919 + comm.rank() * 31) * 104_729 % 6400) as i32).collect();
    let labels: Vec<i32> =
        (0..batch * seq).map(|i| if i % seq + 1 < seq { ids[i + 1] } else { -100 }).collect();
    let data = Batch {
        input_ids: ids,
        labels,
        doc_start: None,
        rows: batch,
        len: seq,
        n_targets: batch * (seq - 1),
        ..Batch::default()
    };
    let mut times = Vec::new();
    let main = accelerator.is_main_process();
    for step in 0..steps {
        accelerator.wait_for_everyone()?;
        let n_fresh = accelerator.device().arena().n_fresh();
        if step + 1 == steps {
            accelerator.device().profile().enable();
        }
        let recomputed = accelerator.device().profile().recomputing();
        let begin = Instant::now();
        accelerator.accumulation_window(&optimizer, data.n_targets as f64)?;
        let inputs = Inputs::new(&data, accelerator.device())?;
        let loss = model.loss(&inputs.ids, |model, ids| model.loss(ids, &inputs.labels, &inputs.mask))?;
        accelerator.backward(&loss)?;
        let backward = begin.elapsed();
        let norm = accelerator.clip_grad_norm(&optimizer, 1.0)?.unwrap_or_default();
        optimizer.step()?;
        let time = begin.elapsed();
        times.push(time.as_secs_f64());
        if main {
            println!(
                "step {step}: loss {:.4} norm {norm:.4} {:.1} ms (forward+backward {:.1}, recomputing {:.1}), {:.0} tok/s, since start {:.2} s, fresh {}",
                loss.sum()? / data.n_targets as f64,
                1e3 * time.as_secs_f64(),
                1e3 * backward.as_secs_f64(),
                1e3 * (accelerator.device().profile().recomputing() - recomputed).as_secs_f64(),
                (batch * seq * comm.world_size()) as f64 / time.as_secs_f64(),
                start.elapsed().as_secs_f64(),
                accelerator.device().arena().n_fresh() - n_fresh,
            );
        }
    }
    if main {
        print_profile(&accelerator, times.last().copied().unwrap_or(0.0));
    }
    comm.finish();
    Ok(())
}

/// Prints what each op took of a step of `total` seconds, and the peak of each class of memory.
pub fn print_profile(accelerator: &Accelerator, total: f64) {
    let mut ops = accelerator.device().profile().take();
    ops.sort_by_key(|(_, op)| std::cmp::Reverse(op.time));
    for (name, op) in ops {
        let seconds = op.time.as_secs_f64();
        println!(
            "{name:24} {:5} x {:8.2} ms {:5.1} %  {:7.1} GFLOP/s {:7.1} GB/s",
            op.calls,
            1e3 * seconds,
            100.0 * seconds / total,
            op.flops as f64 / seconds / 1e9,
            op.bytes as f64 / seconds / 1e9
        );
    }
    for (name, usage) in accelerator.device().arena().usage() {
        println!("{name:20} peak {:8.1} MB", usage.peak_bytes as f64 / 1e6);
    }
}
