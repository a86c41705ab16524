//! How fast a run is: arithmetic per token, the share of the machine's peak, the time of each phase of a step,
//! and how long it will take.

use std::fmt;
use std::time::{Duration, Instant};

/// Floating-point operations of forward and backward for one token: 6·N + 6·L·S·d.
///
/// N are all parameters (a tied embedding once, for the head): each is multiplied and added in the forward pass
/// and twice as often in the backward pass. L layers of attention over sequences of S tokens with heads of d
/// elements together: scores and their product with the values, 12·L·S·d in the PaLM paper (arXiv:2204.02311,
/// appendix B), of which a causal mask needs half. `attention_width` is L·S·d, or less where layers see a window
/// alone. Recomputation does not count.
pub fn flops_per_token(parameters: u64, attention_width: u64) -> f64 {
    6.0 * parameters as f64 + 6.0 * attention_width as f64
}

/// As [`flops_per_token`] of a model of which a part is frozen: a frozen parameter has no gradient (4 operations per
/// token), and neither has its input where nothing is trained before it (2). `params` has the number of elements of each
/// parameter, whether it is trained, and whether anything before it is, in the order of the forward pass.
pub fn flops_per_token_of(params: impl Iterator<Item = (u64, bool, bool)>, attention_width: u64) -> f64 {
    let mut flops = 6.0 * attention_width as f64;
    for (n_elems, is_trained, is_behind) in params {
        flops += n_elems as f64
            * if is_trained {
                6.0
            } else if is_behind {
                4.0
            } else {
                2.0
            };
    }
    flops
}

/// Model FLOPs utilization: the share, from 0 to 1, of a peak in operations per second that a run reaches.
/// Both rates are of all ranks together. `None` without a peak.
pub fn utilization(tokens_per_second: f64, flops_per_token: f64, peak_flops: f64) -> Option<f64> {
    let share = tokens_per_second * flops_per_token / peak_flops;
    (peak_flops > 0.0 && share.is_finite()).then_some(share)
}

/// The most operations per second that were seen, measured or reached by the run itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peak(f64);

impl Peak {
    /// Takes in a measurement, of which the highest counts: one beside other work is too low.
    pub fn raise(&mut self, flops: f64) {
        self.0 = self.0.max(flops);
    }

    /// The highest so far, in operations per second; 0 before the first.
    pub fn flops(self) -> f64 {
        self.0
    }

    /// The [`utilization`] of a run. Where it reaches more than was measured, the measurement was too low: what is
    /// reached becomes the peak, and the utilization is 1.
    pub fn utilization(&mut self, tokens_per_second: f64, flops_per_token: f64) -> Option<f64> {
        let share = utilization(tokens_per_second, flops_per_token, self.0)?;
        self.raise(share * self.0);
        Some(share.min(1.0))
    }
}

/// A phase of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Fetching token ids.
    Data,
    /// Forward passes and the loss.
    Forward,
    /// Backward passes.
    Backward,
    /// Waiting for gradients of other ranks.
    Reduce,
    /// The gradient norm and clipping.
    Clip,
    /// The optimizer.
    Optimizer,
    /// Checkpoints.
    Save,
    /// Whatever is none of these: logs, evaluation.
    Other,
}

impl Phase {
    /// All phases in the order of a step.
    pub const ALL: [Phase; 8] = [
        Phase::Data,
        Phase::Forward,
        Phase::Backward,
        Phase::Reduce,
        Phase::Clip,
        Phase::Optimizer,
        Phase::Save,
        Phase::Other,
    ];

    /// The name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Data => "data",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Reduce => "reduce",
            Phase::Clip => "clip",
            Phase::Optimizer => "optimizer",
            Phase::Save => "save",
            Phase::Other => "other",
        }
    }
}

/// Charges every moment to one phase. A change of phase reads the clock once, so it can always be on.
#[derive(Debug)]
pub struct PhaseTimer {
    current: Phase,
    since: Instant,
    spent: PhaseTimes,
}

impl PhaseTimer {
    /// A timer that stands at [`Phase::Other`].
    pub fn new() -> Self {
        Self::at(Instant::now())
    }

    fn at(now: Instant) -> Self {
        PhaseTimer { current: Phase::Other, since: now, spent: PhaseTimes::default() }
    }

    /// Begins a phase; returns the one that ends, so that an inner phase can give back to the outer one.
    pub fn enter(&mut self, phase: Phase) -> Phase {
        self.enter_at(phase, Instant::now())
    }

    fn enter_at(&mut self, phase: Phase, now: Instant) -> Phase {
        self.spent.0[self.current as usize] += now.saturating_duration_since(self.since);
        self.since = now;
        std::mem::replace(&mut self.current, phase)
    }

    /// The times since the last [`PhaseTimer::take`], which go on.
    pub fn so_far(&mut self) -> PhaseTimes {
        self.enter(self.current);
        self.spent
    }

    /// The times since the last call, or since the beginning. The current phase goes on.
    pub fn take(&mut self) -> PhaseTimes {
        self.enter(self.current);
        std::mem::take(&mut self.spent)
    }
}

impl Default for PhaseTimer {
    fn default() -> Self {
        Self::new()
    }
}

/// The time of each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes([Duration; Phase::ALL.len()]);

impl PhaseTimes {
    /// The time of one phase.
    pub fn of(&self, phase: Phase) -> Duration {
        self.0[phase as usize]
    }

    /// The times that came after `earlier`.
    pub fn since(&self, earlier: &PhaseTimes) -> PhaseTimes {
        PhaseTimes(std::array::from_fn(|i| self.0[i].saturating_sub(earlier.0[i])))
    }

    #[cfg(test)]
    pub(super) fn from_millis(ms: [u64; Phase::ALL.len()]) -> PhaseTimes {
        PhaseTimes(ms.map(Duration::from_millis))
    }

    /// The time of all phases.
    pub fn total(&self) -> Duration {
        self.0.iter().sum()
    }
}

impl std::ops::AddAssign for PhaseTimes {
    fn add_assign(&mut self, other: PhaseTimes) {
        for (time, more) in self.0.iter_mut().zip(other.0) {
            *time += more;
        }
    }
}

impl FromIterator<(Phase, Duration)> for PhaseTimes {
    fn from_iter<I: IntoIterator<Item = (Phase, Duration)>>(times: I) -> PhaseTimes {
        let mut all = PhaseTimes::default();
        for (phase, time) in times {
            all.0[phase as usize] += time;
        }
        all
    }
}

/// `data 0.4 ms (1%), forward 20.0 ms (33%), …`: phases that took no time are left out.
impl fmt::Display for PhaseTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total().as_secs_f64();
        let mut separator = "";
        for phase in Phase::ALL {
            let seconds = self.of(phase).as_secs_f64();
            if seconds > 0.0 {
                let (ms, percent) = (1e3 * seconds, 100.0 * seconds / total);
                write!(f, "{separator}{} {ms:.1} ms ({percent:.0}%)", phase.name())?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

/// The clock of a run: time gone and time left.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    first_step: u64,
}

impl Clock {
    /// Starts now; `first_step` steps were done before, by the run that this one resumes.
    pub fn start(first_step: u64) -> Self {
        Clock { start: Instant::now(), first_step }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Time until step `total` at the pace so far; zero before the first step.
    pub fn remaining(&self, step: u64, total: u64) -> Duration {
        remaining(self.elapsed(), step.saturating_sub(self.first_step), total.saturating_sub(step))
    }
}

fn remaining(elapsed: Duration, done: u64, left: u64) -> Duration {
    if done == 0 {
        return Duration::ZERO;
    }
    let seconds = elapsed.as_secs_f64() / done as f64 * left as f64;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_costs_what_the_formula_says() {
        // 26M parameters, 8 layers, 512 tokens, width 512: about 168 million operations.
        let flops = flops_per_token(25_830_912, 8 * 512 * 512);
        assert_eq!(flops, 6.0 * 25_830_912.0 + 6.0 * 8.0 * 512.0 * 512.0);
        assert!((flops / 1e6 - 167.6).abs() < 0.1);
        assert_eq!(utilization(1000.0, 168e6, 336e9), Some(0.5));
        assert_eq!(utilization(1000.0, 168e6, 0.0), None);
    }

    #[test]
    fn the_peak_is_the_most_that_was_seen() {
        let mut peak = Peak::default();
        assert_eq!(peak.utilization(1000.0, 168e6), None, "nothing was measured");
        peak.raise(336e9);
        peak.raise(100e9);
        peak.raise(f64::NAN);
        assert_eq!(peak.utilization(1000.0, 168e6), Some(0.5));
        assert_eq!(peak.utilization(4000.0, 168e6), Some(1.0), "more than was measured");
        assert_eq!(peak.flops(), 672e9);
        assert_eq!(peak.utilization(1000.0, 168e6), Some(0.25));
    }

    #[test]
    fn every_moment_belongs_to_one_phase() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut timer = PhaseTimer::at(start);
        assert_eq!(timer.enter_at(Phase::Forward, after(1)), Phase::Other);
        assert_eq!(timer.enter_at(Phase::Backward, after(4)), Phase::Forward);
        let outer = timer.enter_at(Phase::Reduce, after(9));
        assert_eq!(timer.enter_at(outer, after(10)), Phase::Reduce);
        timer.enter_at(Phase::Data, after(12));
        let times = timer.spent;
        assert_eq!(times.of(Phase::Backward), Duration::from_millis(7));
        assert_eq!(times.total(), Duration::from_millis(12));
        assert_eq!(
            times.to_string(),
            "forward 3.0 ms (25%), backward 7.0 ms (58%), reduce 1.0 ms (8%), other 1.0 ms (8%)"
        );
        let before = timer.so_far();
        assert_eq!(before.of(Phase::Backward), Duration::from_millis(7), "looking takes nothing away");
        assert_eq!(timer.so_far().since(&before).of(Phase::Backward), Duration::ZERO);
        timer.take();
        assert!(timer.take().total() < Duration::from_secs(3600), "taking begins anew");
        assert_eq!(timer.current, Phase::Data);
    }

    #[test]
    fn time_left_follows_the_pace_of_this_run() {
        let minute = Duration::from_secs(60);
        assert_eq!(remaining(minute, 10, 20), 2 * minute);
        assert_eq!(remaining(minute, 0, 20), Duration::ZERO);
        assert_eq!(remaining(Duration::MAX, 1, u64::MAX), Duration::MAX);
        assert_eq!(Clock::start(5).remaining(5, 10), Duration::ZERO);
    }
}
