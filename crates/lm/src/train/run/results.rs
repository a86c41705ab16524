//! Which results of a run are not finite numbers.

use std::collections::BTreeMap;

/// Results that are not finite numbers, the newest of their kind, as they are reported. The same on all ranks.
#[derive(Debug, Default)]
pub(super) struct NonFiniteResults(BTreeMap<String, String>);

impl NonFiniteResults {
    /// Takes note of a result, `what` of `when`, with its values by name; returns warnings about those that are not
    /// finite.
    pub(super) fn look(&mut self, what: &str, when: &str, values: &[(String, f64)]) -> Option<String> {
        let odd = values.iter().filter(|(_, value)| !value.is_finite());
        let odd: Vec<String> = odd.map(|(name, value)| format!("{name} is {value}")).collect();
        if odd.is_empty() {
            self.0.remove(what);
            return None;
        }
        let warnings = format!("{what}{when}: {}", odd.join(", "));
        self.0.insert(what.to_owned(), warnings.clone());
        Some(format!("warning: {warnings}"))
    }

    /// Whether all is well.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn list(&self) -> String {
        self.0.values().map(String::as_str).collect::<Vec<_>>().join("; ")
    }
}
