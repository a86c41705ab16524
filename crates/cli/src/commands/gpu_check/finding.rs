//! How a check ended: what a section's process tells the one that prints, as JSON.

use serde_json::{Map, Value, json};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    Failed,
    Skipped,
}

impl Verdict {
    pub const ALL: [Verdict; 3] = [Verdict::Ok, Verdict::Failed, Verdict::Skipped];

    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Failed => "failed",
            Verdict::Skipped => "skipped",
        }
    }

    /// As a line begins, where what failed must be seen.
    pub fn word(self) -> &'static str {
        if self == Verdict::Failed { "FAILED" } else { self.name() }
    }
}

/// Marks what was not come to.
const LEFT: &str = "left";

/// What a check found.
pub(super) struct Finding {
    pub verdict: Verdict,
    pub detail: String,
    pub numbers: Map<String, Value>,
}

impl Finding {
    pub fn new(verdict: Verdict, detail: impl Into<String>) -> Finding {
        Finding { verdict, detail: detail.into(), numbers: Map::new() }
    }

    /// All is as it should be.
    pub fn ok(detail: impl Into<String>) -> Finding {
        Finding::new(Verdict::Ok, detail)
    }

    /// It was not looked at, for this reason.
    pub fn skipped(reason: impl Into<String>) -> Finding {
        Finding::new(Verdict::Skipped, reason)
    }

    /// It was not come to, for this reason; another call may.
    pub fn left(reason: impl Into<String>) -> Finding {
        Finding::skipped(reason).done_again()
    }

    /// The same, of what another call looks at again.
    pub fn done_again(self) -> Finding {
        self.with(LEFT, true)
    }

    /// Whether another call has to look at it.
    pub fn is_left(&self) -> bool {
        self.numbers.contains_key(LEFT)
    }

    /// Good if `holds`.
    pub fn of(holds: bool, detail: impl Into<String>) -> Finding {
        Finding::new(if holds { Verdict::Ok } else { Verdict::Failed }, detail)
    }

    /// As one process tells another.
    pub fn to_json(&self) -> Value {
        json!({ "result": self.verdict.name(), "detail": self.detail, "numbers": self.numbers })
    }

    /// None if it is not one.
    pub fn from_json(mut value: Value) -> Option<Finding> {
        let verdict = Verdict::ALL.into_iter().find(|verdict| value["result"] == verdict.name())?;
        let Value::Object(numbers) = value["numbers"].take() else { return None };
        Some(Finding { verdict, detail: value["detail"].as_str()?.to_owned(), numbers })
    }

    /// A number for the JSON.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Finding {
        self.numbers.insert(key.to_owned(), value.into());
        self
    }
}

/// A number as JSON has it: infinities and NaN as a text.
pub(super) fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_the_same_in_another_process() {
        let finding = Finding::of(false, "wrong").with("x", 1.5).with("y", number(f64::NAN));
        let back = Finding::from_json(finding.to_json()).map(|back| back.to_json());
        assert_eq!(back, Some(finding.to_json()));
        assert!(Finding::from_json(json!({ "result": "good" })).is_none());
    }
}
