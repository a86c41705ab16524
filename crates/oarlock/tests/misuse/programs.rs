//! The programs, each with one mistake.

use std::collections::BTreeMap;
use std::path::Path;

use oarlock::nn::{self, Forward, Linear, Module, Unit};
use oarlock::shard::{Gather, Placements};
use oarlock::{
    Accelerator, AcceleratorConfig, Error, LocalSgd, Prepared, PreparedOptimizer, Result, ShardingConfig,
    Tensor, lr_scheduler, optim,
};
use oarlock_comm::Communicator;
use oarlock_tensor::ops::optimizer::Rule;

use super::Wrong;

#[derive(Module)]
pub struct Net {
    up: Unit<Linear>,
    down: Unit<Linear>,
}

impl Net {
    pub fn new() -> Result<Net> {
        Net::wide(8)
    }

    pub fn wide(n: usize) -> Result<Net> {
        Ok(Net {
            up: Unit::new(Linear::normal(4, n, true, 0.3)?),
            down: Unit::new(Linear::normal(n, 1, true, 0.3)?),
        })
    }
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.tanh()?)
    }
}

pub fn accelerator(comm: &Communicator) -> Result<Accelerator> {
    with(comm, ShardingConfig::default())
}

pub fn with(comm: &Communicator, shard: ShardingConfig) -> Result<Accelerator> {
    Accelerator::over(
        comm.clone(),
        &AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() },
    )
}

/// A model that trains.
pub fn trained(accelerator: &Accelerator) -> Result<(Prepared<Net>, PreparedOptimizer)> {
    let net = Net::new()?;
    let optimizer = optim::adamw(&net);
    accelerator.prepare((net, optimizer))
}

pub fn input(accelerator: &Accelerator) -> Result<Tensor> {
    Ok(Tensor::from_slice(&[0.5f32; 8], [2, 4], accelerator.device())?)
}

pub fn all() -> Vec<Wrong> {
    vec![
        Wrong {
            title: "a collective on one rank only",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                if accelerator.is_main_process() { accelerator.wait_for_everyone() } else { Ok(()) }
            },
        },
        Wrong {
            title: "another collective on another rank",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                match accelerator.is_main_process() {
                    true => accelerator.wait_for_everyone(),
                    false => accelerator.reduce_sum(&mut [1.0]),
                }
            },
        },
        Wrong {
            title: "values of other lengths are reduced",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                accelerator.reduce_sum(&mut vec![1.0; 1 + accelerator.process_index()])
            },
        },
        Wrong {
            title: "a rank ends with an error while the others wait",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                if accelerator.is_main_process() {
                    return Err(Error::Usage("no more data".to_owned()));
                }
                accelerator.wait_for_everyone()
            },
        },
        Wrong {
            title: "a model is prepared twice",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let net = accelerator.prepare(Net::new()?)?;
                accelerator.prepare(net).map(|_| ())
            },
        },
        Wrong {
            title: "two models of one call share a weight",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let first = Linear::normal(4, 4, false, 0.1)?;
                let second = Linear::with_weight(first.weight.clone());
                accelerator.prepare((first, second)).map(|_| ())
            },
        },
        Wrong {
            title: "an optimizer is prepared without its model",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (net, other) = (Net::new()?, Net::new()?);
                accelerator.prepare((optim::adamw(&other), net)).map(|_| ())
            },
        },
        Wrong {
            title: "two optimizers update one model",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let net = Net::new()?;
                let (first, second) = (optim::adamw(&net.up), optim::sgd(&net.down));
                accelerator.prepare((net, first, second)).map(|_| ())
            },
        },
        Wrong {
            title: "one optimizer updates two models",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (first, second) = (Net::new()?, Net::wide(3)?);
                let optimizer = optim::adamw(optim::Parameters::of(&first).and(&second));
                accelerator.prepare((first, second, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "a parameter is in two groups of its optimizer",
            ranks: 1,
            program: |comm| {
                let net = Net::new()?;
                let biases = optim::Parameters::of(&net).filter(|named| named.name.ends_with("bias"));
                let optimizer = optim::adamw(&net).group(&net.down, |group| group.lr(0.1)).no_decay(biases);
                accelerator(comm)?.prepare((net, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "a group has a parameter that its optimizer does not update",
            ranks: 1,
            program: |comm| {
                let net = Net::new()?;
                let optimizer = optim::adamw(&net.up).group(&net.down, |group| group.lr(0.1));
                accelerator(comm)?.prepare((net, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "a group has betas that are none",
            ranks: 1,
            program: |comm| {
                let net = Net::new()?;
                let optimizer = optim::adamw(&net).group(&net.down, |group| group.betas(0.9, 1.0));
                accelerator(comm)?.prepare((net, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "a group has another rule",
            ranks: 1,
            program: |comm| {
                let net = Net::new()?;
                let sgd = Rule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: false };
                let optimizer = optim::adamw(&net).group(&net.down, |group| group.rule(sgd));
                accelerator(comm)?.prepare((net, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "an optimizer and a clone of it get groups",
            ranks: 1,
            program: |comm| {
                let net = Net::new()?;
                let optimizer = optim::adamw(&net);
                let _other = optimizer.clone().group(&net.up, |group| group.lr(0.1));
                let optimizer = optimizer.group(&net.down, |group| group.lr(0.2));
                accelerator(comm)?.prepare((net, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "groups have other numbers on another rank",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let lr = if accelerator.is_main_process() { 0.1 } else { 0.2 };
                let net = Net::new()?;
                let optimizer = optim::adamw(&net).group(&net.down, |group| group.lr(lr));
                accelerator.prepare((net, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "a group that is not there gets a learning rate",
            ranks: 1,
            program: |comm| trained(&accelerator(comm)?)?.1.set_group_lr(1, 0.1),
        },
        Wrong {
            title: "a model without parameters is prepared",
            ranks: 1,
            program: |comm| accelerator(comm)?.prepare(Vec::<Linear>::new()).map(|_| ()),
        },
        Wrong {
            title: "a model runs that was not prepared",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                Net::new()?.forward(&input(&accelerator)?)?;
                Ok(())
            },
        },
        Wrong {
            title: "ranks prepare other models",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                accelerator.prepare(Net::wide(8 + accelerator.process_index())?).map(|_| ())
            },
        },
        Wrong {
            title: "the same shapes under other names on another rank",
            ranks: 2,
            program: |comm| {
                #[derive(Module)]
                struct Other {
                    first: Unit<Linear>,
                    second: Unit<Linear>,
                }
                let accelerator = accelerator(comm)?;
                let Net { up, down } = Net::new()?;
                match accelerator.is_main_process() {
                    true => accelerator.prepare(Net { up, down }).map(|_| ()),
                    false => accelerator.prepare(Other { first: up, second: down }).map(|_| ()),
                }
            },
        },
        Wrong {
            title: "backward from an evaluation",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (net, _optimizer) = trained(&accelerator)?;
                net.eval();
                accelerator.backward(&net.forward(&input(&accelerator)?)?.mean_all()?)
            },
        },
        Wrong {
            title: "backward through a model without an optimizer",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let net = accelerator.prepare(Net::new()?)?;
                accelerator.backward(&net.forward(&input(&accelerator)?)?.mean_all()?)
            },
        },
        Wrong {
            title: "backward from more than one number",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (net, _optimizer) = trained(&accelerator)?;
                accelerator.backward(&net.forward(&input(&accelerator)?)?)
            },
        },
        Wrong {
            title: "backward twice from one loss",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (net, _optimizer) = trained(&accelerator)?;
                let loss = net.forward(&input(&accelerator)?)?.mean_all()?;
                accelerator.backward(&loss)?;
                accelerator.backward(&loss)
            },
        },
        Wrong {
            title: "backward after the step of what ran forward before it",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (net, optimizer) = trained(&accelerator)?;
                let x = input(&accelerator)?;
                let (first, second) = (net.forward(&x)?.mean_all()?, net.forward(&x)?.square()?.mean_all()?);
                accelerator.backward(&first)?;
                optimizer.step()?;
                accelerator.backward(&second)
            },
        },
        Wrong {
            title: "the hidden state of one step is the input of the next",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let net = Linear::new(4, 4)?;
                let optimizer = optim::adamw(&net);
                let (net, optimizer) = accelerator.prepare((net, optimizer))?;
                let mut hidden = input(&accelerator)?;
                for _ in 0..2 {
                    hidden = net.forward(&hidden)?.tanh()?;
                    accelerator.backward(&hidden.mean_all()?)?;
                    optimizer.step()?;
                }
                Ok(())
            },
        },
        Wrong {
            title: "a mean and a sum over targets in one step",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (net, _optimizer) = trained(&accelerator)?;
                let x = input(&accelerator)?;
                accelerator.backward_sum(&net.forward(&x)?.sum_all()?, 2)?;
                accelerator.backward(&net.forward(&x)?.mean_all()?)
            },
        },
        Wrong {
            title: "gradients are clipped to a negative norm",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (net, optimizer) = trained(&accelerator)?;
                accelerator.backward(&net.forward(&input(&accelerator)?)?.mean_all()?)?;
                accelerator.clip_grad_norm(&optimizer, -1.0).map(|_| ())
            },
        },
        Wrong {
            title: "two parameters of one name",
            ranks: 1,
            program: |comm| {
                let layers =
                    |key: &str| Ok::<_, Error>(BTreeMap::from([(key.to_owned(), Linear::new(2, 2)?)]));
                let both =
                    BTreeMap::from([("a".to_owned(), layers("b.c")?), ("a.b".to_owned(), layers("c")?)]);
                let optimizer = optim::adamw(&both);
                accelerator(comm)?.prepare((both, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "weights are asked for while each rank has its own",
            ranks: 2,
            program: |comm| {
                let accelerator = with(
                    comm,
                    ShardingConfig { placements: Placements::WHOLE, ..ShardingConfig::default() },
                )?;
                let (net, _optimizer) = trained(&accelerator)?;
                accelerator
                    .local_sgd(&net, LocalSgd::default(), |_| accelerator.get_state_dict(&net).map(|_| ()))
            },
        },
        Wrong {
            title: "a rank loads while the other saves",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (_net, _optimizer) = trained(&accelerator)?;
                let dir = Path::new("/nowhere/checkpoint");
                match comm.rank() {
                    0 => accelerator.save_state(Some(dir)).map(|_| ()),
                    _ => accelerator.load_state(Some(dir)).map(|_| ()),
                }
            },
        },
        Wrong {
            title: "backward of another accelerator's model",
            ranks: 1,
            program: |comm| {
                let (first, second) = (accelerator(comm)?, accelerator(comm)?);
                let (net, _optimizer) = trained(&first)?;
                second.backward(&net.forward(&input(&first)?)?.mean_all()?)
            },
        },
        Wrong {
            title: "backward after clipping",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (net, optimizer) = trained(&accelerator)?;
                let x = input(&accelerator)?;
                accelerator.backward(&net.forward(&x)?.mean_all()?)?;
                accelerator.clip_grad_norm(&optimizer, 1.0)?;
                accelerator.backward(&net.forward(&x)?.mean_all()?)
            },
        },
        Wrong {
            title: "a step without backward",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (_net, optimizer) = trained(&accelerator)?;
                optimizer.step().map(|_| ())
            },
        },
        Wrong {
            title: "a loss that is not finite",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let (net, optimizer) = trained(&accelerator)?;
                let x =
                    input(&accelerator)?.scale(if accelerator.is_main_process() { f32::NAN } else { 1.0 })?;
                accelerator.backward(&net.forward(&x)?.mean_all()?)?;
                accelerator.clip_grad_norm(&optimizer, 1.0).map(|_| ())
            },
        },
        Wrong {
            title: "a unit's weight is used outside of it",
            ranks: 2,
            program: |comm| {
                let options = ShardingConfig {
                    placements: Placements::PARAMETERS,
                    gather: Gather::Copy,
                    persistence_elems: 0,
                    ..ShardingConfig::default()
                };
                let accelerator = with(comm, options)?;
                let net = accelerator.prepare(Net::new()?)?;
                net.module().up.module().forward(&input(&accelerator)?)?;
                Ok(())
            },
        },
        Wrong {
            title: "rows that do not fit the layer",
            ranks: 1,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let net = accelerator.prepare(Net::new()?)?;
                net.forward(&Tensor::from_slice(&[0.5f32; 6], [2, 3], accelerator.device())?).map(|_| ())
            },
        },
        Wrong {
            title: "more ranks in a group than there are",
            ranks: 2,
            program: |comm| {
                with(comm, ShardingConfig { group: Some(3), ..ShardingConfig::default() }).map(|_| ())
            },
        },
        Wrong {
            title: "one rank skips a step",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let net = Net::new()?;
                let optimizer = optim::adamw(&net);
                let scheduler = lr_scheduler::constant(&optimizer);
                let (net, optimizer, _scheduler) = accelerator.prepare((net, optimizer, scheduler))?;
                let x = input(&accelerator)?;
                for step in 0..3 {
                    accelerator.backward(&net.forward(&x)?.mean_all()?)?;
                    if step != 1 || accelerator.is_main_process() {
                        optimizer.step()?;
                    }
                }
                accelerator.wait_for_everyone()
            },
        },
    ]
}
