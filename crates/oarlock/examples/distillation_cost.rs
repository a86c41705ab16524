//! Times the step of a distillation on synthetic tokens, with the student in a stage of ZeRO and the teacher in ZeRO-3;
//! bench/distillation runs it.
//!
//! `oarlock torchrun --nproc-per-node 2 --no-python target/release/examples/distillation_cost student-stage=2 [key=value ..]`
//! with the keys gather, dtype, threads, warmup, steps, batch, seq, student-hidden, student-layers, teacher-hidden, teacher-layers

use std::time::Instant;

use oarlock::deepspeed;
use oarlock::model::{Decoder, DecoderConfig};
use oarlock::shard::Gather;
use oarlock::{
    Accelerator, AcceleratorConfig, DeepSpeedPlugin, Error, Result, ShardingConfig, Tensor, optim,
};
use oarlock_tensor::DType;
use oarlock_tensor::ops::Mask;
use serde_json::json;

#[path = "distillation.rs"]
#[allow(dead_code)]
mod distillation;

mod settings;

use settings::Settings;

const N_VOCAB: usize = 6400;

fn model(settings: &Settings, who: &str, hidden: usize, layers: usize, seq: usize) -> Result<Decoder> {
    let hidden = settings.number(&format!("{who}-hidden"), hidden)?;
    let layers = settings.number(&format!("{who}-layers"), layers)?;
    let config = DecoderConfig::llama(N_VOCAB, hidden, layers, 1024).with_layers(|layer| {
        layer.mlp.intermediate_size = hidden * 11 / 4;
        layer.attention.n_kv_heads = (hidden / 256).max(1);
    });
    let config = DecoderConfig { tie_embeddings: true, ..config };
    Decoder::new(config, seq)
}

fn plugin(stage: usize, batch: usize) -> Result<DeepSpeedPlugin> {
    let config = deepspeed::Config::from_value(&json!({
        "train_micro_batch_size_per_gpu": batch,
        "gradient_clipping": 1.0,
        "zero_optimization": { "stage": stage },
        "bf16": { "enabled": "auto" },
    }))?;
    Ok(config.into())
}

fn main() -> Result<()> {
    let settings = Settings::read()?;
    let seq = settings.number("seq", 128)?;
    let batch = settings.number("batch", 4)?;
    let (warmup, steps) = (settings.number("warmup", 3)?, settings.number("steps", 10)?);
    let gather = match settings.word("gather", "in-place") {
        "in-place" => Gather::InPlace,
        "copy" => Gather::Copy,
        other => return Err(Error::Usage(format!("gather={other}: give in-place or copy"))),
    };
    let student_plugin = plugin(settings.number("student-stage", 2)?, batch)?;
    let accelerator = Accelerator::new(&AcceleratorConfig {
        shard: ShardingConfig { gather, ..ShardingConfig::default() },
        mixed_precision: Some(settings.dtype()?).filter(|dtype| *dtype != DType::F32),
        threads: Some(settings.number("threads", 1)?),
        deepspeed_plugins: vec![
            ("student".to_owned(), student_plugin),
            ("teacher".to_owned(), plugin(3, batch)?),
        ],
        ..AcceleratorConfig::default()
    })?;
    let student = model(&settings, "student", 256, 4, seq)?;
    let optimizer = optim::adamw(&student);
    let (student, optimizer) = accelerator.prepare((student, optimizer))?;
    accelerator.select_deepspeed_plugin("teacher")?;
    let teacher = accelerator.prepare(model(&settings, "teacher", 512, 8, seq)?)?;
    let rank = accelerator.process_index();
    for step in 0..warmup + steps {
        let token = |i: usize| ((i * 7919 + rank * 31 + step) * 104_729 % N_VOCAB) as i32;
        let ids: Vec<i32> = (0..batch * seq).map(token).collect();
        let labels: Vec<i32> = (0..batch * seq).map(|i| token(i + 1)).collect();
        let ids = Tensor::from_slice(&ids, [batch, seq], accelerator.device())?;
        let labels = Tensor::from_slice(&labels, [batch, seq], accelerator.device())?;
        accelerator.wait_for_everyone()?;
        let begin = Instant::now();
        let taught = teacher.call(&ids, |model, ids| model.logits(ids, &Mask::Causal))?;
        let logits = student.call(&ids, |model, ids| model.logits(ids, &Mask::Causal))?;
        let loss = distillation::loss(&logits, &taught, &labels)?;
        accelerator.backward(&loss)?;
        optimizer.step()?;
        optimizer.zero_grad()?;
        accelerator.wait_for_everyone()?;
        if step >= warmup {
            accelerator.print(format_args!("seconds of a step: {:.6}", begin.elapsed().as_secs_f64()));
        }
    }
    Ok(())
}
