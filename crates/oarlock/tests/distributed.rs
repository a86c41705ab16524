//! Launching from code: ranks as threads, process groups, collectives, and what goes wrong with each.

use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oarlock::distributed::{self, Backend, InitOptions, NotebookLaunch, ProcessGroup, ReduceOp};
use oarlock::{Accelerator, AcceleratorConfig, DType, Error, Result, Tensor};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Element, Par, bf16};

fn device() -> Device {
    Device::cpu(Isa::detect(), Par::threads(1).unwrap())
}

fn tensor<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_slice(values, [values.len()], &device()).unwrap()
}

fn one_thread() -> AcceleratorConfig {
    AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() }
}

/// Runs `f` with the default group in `n` ranks.
fn ranks<T: Send>(n: usize, f: impl Fn(ProcessGroup) -> Result<T> + Sync) -> Result<Vec<T>> {
    distributed::spawn(n, |_| f(distributed::init_process_group(Backend::Gloo, &InitOptions::default())?))
}

fn message<T: Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn every_rank_runs_once_and_finds_its_group_by_itself() {
    for n in 1..=4 {
        let returned = distributed::spawn(n, |rank| {
            assert!(!distributed::is_initialized());
            let accelerator = Accelerator::new(&one_thread())?;
            assert_eq!((accelerator.process_index(), accelerator.num_processes()), (rank, n));
            // A second one is the same rank of the same group.
            let second = Accelerator::new(&one_thread())?;
            let mut sum = [1.0];
            second.reduce_sum(&mut sum)?;
            assert_eq!(sum, [n as f64]);
            // So is the process group.
            distributed::init_process_group(Backend::Gloo, &InitOptions::default())?;
            assert_eq!((distributed::get_rank()?, distributed::get_world_size()?), (rank, n));
            distributed::barrier()?;
            distributed::destroy_process_group()?;
            assert!(!distributed::is_initialized());
            accelerator.wait_for_everyone()?;
            Ok(rank)
        });
        assert_eq!(returned.unwrap(), (0..n).collect::<Vec<_>>());
    }
    assert!(message(distributed::spawn(0, |_| Ok(()))).contains("at least one"));
}

#[test]
fn groups_of_one_process_know_nothing_of_each_other() {
    std::thread::scope(|scope| {
        for n in [2, 3] {
            scope.spawn(move || {
                ranks(n, |group| {
                    for _ in 0..20 {
                        let mut sum = tensor(&[1_i32]);
                        group.all_reduce(&mut sum, ReduceOp::Sum)?;
                        assert_eq!(sum.to_vec::<i32>()?, [n as i32]);
                    }
                    Ok(())
                })
            });
        }
    });
    assert!(!distributed::is_initialized());
}

#[test]
fn the_first_rank_that_fails_is_named_and_the_others_are_told() {
    let reported = Mutex::new(Vec::new());
    let result: Result<Vec<()>> = distributed::spawn(3, |rank| {
        let accelerator = Accelerator::new(&one_thread())?;
        if rank == 1 {
            return Err(Error::Usage("no more of this".to_owned()));
        }
        let error = accelerator.wait_for_everyone().unwrap_err();
        reported.lock().unwrap().push(error.to_string());
        Err(error)
    });
    assert_eq!(message(result), "rank 1 failed: no more of this");
    assert_eq!(reported.into_inner().unwrap(), ["rank 1 failed: no more of this"; 2]);

    let result = ranks(2, |group| {
        if group.rank() == 0 {
            panic!("a panic of rank {}", group.rank());
        }
        group.barrier()
    });
    assert_eq!(message(result), "rank 0 panicked: a panic of rank 0");
}

#[test]
fn a_rank_that_returns_early_keeps_nobody_waiting() {
    let result = ranks(2, |group| if group.rank() == 0 { Ok(()) } else { group.barrier() });
    let message = message(result);
    assert!(
        message.starts_with("rank 1 failed: rank 0 failed: it finished while others still waited"),
        "{message}"
    );
}

#[test]
fn collectives_give_what_torch_gives() {
    for n in 1..=4_usize {
        ranks(n, |group| {
            let me = group.rank();
            let mine = [me as f32 + 1.0, -(me as f32), 0.5];
            let all: Vec<[f32; 3]> = (0..n).map(|r| [r as f32 + 1.0, -(r as f32), 0.5]).collect();
            let fold = |f: fn(f32, f32) -> f32| -> Vec<f32> {
                (0..3).map(|i| all.iter().map(|row| row[i]).reduce(f).unwrap()).collect()
            };
            let expected = [
                (ReduceOp::Sum, fold(|a, b| a + b)),
                (ReduceOp::Avg, fold(|a, b| a + b).iter().map(|x| x / n as f32).collect()),
                (ReduceOp::Product, fold(|a, b| a * b)),
                (ReduceOp::Min, fold(f32::min)),
                (ReduceOp::Max, fold(f32::max)),
            ];
            for (op, expected) in &expected {
                let mut reduced = tensor(&mine);
                distributed::all_reduce(&mut reduced, *op)?;
                assert_eq!(reduced.to_vec::<f32>()?, *expected, "{op}");
                for dst in 0..n {
                    let mut reduced = tensor(&mine);
                    distributed::reduce(&mut reduced, dst, *op)?;
                    let expected = if me == dst { &expected[..] } else { &mine[..] };
                    assert_eq!(reduced.to_vec::<f32>()?, expected, "{op} to {dst}");
                }
            }
            let rows = |tensors: Vec<Tensor>| -> Vec<Vec<f32>> {
                tensors.iter().map(|tensor| tensor.to_vec().unwrap()).collect()
            };
            assert_eq!(rows(distributed::all_gather(&tensor(&mine))?), all);
            for root in 0..n {
                let gathered = distributed::gather(&tensor(&mine), root)?.map(rows);
                assert_eq!(gathered, (me == root).then(|| all.iter().map(|row| row.to_vec()).collect()));
                let mut sent = tensor(&mine);
                distributed::broadcast(&mut sent, root)?;
                assert_eq!(sent.to_vec::<f32>()?, all[root]);
                let list: Vec<Tensor> = all.iter().map(|row| tensor(row)).collect();
                let mut part = tensor(&[0.0_f32; 3]);
                distributed::scatter(&mut part, (me == root).then_some(&list), root)?;
                assert_eq!(part.to_vec::<f32>()?, mine);
            }
            // Of rank r for rank s: 10 r + s.
            let list: Vec<Tensor> = (0..n).map(|s| tensor(&[(10 * me + s) as i32])).collect();
            let sum = distributed::reduce_scatter(&list, ReduceOp::Sum)?;
            assert_eq!(sum.to_vec::<i32>()?, [(0..n).map(|r| (10 * r + me) as i32).sum::<i32>()]);
            let received = distributed::all_to_all(&list)?;
            let received: Vec<i32> = received.iter().map(|each| each.to_vec::<i32>().unwrap()[0]).collect();
            assert_eq!(received, (0..n).map(|r| (10 * r + me) as i32).collect::<Vec<_>>());
            // Sixteen bits are added in f32 and rounded once.
            let mut sum = tensor(&[bf16::from_f32(if me == 0 { 256.0 } else { 0.5 })]);
            group.all_reduce(&mut sum, ReduceOp::Sum)?;
            let exact = 256.0 + 0.5 * (n as f32 - 1.0);
            assert_eq!(sum.to_vec::<bf16>()?, [bf16::from_f32(exact)]);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn tensors_of_many_pieces_are_reduced_as_a_whole() {
    ranks(2, |group| {
        let n = (1 << 20) + 3;
        let mut values = Tensor::from_slice(&vec![group.rank() as f32 + 1.0; n], [n], &device())?;
        group.all_reduce(&mut values, ReduceOp::Sum)?;
        assert!(values.to_vec::<f32>()?.iter().all(|&value| value == 3.0));
        Ok(())
    })
    .unwrap();
}

#[test]
fn objects_travel_as_what_serde_makes_of_them() {
    ranks(3, |group| {
        let mine = (group.rank(), vec![format!("rank {}", group.rank())]);
        let all = distributed::all_gather_object(&mine)?;
        assert_eq!(all, (0..3).map(|r| (r, vec![format!("rank {r}")])).collect::<Vec<_>>());
        let mut list = vec![Some(group.rank()), None];
        distributed::broadcast_object_list(&mut list, 2)?;
        assert_eq!(list, [Some(2), None]);
        // What JSON does not know is told on all ranks.
        let value = if group.rank() == 1 { f64::NAN } else { 0.0 };
        let error = distributed::all_gather_object(&value).unwrap_err().to_string();
        assert!(error.starts_with("the object of rank 1 cannot be read from JSON"), "{error}");
        group.barrier()
    })
    .unwrap();
}

#[test]
fn sub_groups_work_beside_each_other_and_name_ranks_as_the_run_does() {
    ranks(4, |group| {
        let me = group.rank();
        let odd = distributed::new_group(&[3, 1])?;
        let even = distributed::new_group(&[0, 2])?;
        assert_eq!((odd.is_some(), even.is_some()), (me % 2 == 1, me % 2 == 0));
        let Some(own) = odd.or(even) else { unreachable!() };
        assert_eq!((own.ranks(), own.rank()), (&[me % 2, me % 2 + 2][..], me / 2));
        let mut sum = tensor(&[me as i32]);
        own.all_reduce(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum.to_vec::<i32>()?, [(me as i32 % 2) * 2 + 2]);
        let mut from = tensor(&[me as i32]);
        own.broadcast(&mut from, me % 2 + 2)?;
        assert_eq!(from.to_vec::<i32>()?, [me as i32 % 2 + 2]);
        let stranger = own.broadcast(&mut from, 1 - me % 2).unwrap_err().to_string();
        assert!(stranger.contains("is not in the group"), "{stranger}");
        for wrong in [&[][..], &[1, 1], &[4]] {
            assert!(distributed::new_group(wrong).is_err());
        }
        // The whole group goes on.
        group.barrier()
    })
    .unwrap();
}

#[test]
fn ranks_that_differ_are_told_all_of_them() {
    let expect = |text: &str, f: &(dyn Fn(&ProcessGroup) -> Result<()> + Sync)| {
        let messages = Mutex::new(Vec::new());
        ranks(2, |group| {
            let message = f(&group).unwrap_err().to_string();
            messages.lock().unwrap().push(message);
            Ok(())
        })
        .unwrap();
        for message in messages.into_inner().unwrap() {
            assert!(message.contains(text), "{message}");
        }
    };
    let sized = |group: &ProcessGroup| tensor(&vec![1.0_f32; 2 + group.rank()]);
    expect("rank 0: all_reduce(sum) of f32 [2], but rank 1: all_reduce(sum) of f32 [3]", &|group| {
        group.all_reduce(&mut sized(group), ReduceOp::Sum)
    });
    expect("rank 0: all_reduce(sum) of f32 [1], but rank 1: all_reduce(max) of f32 [1]", &|group| {
        let op = if group.rank() == 0 { ReduceOp::Sum } else { ReduceOp::Max };
        group.all_reduce(&mut tensor(&[1.0_f32]), op)
    });
    expect(
        "rank 0: broadcast from rank 0 of i32 [1], but rank 1: broadcast from rank 1 of i32 [1]",
        &|group| group.broadcast(&mut tensor(&[1]), group.rank()),
    );
    expect("scatter: rank 0 has no list of 2 tensors f32 [1]", &|group| {
        let list = [tensor(&[1.0_f32])];
        group.scatter(&mut tensor(&[0.0_f32]), (group.rank() == 0).then_some(&list), 0)
    });
    expect("the mean of i32 [1] is not an integer", &|group| {
        group.all_reduce(&mut tensor(&[1]), ReduceOp::Avg)
    });
    expect("give one for each rank", &|group| group.reduce_scatter(&[], ReduceOp::Sum).map(|_| ()));
    expect("all_to_all: the tensors i32 [1], i32 [2] for 2 ranks", &|group| {
        group.all_to_all(&[tensor(&[1]), tensor(&[1, 2])]).map(|_| ())
    });
    expect("called different collectives", &|group| match group.rank() {
        0 => group.barrier(),
        _ => group.all_gather(&tensor(&[1])).map(|_| ()),
    });
}

#[test]
fn a_group_that_cannot_be_is_refused_with_what_to_do() {
    let refused = |options: InitOptions| {
        message(distributed::spawn(1, |_| {
            distributed::init_process_group(Backend::Gloo, &options).map(|_| ())
        }))
    };
    let options = InitOptions::default();
    assert!(
        refused(InitOptions { rank: Some(1), ..options.clone() })
            .contains("`rank` is 1, but whoever started this rank made it 0")
    );
    assert!(
        refused(InitOptions { world_size: Some(2), ..options.clone() }).contains("`world_size` is 2, but")
    );
    assert!(
        refused(InitOptions { rank: Some(2), world_size: Some(2), ..options.clone() })
            .contains("rank 2 of world_size 2")
    );
    assert!(
        refused(InitOptions { init_method: Some("udp://a:1".to_owned()), ..options.clone() })
            .contains("udp://a:1")
    );
    let nccl =
        distributed::spawn(1, |_| distributed::init_process_group("nccl".parse()?, &options).map(|_| ()));
    assert!(message(nccl).contains("ask for gloo"));
    assert!("glue".parse::<Backend>().unwrap_err().to_string().contains("no backend \"glue\""));
    let twice = ranks(1, |_| distributed::init_process_group(Backend::Gloo, &options).map(|_| ()));
    assert!(message(twice).contains("has a default process group already"));
    for none in
        [distributed::barrier(), distributed::destroy_process_group(), distributed::get_rank().map(|_| ())]
    {
        assert!(message(none).contains("no default process group"));
    }
    // As in torch, where nothing says what this process is.
    let alone = distributed::init_process_group(Backend::Gloo, &options).unwrap_err().to_string();
    assert!(alone.contains("environment variable RANK expected, but not set"), "{alone}");
}

#[test]
fn init_distributed_is_done_once_and_makes_a_world_of_one_alone() {
    let options = InitOptions { timeout: Some(Duration::from_secs(60)), ..InitOptions::default() };
    distributed::spawn(2, |rank| {
        for _ in 0..2 {
            assert_eq!(distributed::init_distributed(None, &options)?.rank(), rank);
        }
        Ok(())
    })
    .unwrap();
    let alone = distributed::init_distributed(Some(Backend::Gloo), &options).unwrap();
    assert_eq!(alone.world_size(), 1);
    distributed::destroy_process_group().unwrap();
}

#[test]
fn launchers_of_notebooks_start_ranks_and_say_what_they_need() {
    let two = NotebookLaunch { num_processes: Some(2), ..NotebookLaunch::default() };
    let seen = AtomicUsize::new(0);
    let look = |dtype: DType| {
        seen.store(0, Ordering::Relaxed);
        let seen = &seen;
        move || {
            let accelerator = Accelerator::new(&one_thread())?;
            assert_eq!(accelerator.dtype(), dtype);
            seen.fetch_add(accelerator.num_processes(), Ordering::Relaxed);
            accelerator.wait_for_everyone()
        }
    };
    let bf16 = NotebookLaunch { mixed_precision: Some(DType::BF16), ..two };
    distributed::notebook_launcher(look(DType::BF16), &bf16).unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 4);
    distributed::notebook_launcher(look(DType::F32), &NotebookLaunch { num_processes: Some(1), ..two })
        .unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    distributed::debug_launcher(look(DType::F32), 3).unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 9);

    let refused = |launch: NotebookLaunch| message(distributed::notebook_launcher(|| Ok(()), &launch));
    assert!(refused(NotebookLaunch::default()).contains("give `num_processes`"));
    assert!(refused(NotebookLaunch { node_rank: 1, ..two }).contains("less than `num_nodes`"));
    assert!(refused(NotebookLaunch { num_nodes: 2, ..two }).contains("`accelerate launch`"));
    assert!(refused(NotebookLaunch { mixed_precision: Some(DType::I32), ..two }).contains("is i32"));
    let accelerator = Accelerator::new(&one_thread()).unwrap();
    assert!(refused(two).contains("has an accelerator"), "{}", refused(two));
    drop(accelerator);
    distributed::notebook_launcher(|| Ok(()), &two).unwrap();
}

#[test]
fn a_notebook_launch_starts_again_as_often_as_it_may() {
    let tries = AtomicUsize::new(0);
    let f = || match Accelerator::new(&one_thread())?.process_index() {
        0 if tries.fetch_add(1, Ordering::Relaxed) < 2 => Err(Error::Usage("not yet".to_owned())),
        _ => Ok(()),
    };
    let launch = |max_restarts| NotebookLaunch { num_processes: Some(2), max_restarts, ..Default::default() };
    assert_eq!(message(distributed::notebook_launcher(f, &launch(1))), "rank 0 failed: not yet");
    distributed::notebook_launcher(f, &launch(1)).unwrap();
    assert_eq!(tries.load(Ordering::Relaxed), 3);
}
