//! What an accelerator does with the values of all ranks, and what becomes of misuse: the same error on all of them.

use std::collections::BTreeMap;

use oarlock::{
    Accelerator, AcceleratorConfig, ApplyPadding, DType, DeviceSpecific, Error, Nested, Pad, ReduceOp,
    Result, Tensor,
};
use serde::{Deserialize, Serialize};

use crate::ranks;

fn on_ranks<R: Send>(world: usize, rank: impl Fn(&Accelerator) -> Result<R> + Sync) -> Vec<Result<R>> {
    ranks::on_ranks(world, AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() }, rank)
}

fn all<R: Send>(world: usize, rank: impl Fn(&Accelerator) -> Result<R> + Sync) -> Vec<R> {
    on_ranks(world, rank).into_iter().map(|result| result.unwrap()).collect()
}

/// The messages of a program that fails on all ranks.
fn errors<R: Send>(world: usize, rank: impl Fn(&Accelerator) -> Result<R> + Sync) -> Vec<String> {
    on_ranks(world, rank)
        .into_iter()
        .map(|result| result.err().expect("an error on each rank").to_string())
        .collect()
}

fn vector(accelerator: &Accelerator, values: &[f32]) -> Result<Tensor> {
    Ok(Tensor::from_slice(values, [values.len()], accelerator.device())?)
}

#[derive(Nested)]
struct Batch {
    ids: Tensor,
    masks: Vec<Option<Tensor>>,
    texts: Vec<String>,
}

#[test]
fn any_value_that_holds_tensors_is_gathered_in_the_order_of_ranks() {
    for world in 1..=4 {
        let gathered = all(world, |accelerator| {
            let rank = accelerator.process_index() as i32;
            let device = accelerator.device();
            let batch = Batch {
                ids: Tensor::from_slice(&[rank, -rank, 7, 8], [2, 2], device)?,
                masks: vec![None, Some(Tensor::from_slice(&[rank as f32 + 0.5], [], device)?)],
                texts: vec![format!("of rank {rank}")],
            };
            let gathered = accelerator.gather(&batch)?;
            assert_eq!(gathered.texts, batch.texts, "what holds no tensor stays");
            assert!(gathered.masks[0].is_none());
            let mask = gathered.masks[1].as_ref().map(|mask| mask.to_vec::<f32>()).transpose()?;
            Ok((gathered.ids.sizes().to_vec(), gathered.ids.to_vec::<i32>()?, mask))
        });
        let ids: Vec<i32> = (0..world as i32).flat_map(|rank| [rank, -rank, 7, 8]).collect();
        let masks: Vec<f32> = (0..world).map(|rank| rank as f32 + 0.5).collect();
        for got in gathered {
            assert_eq!(got, (vec![2 * world, 2], ids.clone(), Some(masks.clone())));
        }
    }
}

#[test]
fn gradients_flow_through_a_gather_to_the_rank_of_each_row() {
    for world in 1..=3 {
        let gradients = all(world, |accelerator| {
            let rank = accelerator.process_index() as f32;
            let x = Tensor::from_slice(&[rank, 2.0, 3.0, -1.0, 0.5, 4.0], [3, 2], accelerator.device())?;
            let gathered = accelerator.gather_with_grad(&x)?;
            assert!(gathered.tape().is_none(), "without a recording there is none to go on in");
            let x = x.with_grad();
            let gathered = accelerator.gather_with_grad(&x)?;
            assert_eq!(gathered.to_vec::<f32>()?, accelerator.gather(&x)?.to_vec::<f32>()?);
            // Each rank weighs the squares of all rows differently.
            let loss = (gathered.square()? * (rank + 1.0))?.sum_all()?;
            let gradients = loss.backward()?;
            let number = Tensor::from_slice(&[rank], [], accelerator.device())?.with_grad();
            let of_number = (accelerator.gather_with_grad(&number)? * 5.0)?.sum_all()?.backward()?;
            let of_number = of_number.of(&number).map(|gradient| gradient.sizes().to_vec());
            assert_eq!(of_number, Some(vec![]), "a number stays one");
            Ok(gradients.of(&x).map(|gradient| gradient.to_vec::<f32>()).transpose()?)
        });
        let weights: f32 = (1..=world).map(|weight| weight as f32).sum();
        for (rank, gradient) in gradients.into_iter().enumerate() {
            let x = [rank as f32, 2.0, 3.0, -1.0, 0.5, 4.0];
            assert_eq!(gradient, Some(x.map(|x| 2.0 * weights * x).to_vec()), "rank {rank} of {world}");
        }
    }
    for error in errors(2, |accelerator| {
        accelerator.gather_with_grad(&vector(accelerator, &vec![0.0; 1 + accelerator.process_index()])?)
    }) {
        assert!(error.starts_with("gather_with_grad: tensor 1 of 1 differs among the ranks"), "{error}");
    }
}

#[test]
fn all_dtypes_keep_their_bits_and_empty_tensors_their_shape() {
    all(2, |accelerator| {
        let rank = accelerator.process_index() as f32;
        let odd = vector(accelerator, &[f32::NAN, f32::NEG_INFINITY, -0.0, 1e-42, rank])?;
        let gathered = accelerator.gather(&odd)?;
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&gathered.to_vec::<f32>()?[..4]), bits(&odd.to_vec::<f32>()?[..4]));
        for dtype in [DType::F16, DType::BF16] {
            let gathered = accelerator.gather(&vector(accelerator, &[rank, 0.25])?.cast(dtype)?)?;
            assert_eq!(gathered.dtype(), dtype);
            assert_eq!(gathered.cast(DType::F32)?.to_vec::<f32>()?, [0.0, 0.25, 1.0, 0.25]);
        }
        let empty = Tensor::zeros([0, 3], DType::F32, accelerator.device())?;
        assert_eq!(accelerator.gather(&empty)?.sizes(), [0, 3]);
        let no_columns = Tensor::zeros([3, 0], DType::F32, accelerator.device())?;
        assert_eq!(accelerator.gather(&no_columns)?.sizes(), [6, 0]);
        Ok(())
    });
}

#[test]
fn values_are_reduced_with_one_rounding() {
    all(3, |accelerator| {
        let rank = accelerator.process_index() as f32;
        // 1e8 + 1 - 1e8 is 0 where each addition rounds to f32.
        let x = vector(accelerator, &[rank, [1e8, 1.0, -1e8][rank as usize]])?;
        let reduce = |how, scale| accelerator.reduce(&x, how, scale)?.to_vec::<f32>().map_err(Error::from);
        assert_eq!(reduce(ReduceOp::Sum, 1.0)?, [3.0, 1.0]);
        assert_eq!(reduce(ReduceOp::Avg, 1.0)?, [1.0, 1.0 / 3.0]);
        assert_eq!(reduce(ReduceOp::Avg, 3.0)?, [3.0, 1.0]);
        assert_eq!(reduce(ReduceOp::Max, 1.0)?, [2.0, 1e8]);
        assert_eq!(reduce(ReduceOp::Min, 1.0)?, [0.0, -1e8]);
        assert_eq!(reduce(ReduceOp::Product, 0.5)?, [0.0, -5e15]);
        let halves =
            accelerator.reduce(&vector(accelerator, &[0.5])?.cast(DType::BF16)?, ReduceOp::Sum, 1.0)?;
        assert_eq!((halves.dtype(), halves.cast(DType::F32)?.to_vec::<f32>()?), (DType::BF16, vec![1.5]));
        let whole = Tensor::from_slice(&[rank as i32, i32::MIN], [2], accelerator.device())?;
        let product = accelerator.reduce(&whole, ReduceOp::Product, 1.0).unwrap_err().to_string();
        assert_eq!(product, "reduce: the product -9903520314283042199192993792 is not an i32");
        let least = accelerator.reduce(&whole, ReduceOp::Min, 1.0)?;
        assert_eq!(least.to_vec::<i32>()?, [0, i32::MIN]);
        let most = accelerator.reduce(&whole, ReduceOp::Max, 1.0)?;
        assert_eq!(most.to_vec::<i32>()?, [2, i32::MIN]);
        let error = accelerator.reduce(&whole, ReduceOp::Sum, 1.0).unwrap_err().to_string();
        assert_eq!(error, "reduce: the sum -6442450944 is not an i32");
        let error = accelerator.reduce(&whole, ReduceOp::Avg, 1.0).unwrap_err().to_string();
        assert!(error.starts_with("reduce: integers have no mean"), "{error}");
        let nan = vector(accelerator, &[if rank == 1.0 { f32::NAN } else { rank }])?;
        assert!(accelerator.reduce(&nan, ReduceOp::Max, 1.0)?.item::<f32>()?.is_nan());
        Ok(())
    });
}

#[test]
fn tensors_are_padded_to_the_largest_of_all_ranks() {
    all(3, |accelerator| {
        let rank = accelerator.process_index();
        let ids =
            Tensor::from_slice(&vec![rank as i32; 2 * (rank + 1)], [2, rank + 1], accelerator.device())?;
        let number = Tensor::from_slice(&[1.0f32], [], accelerator.device())?;
        let pad = Pad { dim: 1, pad_index: -100.0, pad_first: false };
        let (padded, number) = accelerator.pad_across_processes(&(ids.clone(), number), pad)?;
        assert_eq!((padded.sizes(), number.sizes()), (&[2, 3][..], &[][..]), "a number has no such dim");
        let rows = [[0, -100, -100], [1, 1, -100], [2, 2, 2]];
        assert_eq!(padded.to_vec::<i32>()?, [rows[rank], rows[rank]].concat());
        let first = accelerator.pad_across_processes(&ids, Pad { pad_first: true, ..pad })?;
        let rows = [[-100, -100, 0], [-100, 1, 1], [2, 2, 2]];
        assert_eq!(first.to_vec::<i32>()?, [rows[rank], rows[rank]].concat());
        // Along dim 0 of what is equal nothing is to do.
        assert_eq!(accelerator.pad_across_processes(&ids, Pad::default())?.sizes(), ids.sizes());
        assert_eq!(accelerator.gather(&padded)?.sizes(), [6, 3]);
        let halves = vector(accelerator, &vec![2.0; rank])?.cast(DType::F16)?;
        let halves = accelerator.pad_across_processes(&halves, Pad { pad_index: 0.5, ..Pad::default() })?;
        let expected = [[0.5, 0.5], [2.0, 0.5], [2.0, 2.0]][rank];
        assert_eq!(halves.cast(DType::F32)?.to_vec::<f32>()?, expected);
        let error = accelerator.pad_across_processes(&ids, Pad { pad_index: 0.5, ..pad });
        // Rank 2 has nothing to pad.
        assert_eq!(error.is_err(), rank < 2);
        Ok(())
    });
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Note {
    Text(String),
    Numbers { all: Vec<f64>, one: f32, by_id: BTreeMap<u32, Option<i64>> },
}

#[test]
fn tensors_and_objects_of_one_process_reach_all() {
    all(3, |accelerator| {
        let rank = accelerator.process_index();
        let x = vector(accelerator, &[rank as f32, 10.0])?;
        let count = Tensor::from_slice(&[rank as i32], [], accelerator.device())?;
        let (x, count) = accelerator.broadcast(&(x, count), 2)?;
        assert_eq!((x.to_vec::<f32>()?, count.to_vec::<i32>()?), (vec![2.0, 10.0], vec![2]));

        let all = vec![f64::NAN, f64::INFINITY, -0.0, 0.1, f64::MIN_POSITIVE / 3.0, rank as f64];
        let by_id = BTreeMap::from([(7, None), (9, Some(i64::MIN))]);
        let note = Note::Numbers { all: all.clone(), one: 0.1, by_id: by_id.clone() };
        let Note::Numbers { all: got, one, by_id: got_by_id } = accelerator.broadcast_object(&note, 1)?
        else {
            panic!("another variant came")
        };
        let bits = |all: &[f64]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got[..5]), bits(&all[..5]), "bitwise, also what JSON cannot write");
        assert_eq!((got[5], one, got_by_id), (1.0, 0.1, by_id));

        let mut list = [Note::Text(format!("a{rank}")), Note::Text(format!("b{rank}"))];
        accelerator.broadcast_object_list(&mut list, 0)?;
        assert_eq!(list, [Note::Text("a0".to_owned()), Note::Text("b0".to_owned())]);
        let gathered = accelerator.gather_object(&vec![rank; rank])?;
        assert_eq!(gathered, [1, 2, 2], "lists of any length, one after the other");
        Ok(())
    });
}

#[test]
fn other_shapes_are_told_on_all_ranks_and_nothing_breaks() {
    all(2, |accelerator| {
        let rank = accelerator.process_index();
        let x = Tensor::zeros([2, 3 + rank], DType::F32, accelerator.device())?;
        let y = Tensor::zeros([1], DType::F32, accelerator.device())?;
        for (name, error) in [
            ("gather", accelerator.gather(&(y.clone(), x.clone())).err()),
            ("reduce", accelerator.reduce(&(y.clone(), x.clone()), ReduceOp::Sum, 1.0).err()),
            ("broadcast", accelerator.broadcast(&(y.clone(), x.clone()), 0).err()),
        ] {
            assert_eq!(
                error.unwrap().to_string(),
                format!(
                    "{name}: tensor 2 of 2 differs among the ranks, and all must bring one shape and dtype \
                     (`pad_across_processes` makes shapes equal):\n  - Process 0: [2, 3] f32\n  - Process 1: [2, 4] f32"
                )
            );
        }
        let dtype = if rank == 0 { DType::F32 } else { DType::F16 };
        let error = accelerator.gather(&y.cast(dtype)?).unwrap_err().to_string();
        assert!(error.ends_with("- Process 0: [1] f32\n  - Process 1: [1] f16"), "{error}");
        let error = accelerator.gather(&vec![y.clone(); 1 + rank]).unwrap_err().to_string();
        assert_eq!(
            error,
            "gather: the ranks bring different numbers of tensors, and all must bring as many:\n  - Process 0: 1\n  - \
             Process 1: 2"
        );
        let dims = Tensor::zeros(&[1; 3][..1 + rank], DType::F32, accelerator.device())?;
        let error = accelerator.pad_across_processes(&dims, Pad::default()).unwrap_err().to_string();
        assert!(error.contains("one dtype and number of dims"), "{error}");
        let error = accelerator.broadcast(&y, 2).unwrap_err().to_string();
        assert_eq!(error, "broadcast: there is no process 2; there are 2, counted from 0");
        // All of that was said before anything moved: the ranks go on together.
        assert_eq!(accelerator.gather(&y)?.sizes(), [2]);
        Ok(())
    });
}

#[test]
fn other_methods_are_told_with_their_places() {
    let message = errors(2, |accelerator| {
        let x = vector(accelerator, &[1.0])?;
        match accelerator.process_index() {
            0 => accelerator.gather(&x),
            _ => accelerator.reduce(&x, ReduceOp::Avg, 1.0),
        }
    });
    assert_eq!(message[0], message[1]);
    assert!(message[0].starts_with("ranks called different methods"), "{}", message[0]);
    assert!(
        message[0].contains("\n  - Process 0: gather at crates/oarlock/tests/accelerator_collectives.rs:")
    );
    assert!(message[0].contains("\n  - Process 1: reduce (Avg, scale 1) at "), "{}", message[0]);
    let message = errors(2, |accelerator| accelerator.broadcast_object(&1, accelerator.process_index()));
    assert!(message[0].contains("- Process 1: broadcast_object from process 1 at"), "{}", message[0]);
    let message = errors(2, |accelerator| match accelerator.process_index() {
        0 => accelerator.gather_object(&[1]).map(|_| ()),
        _ => Ok(accelerator.communicator().all_gather_bytes(&[0xc1]).map(|_| ())?)
            .and_then(|()| accelerator.wait_for_everyone()),
    });
    assert!(message[0].contains("- Process 1: a collective of its communicator"), "{}", message[0]);
}

#[test]
fn a_call_on_one_rank_only_ends_in_an_error_on_all() {
    // The other is in another collective.
    let message = errors(2, |accelerator| match accelerator.process_index() {
        0 => accelerator.gather(&vector(accelerator, &[1.0])?).map(|_| ()),
        _ => accelerator.wait_for_everyone(),
    });
    for message in message {
        assert!(
            message.contains("rank 1 called barrier") && message.contains("accelerator_collectives.rs"),
            "{message}"
        );
    }
    // The others have left.
    let results = on_ranks(2, |accelerator| match accelerator.process_index() {
        0 => accelerator.check_trigger(),
        _ => Ok(false),
    });
    assert!(matches!(&results[0], Err(Error::Comm(oarlock_comm::Error::PeerFailed { rank: 1, .. }))));
}

/// An object that one rank cannot write.
struct Stubborn(bool);

impl Serialize for Stubborn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        if self.0 { Err(serde::ser::Error::custom("it is open")) } else { serializer.serialize_unit() }
    }
}

impl<'de> Deserialize<'de> for Stubborn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Stubborn, D::Error> {
        <()>::deserialize(deserializer).map(|()| Stubborn(false))
    }
}

#[test]
fn objects_that_cannot_be_written_or_read_are_told() {
    let message =
        errors(2, |accelerator| accelerator.gather_object(&[Stubborn(accelerator.process_index() == 1)]));
    assert_eq!(message[0], message[1]);
    assert_eq!(message[0], "gather_object: process 1 cannot give its part: it is open");
    let results = on_ranks(2, |accelerator| match accelerator.process_index() {
        0 => accelerator.broadcast_object(&"text".to_owned(), 0).map(|_| ()),
        _ => accelerator.broadcast_object(&3u8, 0).map(|_| ()),
    });
    let error = results[1].as_ref().unwrap_err().to_string();
    assert!(
        error.starts_with("broadcast_object: what process 0 gave is of another type than here"),
        "{error}"
    );
}

#[test]
fn processes_take_turns_and_shares() {
    let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let shared = log.clone();
    all(3, move |accelerator| {
        let rank = accelerator.process_index();
        accelerator.main_process_first(|| {
            shared.lock().unwrap().push(rank);
            Ok(())
        })?;
        accelerator.wait_for_everyone()?;
        assert_eq!(shared.lock().unwrap()[0], 0);
        assert_eq!(accelerator.on_main_process(|| Ok(rank))?, (rank == 0).then_some(0));
        assert_eq!(accelerator.on_local_main_process(|| Ok(rank))?, (rank == 0).then_some(0));
        assert_eq!(accelerator.on_last_process(|| Ok(rank))?, (rank == 2).then_some(2));
        assert_eq!(accelerator.on_process(1, || Ok(rank))?, (rank == 1).then_some(1));
        let error = accelerator.on_process(3, || Ok(())).unwrap_err().to_string();
        assert_eq!(error, "on_process: there is no process 3; there are 3, counted from 0");
        assert_eq!((accelerator.local_process_index(), accelerator.is_last_process()), (rank, rank == 2));
        assert_eq!(accelerator.local_main_process_first(|| Ok(1))?, 1);
        assert_eq!(accelerator.autocast(|| Ok(2))?, 2);

        // Flags: any rank raises it, all see it once.
        assert!(!accelerator.check_trigger()?);
        if rank == 1 {
            accelerator.set_trigger();
        }
        assert!(accelerator.check_trigger()?);
        assert!(!accelerator.check_trigger()?);
        Ok(())
    });
    assert_eq!(log.lock().unwrap().len(), 3);
}

#[test]
fn when_the_first_process_fails_the_others_do_not_begin() {
    let results = on_ranks(3, |accelerator| {
        accelerator.main_process_first(|| {
            assert!(accelerator.is_main_process());
            Err::<(), _>(Error::Usage("no cache".to_owned()))
        })
    });
    assert_eq!(results[0].as_ref().unwrap_err().to_string(), "no cache");
    for other in &results[1..] {
        assert_eq!(other.as_ref().unwrap_err().to_string(), "rank 0 failed: no cache");
    }
}

#[test]
fn lists_and_tensors_are_divided_as_in_the_original() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("golden/accelerate/processes.json")).unwrap();
    all(3, move |accelerator| {
        let shares = golden["ranks"][accelerator.process_index()]["shares"].as_object().unwrap();
        assert!(shares.len() >= 4);
        for (list, shares) in shares {
            let letters: Vec<char> = list.chars().collect();
            let rows: Vec<i32> = letters.iter().flat_map(|&c| [c as i32, 0]).collect();
            let rows = Tensor::from_slice(&rows, [letters.len(), 2], accelerator.device())?;
            for (index, padding) in [ApplyPadding::No, ApplyPadding::RepeatLast].into_iter().enumerate() {
                let expected = shares[index].as_str().unwrap();
                let share: String = accelerator.split_between_processes(&letters, padding).iter().collect();
                assert_eq!(share, expected, "{list:?} {padding:?}");
                let (own, more) = accelerator
                    .split_tensors_between_processes(&(rows.clone(), Some(rows.clone())), padding)?;
                let own: String = own.to_vec::<i32>()?.iter().step_by(2).map(|&c| c as u8 as char).collect();
                assert_eq!((own.as_str(), more.unwrap().sizes()), (expected, &[expected.len(), 2][..]));
            }
        }
        // Where the original fails there is nothing to repeat.
        assert!(accelerator.split_between_processes::<u8>(&[], ApplyPadding::RepeatLast).is_empty());
        let (a, b) = (vector(accelerator, &[1.0; 2])?, vector(accelerator, &[1.0; 3])?);
        let error = accelerator.split_tensors_between_processes(&(a, b), ApplyPadding::No).unwrap_err();
        assert!(error.to_string().contains("the same number of rows"), "{error}");
        Ok(())
    });
}

#[test]
fn seeds_differ_by_rank_only_where_they_may() {
    let seeds = all(2, |accelerator| {
        let before = (accelerator.seed(), accelerator.rank_seed());
        accelerator.set_seed(7, DeviceSpecific::Yes);
        let specific = (accelerator.seed(), accelerator.rank_seed());
        accelerator.set_seed(8, DeviceSpecific::No);
        // A clone is the same accelerator.
        Ok((before, specific, (accelerator.clone().seed(), accelerator.rank_seed())))
    });
    assert_eq!(seeds, [((42, 42), (7, 7), (8, 8)), ((42, 42), (7, 8), (8, 8))]);
}
