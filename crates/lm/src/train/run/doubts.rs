//! What is wrong with the results of a run although no step failed: no weight was ever changed, or a result is no finite
//! number. Such a run does not end in success.

use std::collections::BTreeMap;

use oarlock_engine::{Error, Result};

use super::Run;

/// Results that are no finite numbers, the newest of their kind, as they are told. The same on all ranks.
#[derive(Debug, Default)]
pub(super) struct Doubts(BTreeMap<String, String>);

impl Doubts {
    /// Takes note of a result, `what` of `when`, with its values by name; returns what is to be told of those that are not
    /// finite.
    pub(super) fn look(&mut self, what: &str, when: &str, values: &[(String, f64)]) -> Option<String> {
        let odd = values.iter().filter(|(_, value)| !value.is_finite());
        let odd: Vec<String> = odd.map(|(name, value)| format!("{name} is {value}")).collect();
        if odd.is_empty() {
            self.0.remove(what);
            return None;
        }
        let told = format!("{what}{when}: {}", odd.join(", "));
        self.0.insert(what.to_owned(), told.clone());
        Some(format!("warning: {told}"))
    }

    /// Whether all is well.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn list(&self) -> String {
        self.0.values().map(String::as_str).collect::<Vec<_>>().join("; ")
    }
}

impl Run<'_> {
    /// Takes note of a result, and tells what of it is not finite.
    pub(super) fn doubt(&mut self, what: &str, when: &str, values: &[(String, f64)]) -> Result<()> {
        match (self.doubts.look(what, when, values), &mut self.journal) {
            (Some(told), Some(journal)) => journal.message(&told),
            _ => Ok(()),
        }
    }

    /// Refuses to end as a training where no step has ever changed a weight.
    pub(super) fn check_trained(&self) -> Result<()> {
        if self.done == 0 || self.optimizer.n_steps()? > 0 {
            return Ok(());
        }
        let scale = match self.optimizer.has_loss_scale()? {
            true => format!(" (the loss scale is {} now)", self.optimizer.loss_scale()?),
            false => String::new(),
        };
        Err(Error::Model(format!(
            "nothing was trained: all {} steps were skipped, because their gradients were not finite in f16{scale}; no model \
             is written. Write bf16: true instead of fp16, or look at the model and the records with float32",
            self.done
        )))
    }

    /// The end of a run with results that are not finite.
    pub(super) fn settle_doubts(&self) -> Result<()> {
        if self.doubts.is_empty() {
            return Ok(());
        }
        let training = match self.config.train.enabled {
            true => "the model is written, but ",
            false => "",
        };
        Err(Error::Model(format!(
            "{training}results are not finite: {}; look at the records of the evaluation, or evaluate with bf16 or float32",
            self.doubts.list()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_result_of_each_kind_counts() {
        let values = |loss: f64| vec![("eval_loss".to_owned(), loss), ("eval_accuracy".to_owned(), 0.5)];
        let mut doubts = Doubts::default();
        assert_eq!(doubts.look("evaluation", " at step 1", &values(2.0)), None);
        let told = doubts.look("evaluation", " at step 2", &values(f64::NAN));
        assert_eq!(told.as_deref(), Some("warning: evaluation at step 2: eval_loss is NaN"));
        doubts.look("evaluation of b", " at step 2", &values(f64::INFINITY));
        assert_eq!(
            doubts.list(),
            "evaluation at step 2: eval_loss is NaN; evaluation of b at step 2: eval_loss is inf"
        );
        doubts.look("evaluation", " at step 3", &values(2.0));
        doubts.look("evaluation of b", " at step 3", &values(2.0));
        assert!(doubts.is_empty());
    }
}
