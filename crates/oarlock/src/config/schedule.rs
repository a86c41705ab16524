//! Reads `lr_scheduler_type` and its arguments, checked as strictly as the other keys.

use super::build::{Reader, at};
use super::keys::{Range, nearest_of};
use super::plan::{Curve, Shape};
use super::problem::{Problem, Problems};
use super::resolve::Settings;
use super::value::{self, Field, Value, number};
use super::yaml::{Data, Node};

/// The shape of the learning rate; what is wrong with it goes to `problems`.
pub fn shape(settings: &Settings, learning_rate: f64, problems: &mut Problems) -> Shape {
    let name = Reader { settings }.text("lr_scheduler_type").to_owned();
    let fields = match &settings.get("lr_scheduler_kwargs").value {
        Value::Map(fields) => fields.as_slice(),
        _ => &[],
    };
    let mut kwargs = Kwargs { schedule: &name, settings, fields, known: Vec::new(), problems };
    let shape = match name.as_str() {
        "constant" => Shape::Constant,
        "constant_with_warmup" => Shape::ConstantWithWarmup,
        "cosine" => {
            Shape::Cosine { num_cycles: kwargs.number("num_cycles", Range::NotNegative).unwrap_or(0.5) }
        }
        "cosine_with_restarts" => Shape::CosineWithRestarts {
            num_cycles: kwargs.number("num_cycles", Range::Positive).unwrap_or(1.0),
        },
        "polynomial" => {
            let lr_end = kwargs.number("lr_end", Range::NotNegative).unwrap_or(1e-7);
            let power = kwargs.number("power", Range::Positive).unwrap_or(1.0);
            if lr_end >= learning_rate {
                kwargs.reject(format!(
                    "`lr_end` ({}) must be smaller than `learning_rate` ({})",
                    number(lr_end),
                    number(learning_rate)
                ));
            }
            Shape::Polynomial { lr_end, power }
        }
        "inverse_sqrt" => Shape::InverseSqrt { timescale: kwargs.number("timescale", Range::Positive) },
        "cosine_with_min_lr" => Shape::CosineWithMinLr {
            num_cycles: kwargs.number("num_cycles", Range::NotNegative).unwrap_or(0.5),
            min_lr_rate: kwargs.floor(learning_rate),
        },
        "cosine_warmup_with_min_lr" => Shape::CosineWarmupWithMinLr {
            num_cycles: kwargs.number("num_cycles", Range::NotNegative).unwrap_or(0.5),
            min_lr_rate: kwargs.floor(learning_rate),
            warmup_lr_rate: kwargs.number("warmup_lr_rate", Range::Share),
        },
        "warmup_stable_decay" => {
            let min_lr_ratio = kwargs.number("min_lr_ratio", Range::Share);
            let own = own_floor(settings);
            if min_lr_ratio.is_some() && own.is_some() {
                kwargs.reject("`min_lr_ratio` stands both as a key and in lr_scheduler_kwargs".to_owned());
            }
            let num_decay_steps = kwargs.count("num_decay_steps");
            if num_decay_steps.is_none() {
                kwargs.reject(
                    "`warmup_stable_decay` needs `num_decay_steps` in lr_scheduler_kwargs".to_owned(),
                );
            }
            Shape::WarmupStableDecay {
                num_stable_steps: kwargs.count("num_stable_steps"),
                num_decay_steps: num_decay_steps.unwrap_or(0),
                warmup_type: kwargs.curve("warmup_type").unwrap_or(Curve::Linear),
                decay_type: kwargs.curve("decay_type").unwrap_or(Curve::Cosine),
                min_lr_ratio: min_lr_ratio.or(own).unwrap_or(0.0),
                num_cycles: kwargs.number("num_cycles", Range::NotNegative).unwrap_or(0.5),
            }
        }
        "minimind_seed" | "minimind" => Shape::MinimindSeed,
        "minimind3" => Shape::Minimind3,
        // `linear`, and the stand-in for a name that was refused before.
        _ => Shape::Linear,
    };
    kwargs.finish();
    let floored = matches!(
        shape,
        Shape::CosineWithMinLr { .. } | Shape::CosineWarmupWithMinLr { .. } | Shape::WarmupStableDecay { .. }
    );
    let scheduler = settings.get("lr_scheduler_type");
    if own_floor(settings).is_some() && !floored && !scheduler.broken {
        problems.push(
            at(
                Problem::new(format!("`min_lr_ratio` has no meaning for `{name}`")),
                &[settings.get("min_lr_ratio"), scheduler],
            )
            .help("use lr_scheduler_type: cosine_with_min_lr"),
        );
    }
    shape
}

fn own_floor(settings: &Settings) -> Option<f64> {
    match settings.get("min_lr_ratio").value {
        Value::Float(share) => Some(share),
        _ => None,
    }
}

/// The arguments of a schedule: each is asked for by name, and whatever nobody asked for is unknown.
struct Kwargs<'a> {
    schedule: &'a str,
    settings: &'a Settings,
    fields: &'a [Field],
    known: Vec<&'static str>,
    problems: &'a mut Problems,
}

impl Kwargs<'_> {
    fn node(&mut self, name: &'static str) -> Option<(&Node, &str)> {
        self.known.push(name);
        let field = self.fields.iter().find(|field| field.name == name && !field.value.is_null())?;
        let node = &field.value;
        match &node.data {
            Data::Scalar { text, .. } => Some((node, text.trim())),
            _ => Some((node, "")),
        }
    }

    fn wrong(&mut self, name: &str, expected: &str) {
        if let Some(field) = self.fields.iter().find(|field| field.name == name) {
            let message = format!("`{name}` takes {expected}, not {}", field.value.describe());
            self.problems.push(Problem::new(message).at(&field.value.place, ""));
        }
    }

    /// Something that is wrong with the schedule as a whole.
    fn reject(&mut self, message: String) {
        let mut places =
            vec![self.settings.get("lr_scheduler_kwargs"), self.settings.get("lr_scheduler_type")];
        places.retain(|setting| setting.place().is_some());
        self.problems.push(at(Problem::new(message), &places));
    }

    fn number(&mut self, name: &'static str, range: Range) -> Option<f64> {
        let (_, text) = self.node(name)?;
        let number = value::float(text).filter(|x| range.contains(*x));
        if number.is_none() {
            self.wrong(name, range.describe());
        }
        number
    }

    fn count(&mut self, name: &'static str) -> Option<u64> {
        let (_, text) = self.node(name)?;
        let steps = value::float(text).filter(|x| *x >= 0.0 && x.fract() == 0.0 && *x < 9e15);
        if steps.is_none() {
            self.wrong(name, "a whole number of steps");
        }
        steps.map(|steps| steps as u64)
    }

    fn curve(&mut self, name: &'static str) -> Option<Curve> {
        let curve = match self.node(name)?.1 {
            "linear" => Curve::Linear,
            "cosine" => Curve::Cosine,
            "1-sqrt" => Curve::OneMinusSqrt,
            _ => {
                self.wrong(name, "one of linear, cosine, 1-sqrt");
                return None;
            }
        };
        Some(curve)
    }

    /// The lowest rate as a share of the peak, from the one of three names that was written.
    fn floor(&mut self, learning_rate: f64) -> f64 {
        let absolute = self.number("min_lr", Range::NotNegative);
        let share = self.number("min_lr_rate", Range::Share);
        let own = own_floor(self.settings);
        let written =
            usize::from(absolute.is_some()) + usize::from(share.is_some()) + usize::from(own.is_some());
        if written != 1 {
            let word = if written == 0 { "needs one" } else { "takes only one" };
            self.reject(format!(
                "`{}` {word} of min_lr and min_lr_rate in lr_scheduler_kwargs and min_lr_ratio as a key",
                self.schedule
            ));
        }
        match absolute {
            Some(min_lr) if min_lr > learning_rate => {
                self.reject(format!(
                    "`min_lr` ({}) is greater than `learning_rate` ({})",
                    number(min_lr),
                    number(learning_rate)
                ));
                1.0
            }
            Some(min_lr) if learning_rate > 0.0 => min_lr / learning_rate,
            _ => share.or(own).unwrap_or(0.0),
        }
    }

    fn finish(&mut self) {
        for Field { name, place, .. } in self.fields {
            if !self.known.contains(&name.as_str()) {
                let message = format!("`{}` takes no argument `{name}`", self.schedule);
                let problem = Problem::new(message).at(place, "");
                let problem = match nearest_of(name, self.known.iter().copied()) {
                    Some(near) => problem.help(format!("did you mean `{near}`?")),
                    None if self.known.is_empty() => problem.help("it takes none"),
                    None => problem.help(format!("it takes {}", self.known.join(", "))),
                };
                self.problems.push(problem);
            }
        }
    }
}
