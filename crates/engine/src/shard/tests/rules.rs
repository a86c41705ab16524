//! Every optimizer is bitwise identical in every stage, on any number of ranks, and with its state in files. What the
//! bits are is compared with torch and DeepSpeed in the tensor crate.

use oarlock_tensor::ops::optimizer::{AdafactorArgs, AdjustLr, LowRankArgs, Method, Sides};

use super::*;
use crate::optim::testing::Rows;
use crate::shard::Offload;

fn rules() -> Vec<Rule> {
    let (beta1, beta2, eps) = (0.9, 0.99, 1e-8);
    let galore = LowRankArgs {
        beta1,
        beta2,
        eps,
        rank: 2,
        interval: 6,
        scale: 2.0,
        sides: Sides::Smaller,
        method: Method::GaLore,
    };
    let apollo = Method::Apollo { is_random: true, by_tensor: false, scale_front: false };
    vec![
        Rule::AdamW { beta1, beta2, eps },
        Rule::Adam { beta1, beta2, eps },
        Rule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false },
        Rule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: true },
        Rule::Adagrad { lr_decay: 0.1, initial_accumulator_value: 0.1, eps: 1e-10 },
        Rule::Lion { beta1, beta2 },
        Rule::Lamb {
            beta1,
            beta2,
            eps: 1e-6,
            eps_inside_sqrt: false,
            bias_correction: true,
            max_coeff: 10.0,
            min_coeff: 0.01,
        },
        Rule::Adafactor(AdafactorArgs::TORCH),
        Rule::Adafactor(AdafactorArgs::TRANSFORMERS),
        Rule::Muon {
            momentum: 0.95,
            nesterov: true,
            ns_coefficients: [3.4445, -4.775, 2.0315],
            ns_steps: 5,
            eps: 1e-7,
            adjust_lr: AdjustLr::Original,
            adam_lr_ratio: 0.5,
            adam_beta1: beta1,
            adam_beta2: beta2,
            adam_eps: eps,
        },
        Rule::LowRank(LowRankArgs { sides: Sides::Both, ..galore }),
        Rule::LowRank(galore),
        Rule::LowRank(LowRankArgs { method: apollo, ..galore }),
        Rule::custom(Rows),
    ]
}

/// Twenty steps on the gradient of one rank, so that the number of ranks changes no sum.
fn train(rule: &Rule, ranks: usize, options: &ShardingConfig) -> Vec<(String, usize, Vec<u32>)> {
    of_world(on_ranks(ranks, |comm| {
        let model = Chain::new(3, true);
        let mut engine = engine_with(&model, comm, options.clone(), rule.clone());
        for at in 0..20 {
            // The other ranks take part with gradients of zero.
            let seed = if comm.rank() == 0 { 1.0 } else { 0.0 };
            backward_from(&engine, &model, at, seed, |_| true);
            engine.step(&hyperparameters(rule.clone()), 0.5).unwrap();
        }
        weights(&engine)
    }))
}

#[test]
fn every_rule_has_the_same_bits_in_every_stage_on_any_number_of_ranks() {
    let disk = tempfile::tempdir().unwrap();
    let offload =
        || Some(Offload { dir: Some(disk.path().to_path_buf()), sub_group_elems: 3000, buffers: 3 });
    for rule in &rules() {
        let alone =
            train(rule, 1, &ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() });
        assert!(alone.iter().flat_map(|(_, _, bits)| bits).all(|bits| f32::from_bits(*bits).is_finite()));
        for ranks in [2, 3] {
            for (way, options) in ways() {
                assert!(train(rule, ranks, &options) == alone, "{}, {ranks} ranks, {way}", rule.name());
            }
        }
        let on_disk = |placements| ShardingConfig {
            offload_optimizer: offload(),
            placements,
            ..ShardingConfig::default()
        };
        for placements in [Placements::OPTIMIZER, Placements::PARAMETERS] {
            assert!(train(rule, 2, &on_disk(placements)) == alone, "{}, on disk", rule.name());
        }
    }
}
