//! Schedules are checked as values: every message has its receiver, nobody waits for ever, buffers and idle time are as the
//! formulas say.

use std::collections::HashMap;

use super::*;

/// The instructions of DeepSpeed 0.19.8's `TrainSchedule`, printed by it: stages, micro-batches, stage, buffers, then what
/// is done with which buffer (F and B passes; S and R send and receive, A an activation, G a gradient).
const DEEPSPEED: &str = "\
1 2 0 2 F0 B0 F1 B1
2 1 0 2 F0 SA0 RG0 B0
2 1 1 2 RA0 F0 B0 SG0
2 2 0 2 F0 SA0 F1 RG0 SA1 B0 RG1 B1
2 2 1 2 RA0 F0 B0 SG0 RA1 F1 B1 SG1
2 4 0 2 F0 SA0 F1 RG0 SA1 B0 F0 RG1 SA0 B1 F1 RG0 SA1 B0 RG1 B1
2 4 1 2 RA0 F0 B0 SG0 RA1 F1 B1 SG1 RA0 F0 B0 SG0 RA1 F1 B1 SG1
3 2 0 2 F0 SA0 F1 SA1 RG0 B0 RG1 B1
3 2 1 2 RA0 F0 SA0 RA1 F1 RG0 SA1 B0 SG0 RG1 B1 SG1
3 2 2 2 RA0 F0 B0 SG0 RA1 F1 B1 SG1
3 5 0 3 F0 SA0 F1 SA1 F2 RG0 SA2 B0 F0 RG1 SA0 B1 F1 RG2 SA1 B2 RG0 B0 RG1 B1
3 5 1 2 RA0 F0 SA0 RA1 F1 RG0 SA1 B0 SG0 RA0 F0 RG1 SA0 B1 SG1 RA1 F1 RG0 SA1 B0 SG0 RA0 F0 RG1 SA0 B1 SG1 RG0 B0 SG0
3 5 2 2 RA0 F0 B0 SG0 RA1 F1 B1 SG1 RA0 F0 B0 SG0 RA1 F1 B1 SG1 RA0 F0 B0 SG0
4 4 0 4 F0 SA0 F1 SA1 F2 SA2 F3 RG0 SA3 B0 RG1 B1 RG2 B2 RG3 B3
4 4 1 3 RA0 F0 SA0 RA1 F1 SA1 RA2 F2 RG0 SA2 B0 SG0 RA0 F0 RG1 SA0 B1 SG1 RG2 B2 SG2 RG0 B0 SG0
4 4 2 2 RA0 F0 SA0 RA1 F1 RG0 SA1 B0 SG0 RA0 F0 RG1 SA0 B1 SG1 RA1 F1 RG0 SA1 B0 SG0 RG1 B1 SG1
4 4 3 2 RA0 F0 B0 SG0 RA1 F1 B1 SG1 RA0 F0 B0 SG0 RA1 F1 B1 SG1
4 8 0 4 F0 SA0 F1 SA1 F2 SA2 F3 RG0 SA3 B0 F0 RG1 SA0 B1 F1 RG2 SA1 B2 F2 RG3 SA2 B3 F3 RG0 SA3 B0 RG1 B1 RG2 B2 RG3 B3
4 8 1 3 RA0 F0 SA0 RA1 F1 SA1 RA2 F2 RG0 SA2 B0 SG0 RA0 F0 RG1 SA0 B1 SG1 RA1 F1 RG2 SA1 B2 SG2 RA2 F2 RG0 SA2 B0 SG0 RA0 F0 RG1 SA0 B1 SG1 RA1 F1 RG2 SA1 B2 SG2 RG0 B0 SG0 RG1 B1 SG1
4 8 2 2 RA0 F0 SA0 RA1 F1 RG0 SA1 B0 SG0 RA0 F0 RG1 SA0 B1 SG1 RA1 F1 RG0 SA1 B0 SG0 RA0 F0 RG1 SA0 B1 SG1 RA1 F1 RG0 SA1 B0 SG0 RA0 F0 RG1 SA0 B1 SG1 RA1 F1 RG0 SA1 B0 SG0 RG1 B1 SG1
4 8 3 2 RA0 F0 B0 SG0 RA1 F1 B1 SG1 RA0 F0 B0 SG0 RA1 F1 B1 SG1 RA0 F0 B0 SG0 RA1 F1 B1 SG1 RA0 F0 B0 SG0 RA1 F1 B1 SG1
4 2 0 2 F0 SA0 F1 SA1 RG0 B0 RG1 B1
4 2 1 2 RA0 F0 SA0 RA1 F1 SA1 RG0 B0 SG0 RG1 B1 SG1
4 2 2 2 RA0 F0 SA0 RA1 F1 RG0 SA1 B0 SG0 RG1 B1 SG1
4 2 3 2 RA0 F0 B0 SG0 RA1 F1 B1 SG1
";

#[test]
fn one_f_one_b_is_that_of_deepspeed() {
    for line in DEEPSPEED.lines() {
        let mut words = line.split(' ');
        let mut number = || words.next().unwrap().parse::<usize>().unwrap();
        let (n_stages, n_micro, stage, n_buffers) = (number(), number(), number(), number());
        let own = &schedules(Passes::Training, n_stages, 1, n_micro).unwrap()[stage];
        let reported: Vec<String> = own.instructions.iter().map(short).collect();
        assert_eq!(
            reported,
            words.collect::<Vec<_>>(),
            "stage {stage} of {n_stages}, {n_micro} micro-batches"
        );
        assert_eq!(own.n_buffers, n_buffers);
    }
}

fn short(instruction: &Instruction) -> String {
    match instruction {
        Instruction::Forward(place) => format!("F{}", place.buffer),
        Instruction::Backward(place) => format!("B{}", place.buffer),
        Instruction::Send { what: Message::Activation, place, .. } => format!("SA{}", place.buffer),
        Instruction::Send { place, .. } => format!("SG{}", place.buffer),
        Instruction::Receive { what: Message::Activation, place, .. } => format!("RA{}", place.buffer),
        Instruction::Receive { place, .. } => format!("RG{}", place.buffer),
    }
}

/// What carrying out schedules comes to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Passes of each stage.
    n_passes: Vec<usize>,
    /// When the last stage is done.
    end: u64,
    /// The most micro-batches on each stage between their forward and their backward passes.
    in_flight: Vec<usize>,
}

/// Carries schedules out, each stage by itself: a forward pass takes 1, a backward pass 2, a transfer no time but a meeting of
/// both of its stages. Checks everything that a stage relies on.
fn carry_out(schedules: &[Schedule], n_chunks: usize) -> Outcome {
    let n_stages = schedules.len();
    let (mut at, mut times) = (vec![0; n_stages], vec![0u64; n_stages]);
    let mut buffers: Vec<HashMap<usize, (usize, usize)>> = vec![HashMap::new(); n_stages];
    let mut done: Vec<HashMap<(bool, usize, usize), ()>> = vec![HashMap::new(); n_stages];
    let mut received: Vec<HashMap<(Message, usize, usize), ()>> = vec![HashMap::new(); n_stages];
    let mut in_flight = vec![0; n_stages];
    let part = |stage: usize, place: &Place| place.chunk * n_stages + stage;
    loop {
        let mut moved = false;
        for stage in 0..n_stages {
            let Some(next) = schedules[stage].instructions.get(at[stage]) else { continue };
            match *next {
                Instruction::Forward(place) | Instruction::Backward(place) => {
                    let is_forward = matches!(next, Instruction::Forward(_));
                    let key = (place.chunk, place.micro_batch);
                    let own = part(stage, &place);
                    let (what, needs) = match is_forward {
                        true => (Message::Activation, own > 0),
                        false => (Message::Gradient, own + 1 < n_chunks * n_stages),
                    };
                    let other = if is_forward { own.wrapping_sub(1) } else { own + 1 };
                    if needs && n_stages > 1 {
                        assert!(received[stage].remove(&(what, key.0, key.1)).is_some(), "nothing received");
                    } else if needs {
                        assert!(done[0].contains_key(&(is_forward, other, key.1)));
                    }
                    assert!(place.buffer < schedules[stage].n_buffers);
                    if is_forward {
                        let before = buffers[stage].insert(place.buffer, key);
                        assert!(before.is_none_or(|before| before == key), "the buffer is in use");
                        let begun = done[stage].keys().filter(|(is_forward, ..)| *is_forward).count() + 1;
                        let n = begun - (done[stage].len() + 1 - begun);
                        in_flight[stage] = in_flight[stage].max(n);
                    } else {
                        assert_eq!(buffers[stage].remove(&place.buffer), Some(key), "no forward pass before");
                    }
                    assert!(done[stage].insert((is_forward, key.0, key.1), ()).is_none(), "a pass twice");
                    times[stage] += if is_forward { 1 } else { 2 };
                }
                Instruction::Send { what, to, place } => {
                    let Some(&Instruction::Receive { what: other, from, place: received_at }) =
                        schedules[to].instructions.get(at[to])
                    else {
                        continue;
                    };
                    if from != stage {
                        continue;
                    }
                    assert_eq!((what, place.micro_batch), (other, received_at.micro_batch));
                    let (own, others) = (part(stage, &place), part(to, &received_at));
                    let is_forward = what == Message::Activation;
                    assert_eq!(if is_forward { own + 1 } else { own.wrapping_sub(1) }, others);
                    assert!(
                        done[stage].contains_key(&(is_forward, place.chunk, place.micro_batch)),
                        "not made"
                    );
                    let key = (what, received_at.chunk, received_at.micro_batch);
                    assert!(received[to].insert(key, ()).is_none());
                    if is_forward {
                        let held = (received_at.chunk, received_at.micro_batch);
                        let before = buffers[to].insert(received_at.buffer, held);
                        assert!(before.is_none(), "the buffer is in use");
                    }
                    let meeting = times[stage].max(times[to]);
                    (times[stage], times[to]) = (meeting, meeting);
                    at[to] += 1;
                }
                Instruction::Receive { .. } => continue,
            }
            at[stage] += 1;
            moved = true;
        }
        if !moved {
            break;
        }
    }
    for (stage, schedule) in schedules.iter().enumerate() {
        assert_eq!(at[stage], schedule.instructions.len(), "stage {stage} waits for ever");
        assert!(received[stage].is_empty());
    }
    let n_passes = done.iter().map(HashMap::len).collect();
    Outcome { n_passes, end: times.into_iter().max().unwrap_or(0), in_flight }
}

#[test]
fn one_f_one_b_is_idle_for_the_share_that_the_formula_says() {
    for (s, m) in (1..=8).flat_map(|s| (1..=12).map(move |m| (s, m))) {
        let schedules = schedules(Passes::Training, s, 1, m).unwrap();
        let Outcome { n_passes, end, in_flight } = carry_out(&schedules, 1);
        assert_eq!(n_passes, vec![2 * m; s]);
        // Each stage works for 3 M; (S - 1) / (M + S - 1) of the time it does not.
        assert_eq!(end, 3 * (m + s - 1) as u64, "{s} stages, {m} micro-batches");
        for (stage, n) in in_flight.into_iter().enumerate() {
            assert_eq!(n, (s - stage).min(m), "stage {stage} of {s}, {m} micro-batches");
            assert_eq!(schedules[stage].n_buffers, (s - stage).min(m).max(2));
        }
    }
}

#[test]
fn interleaving_divides_the_idle_time_by_the_virtual_stages() {
    for (s, v) in (1..=6).flat_map(|s| (2..=4).map(move |v| (s, v))) {
        for m in (1..=4).map(|groups| groups * s) {
            let schedules = schedules(Passes::Training, s, v, m).unwrap();
            let Outcome { n_passes, end, in_flight } = carry_out(&schedules, v);
            assert_eq!(n_passes, vec![2 * v * m; s]);
            // In passes of a part, which take 1 / V of those of a stage.
            assert_eq!(end, 3 * (v * m + s - 1) as u64, "{s} stages, {v} parts, {m} micro-batches");
            for (stage, n) in in_flight.into_iter().enumerate() {
                let ahead = 2 * (s - stage - 1) + (v - 1) * s + 1;
                assert_eq!(n, ahead.min(v * m), "stage {stage} of {s}, {v} parts, {m} micro-batches");
                // What is received ahead of its pass takes a buffer as well.
                assert!(schedules[stage].n_buffers <= (ahead + s).min(v * m));
            }
        }
    }
}

#[test]
fn without_backward_passes_micro_batches_follow_one_another() {
    for (s, v, m) in (1..=5).flat_map(|s| (1..=3).flat_map(move |v| (1..=9).map(move |m| (s, v, m)))) {
        let outcome = carry_out_forward(s, v, m);
        assert_eq!(outcome.n_passes, vec![v * m; s]);
        if m.is_multiple_of(s) {
            assert_eq!(outcome.end, (v * m + s - 1) as u64, "{s} stages, {v} parts, {m} micro-batches");
        }
    }
}

/// Without backward passes a buffer is free when its last message has left.
fn carry_out_forward(s: usize, v: usize, m: usize) -> Outcome {
    let mut schedules = schedules(Passes::Forward, s, v, m).unwrap();
    for schedule in &mut schedules {
        // The check of buffers is that of training: a place of its own for each.
        for (index, place) in schedule.instructions.iter_mut().map(place_of).enumerate() {
            place.buffer = place.chunk * m + place.micro_batch;
            assert!(index < 3 * v * m);
        }
        schedule.n_buffers = v * m;
    }
    carry_out(&schedules, v)
}

fn place_of(instruction: &mut Instruction) -> &mut Place {
    match instruction {
        Instruction::Forward(place) | Instruction::Backward(place) => place,
        Instruction::Send { place, .. } | Instruction::Receive { place, .. } => place,
    }
}

#[test]
fn a_planted_swap_is_found() {
    let swap = |stage: usize, a: usize| {
        let mut schedules = schedules(Passes::Training, 3, 1, 4).unwrap();
        schedules[stage].instructions.swap(a, a + 1);
        std::panic::catch_unwind(|| carry_out(&schedules, 1)).is_err()
    };
    // The receive and the send that meet stage 2, and a receive after the pass that needs it.
    let swapped: Vec<bool> = (0..6).map(|a| swap(1, a)).collect();
    assert!(swapped.iter().filter(|&&found| found).count() >= 4, "{swapped:?}");
}

#[test]
fn what_cannot_be_scheduled_is_told() {
    let reported = |passes, s, v, m| schedules(passes, s, v, m).unwrap_err().to_string();
    assert!(
        reported(Passes::Training, 2, 2, 3)
            .contains("3 micro-batches of a step are not a multiple of 2 stages")
    );
    assert!(reported(Passes::Forward, 2, 0, 3).contains("each is at least 1"));
}
