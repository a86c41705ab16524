//! GaLore and APOLLO against galore_torch and apollo_torch: the losses of `tests/golden/low_rank.json`, written by
//! bench/golden/make_low_rank.py upon the model of `tests/golden/train-llama`.

use oarlock::model::{Decoder, HfConfig};
use oarlock::optim::{LowRankArgs, Method, Optim, Rule, Sides};
use oarlock::weights::SafetensorsSource;
use oarlock::{Accelerator, AcceleratorConfig, Result};
use serde_json::Value;

use crate::adapters::{floats, golden, losses_of_steps, placement, rows};
use crate::ranks::on_ranks;

fn rules() -> Vec<(&'static str, LowRankArgs)> {
    let low = |sides, method, scale| LowRankArgs {
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        rank: 4,
        interval: 8,
        scale,
        sides,
        method,
    };
    let galore = |sides| low(sides, Method::GaLore, 2.0);
    let apollo = |is_random, by_tensor, scale_front, scale| {
        low(Sides::Smaller, Method::Apollo { is_random, by_tensor, scale_front }, scale)
    };
    vec![
        ("galore_std", galore(Sides::Smaller)),
        ("galore_reverse_std", galore(Sides::Larger)),
        ("galore_left", galore(Sides::Left)),
        ("galore_right", galore(Sides::Right)),
        // What rounding leaves beside the diagonal, which the gradient is at first, is not a step.
        ("galore_full", LowRankArgs { eps: 1e-4, ..galore(Sides::Both) }),
        ("apollo_random", apollo(true, false, false, 32.0)),
        ("apollo_tensor", apollo(false, true, false, 4.0)),
        ("apollo_front", apollo(false, false, true, 8.0)),
    ]
}

fn numbers() -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden("low_rank.json")).unwrap()).unwrap()
}

fn train(accelerator: &Accelerator, low: LowRankArgs) -> Result<Vec<f64>> {
    let numbers = numbers();
    let number = |name: &str| numbers[name].as_f64().unwrap();
    let base = golden("train-llama");
    let hf = HfConfig::read(&base)?;
    let model = Decoder::new(hf.decoder().clone(), 24)?;
    let weights = SafetensorsSource::open(&base, &hf, &model)?;
    let optimizer = Optim::new(&model, Rule::LowRank(low), number("learning_rate"), number("weight_decay"))
        .no_decay_of_vectors(&model);
    let (model, optimizer) = accelerator.prepare_with_weights((model, optimizer), Box::new(weights))?;
    losses_of_steps(accelerator, &model, &optimizer, &rows(&numbers["rows"]), 30)
}

#[test]
fn losses_are_those_of_the_packages_on_any_ranks_and_in_any_placement() {
    for (name, low) in rules() {
        let expected = floats(&numbers()["losses"][name]);
        let mut on_two_ranks: Option<Vec<f64>> = None;
        for (world, way) in [(1, "DDP"), (2, "DDP"), (2, "ZeRO-2"), (2, "ZeRO-3")] {
            let config =
                AcceleratorConfig { shard: placement(way), threads: Some(1), ..AcceleratorConfig::default() };
            let all = on_ranks(world, config, move |accelerator| train(accelerator, low));
            let found = all.into_iter().map(|losses| losses.unwrap()).next().unwrap();
            assert_eq!(found.len(), expected.len());
            for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!((found - expected).abs() < 1e-4, "{name} {way} {step}: {found} {expected}");
            }
            if world == 2 {
                assert_eq!(on_two_ranks.get_or_insert(found.clone()), &found, "{name} {way}");
            }
        }
    }
}
