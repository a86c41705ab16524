//! The moving average of a model's weights, in every placement.

use oarlock::nn::{Linear, Module, Unit};
use oarlock::shard::{Gather, Placements};
use oarlock::{Accelerator, AcceleratorConfig, DType, Ema, Prepared, Result, ShardingConfig, Tensor, optim};

use crate::ranks::{alone, on_ranks};

#[derive(Module)]
struct Net {
    a: Unit<Linear>,
    b: Unit<Linear>,
}

fn weights(accelerator: &Accelerator, model: &Prepared<Net>) -> Result<Vec<Vec<f32>>> {
    let weights = accelerator.get_state_dict(model)?;
    Ok(weights.values().map(|weight| weight.to_vec::<f32>()).collect::<oarlock::nn::Result<_>>()?)
}

/// The average after three steps, what three steps by hand make of the weights, and the weights after and before.
fn run(accelerator: &Accelerator) -> Result<[Vec<Vec<f32>>; 4]> {
    let model = Net { a: Unit::new(Linear::new(70, 90)?), b: Unit::new(Linear::new(90, 3)?) };
    let optimizer = optim::adamw(&model).lr(0.01);
    let (model, optimizer) = accelerator.prepare((model, optimizer))?;
    let mut ema = Ema::new(&model, 0.75)?;
    let first = weights(accelerator, &model)?;
    let mut by_hand = first.clone();
    let x: Vec<f32> = (0..140).map(|i| (i as f32).sin()).collect();
    let x = Tensor::from_slice(&x, [2, 70], accelerator.device())?;
    for _ in 0..3 {
        let y = model.call(&x, |net, x| net.b.forward(&net.a.forward(x)?.tanh()?))?;
        accelerator.backward(&y.square()?.mean_all()?)?;
        optimizer.step()?;
        ema.update(&model)?;
        for (average, now) in by_hand.iter_mut().flatten().zip(weights(accelerator, &model)?.iter().flatten())
        {
            *average += 0.25 * (now - *average);
        }
    }
    let last = weights(accelerator, &model)?;
    ema.swap(&model)?;
    let averaged = weights(accelerator, &model)?;
    // A pass sees the averages.
    let see = |net: &Net, x: &Tensor| net.b.forward(&net.a.forward(x)?.tanh()?);
    let with_average = model.call(&x, see)?.to_f32_vec()?;
    ema.swap(&model)?;
    assert_ne!(model.call(&x, see)?.to_f32_vec()?, with_average);
    assert_eq!(weights(accelerator, &model)?, last);
    Ok([averaged, by_hand, last, first])
}

fn run_alone(mixed_precision: Option<DType>) -> [Vec<Vec<f32>>; 4] {
    run(&alone(AcceleratorConfig { mixed_precision, ..AcceleratorConfig::default() })).unwrap()
}

#[test]
fn it_is_the_average_in_every_placement_and_goes_back_to_the_bit() {
    let [averaged, by_hand, last, first] = run_alone(None);
    assert_eq!(averaged, by_hand);
    assert!(averaged != last && averaged != first);
    for (placements, gather) in [
        (Placements::WHOLE, Gather::InPlace),
        (Placements::OPTIMIZER, Gather::InPlace),
        (Placements::PARAMETERS, Gather::InPlace),
        (Placements::PARAMETERS, Gather::Copy),
    ] {
        let shard = ShardingConfig { placements, gather, persistence_elems: 0, ..ShardingConfig::default() };
        let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
        for rank in on_ranks(2, config, run) {
            assert_eq!(rank.unwrap()[0], averaged, "{placements:?} {gather:?}");
        }
    }
}

#[test]
fn in_bf16_it_is_kept_in_f32() {
    let [averaged, by_hand, ..] = run_alone(Some(DType::BF16));
    assert_eq!(averaged, by_hand);
}

#[test]
fn a_decay_is_a_share() {
    let accelerator = alone(AcceleratorConfig::default());
    let model = accelerator.prepare(Linear::new(2, 2).unwrap()).unwrap();
    let text = Ema::new(&model, 1.5).err().unwrap().to_string();
    assert_eq!(text, "Ema: the decay is 1.5; it is a number from 0 to 1");
}
