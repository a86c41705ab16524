//! The course of the learning rate as values: shapes of transformers, MiniMind and DeepSpeed, with their arguments.

/// A number of optimizer steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Steps {
    /// So many.
    Count(u64),
    /// This share of all steps, rounded up.
    Share(f64),
}

impl Steps {
    /// What a number means: between 0 and 1 a share, else steps.
    pub fn written(steps: f64) -> Steps {
        match steps {
            share if share > 0.0 && share < 1.0 => Steps::Share(share),
            count => Steps::Count(count as u64),
        }
    }

    /// The number, given how many steps there are in all.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Steps::Count(steps) => steps,
            Steps::Share(share) => (share * total as f64).ceil() as u64,
        }
    }
}

/// The course of the learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleArgs {
    /// The peak.
    pub learning_rate: f64,
    /// The shape.
    pub shape: Shape,
    /// Warm-up; zero steps for none.
    pub warmup: Steps,
}

/// The shape of the learning rate over the steps, with the names and arguments of transformers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// `constant`: no warm-up either.
    Constant,
    /// `constant_with_warmup`.
    ConstantWithWarmup,
    /// `linear`, down to zero.
    Linear,
    /// `cosine`.
    Cosine {
        /// Waves; half a wave goes down to zero.
        num_cycles: f64,
    },
    /// `cosine_with_restarts`.
    CosineWithRestarts {
        /// Restarts.
        num_cycles: f64,
    },
    /// `polynomial`.
    Polynomial {
        /// The last learning rate.
        lr_end: f64,
        /// The exponent.
        power: f64,
    },
    /// `inverse_sqrt`.
    InverseSqrt {
        /// Time scale; `None`: the warm-up steps, or 10,000 without warm-up.
        timescale: Option<f64>,
    },
    /// `cosine_with_min_lr`.
    CosineWithMinLr {
        /// Waves.
        num_cycles: f64,
        /// The lowest rate as a share of the peak.
        min_lr_rate: f64,
    },
    /// `cosine_warmup_with_min_lr`, whose warm-up begins above zero.
    CosineWarmupWithMinLr {
        /// Waves.
        num_cycles: f64,
        /// The lowest rate as a share of the peak.
        min_lr_rate: f64,
        /// The first rate as a share of the peak; `None`: one step of the warm-up.
        warmup_lr_rate: Option<f64>,
    },
    /// `warmup_stable_decay`.
    WarmupStableDecay {
        /// Steps at the peak.
        num_stable_steps: StableSteps,
        /// Steps of the decay; `None`: those after the warm-up but for a third of them, as in LLaMA-Factory.
        num_decay_steps: Option<u64>,
        /// The curve of the warm-up.
        warmup_type: Curve,
        /// The curve of the decay.
        decay_type: Curve,
        /// The lowest rate as a share of the peak.
        min_lr_ratio: f64,
        /// Waves of a cosine decay.
        num_cycles: f64,
    },
    /// `minimind_seed`: MiniMind's first formula, per micro-step, beginning at 1.1 times the rate.
    MinimindSeed,
    /// `minimind3`: MiniMind's newest formula, per micro-step, beginning at the rate.
    Minimind3,
    /// One of DeepSpeed's, which count from -1 and are stepped after the optimizer.
    DeepSpeed(DeepSpeedShape),
}

/// The steps at the peak of `warmup_stable_decay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StableSteps {
    /// So many.
    Steps(u64),
    /// What warm-up and decay leave: the default of transformers.
    Rest,
    /// A third of the steps after the warm-up, rounded down: the default of LLaMA-Factory, whose decay may then end
    /// before the run does.
    Third,
}

/// A curve of `warmup_stable_decay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// `linear`.
    Linear,
    /// `cosine`.
    Cosine,
    /// `1-sqrt`.
    OneMinusSqrt,
}

/// The shapes of DeepSpeed, with its names and arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeepSpeedShape {
    /// `WarmupLR`: up, then level.
    WarmupLr(Warmup),
    /// `WarmupDecayLR`: up, then linearly down to zero.
    WarmupDecayLr {
        /// The way up.
        warmup: Warmup,
        /// The step that reaches zero; `None`: the last of the run.
        total_num_steps: Option<u64>,
    },
    /// `WarmupCosineLR`: up, then down in half a wave; shares of the learning rate.
    WarmupCosineLr {
        /// The first share.
        warmup_min_ratio: f64,
        /// Steps of the way up; `None`: the run's warm-up.
        warmup_num_steps: Option<u64>,
        /// The curve of the way up.
        warmup_type: WarmupType,
        /// The last share.
        cos_min_ratio: f64,
        /// The step that reaches it; `None`: the last of the run.
        total_num_steps: Option<u64>,
    },
    /// `LRRangeTest`: up without end, to find the greatest rate that works.
    LrRangeTest {
        /// The first rate.
        min_lr: f64,
        /// Steps of an interval.
        step_size: u64,
        /// What an interval adds, in first rates.
        step_rate: f64,
        /// Up once an interval instead of every step.
        staircase: bool,
    },
    /// `OneCycle`.
    OneCycle(OneCycle),
}

/// The way up of DeepSpeed's schedules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// The first rate.
    pub min_lr: f64,
    /// The last rate; `None`: the learning rate.
    pub max_lr: Option<f64>,
    /// Steps, at least 2; `None`: the run's warm-up, or 1000 where the run has none.
    pub num_steps: Option<u64>,
    /// The curve.
    pub warmup_type: WarmupType,
}

/// The curve of a [`Warmup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmupType {
    /// `log`, DeepSpeed's default.
    Log,
    /// `linear`.
    Linear,
}

/// DeepSpeed's `OneCycle`: up and down once, the momentum down and up, and then a decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneCycle {
    /// The rate at both ends of the cycle.
    pub min_lr: f64,
    /// The rate at its top.
    pub max_lr: f64,
    /// Steps of the way up.
    pub first_step_size: u64,
    /// Steps of the way down.
    pub second_step_size: u64,
    /// Stairs of the way up; 0 for a slope.
    pub first_stair_count: u64,
    /// Stairs of the way down.
    pub second_stair_count: u64,
    /// Steps of an interval of the decay; 0 for no decay.
    pub decay_step_size: u64,
    /// An interval adds this to the divisor of the rate.
    pub decay_lr_rate: f64,
    /// How the momentum (the first beta) moves; `None`: not at all.
    pub momentum: Option<CycleMomentum>,
}

/// The momentum of a [`OneCycle`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CycleMomentum {
    /// At the top of the cycle.
    pub min: f64,
    /// At both ends of the cycle.
    pub max: f64,
    /// An interval of the decay adds this to its factor.
    pub decay_rate: f64,
}
