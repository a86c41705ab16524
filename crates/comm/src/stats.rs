//! How long collectives take, by operation and size, once recording is on.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::operation::Operation;

/// What to record of the collectives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The operations; `None` for all that send something.
    pub only: Option<Vec<Operation>>,
    /// Keep calls of different call sites apart.
    pub by_site: bool,
}

/// The calls of one operation over one size.
#[derive(Clone, Debug, PartialEq)]
pub struct OpStats {
    /// The operation.
    pub operation: Operation,
    /// `file:line` of the caller, if call sites are kept apart.
    pub site: Option<String>,
    /// Bytes of a call: those of a whole region, not the part of a rank.
    pub bytes: u64,
    /// Calls.
    pub calls: u64,
    /// Their total time, including waits for other ranks.
    pub total: Duration,
    /// The mean time of a call over the newest calls, without the shortest and the longest tenth.
    pub latency: Duration,
    /// Bits per second that the operation handles (algorithm bandwidth as nccl-tests define it, in bits), the mean of the same
    /// calls.
    pub throughput: f64,
    /// Bits per second on a bus between ranks (bus bandwidth as nccl-tests define it, in bits).
    pub bus_bandwidth: f64,
}

/// What keeps calls apart: operation, call site, bytes and ranks.
type Key = (usize, Option<(&'static str, u32)>, u64, usize);

/// The newest calls of a kind that are kept for the means.
const MAX_SAMPLES: usize = 4096;

#[derive(Default)]
struct Calls {
    count: u64,
    total: Duration,
    newest: Vec<Duration>,
}

/// The record of a rank, shared by a communicator and those split from it.
pub(crate) struct Recorder {
    recorded: Recorded,
    calls: Mutex<BTreeMap<Key, Calls>>,
}

impl Recorder {
    pub(crate) fn new(recorded: Recorded) -> Recorder {
        Recorder { recorded, calls: Mutex::default() }
    }

    pub(crate) fn wants(&self, operation: Operation) -> bool {
        operation.sends() && self.recorded.only.as_ref().is_none_or(|only| only.contains(&operation))
    }

    pub(crate) fn add(
        &self,
        operation: Operation,
        site: &'static Location<'static>,
        bytes: u64,
        ranks: usize,
        time: Duration,
    ) {
        let site = self.recorded.by_site.then(|| (site.file(), site.line()));
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry((operation as usize, site, bytes, ranks)).or_default();
        match calls.newest.len() < MAX_SAMPLES {
            true => calls.newest.push(time),
            false => calls.newest[calls.count as usize % MAX_SAMPLES] = time,
        }
        calls.count += 1;
        calls.total += time;
    }

    /// In the order of operations and sizes.
    pub(crate) fn stats(&self) -> Vec<OpStats> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().map(|(&key, calls)| stats_of(key, calls)).collect()
    }
}

fn stats_of((operation, site, bytes, ranks): Key, calls: &Calls) -> OpStats {
    let operation = Operation::ALL[operation];
    let seconds: Vec<f64> = calls.newest.iter().map(Duration::as_secs_f64).collect();
    let rate = |factor: f64| {
        let rates = seconds.iter().map(|s| if *s > 0.0 { 8.0 * bytes as f64 * factor / s } else { 0.0 });
        trimmed_mean(rates.collect())
    };
    let handled = if operation == Operation::AllReduce { 2.0 } else { 1.0 };
    OpStats {
        operation,
        site: site.map(|(file, line)| format!("{file}:{line}")),
        bytes,
        calls: calls.count,
        total: calls.total,
        latency: Duration::from_secs_f64(trimmed_mean(seconds.clone())),
        throughput: rate(handled),
        bus_bandwidth: rate(operation.sent_share(ranks)),
    }
}

/// The mean without a tenth at each end.
fn trimmed_mean(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let cut = (values.len() as f64 / 10.0).round_ties_even() as usize;
    let kept = &values[cut..values.len() - cut];
    if kept.is_empty() { 0.0 } else { kept.iter().sum::<f64>() / kept.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn means_leave_out_the_ends() {
        assert_eq!(trimmed_mean(Vec::new()), 0.0);
        assert_eq!(trimmed_mean(vec![3.0]), 3.0);
        assert_eq!(trimmed_mean(vec![1.0, 2.0, 100.0, 3.0, 2.0]), 21.6, "half a value is none");
        assert_eq!(trimmed_mean(vec![1.0, 2.0, 100.0, 2.0, 2.0, 2.0]), 2.0);
    }

    #[test]
    fn calls_of_a_kind_add_up_and_rates_follow_the_accounts() {
        let recorder = Recorder::new(Recorded::default());
        let site = Location::caller();
        for time in [1, 1, 4] {
            recorder.add(Operation::AllReduce, site, 1000, 4, time * MS);
        }
        recorder.add(Operation::AllGather, site, 1000, 4, MS);
        recorder.add(Operation::AllReduce, site, 10, 4, MS);
        recorder.add(Operation::AllToAll, site, 1000, 4, MS);
        recorder.add(Operation::Barrier, site, 0, 4, Duration::ZERO);
        let stats = recorder.stats();
        let reported: Vec<_> = stats.iter().map(|s| (s.operation, s.bytes, s.calls)).collect();
        assert_eq!(
            reported,
            [
                (Operation::Barrier, 0, 1),
                (Operation::AllReduce, 10, 1),
                (Operation::AllReduce, 1000, 3),
                (Operation::AllGather, 1000, 1),
                (Operation::AllToAll, 1000, 1)
            ]
        );
        let reduced = &stats[2];
        assert_eq!((reduced.total, reduced.latency), (6 * MS, 2 * MS));
        // 8000 bits in 1, 1 and 4 ms: 6e6 per second in the mean; twice, and 2 x 3/4 of it on the bus.
        assert_eq!((reduced.throughput, reduced.bus_bandwidth), (12e6, 9e6));
        for sent_once in &stats[3..] {
            assert_eq!((sent_once.throughput, sent_once.bus_bandwidth), (8e6, 6e6));
        }
        assert_eq!((stats[0].throughput, &stats[0].site), (0.0, &None));
    }

    #[test]
    fn the_newest_calls_make_the_means() {
        let recorder = Recorder::new(Recorded { by_site: true, ..Recorded::default() });
        let site = Location::caller();
        for call in 0..2 * MAX_SAMPLES {
            let time = if call < MAX_SAMPLES { 5 * MS } else { MS };
            recorder.add(Operation::Agree, site, 8, 2, time);
        }
        let stats = &recorder.stats()[0];
        assert_eq!((stats.calls, stats.latency), (2 * MAX_SAMPLES as u64, MS));
        assert!(stats.site.as_ref().is_some_and(|site| site.contains("stats.rs:")));
    }

    #[test]
    fn a_communicator_and_those_split_from_it_share_a_record() {
        let comm = crate::Communicator::solo();
        comm.barrier().unwrap();
        let part = comm.split(&[vec![0]]).unwrap();
        assert_eq!(comm.recorded(), []);
        comm.record(Recorded { only: Some(vec![Operation::Barrier]), by_site: false });
        comm.barrier().unwrap();
        part.barrier().unwrap();
        comm.agree("the step", 1).unwrap();
        let reported: Vec<_> = part.recorded().iter().map(|s| (s.operation, s.calls)).collect();
        assert_eq!(reported, [(Operation::Barrier, 2)]);
    }

    #[test]
    fn only_what_is_asked_for_is_wanted() {
        let recorder = Recorder::new(Recorded { only: Some(vec![Operation::AllReduce]), by_site: false });
        assert!(recorder.wants(Operation::AllReduce) && !recorder.wants(Operation::AllGather));
        let all = Recorder::new(Recorded::default());
        assert!(all.wants(Operation::Barrier) && !all.wants(Operation::Split));
    }
}
