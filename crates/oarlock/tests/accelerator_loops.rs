//! Loops that do more than step: gradients cut off by value, ranks that step by themselves, traces.

use std::path::Path;

use oarlock::shard::{OuterStep, Placements};
use oarlock::{
    Accelerator, AcceleratorConfig, DType, GradientAccumulation, LocalSgd, Prepared, PreparedOptimizer,
    ProfileConfig, ProfileSchedule, Result, ShardingConfig, Tensor, optim,
};
use serde_json::Value;

use crate::ranks::net;
use crate::ranks::on_ranks;
use net::{ALL, Net, net};

/// The weights, `[inputs, outputs]`: what the model makes of the unit vectors.
fn weights(accelerator: &Accelerator, net: &Prepared<Net>, inputs: usize) -> Result<Vec<f32>> {
    let units: Vec<f32> = (0..inputs * inputs).map(|i| f32::from(i % (inputs + 1) == 0)).collect();
    net.eval();
    let units = Tensor::from_slice(&units, [inputs, inputs], accelerator.device())?;
    let weights = net.forward(&units.cast(accelerator.dtype())?)?.cast(DType::F32)?;
    net.train();
    Ok(weights.to_vec()?)
}

fn config(placements: Placements, steps: usize) -> AcceleratorConfig {
    AcceleratorConfig {
        shard: ShardingConfig { placements, persistence_elems: 0, ..ShardingConfig::default() },
        gradient_accumulation: GradientAccumulation::steps(steps),
        threads: Some(1),
        ..AcceleratorConfig::default()
    }
}

/// Inputs of micro-batch `index` of a rank: 2 rows of 4, small ones and large ones.
fn inputs(rank: usize, index: usize) -> Vec<f32> {
    (0..8).map(|i| ((rank * 31 + index * 17 + i * 7) % 23) as f32 * [0.01, 0.4][i % 2] - 0.1).collect()
}

/// What is done to the gradients before the step.
type Clip = fn(&Accelerator, &PreparedOptimizer) -> Result<()>;

/// One step of SGD with learning rate 1 on the mean output; the weights before and after.
fn step_with(world: usize, placements: Placements, steps: usize, clip: Clip) -> Vec<(Vec<f32>, Vec<f32>)> {
    step_held(world, config(placements, steps), clip)
}

fn step_held(world: usize, config: AcceleratorConfig, clip: Clip) -> Vec<(Vec<f32>, Vec<f32>)> {
    let steps = config.gradient_accumulation.num_steps;
    let ranks = on_ranks(world, config, move |accelerator| {
        let net = net(4, 3)?;
        let optimizer = optim::sgd(&net).lr(1.0);
        let (net, optimizer) = accelerator.prepare((net, optimizer))?;
        let before = weights(accelerator, &net, 4)?;
        for index in 0..steps {
            let x = inputs(accelerator.process_index(), index);
            let x = Tensor::from_slice(&x, [2, 4], accelerator.device())?;
            accelerator.accumulate(|| {
                accelerator.backward(&net.forward(&x)?.mean_all()?)?;
                clip(accelerator, &optimizer)?;
                optimizer.step()?;
                optimizer.zero_grad()
            })?;
        }
        Ok((before, weights(accelerator, &net, 4)?))
    });
    ranks.into_iter().map(|rank| rank.unwrap()).collect()
}

/// The averaged gradient by hand: of each input, the mean over all rows, for each of three outputs.
fn averaged(world: usize, steps: usize) -> Vec<f64> {
    let rows: Vec<Vec<f32>> = (0..world)
        .flat_map(|rank| (0..steps).map(move |index| inputs(rank, index)))
        .flat_map(|x| x.chunks(4).map(<[f32]>::to_vec).collect::<Vec<_>>())
        .collect();
    let mean = |i: usize| rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / rows.len() as f64;
    (0..4).flat_map(|i| [mean(i) / 3.0; 3]).collect()
}

fn assert_moved(ranks: &[(Vec<f32>, Vec<f32>)], gradient: &[f64], what: &str) {
    for (before, after) in ranks {
        for ((before, after), gradient) in before.iter().zip(after).zip(gradient) {
            let moved = f64::from(*before) - f64::from(*after);
            assert!((moved - gradient).abs() < 1e-6, "{what}: {moved} instead of {gradient}");
        }
    }
}

#[test]
fn gradients_are_cut_off_by_value_as_in_torch_in_every_placement() {
    const BOUND: f32 = 0.25;
    let clip: Clip = |accelerator, optimizer| {
        let is_step = accelerator.clip_grad_value(optimizer, BOUND)?;
        assert_eq!(is_step, accelerator.sync_gradients());
        Ok(())
    };
    for (world, steps) in [(1, 1), (2, 1), (2, 3), (4, 2)] {
        // torch.nn.utils.clip_grad_value_: clamp of the averaged gradient.
        let average = averaged(world, steps);
        let bound = f64::from(BOUND);
        let clamped: Vec<f64> = average.iter().map(|g| g.clamp(-bound, bound)).collect();
        assert!(clamped.contains(&bound) && clamped.iter().any(|g| g.abs() < bound), "{average:?}");
        let first = step_with(world, ALL[0], steps, clip);
        for placements in ALL {
            let ranks = step_with(world, placements, steps, clip);
            assert_moved(&ranks, &clamped, &format!("{placements:?}, {world} ranks, {steps} micro-batches"));
            if steps == 1 {
                assert_eq!(ranks, first, "the same bits: {placements:?}, {world} ranks");
            }
        }
    }
    // Divided inside groups of two ranks, equal across them.
    let mut hybrid = config(Placements::PARAMETERS, 1);
    hybrid.shard.group = Some(2);
    assert_eq!(step_held(4, hybrid, clip), step_with(4, Placements::WHOLE, 1, clip));
}

#[test]
fn clipping_by_norm_and_by_value_go_together_in_either_order() {
    let average = averaged(2, 2);
    let norm = average.iter().map(|g| g * g).sum::<f64>().sqrt();
    // By norm first: half as long, then cut off.
    let expected: Vec<f64> = average.iter().map(|g| (g * 0.5 / norm).clamp(-0.1, 0.1)).collect();
    assert!(expected.contains(&0.1) && expected.iter().any(|g| *g < 0.1));
    for placements in ALL {
        let ranks = step_with(2, placements, 2, |accelerator, optimizer| {
            accelerator.clip_grad_norm(optimizer, 0.5)?;
            accelerator.clip_grad_value(optimizer, 0.1)?;
            Ok(())
        });
        assert_moved(&ranks, &expected, "norm, then value");
    }
    // By value first: the norm is that of what is left.
    let cut: Vec<f64> = average.iter().map(|g| g.clamp(-0.1, 0.1)).collect();
    let norm = cut.iter().map(|g| g * g).sum::<f64>().sqrt();
    let expected: Vec<f64> = cut.iter().map(|g| g * 0.1 / norm).collect();
    for placements in ALL {
        let ranks = step_with(2, placements, 2, |accelerator, optimizer| {
            accelerator.clip_grad_value(optimizer, 0.1)?;
            if let Some(norm) = accelerator.clip_grad_norm(optimizer, 0.1)? {
                let cut = averaged(2, 2).into_iter().map(|g| g.clamp(-0.1, 0.1).powi(2));
                assert!((norm - cut.sum::<f64>().sqrt()).abs() < 1e-6, "{norm}");
            }
            Ok(())
        });
        assert_moved(&ranks, &expected, "value, then norm");
    }
}

#[test]
fn what_was_found_out_about_gradients_is_forgotten_with_them() {
    let ranks = on_ranks(2, config(Placements::OPTIMIZER, 1), |accelerator| {
        let net = net(4, 3)?;
        let optimizer = optim::sgd(&net).lr(1.0);
        let (net, optimizer) = accelerator.prepare((net, optimizer))?;
        let before = weights(accelerator, &net, 4)?;
        let x = Tensor::from_slice(&inputs(accelerator.process_index(), 0), [2, 4], accelerator.device())?;
        accelerator.backward(&net.forward(&x)?.mean_all()?)?;
        let error = accelerator.clip_grad_value(&optimizer, f32::NAN).unwrap_err().to_string();
        assert_eq!(error, "clip_grad_value: elements are cut off at 0 or more, and got NaN");
        accelerator.clip_grad_value(&optimizer, 0.0)?;
        optimizer.zero_grad()?;
        let error = accelerator.clip_grad_value(&optimizer, 1.0).unwrap_err().to_string();
        assert!(error.contains("without gradients"), "{error}");
        // This gradient is whole, and divided by what belongs to it.
        accelerator.backward(&net.forward(&x)?.mean_all()?)?;
        optimizer.step()?;
        Ok((before, weights(accelerator, &net, 4)?))
    });
    let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.unwrap()).collect();
    assert_moved(&ranks, &averaged(2, 1), "after zero_grad");
}

/// Inputs of 2 numbers and a target, of a step of a rank.
fn sample(rank: usize, step: usize) -> ([f32; 2], f32) {
    let x = |i: usize| ((rank * 13 + step * 5 + i * 3) % 11) as f32 / 5.0 - 1.0;
    ([x(0), x(1)], x(2))
}

/// Local SGD by hand, in f64: each rank steps on its own squared errors; every `every` steps, and at the end, the
/// weights become their mean. The weights of all ranks after each step.
fn local_sgd_by_hand(
    start: &[f64],
    world: usize,
    (steps, every): (usize, usize),
    lr: f64,
    outer: Option<OuterStep>,
) -> Vec<Vec<Vec<f64>>> {
    let mut ranks = vec![start.to_vec(); world];
    let (mut met, mut moment) = (start.to_vec(), [0.0; 2]);
    let mut trace = Vec::new();
    for step in 0..steps {
        for (rank, w) in ranks.iter_mut().enumerate() {
            let (x, y) = sample(rank, step);
            let error = w[0] * f64::from(x[0]) + w[1] * f64::from(x[1]) - f64::from(y);
            (0..2).for_each(|i| w[i] -= lr * 2.0 * error * f64::from(x[i]));
        }
        if (step + 1) % every == 0 || step + 1 == steps {
            let mean: Vec<f64> =
                (0..2).map(|i| ranks.iter().map(|w| w[i]).sum::<f64>() / world as f64).collect();
            ranks.fill(mean);
            if let Some(OuterStep { lr, momentum }) = outer {
                for i in 0..2 {
                    let gradient = met[i] - ranks[0][i];
                    moment[i] = momentum * moment[i] + gradient;
                    met[i] -= lr * (gradient + momentum * moment[i]);
                }
                ranks.fill(met.clone());
            }
        }
        trace.push(ranks.clone());
    }
    trace
}

#[test]
fn what_is_computed_by_hand_is_what_accelerate_does() {
    let golden: Value = serde_json::from_str(include_str!("golden/accelerate/processes.json")).unwrap();
    let start: Vec<f64> = serde_json::from_value(golden["start"].clone()).unwrap();
    let number = |key: &str| golden[key].as_u64().unwrap() as usize;
    let ranks = golden["ranks"].as_array().unwrap();
    let by_hand = local_sgd_by_hand(
        &start,
        ranks.len(),
        (number("steps"), number("every")),
        golden["lr"].as_f64().unwrap(),
        None,
    );
    for (rank, golden) in ranks.iter().enumerate() {
        let golden: Vec<Vec<f64>> = serde_json::from_value(golden["local_sgd"].clone()).unwrap();
        assert_eq!(golden.len(), by_hand.len());
        for (golden, by_hand) in golden.iter().zip(&by_hand) {
            assert!((0..2).all(|i| (golden[i] - by_hand[rank][i]).abs() < 1e-6), "{golden:?} {by_hand:?}");
        }
    }
}

fn backward(accelerator: &Accelerator, net: &Prepared<Net>, rank: usize, step: usize) -> Result<()> {
    let (x, y) = sample(rank, step);
    let x = Tensor::from_slice(&x, [1, 2], accelerator.device())?.cast(accelerator.dtype())?;
    let y = Tensor::from_slice(&[y], [1, 1], accelerator.device())?.cast(accelerator.dtype())?;
    accelerator.backward(&net.forward(&x)?.sub(&y)?.square()?.mean_all()?)
}

#[test]
fn ranks_that_step_by_themselves_meet_at_the_mean_of_their_weights() {
    const STEPS: usize = 11;
    let diloco = Some(OuterStep { lr: 0.7, momentum: 0.9 });
    let sgd = Some(OuterStep { lr: 0.5, momentum: 0.0 });
    for (world, every, outer) in
        [(1, 2, None), (2, 4, None), (3, 3, None), (2, 4, diloco), (3, 3, diloco), (2, 5, sgd)]
    {
        let ranks = on_ranks(world, config(Placements::WHOLE, 1), move |accelerator| {
            let net = net(2, 1)?;
            let optimizer = optim::sgd(&net).lr(0.1);
            let (net, optimizer) = accelerator.prepare((net, optimizer))?;
            let mut trace = vec![weights(accelerator, &net, 2)?];
            accelerator.local_sgd(
                &net,
                LocalSgd { local_sgd_steps: every, enabled: true, outer },
                |local| {
                    for step in 0..STEPS {
                        backward(accelerator, &net, accelerator.process_index(), step)?;
                        optimizer.step()?;
                        optimizer.zero_grad()?;
                        local.step()?;
                        trace.push(weights(accelerator, &net, 2)?);
                    }
                    Ok(())
                },
            )?;
            // After the end it is the mean.
            trace.pop();
            trace.push(weights(accelerator, &net, 2)?);
            Ok(trace)
        });
        let ranks: Vec<Vec<Vec<f32>>> = ranks.into_iter().map(|rank| rank.unwrap()).collect();
        let start: Vec<f64> = ranks[0][0].iter().copied().map(f64::from).collect();
        for (step, expected) in
            local_sgd_by_hand(&start, world, (STEPS, every), 0.1, outer).iter().enumerate()
        {
            for (rank, expected) in ranks.iter().zip(expected) {
                for (w, expected) in rank[step + 1].iter().zip(expected) {
                    let difference = f64::from(*w) - expected;
                    assert!(difference.abs() < 1e-5, "step {step} of {world} ranks: {w}, {expected}");
                }
            }
        }
        for rank in &ranks {
            assert_eq!(rank[every], ranks[0][every], "equal where they meet");
            assert_eq!(rank[STEPS], ranks[0][STEPS], "equal at the end");
            assert!(
                world == 1 || std::ptr::eq(rank, &ranks[0]) || rank[1] != ranks[0][1],
                "different before"
            );
        }
    }
}

#[test]
fn after_local_sgd_ranks_go_on_as_one() {
    for dtype in [DType::F32, DType::BF16] {
        let config = AcceleratorConfig { mixed_precision: Some(dtype), ..config(Placements::WHOLE, 2) };
        let ranks = on_ranks(2, config, |accelerator| {
            let net = net(2, 1)?;
            let optimizer = optim::adamw(&net).lr(0.05);
            let (net, optimizer) = accelerator.prepare((net, optimizer))?;
            let rank = accelerator.process_index();
            let step = |index: usize| {
                accelerator.accumulate(|| {
                    backward(accelerator, &net, rank, index)?;
                    let norm = accelerator.clip_grad_norm(&optimizer, 1.0)?;
                    assert!(norm.is_none_or(f64::is_finite));
                    Ok(optimizer.step()?.is_some())
                })
            };
            accelerator.local_sgd(
                &net,
                LocalSgd { local_sgd_steps: 100, ..LocalSgd::default() },
                |local| {
                    for index in 0..6 {
                        if step(index)? {
                            local.step()?;
                        }
                    }
                    Ok(())
                },
            )?;
            let mut trace = Vec::new();
            for index in 6..12 {
                step(index)?;
                trace.push(weights(accelerator, &net, 2)?);
            }
            Ok((optimizer.n_steps()?, trace))
        });
        let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.unwrap()).collect();
        assert_eq!(ranks[0], ranks[1], "the moments are equal, too, so the steps that follow are");
        assert_eq!(ranks[0].0, 6);
    }
}

#[test]
fn local_sgd_says_where_it_cannot_be() {
    for placements in &ALL[1..] {
        for error in on_ranks(2, config(*placements, 1), |accelerator| {
            let net = net(2, 1)?;
            let optimizer = optim::sgd(&net);
            let (net, _optimizer) = accelerator.prepare((net, optimizer))?;
            accelerator.local_sgd(&net, LocalSgd::default(), |_| Ok(()))
        }) {
            let error = error.unwrap_err().to_string();
            assert!(
                error.starts_with("ranks can step by themselves only where each has the whole state"),
                "{error}"
            );
        }
    }
    // Ranks that do different numbers of steps.
    for error in on_ranks(2, config(Placements::WHOLE, 1), |accelerator| {
        let net = net(2, 1)?;
        let optimizer = optim::sgd(&net);
        let (net, optimizer) = accelerator.prepare((net, optimizer))?;
        accelerator.local_sgd(&net, LocalSgd::default(), |local| {
            for index in 0..=accelerator.process_index() {
                backward(accelerator, &net, 0, index)?;
                optimizer.step()?;
                local.step()?;
            }
            Ok(())
        })
    }) {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("rank 0 has 1, rank 1 has 2"), "{error}");
    }
    let message = on_ranks(1, config(Placements::WHOLE, 1), |accelerator| {
        let frozen = accelerator.prepare(net(2, 1)?)?;
        let none = accelerator.local_sgd(&frozen, LocalSgd::default(), |_| Ok(())).unwrap_err();
        let net = net(2, 1)?;
        let optimizer = optim::sgd(&net);
        let (net, _optimizer) = accelerator.prepare((net, optimizer))?;
        let never = LocalSgd { local_sgd_steps: 0, ..LocalSgd::default() };
        let never = accelerator.local_sgd(&net, never, |_| Ok(())).unwrap_err();
        for (lr, momentum, expected) in [(0.0, 0.9, "outer_lr is 0"), (0.7, 1.0, "outer_momentum is 1")] {
            let wrong = LocalSgd { outer: Some(OuterStep { lr, momentum }), ..LocalSgd::default() };
            let message = accelerator.local_sgd(&net, wrong, |_| Ok(())).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        let twice = accelerator.local_sgd(&net, LocalSgd::default(), |_| {
            accelerator.local_sgd(&net, LocalSgd::default(), |_| Ok(()))
        });
        Ok([none, never, twice.unwrap_err()].map(|error| error.to_string()))
    });
    let message = message.into_iter().next().unwrap().unwrap();
    assert!(message[0].contains("has no optimizer"), "{message:?}");
    assert!(message[1].contains("at least one"), "{message:?}");
    assert!(message[2].contains("is in a `local_sgd` already"), "{message:?}");
}

fn trace(dir: &Path, rank: usize) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join(format!("profile_{rank}.json"))).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(trace["distributedInfo"]["rank"], rank);
    assert_eq!(trace["distributedInfo"]["world_size"], 2);
    trace["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn a_chrome_trace_of_each_rank_holds_the_steps_that_the_schedule_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("traces");
    let config_of = |schedule| ProfileConfig { schedule, output_trace_dir: Some(path.clone()) };
    let schedule = ProfileSchedule { wait: 1, warmup: 1, active: 2, repeat: 1, skip_first: 1 };
    let profiled = config_of(Some(schedule));
    let ranks = on_ranks(2, config(Placements::OPTIMIZER, 1), move |accelerator| {
        let net = net(2, 1)?;
        let optimizer = optim::sgd(&net);
        let (net, optimizer) = accelerator.prepare((net, optimizer))?;
        let keys = accelerator.profile(&profiled, |profiler| {
            for step in 0..8 {
                backward(accelerator, &net, accelerator.process_index(), step)?;
                optimizer.step()?;
                profiler.step();
            }
            Ok(profiler.key_averages())
        })?;
        assert!(keys.iter().any(|key| key.key == "reduce_scatter" && key.count == 2), "{keys:?}");
        assert!(keys.windows(2).all(|pair| pair[0].total >= pair[1].total));
        // Off again, and free.
        backward(accelerator, &net, 0, 0)?;
        assert!(accelerator.device().profile().take_events().is_empty());
        assert!(accelerator.communicator().take_trace().is_empty());
        Ok(())
    });
    ranks.into_iter().for_each(|rank| rank.unwrap());
    for rank in 0..2 {
        let events = trace(&path, rank);
        let of = |cat: &str| events.iter().filter(|e| e["cat"] == cat).cloned().collect::<Vec<_>>();
        let steps: Vec<Value> = of("user_annotation").iter().map(|e| e["name"].clone()).collect();
        assert_eq!(steps, ["ProfilerStep#3", "ProfilerStep#4"]);
        let (ops, collectives) = (of("cpu_op"), of("collective"));
        assert!(
            ops.iter().any(|e| e["name"].as_str().unwrap().contains("linear") || e["args"]["flops"] != 0)
        );
        assert_eq!(collectives.iter().filter(|e| e["name"] == "reduce_scatter").count(), 2);
        for event in &events {
            assert_eq!(event["pid"], rank);
            assert!(event["tid"].is_u64() && event["name"].is_string(), "{event}");
            match event["ph"].as_str().unwrap() {
                "M" => assert!(event["args"]["name"].is_string()),
                "X" => assert!(event["ts"].as_f64().unwrap() >= 0.0 && event["dur"].as_f64().unwrap() >= 0.0),
                other => panic!("an event of the kind {other}"),
            }
        }
        // Ops lie inside the steps.
        let span =
            |e: &Value| (e["ts"].as_f64().unwrap(), e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap());
        let inside: Vec<(f64, f64)> = of("user_annotation").iter().map(span).collect();
        for event in ops.iter().chain(&collectives) {
            let (start, end) = span(event);
            assert!(inside.iter().any(|(from, to)| *from <= start && end <= *to), "{event}");
        }
    }
}

#[test]
fn a_profile_without_a_schedule_keeps_all_and_a_failed_one_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let message = on_ranks(1, config(Placements::WHOLE, 1), move |accelerator| {
        let profiled = ProfileConfig { schedule: None, output_trace_dir: Some(path.clone()) };
        let failed =
            accelerator.profile(&profiled, |_| Err::<(), _>(oarlock::Error::Usage("on purpose".to_owned())));
        assert_eq!(failed.unwrap_err().to_string(), "on purpose");
        accelerator.wait_for_everyone()?;
        assert!(accelerator.communicator().take_trace().is_empty(), "nothing goes on recording");
        assert!(!path.join("profile_0.json").exists());
        let never = ProfileSchedule { active: 0, ..ProfileSchedule::default() };
        let never =
            accelerator.profile(&ProfileConfig { schedule: Some(never), ..profiled.clone() }, |_| Ok(()));
        assert!(never.unwrap_err().to_string().contains("at least one step"));
        accelerator.profile(&profiled, |_| accelerator.wait_for_everyone())?;
        std::fs::read_to_string(path.join("profile_0.json")).map_err(|cause| oarlock::Error::Io {
            action: "read",
            path: path.clone(),
            cause,
        })
    });
    let text = message.into_iter().next().unwrap().unwrap();
    assert!(text.contains("\"barrier\"") && text.contains("accelerator_loops.rs:"), "{text}");
}
