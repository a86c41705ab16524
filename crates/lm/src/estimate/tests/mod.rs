//! Predictions against what really happens, by the byte where that can be, and against DeepSpeed's own figures.

mod groups;

use oarlock_comm::Communicator;
use oarlock_engine::nn::{self, Layer, Linear, Wrap, parameters};
use oarlock_engine::optim::{self, CustomRule, Needs, Update};
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_engine::shard::{Engine, Gather, Grain, Layout, Offload, Placements, ShardingConfig};
use oarlock_engine::{Accelerator, AcceleratorConfig};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer::{AdafactorArgs, AdjustLr, LowRankArgs, Method, Rule, Sides};
use oarlock_tensor::{DType, Device, Par, Shape, Tensor};

use super::forecast::windows_bytes;
use super::limits::soft_limit;
use super::states::charged;
use super::*;
use crate::adapters::{Lora, LoraLayer};
use crate::data::Batch;
use crate::model::{Decoder, DecoderConfig, QkNorm, Recompute};
use crate::train::objective::dry_pass;
use crate::train::{NextToken, evaluate, train_step};

fn llama(hidden: usize, n_layers: usize, vocab_size: usize, len: usize) -> Decoder {
    let config = DecoderConfig::llama(vocab_size, hidden, n_layers, len).with_layers(|layer| {
        layer.mlp.intermediate_size = hidden * 3;
        let attention = &mut layer.attention;
        (attention.n_heads, attention.n_kv_heads, attention.head_dim) = (hidden / 16, hidden / 32, 16);
        (attention.qkv_bias, attention.qk_norm) = (true, QkNorm::PerHead);
    });
    Decoder::new(DecoderConfig { tie_embeddings: true, ..config }, len).unwrap()
}

/// With an adapter around each of its linear layers, which alone are trained, and half of whose inputs are dropped.
fn adapted(mut model: Decoder) -> Decoder {
    parameters(&model).iter().for_each(|named| named.param.freeze());
    let settings = LoraLayer { rank: 4, scale: 2.0, dropout: 0.5, dora: false, init: Default::default() };
    let mut around = |_: &str, linear: &Linear| -> nn::Result<Option<Box<dyn Layer>>> {
        Ok(Some(Box::new(Lora::around(linear, settings)?)))
    };
    model.map_linears(&mut around).unwrap();
    model
}

fn batch(rows: usize, len: usize, documents: bool) -> Batch {
    let ids: Vec<i32> = (0..rows * len).map(|i| (i * 7 % 100) as i32).collect();
    Batch {
        labels: ids.clone(),
        input_ids: ids,
        doc_start: documents.then(|| vec![0; rows * len]),
        rows,
        len,
        n_targets: rows * len,
        ..Batch::default()
    }
}

/// A custom rule that needs whole parameters, and one of whose states has another shape than they.
#[derive(Clone, Debug)]
struct Rows;

impl CustomRule<2> for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn states(&self) -> [&'static str; 2] {
        ["momentum_buffer", "row_var"]
    }

    fn update(&self, update: Update<'_, 2>) {
        let Update { weights, grad, lr, .. } = update;
        weights.iter_mut().zip(grad).for_each(|(w, g)| *w -= lr as f32 * g);
    }

    fn needs(&self) -> Needs {
        Needs::WholeParameters
    }

    fn state_shape(&self, index: usize, shape: &Shape) -> Option<Shape> {
        match (index, shape.sizes()) {
            (1, &[rows, _]) => Shape::new(&[rows, 1]).ok(),
            (1, _) => None,
            _ => Some(*shape),
        }
    }
}

#[test]
fn a_dry_step_takes_what_a_real_one_takes_by_the_byte() {
    let (rows, len) = (3, 40);
    let parts = Recompute::Parts { attention: true, mlp: false };
    for (dtype, threads, documents, recompute, is_adapted) in [
        (DType::F32, 1, false, Recompute::None, false),
        (DType::BF16, 1, false, Recompute::None, false),
        (DType::F32, 3, true, Recompute::Units { every: 1 }, false),
        (DType::BF16, 3, true, Recompute::Units { every: 2 }, false),
        (DType::BF16, 1, false, parts, false),
        (DType::F32, 1, false, Recompute::None, true),
        (DType::BF16, 1, false, Recompute::Units { every: 1 }, true),
    ] {
        let shard = ShardingConfig { dtype, ..ShardingConfig::default() };
        let config = AcceleratorConfig { shard, threads: Some(threads), ..AcceleratorConfig::default() };
        let accelerator = Accelerator::over(Communicator::solo(), &config).unwrap();
        let model = llama(64, 2, 200, len);
        let mut model = if is_adapted { adapted(model) } else { model };
        model.set_recompute(recompute);
        let shape = StepShape { batch: rows, len, documents, eval_batch: Some(5), longest: None, parts: 1 };
        let dry =
            decoder_step(&model, dtype, accelerator.device(), shape, &dry_pass(&NextToken::PLAIN)).unwrap();
        assert_eq!(accelerator.device().arena().bytes(), 0, "a dry run takes nothing of the real pool");

        let adamw = optim::adamw(&model).weight_decay(0.0);
        let (model, optimizer) = accelerator.prepare((model, adamw)).unwrap();
        let states = accelerator.device().arena().bytes() as u64;
        let window = vec![batch(rows, len, documents); 2];
        accelerator.device().profile().enable();
        for _ in 0..2 {
            train_step(
                &accelerator,
                &NextToken::PLAIN,
                &model,
                &optimizer,
                &window,
                1.0,
                &mut PhaseTimer::new(),
            )
            .unwrap();
        }
        let work = accelerator.device().profile().take();
        evaluate(&accelerator, &NextToken::PLAIN, &model, [batch(5, len, documents)].into_iter()).unwrap();

        let arena = accelerator.device().arena();
        assert_eq!(dry.pool_bytes, arena.bytes() as u64 - states, "{dtype}, {threads} thread(s)");
        let peak = |name: &str| {
            arena.usage().into_iter().find(|(n, _)| *n == name).map(|(_, u)| u.peak_bytes as u64)
        };
        for (name, bytes) in &dry.by_name {
            assert_eq!(Some(*bytes), peak(name), "{name}");
        }
        // Four micro-batches were run.
        let flops: u64 = work.iter().map(|(_, op)| op.flops).sum();
        assert_eq!(4 * dry.flops(), flops);

        // What the engine took is what the formulas say, but for what buffers are rounded up to.
        let parts = model_states(&ModelSize::of(&model, dtype), &Settings::new(dtype, Stage::Whole, 1), None);
        let of = |name: &str| parts.iter().find(|part| part.name == name).map_or(0, |part| part.rank);
        assert_eq!(of("master weights") + of("optimizer state"), states);
        assert_eq!(of("gradients"), 4 * (of("optimizer state") / 8));
    }
}

fn galore_args() -> LowRankArgs {
    LowRankArgs {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        rank: 4,
        interval: 200,
        scale: 2.0,
        sides: Sides::Smaller,
        method: Method::GaLore,
    }
}

#[test]
fn a_subspace_keeps_a_small_part_of_the_moments() {
    // A model whose weights are almost all in its layers, as in practice.
    let size = ModelSize::of(&llama(256, 4, 100, 8), DType::BF16);
    let state = |optim: Optim| {
        let settings = Settings { optim, ..Settings::new(DType::BF16, Stage::Optimizer, 1) };
        estimate(&size, &settings, None, 0).part("optimizer state")
    };
    let apollo = Method::Apollo { is_random: true, by_tensor: false, scale_front: false };
    let whole = state(Optim::TwoMoments);
    let galore = state(Optim::LowRank(galore_args(), Vec::new()));
    let apollo = state(Optim::LowRank(LowRankArgs { method: apollo, ..galore_args() }, Vec::new()));
    let some = state(Optim::LowRank(galore_args(), vec!["mlp".to_owned()]));
    assert!(apollo < galore && galore < some && some < whole, "{apollo} {galore} {some} {whole}");
    assert!(galore < whole / 10, "{galore} {whole}");
}

#[test]
fn an_update_borrows_what_the_estimate_says() {
    let disk = tempfile::tempdir().unwrap();
    let muon = Rule::Muon {
        momentum: 0.95,
        nesterov: true,
        ns_coefficients: [3.4445, -4.775, 2.0315],
        ns_steps: 1,
        eps: 1e-7,
        adjust_lr: AdjustLr::Original,
        adam_lr_ratio: 1.0,
        adam_beta1: 0.9,
        adam_beta2: 0.95,
        adam_eps: 1e-8,
    };
    let adafactor = Rule::Adafactor(AdafactorArgs::TORCH);
    let adamw_8bit = Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 }.in_8_bits().unwrap();
    let (mut n_beyond, mut n_within) = (0, 0);
    for (rule, optim) in [
        (muon, Optim::Muon),
        (adafactor, Optim::Factored),
        (Rule::custom(Rows), Optim::Other(Rule::custom(Rows))),
        (Rule::LowRank(galore_args()), Optim::LowRank(galore_args(), Vec::new())),
        (Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 }, Optim::TwoMoments),
        (adamw_8bit.clone(), Optim::Other(adamw_8bit)),
    ] {
        for (dtype, in_files, (rows, len)) in [
            (DType::F32, false, (1, 8)),
            (DType::F32, true, (1, 8)),
            (DType::BF16, true, (1, 8)),
            (DType::BF16, false, (6, 64)),
            (DType::BF16, true, (6, 64)),
        ] {
            let offload =
                Offload { dir: Some(disk.path().to_path_buf()), sub_group_elems: 1 << 14, buffers: 3 };
            let offload_optimizer = in_files.then_some(offload);
            let shard = ShardingConfig {
                dtype,
                offload_optimizer: offload_optimizer.clone(),
                ..ShardingConfig::default()
            };
            let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
            let accelerator = Accelerator::over(Communicator::solo(), &config).unwrap();
            let mut model = llama(64, 2, 500, len);
            model.set_recompute(Recompute::Units { every: 1 });
            let shape =
                StepShape { batch: rows, len, documents: false, eval_batch: None, longest: None, parts: 1 };
            let dry = decoder_step(&model, dtype, accelerator.device(), shape, &dry_pass(&NextToken::PLAIN))
                .unwrap();
            let settings = Settings {
                optim: optim.clone(),
                sharding: ShardingConfig { dtype, offload_optimizer, ..ShardingConfig::default() },
                ..Settings::new(dtype, Stage::Optimizer, 1)
            };
            let size = ModelSize::of(&model, dtype);
            let estimated = estimate(&size, &settings, Some(&dry), 0);

            // Its two groups are those of a run, which the estimate assumes.
            let optimizer = optim::Optim::new(&model, rule.clone(), 1e-3, 0.0).no_decay_of_vectors(&model);
            let (model, optimizer) = accelerator.prepare((model, optimizer)).unwrap();
            let window = vec![batch(rows, len, false)];
            for _ in 0..3 {
                let timer = &mut PhaseTimer::new();
                train_step(&accelerator, &NextToken::PLAIN, &model, &optimizer, &window, 1.0, timer).unwrap();
            }
            let borrowed = ["state between file and use", "optimizer's workspace"];
            let parts = ["master weights", "optimizer state", "activations, logits, scratch"];
            let predicted: u64 = parts.iter().chain(&borrowed).map(|name| estimated.part(name)).sum();
            let taken = accelerator.device().arena().bytes() as u64;
            let case = format!("{optim:?}, {dtype}, in files: {in_files}, {rows} x {len}");
            // Buffers are rounded up to cache lines.
            assert!(predicted.abs_diff(taken) <= taken / 100, "{case}: {predicted} and {taken}");
            let nothing_free = DryRun { free: Vec::new(), ..dry };
            let gross = estimate(&size, &settings, Some(&nothing_free), 0);
            let of = |estimate: &Estimate| borrowed.iter().map(|name| estimate.part(name)).sum::<u64>();
            let (beyond, gross) = (of(&estimated), of(&gross));
            n_beyond += usize::from(beyond > 0);
            n_within += usize::from(beyond < gross);
        }
    }
    assert!(n_beyond > 2 && n_within > 2, "{n_beyond} and {n_within} show both");
}

#[test]
fn who_owns_a_whole_matrix_is_charged_for_reading_it() {
    let layout = |sizes: &[usize]| {
        let param = |&n: &usize| (String::new(), Shape::new(&[n]).unwrap(), 0);
        Layout::new(sizes.iter().map(param), Grain::Parameters)
    };
    let (alone, halves) = (layout(&[1024]), layout(&[512, 512]));
    // Its own, and half of the pages of three others, which have the other halves.
    let owner = (0..4).position(|rank| alone.owned(rank, 4).len() == 1024).unwrap();
    let of_one = charged(&[vec![&alone]], 4);
    for (rank, bytes) in of_one.iter().enumerate() {
        assert_eq!(*bytes, if rank == owner { 4 * 1024 * 5 / 2 } else { 4 * 512 }, "{rank}");
    }
    assert_eq!(charged(&[vec![&halves]], 2), [4 * 1024; 2]);
    // A second use of the same buffer by others adds readers to its pages, and no pages.
    let both = charged(&[vec![&alone, &halves]], 4);
    assert!(both[owner] < of_one[owner] && both.iter().sum::<u64>().abs_diff(4 * 4 * 1024) < 4);
}

#[test]
fn a_dry_run_of_a_large_model_takes_no_memory() {
    let config = DecoderConfig::llama(32_000, 4096, 32, 2048).with_layers(|layer| {
        layer.mlp.intermediate_size = 11_008;
        let attention = &mut layer.attention;
        (attention.n_heads, attention.n_kv_heads, attention.head_dim) = (32, 32, 128);
        (attention.qkv_bias, attention.qk_norm) = (true, QkNorm::PerHead);
    });
    let config = DecoderConfig { tie_embeddings: true, ..config };
    let model = Decoder::new(config, 2048).unwrap();
    let device = Device::dry(Isa::detect(), Par::solo());
    let shape =
        StepShape { batch: 8, len: 2048, documents: false, eval_batch: None, longest: None, parts: 1 };
    let before = oarlock_comm::ProcessMemory::current().unwrap().peak_rss;
    let run = decoder_step(&model, DType::BF16, &device, shape, &dry_pass(&NextToken::PLAIN)).unwrap();
    let grown = oarlock_comm::ProcessMemory::current().unwrap().peak_rss - before;
    assert!(run.pool_bytes > 40 << 30 && grown < 1 << 30, "{} and {grown}", run.pool_bytes);
    let size = ModelSize::of(&model, DType::BF16);
    let parts = model_states(&size, &Settings::new(DType::BF16, Stage::Whole, 4), None);
    // 2 + 4 + 4 + 8 bytes for each of 6.6 billion parameters.
    let sum: u64 = parts.iter().map(|part| part.rank).sum();
    assert!((17.99..18.02).contains(&(sum as f64 / size.n_params() as f64)), "{sum}");
}

#[test]
fn a_forecast_knows_the_chunks_of_a_gpu() {
    let model = llama(64, 1, 50_000, 512);
    let shape = StepShape { batch: 8, len: 512, documents: false, eval_batch: None, longest: None, parts: 1 };
    let logits = |device: &Device| {
        let run = decoder_step(&model, DType::BF16, device, shape, &dry_pass(&NextToken::PLAIN)).unwrap();
        run.by_name.iter().find(|(name, _)| *name == "logits").unwrap().1
    };
    let cpu = Device::dry(Isa::detect(), Par::solo());
    // In f32, and in bf16 their gradient: all 4,096 rows at once with 80 GB, 1,024 of them with 8 GB.
    assert!((20 << 20..30 << 20).contains(&logits(&cpu)), "{}", logits(&cpu));
    for (memory, rows) in [(80 << 30, 4096), (8 << 30, 1024)] {
        let (got, want) = (logits(&cpu.as_dry_gpu(memory)), rows * 50_000 * 6);
        assert!((want..want + want / 8).contains(&got), "{got}, not {want}");
        // As a run on such a GPU asks for its forecast.
        assert_eq!(logits(&cpu.as_dry_gpu(memory).as_dry()), got);
    }
}

#[test]
fn a_dry_device_has_no_values_and_says_so() {
    let device = Device::dry(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &device).unwrap();
    let error = x.scale(2.0).unwrap().to_vec::<f32>().unwrap_err();
    assert!(matches!(error, oarlock_tensor::Error::Dry), "{error}");
    assert!(x.sum_all().unwrap().item::<f32>().is_err());
}

#[test]
fn stages_shard_what_their_formulas_say() {
    let model = llama(64, 3, 500, 32);
    for dtype in [DType::F32, DType::BF16] {
        let size = ModelSize::of(&model, dtype);
        let elems: u64 = size.layouts().map(|(_, layout)| layout.n_elems() as u64).sum();
        for ranks in [1, 2, 3, 7] {
            let of = |stage| {
                let estimate = estimate(&size, &Settings::new(dtype, stage, ranks), None, 0);
                (
                    estimate.clone(),
                    ["working weights", "gradients", "master weights", "optimizer state"]
                        .map(|n| estimate.part(n)),
                )
            };
            let n = ranks as u64;
            let (whole, [weights, gradients, master, state]) = of(Stage::Whole);
            assert_eq!((gradients, state), (4 * elems, 8 * elems));
            assert_eq!(whole.machine(), n * whole.rank());
            let (one, parts) = of(Stage::Optimizer);
            assert_eq!(parts[0], weights.div_ceil(n));
            // The rank that owns the most reads the most, by a block of each group.
            assert!((4 * elems..5 * elems).contains(&parts[1]), "{} of {elems}", parts[1]);
            // The machine holds each state once; no rank is charged less than its part.
            assert_eq!(one.machine(), weights + 4 * elems * n + master + state);
            assert!((parts[2] + parts[3]) * n >= master + state);
            // A layer's gradients are in flight while those of the embedding, which the head shares, accumulate.
            let of_unit = |unit: usize| size.units[unit].iter().map(|(_, l)| l.n_elems() as u64).sum::<u64>();
            // The window of the head's norm fits nothing that comes later.
            let leaving = of_unit(0) + of_unit(1) + 64;
            let (two, parts) = of(Stage::Gradients);
            assert_eq!(two.machine(), weights + 4 * (elems + n * leaving) + master + state);
            assert!((parts[1] + parts[2] + parts[3]) * n >= 4 * elems + master + state);
            let nvme = Settings {
                sharding: ShardingConfig {
                    dtype,
                    offload_optimizer: Some(Offload {
                        sub_group_elems: 100,
                        buffers: 2,
                        ..offload_to_files()
                    }),
                    ..ShardingConfig::default()
                },
                ..Settings::new(dtype, Stage::Optimizer, ranks)
            };
            let nvme = estimate(&size, &nvme, None, 0);
            let kinds = if dtype == DType::F32 { 2 } else { 3 };
            assert_eq!(nvme.part("state between file and use"), 4 * kinds * 100 * 2);
            assert_eq!(nvme.part("master weights"), 0);
        }
    }
    // Optimizers: one state for each element, none, and sums over rows and columns.
    let size = ModelSize::of(&model, DType::F32);
    let state = |optim| {
        let settings = Settings { optim, ..Settings::new(DType::F32, Stage::Whole, 1) };
        estimate(&size, &settings, None, 0).part("optimizer state")
    };
    assert_eq!(2 * state(Optim::OneState), state(Optim::TwoMoments));
    assert_eq!(state(Optim::Stateless), 0);
    assert!(state(Optim::Factored) < state(Optim::OneState) / 10);
    assert!(state(Optim::OneState) < state(Optim::Muon) && state(Optim::Muon) < state(Optim::TwoMoments));
}

/// As over MPI: each rank has weights of its own, and the machine what its ranks have.
#[test]
fn ranks_that_share_no_memory_have_copies() {
    let size = ModelSize::of_count(1_000_000, None, DType::F32).unwrap();
    let of = |stage, apart| {
        let settings = Settings { apart, ..Settings::new(DType::F32, stage, 4) };
        estimate(&size, &settings, None, 0)
    };
    for stage in [Stage::Optimizer, Stage::Gradients] {
        let (here, apart) = (of(stage, None), of(stage, Some(2)));
        assert_eq!(here.part("working weights"), 1_000_000, "{stage:?}");
        assert_eq!(apart.part("working weights"), 4_000_000, "{stage:?}");
        assert_eq!(apart.machine(), 2 * apart.rank(), "{stage:?}");
    }
    assert_eq!(of(Stage::Parameters, Some(2)).part("working weights"), 1_000_000);
}

#[test]
fn what_no_unit_holds_is_there_for_the_whole_step() {
    let model = llama(64, 3, 500, 32);
    let settings = Settings {
        sharding: ShardingConfig {
            gather: Gather::Copy,
            prefetch_elems: 0,
            persistence_elems: 0,
            ..ShardingConfig::default()
        },
        ..Settings::new(DType::F32, Stage::Parameters, 1)
    };
    let weigh = |groups: &[(DType, Layout)]| -> u64 {
        groups.iter().map(|(_, layout)| layout.n_elems() as u64).sum()
    };
    // The elements of the buffers for weights, and of those for gradients.
    let most = |wrap: &Wrap| {
        let size = ModelSize::wrapped(&model, DType::F32, wrap);
        let leaving: usize = size.leaving(false).iter().map(|window| window[0].n_elems()).sum();
        (size.gathered(&settings).first / 4, leaving as u64)
    };
    let declared = ModelSize::of(&model, DType::F32);
    let all: u64 = declared.units.iter().map(|unit| weigh(unit)).sum();
    let layer: u64 = weigh(&declared.units[1]);
    assert_eq!(most(&Wrap::None), (0, all));
    // Embedding and head stay open while one layer after another comes and goes.
    let layers = Wrap::Transformer(vec!["LlamaDecoderLayer".to_owned()]);
    assert_eq!(most(&layers), (layer, all - 2 * layer));
    assert_eq!(most(&Wrap::Declared).0, all - 2 * layer);
    assert_eq!(ModelSize::wrapped(&model, DType::F32, &layers).n_params(), declared.n_params());
}

#[test]
fn gradients_are_what_the_engine_holds_of_them_whatever_becomes_a_unit() {
    let layers = Wrap::Transformer(vec!["LlamaDecoderLayer".to_owned()]);
    for wrap in [Wrap::Declared, layers, Wrap::Size(20_000), Wrap::None] {
        let model = llama(64, 3, 500, 32);
        let size = ModelSize::wrapped(&model, DType::F32, &wrap);
        let settings = Settings::new(DType::F32, Stage::Gradients, 1);
        let predicted = estimate(&size, &settings, None, 0).part("gradients");
        let shard = ShardingConfig {
            placements: Placements::GRADIENTS,
            wrap: wrap.clone(),
            ..ShardingConfig::default()
        };
        let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
        let accelerator = Accelerator::over(Communicator::solo(), &config).unwrap();
        let adamw = optim::adamw(&model).weight_decay(0.0);
        let (model, optimizer) = accelerator.prepare((model, adamw)).unwrap();
        let window = vec![batch(2, 32, false)];
        let timer = &mut PhaseTimer::new();
        train_step(&accelerator, &NextToken::PLAIN, &model, &optimizer, &window, 1.0, timer).unwrap();
        let resident = optimizer.with_engine(Engine::resident).unwrap();
        assert_eq!(predicted, (resident.gradients + resident.leaving) as u64, "{wrap:?}");
    }
}

#[test]
fn a_count_alone_gives_model_states_alone() {
    let size = ModelSize::of_count(7_000_000_000, None, DType::BF16).unwrap();
    let estimate = estimate(&size, &Settings::new(DType::BF16, Stage::Whole, 8), None, 0);
    assert_eq!(estimate.rank(), 18 * 7_000_000_000);
    assert!(!estimate.complete && !size.is_known());
    // Of the other parameters nobody says that they are one unit.
    let size = ModelSize::of_count(26_000_000, Some(4_000_000), DType::BF16).unwrap();
    assert_eq!(
        (size.n_params(), size.largest_unit(), size.largest_layer()),
        (26_000_000, 4_000_000, 4_000_000)
    );
    for (n, largest) in [(0, None), (5, Some(6)), (5, Some(0)), (usize::MAX, None)] {
        assert!(ModelSize::of_count(n, largest, DType::F32).is_err());
    }
}

#[test]
fn deepspeeds_estimators_print_the_same() {
    // What DeepSpeed 0.19.8 printed. Python 3.11 and later write the whole name of an enum's value; it means `cpu `.
    let golden = include_str!("deepspeed.txt").replace("OffloadDeviceEnum.cpu", "cpu ");
    let mut n_cases = 0;
    for case in golden.split("@@").skip(1) {
        let (head, text) = case.split_once('\n').unwrap();
        let numbers: Vec<u64> = head.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let (two, three) = text.split_once("--\n").unwrap();
        assert_eq!(zero2(numbers[0], numbers[2]), two);
        assert_eq!(zero3(numbers[0], numbers[1], numbers[2]), three);
        n_cases += 1;
    }
    assert_eq!(n_cases, 4);
}

#[test]
#[ignore = "heavy"]
fn every_limit_is_held_and_what_is_proposed_fits() {
    let model = llama(64, 12, 200, 128);
    let device = Device::dry(Isa::detect(), Par::solo());
    let shape =
        StepShape { batch: 16, len: 128, documents: false, eval_batch: Some(16), longest: None, parts: 1 };
    let settings = Settings::new(DType::BF16, Stage::Optimizer, 4);
    let (wrap, micro_batch) = (Wrap::Declared, dry_pass(&NextToken::PLAIN));
    let rebuild = || Decoder::new(model.config().clone(), 128);
    let training = Training {
        model: &model,
        second: None,
        n_segments: 1,
        rebuild: &rebuild,
        wrap: &wrap,
        device: &device,
        shape,
        longest: None,
        accumulation: 2,
        settings: &settings,
        program: (1 << 20) + windows_bytes(shape, 2),
        micro_batch: &micro_batch,
    };
    let needs = training.predict().unwrap();
    let roomy = Limits { available: needs.machine(), group: None, address_space: None, data: None };
    assert_eq!(roomy.broken_by(&needs), None);
    let short = needs.machine() - 1;
    for (limits, word) in [
        (Limits { available: short, ..roomy }, "available"),
        (Limits { group: Some(short), ..roomy }, "control group"),
        (Limits { address_space: Some((needs.rank(), 0)), ..roomy }, "ulimit -v"),
        (Limits { data: Some((needs.rank() / 2, 0)), ..roomy }, "ulimit -d"),
    ] {
        let broken = limits.broken_by(&needs).unwrap();
        assert!(broken.to_string().contains(word) && broken.needs > broken.allows, "{broken}");
    }
    let limits = Limits { available: needs.machine() * 2 / 3, ..roomy };
    let fits = |estimate: &Estimate| limits.broken_by(estimate).is_none();
    let found = training.proposals(&fits).unwrap();
    assert!(found.iter().any(|(what, _)| what == "per_device_train_batch_size: 8"), "{found:?}");
    assert!(found.iter().any(|(what, _)| what == "gradient_checkpointing: true"), "{found:?}");
    assert!(found.iter().all(|(_, estimate)| fits(estimate)));
    let nothing = |_: &Estimate| false;
    assert!(training.proposals(&nothing).unwrap().is_empty());
    // A batch so large that also the batches themselves, beside the model, do not fit.
    let huge = StepShape { batch: 200_000, eval_batch: None, ..shape };
    let program = (1 << 20) + windows_bytes(huge, 2);
    let training = Training { shape: huge, program, ..training };
    let found = training.proposals(&fits).unwrap();
    assert!(found.iter().any(|(what, _)| what.starts_with("per_device_train_batch_size: ")), "{found:?}");
    assert!(found.iter().all(|(_, estimate)| fits(estimate)));

    let text = "Max data size             4096    unlimited            bytes     \nMax address space         unlimited            unlimited            bytes";
    assert_eq!(
        (soft_limit(text, "Max data size"), soft_limit(text, "Max address space")),
        (Some(4096), None)
    );
}
