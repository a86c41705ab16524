//! MiniMind's formulas, which follow micro-steps: the optimizer runs at the rate of the last one of a window.

use std::f64::consts::PI;

use super::course::Schedule;

impl Schedule {
    /// The first formula, which counts micro-steps from 0, as a share of the learning rate.
    pub(super) fn factor_of_minimind_seed(&self, step: u64) -> f64 {
        let micro = (step as f64 + 1.0) * self.accumulation as f64 - 1.0;
        0.1 + 0.5 * (1.0 + self.half_wave(micro))
    }

    /// The newest formula, which counts them from 1.
    pub(super) fn factor_of_minimind3(&self, step: u64) -> f64 {
        let micro = (step as f64 + 1.0) * self.accumulation as f64;
        0.1 + 0.45 * (1.0 + self.half_wave(micro))
    }

    fn half_wave(&self, micro: f64) -> f64 {
        let total = (self.total as f64 * self.accumulation as f64).max(1.0);
        libm::cos(PI * micro / total)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::{assert_close, schedule};
    use oarlock_config::config::Shape;

    #[test]
    fn minimind_counts_micro_steps() {
        // Its own values at micro-steps 0, 50 and 100 of 100, with a peak of 2e-4.
        let seed = |step| schedule(Shape::MinimindSeed, 2e-4, 0, 100, 1).lr(step);
        assert_close(seed(0), 2.2e-4, "first formula, 0");
        assert_close(seed(50), 1.2e-4, "first formula, 50");
        assert_close(seed(100), 2e-5, "first formula, 100");
        // The newest formula counts from 1: optimizer step 49 is micro-step 50.
        let newest = |step| schedule(Shape::Minimind3, 2e-4, 0, 100, 1).lr(step);
        assert_close(newest(49), 1.1e-4, "newest formula, 50");
        assert_close(newest(99), 2e-5, "newest formula, 100");
        // With accumulation the rate is that of the last micro-step of the window.
        let of_four = schedule(Shape::MinimindSeed, 2e-4, 0, 25, 4).lr(12);
        assert_close(of_four, seed(51), "first formula, 4 micro-steps a step");
        let of_four = schedule(Shape::Minimind3, 2e-4, 0, 25, 4).lr(12);
        assert_close(of_four, newest(51), "newest formula, 4 micro-steps a step");
    }
}
