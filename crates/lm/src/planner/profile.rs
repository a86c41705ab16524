//! What was measured of a machine, as a plain value.

use std::path::Path;

use serde::{Deserialize, Serialize};

use oarlock_engine::{Error, Result};

/// Measurements of one machine and one model. All times are seconds, with as many ranks at work as the machine is to have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What was measured.
    pub subject: Subject,
    /// The passes of a micro-batch.
    pub passes: Vec<PassTimes>,
    /// The gradient norm, by the elements whose squares a rank adds up.
    pub norm: Line,
    /// The optimizer, by the elements that a rank updates.
    pub update: Line,
    /// Adding reduced gradients to those of earlier micro-batches, by element.
    pub accumulate: f64,
    /// A sum over the ranks of the machine of which each receives its part, by the elements of the buffer.
    pub reduce_scatter: Line,
    /// A sum over the ranks of the machine which all receive, by the elements of the buffer.
    pub all_reduce: Line,
    /// A tensor that goes from a rank of the machine to another, by bytes. Nothing where there is one rank.
    pub message: Line,
    /// All else of a step: data, agreements, losses.
    pub rest: f64,
    /// What the processors of the machine take while it trains, in watts, where that can be read.
    pub watts: Option<f64>,
}

/// What a profile is of. Predictions hold for the same alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The model's family and shape.
    pub model: String,
    /// Tokens of a sequence, and how sequences are made.
    pub data: String,
    /// What is trained, and how.
    pub training: String,
    /// The dtype of the arithmetic.
    pub dtype: String,
    /// Ranks of the machine.
    pub ranks: usize,
    /// Threads of a rank.
    pub threads: usize,
    /// The kernels.
    pub kernels: String,
}

impl Subject {
    /// What is different in another, in words.
    fn differences(&self, other: &Subject) -> Vec<String> {
        let pairs = [
            ("model", &self.model, &other.model),
            ("data", &self.data, &other.data),
            ("training", &self.training, &other.training),
            ("dtype", &self.dtype, &other.dtype),
            ("kernels", &self.kernels, &other.kernels),
        ];
        let words =
            pairs.into_iter().filter(|(_, a, b)| a != b).map(|(what, a, b)| format!("{what}: {a}, not {b}"));
        let numbers = [("ranks", self.ranks, other.ranks), ("threads", self.threads, other.threads)];
        let numbers = numbers
            .into_iter()
            .filter(|(_, a, b)| a != b)
            .map(|(what, a, b)| format!("{what}: {a}, not {b}"));
        words.chain(numbers).collect()
    }
}

/// The passes of the whole model over a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassTimes {
    /// Sequences of the micro-batch.
    pub batch: usize,
    /// Whether activations of the blocks are recomputed.
    pub recompute: bool,
    /// The forward pass.
    pub forward: Halves,
    /// The backward pass, with what it recomputes.
    pub backward: Halves,
}

/// The time of a pass by what it is spent in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Halves {
    /// Embedding, output weights and loss.
    pub ends: f64,
    /// All decoder blocks.
    pub blocks: f64,
}

impl Halves {
    /// Both.
    pub fn sum(&self) -> f64 {
        self.ends + self.blocks
    }

    /// From two models with some blocks, of which one takes `n` and the other `m` times what a block takes besides the ends,
    /// of one that takes `all` times that.
    pub(super) fn from_two((few, n): (f64, f64), (more, m): (f64, f64), all: f64) -> Halves {
        let line = Line::through((n, few), (m, more));
        Halves { ends: line.fixed, blocks: line.each * all }
    }
}

/// A time that grows with a count: `fixed + each * count`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Seconds of a call.
    pub fixed: f64,
    /// Seconds more for each.
    pub each: f64,
}

impl Line {
    /// Through two measurements `(count, seconds)`, neither falling nor below zero at zero.
    pub fn through((x, at_x): (f64, f64), (y, at_y): (f64, f64)) -> Line {
        if x >= y {
            return Line { fixed: 0.0, each: if y > 0.0 { at_y / y } else { 0.0 } };
        }
        let slope = (at_y - at_x) / (y - x);
        // Where noise is larger than what grows, the larger measurement counts for all.
        let each = slope.clamp(0.0, at_y / y);
        Line { fixed: (at_y - each * y).max(0.0), each }
    }

    /// The time at a count.
    pub fn at(&self, count: f64) -> f64 {
        self.fixed + self.each * count
    }
}

impl Profile {
    /// The passes over micro-batches of so many sequences, if they were measured.
    pub fn passes(&self, batch: usize, recompute: bool) -> Option<&PassTimes> {
        self.passes.iter().find(|passes| (passes.batch, passes.recompute) == (batch, recompute))
    }

    /// Reads a profile of `subject`.
    ///
    /// # Errors
    /// A file that is none, or one of something else.
    pub fn load(path: &Path, subject: &Subject) -> Result<Profile> {
        let text =
            oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES).map_err(Error::io("read", path))?;
        let profile: Profile = serde_json::from_str(&text).map_err(|error| {
            Error::bad_file(path, format!("{error}; expected a profile of `oarlock plan`"))
        })?;
        let differences = profile.subject.differences(subject);
        if !differences.is_empty() {
            let what = differences.join("; ");
            return Err(Error::bad_file(
                path,
                format!("a profile of something else ({what}); remove it, and it is measured again"),
            ));
        }
        let numbers =
            [profile.norm, profile.update, profile.reduce_scatter, profile.all_reduce, profile.message];
        let numbers = numbers.into_iter().flat_map(|line| [line.fixed, line.each]);
        let halves = profile.passes.iter().flat_map(|passes| [passes.forward, passes.backward]);
        let mut all = numbers
            .chain(halves.flat_map(|half| [half.ends, half.blocks]))
            .chain([profile.accumulate, profile.rest])
            .chain(profile.watts);
        if profile.passes.is_empty() || !all.all(|x| x.is_finite() && x >= 0.0) {
            return Err(Error::bad_file(
                path,
                "times of a profile are numbers of at least 0, and it has passes".to_owned(),
            ));
        }
        Ok(profile)
    }

    /// Writes it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text =
            serde_json::to_string_pretty(self).map_err(|error| Error::bad_file(path, error.to_string()))?;
        oarlock_files::replace(path, text + "\n").map_err(Error::io("write", path))
    }
}
