//! Schedules: what each stage does, in order, as plain values.
//!
//! A schedule is made for all stages at once, as one sequence of computations and transfers, of which each stage carries out
//! its own part in order. A transfer is a meeting of two stages. Whichever transfer is the first that is not done, both of
//! its stages come to it, since all before it is done: no schedule can end in a deadlock, and both ends of a link see its
//! messages in one order.
//!
//! ```text
//! S stages, M micro-batches, V parts of the model on each stage (virtual stages), F and B a forward and backward pass
//!
//!                 idle share of a stage       passes in flight on stage s
//! 1F1B            (S - 1) / (M + S - 1)       min(S - s, M)
//! interleaved     (S - 1) / (V M + S - 1)     min(2 (S - s - 1) + (V - 1) S + 1, V M), each of 1 / V of a stage
//! ```

use std::collections::{BTreeMap, VecDeque};

use crate::{Error, Result};

/// What passes between neighboring parts of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// The gradient of a part's input, to the part before it.
    Gradient,
    /// The output of a part, to the part behind it.
    Activation,
}

/// A micro-batch in a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The part, among those of its stage.
    pub chunk: usize,
    /// The micro-batch.
    pub micro_batch: usize,
    /// Where its activations lie meanwhile, among the buffers of its stage.
    pub buffer: usize,
}

/// What a stage does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Runs the part forward.
    Forward(Place),
    /// Runs it backward; the buffer is free afterward, but for what is to be sent.
    Backward(Place),
    /// Gives the stage `to` what this place has made.
    Send {
        /// What.
        what: Message,
        /// The other stage.
        to: usize,
        /// What made it.
        place: Place,
    },
    /// Takes what this place needs from the stage `from`.
    Receive {
        /// What.
        what: Message,
        /// The other stage.
        from: usize,
        /// What needs it.
        place: Place,
    },
}

/// Which passes a schedule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// Forward and backward passes.
    Training,
    /// Forward passes only.
    Forward,
}

/// The schedule of one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What it does.
    pub instructions: Vec<Instruction>,
    /// The buffers that it needs for passes in flight.
    pub n_buffers: usize,
}

/// Something of all stages.
#[derive(Clone, Copy, Debug)]
enum Event {
    Compute { stage: usize, pass: Pass },
    Transfer { what: Message, from: (usize, usize), to: (usize, usize), micro_batch: usize },
}

/// A pass of a micro-batch through a part of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pass {
    is_forward: bool,
    chunk: usize,
    micro_batch: usize,
}

/// The schedules of all stages: 1F1B as DeepSpeed's `TrainSchedule`, or interleaved over `n_chunks` parts on each stage as in
/// Megatron; without backward passes, each micro-batch as soon as it comes.
///
/// # Errors
/// No stages, parts or micro-batches, and interleaved training with a number of micro-batches that the stages do not divide.
pub fn schedules(passes: Passes, n_stages: usize, n_chunks: usize, n_micro: usize) -> Result<Vec<Schedule>> {
    if n_stages == 0 || n_chunks == 0 || n_micro == 0 {
        return Err(Error::Usage(format!(
            "a schedule for {n_stages} stages with {n_chunks} parts each and {n_micro} micro-batches; each is at least 1"
        )));
    }
    if passes == Passes::Training && n_chunks > 1 && !n_micro.is_multiple_of(n_stages) {
        return Err(Error::Usage(format!(
            "the interleaved schedule takes micro-batches in groups of as many as there are stages: {n_micro} micro-batches of a \
             step are not a multiple of {n_stages} stages; change gradient_accumulation_steps, or use 1F1B (one virtual stage)"
        )));
    }
    let events = match (passes, n_chunks) {
        (Passes::Training, 1) => ticks(n_stages, n_micro),
        _ => {
            let order = |stage| match passes {
                Passes::Training => interleaved(stage, n_stages, n_chunks, n_micro),
                Passes::Forward => forward_only(n_stages, n_chunks, n_micro),
            };
            simulated(n_stages, n_chunks, (0..n_stages).map(order).collect())
        }
    };
    let n_fixed = |stage: usize| match (passes, n_chunks) {
        (Passes::Training, 1) => Some((n_stages - stage).min(n_micro).max(2)),
        _ => None,
    };
    Ok((0..n_stages).map(|stage| of_stage(stage, passes, &events, n_fixed(stage))).collect())
}

/// 1F1B: stages run forward and backward passes in turns, even ones forward in even ticks and odd ones in odd ticks. What a
/// tick has made is transferred at the beginning of the next.
fn ticks(n_stages: usize, n_micro: usize) -> Vec<Event> {
    let (s, m) = (n_stages as isize, n_micro as isize);
    let pass = |tick: isize, stage: isize| {
        let is_forward = (tick - stage) % 2 == 0;
        let (half, odd) = (tick.div_euclid(2), tick % 2);
        let micro_batch = match (is_forward, odd) {
            (true, _) => half - stage / 2,
            (false, 0) => half - s + (stage + 1) / 2,
            (false, _) => half - s + 1 + stage / 2,
        };
        let pass = Pass { is_forward, chunk: 0, micro_batch: usize::try_from(micro_batch).unwrap_or(0) };
        (0..m).contains(&micro_batch).then_some(pass)
    };
    let mut events = Vec::new();
    for tick in 0..2 * (m + s - 1) {
        for stage in (0..s - 1).filter(|stage| (tick - stage) % 2 != 0) {
            let (own, next) = (stage as usize, stage as usize + 1);
            if let Some(Pass { micro_batch, .. }) = pass(tick, stage) {
                let what = Message::Gradient;
                events.push(Event::Transfer { what, from: (next, 0), to: (own, 0), micro_batch });
            }
            if let Some(Pass { micro_batch, .. }) = pass(tick - 1, stage) {
                let what = Message::Activation;
                events.push(Event::Transfer { what, from: (own, 0), to: (next, 0), micro_batch });
            }
        }
        let computes = (0..s).filter_map(|stage| Some((stage as usize, pass(tick, stage)?)));
        events.extend(computes.map(|(stage, pass)| Event::Compute { stage, pass }));
    }
    events
}

/// The passes of a stage in Megatron's interleaved schedule: micro-batches go through a part in groups of as many as there
/// are stages; forward passes first until the first backward pass can come, then one of each in turns.
fn interleaved(stage: usize, n_stages: usize, n_chunks: usize, n_micro: usize) -> Vec<Pass> {
    let total = n_chunks * n_micro;
    let pass = |is_forward: bool, index: usize| {
        let (group, inside) = (index / (n_stages * n_chunks), index % (n_stages * n_chunks));
        let chunk = inside / n_stages;
        Pass {
            is_forward,
            chunk: if is_forward { chunk } else { n_chunks - 1 - chunk },
            micro_batch: group * n_stages + inside % n_stages,
        }
    };
    let ahead = (2 * (n_stages - stage - 1) + (n_chunks - 1) * n_stages).min(total);
    let mut passes: Vec<Pass> = (0..ahead).map(|index| pass(true, index)).collect();
    passes.extend((ahead..total).flat_map(|index| [pass(true, index), pass(false, index - ahead)]));
    passes.extend((total - ahead..total).map(|index| pass(false, index)));
    passes
}

/// The forward passes of a stage: the same groups, of which the last may have fewer micro-batches.
fn forward_only(n_stages: usize, n_chunks: usize, n_micro: usize) -> Vec<Pass> {
    let groups = (0..n_micro).step_by(n_stages).map(|first| first..(first + n_stages).min(n_micro));
    let passes = |group: std::ops::Range<usize>| {
        (0..n_chunks).flat_map(move |chunk| {
            group.clone().map(move |micro_batch| Pass { is_forward: true, chunk, micro_batch })
        })
    };
    groups.flat_map(passes).collect()
}

/// Puts transfers between the passes of all stages, whose order is given: each where both of its stages would be free at
/// the same time if a backward pass took twice as long as a forward pass, so that neither waits for the other.
fn simulated(n_stages: usize, n_chunks: usize, orders: Vec<Vec<Pass>>) -> Vec<Event> {
    struct Stage {
        todo: VecDeque<Pass>,
        running: Option<Pass>,
        free_at: u64,
        /// What it has received.
        has: BTreeMap<(Message, usize, usize), ()>,
        /// What it has made that waits for its transfer.
        made: Vec<(Message, usize, usize)>,
    }
    let mut stages: Vec<Stage> = orders
        .into_iter()
        .map(|todo| Stage {
            todo: todo.into(),
            running: None,
            free_at: 0,
            has: BTreeMap::new(),
            made: Vec::new(),
        })
        .collect();
    // The part that what a pass has made goes to.
    let receiver = |what: Message, stage: usize, chunk: usize| {
        let part = chunk * n_stages + stage;
        let to = match what {
            Message::Activation => (part + 1 < n_chunks * n_stages).then_some(part + 1),
            Message::Gradient => part.checked_sub(1),
        };
        to.map(|part| (part % n_stages, part / n_stages))
    };
    let sender = |pass: Pass, stage: usize| {
        let part = pass.chunk * n_stages + stage;
        match pass.is_forward {
            true => part > 0,
            false => part + 1 < n_chunks * n_stages,
        }
    };
    let (mut events, mut now) = (Vec::new(), 0);
    loop {
        // What is complete by now.
        for (index, stage) in stages.iter_mut().enumerate().filter(|(_, stage)| stage.free_at <= now) {
            if let Some(Pass { is_forward, chunk, micro_batch }) = stage.running.take() {
                let what = if is_forward { Message::Activation } else { Message::Gradient };
                match receiver(what, index, chunk) {
                    // A part of the same stage.
                    Some((to, to_chunk)) if to == index => {
                        stage.has.insert((what, to_chunk, micro_batch), ());
                    }
                    Some(_) => stage.made.push((what, chunk, micro_batch)),
                    None => {}
                }
            }
        }
        // Transfers between stages that are free, gradients first.
        for from in 0..n_stages {
            stages[from].made.sort_unstable();
            for made in std::mem::take(&mut stages[from].made) {
                let (what, chunk, micro_batch) = made;
                let Some((to, to_chunk)) = receiver(what, from, chunk) else { continue };
                match stages[from].running.is_none() && stages[to].running.is_none() {
                    true => {
                        stages[to].has.insert((what, to_chunk, micro_batch), ());
                        let (from, to) = ((from, chunk), (to, to_chunk));
                        events.push(Event::Transfer { what, from, to, micro_batch });
                    }
                    false => stages[from].made.push(made),
                }
            }
        }
        // What can begin.
        for (index, stage) in stages.iter_mut().enumerate().filter(|(_, stage)| stage.running.is_none()) {
            let Some(&pass) = stage.todo.front() else { continue };
            let what = if pass.is_forward { Message::Activation } else { Message::Gradient };
            let needed = (what, pass.chunk, pass.micro_batch);
            if sender(pass, index) && stage.has.remove(&needed).is_none() {
                continue;
            }
            stage.todo.pop_front();
            stage.running = Some(pass);
            stage.free_at = now + if pass.is_forward { 1 } else { 2 };
            events.push(Event::Compute { stage: index, pass });
        }
        // Where nothing runs any more, all is done: whatever is first in the order of the passes can always run.
        let next = stages.iter().filter(|stage| stage.running.is_some()).map(|stage| stage.free_at).min();
        match next {
            Some(next) => now = next,
            None => return events,
        }
    }
}

/// The part of a stage in what all do, with its buffers: `n_fixed` in turns, or as many as it takes.
fn of_stage(stage: usize, passes: Passes, events: &[Event], n_fixed: Option<usize>) -> Schedule {
    let (mut free, mut held, mut n_buffers) = (Vec::new(), BTreeMap::new(), n_fixed.unwrap_or(0));
    let mut buffer_of = |chunk: usize, micro_batch: usize, free: &mut Vec<usize>| match n_fixed {
        Some(n) => micro_batch % n,
        None => *held.entry((chunk, micro_batch)).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                n_buffers += 1;
                n_buffers - 1
            })
        }),
    };
    // The last use of each place.
    let mut last_use = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        let places = match *event {
            Event::Compute { stage: own, pass } if own == stage => {
                [Some((pass.chunk, pass.micro_batch)), None]
            }
            Event::Compute { .. } => [None, None],
            Event::Transfer { from, to, micro_batch, .. } => [
                (from.0 == stage).then_some((from.1, micro_batch)),
                (to.0 == stage).then_some((to.1, micro_batch)),
            ],
        };
        last_use.extend(places.into_iter().flatten().map(|place| (place, index)));
    }
    debug_assert!(passes == Passes::Training || n_fixed.is_none(), "buffers in turns are those of 1F1B");
    let mut instructions = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let (chunk, micro_batch) = match *event {
            Event::Compute { stage: own, pass } if own == stage => (pass.chunk, pass.micro_batch),
            Event::Transfer { from, micro_batch, .. } if from.0 == stage => (from.1, micro_batch),
            Event::Transfer { to, micro_batch, .. } if to.0 == stage => (to.1, micro_batch),
            _ => continue,
        };
        let place = Place { chunk, micro_batch, buffer: buffer_of(chunk, micro_batch, &mut free) };
        instructions.push(match *event {
            Event::Compute { pass: Pass { is_forward: true, .. }, .. } => Instruction::Forward(place),
            Event::Compute { .. } => Instruction::Backward(place),
            Event::Transfer { what, from, to, .. } if from.0 == stage => {
                Instruction::Send { what, to: to.0, place }
            }
            Event::Transfer { what, from, .. } => Instruction::Receive { what, from: from.0, place },
        });
        if last_use.get(&(chunk, micro_batch)) == Some(&index) {
            free.push(place.buffer);
        }
    }
    Schedule { instructions, n_buffers }
}

#[cfg(test)]
#[path = "schedule/tests.rs"]
mod tests;
