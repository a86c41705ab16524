//! What is wrong with the results of a run although no step failed: no weight was ever changed, or a result is not a
//! finite number. Such a run does not end in success.

use oarlock_engine::{Error, Result};

use super::state::Run;

impl Run<'_> {
    /// Takes note of a result, and tells what of it is not finite.
    pub(super) fn doubt(&mut self, what: &str, when: &str, values: &[(String, f64)]) -> Result<()> {
        match (self.non_finite.look(what, when, values), &mut self.journal) {
            (Some(warnings), Some(journal)) => journal.message(&warnings),
            _ => Ok(()),
        }
    }

    /// Refuses to end as a training run where no step has ever changed a weight.
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
        if self.non_finite.is_empty() {
            return Ok(());
        }
        let training = match self.config.train.enabled {
            true => "the model is written, but ",
            false => "",
        };
        Err(Error::Model(format!(
            "{training}results are not finite: {}; look at the records of the evaluation, or evaluate with bf16 or float32",
            self.non_finite.list()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::NonFiniteResults;

    #[test]
    fn the_newest_result_of_each_kind_counts() {
        let values = |loss: f64| vec![("eval_loss".to_owned(), loss), ("eval_accuracy".to_owned(), 0.5)];
        let mut non_finite = NonFiniteResults::default();
        assert_eq!(non_finite.look("evaluation", " at step 1", &values(2.0)), None);
        let warnings = non_finite.look("evaluation", " at step 2", &values(f64::NAN));
        assert_eq!(warnings.as_deref(), Some("warning: evaluation at step 2: eval_loss is NaN"));
        non_finite.look("evaluation of b", " at step 2", &values(f64::INFINITY));
        assert_eq!(
            non_finite.list(),
            "evaluation at step 2: eval_loss is NaN; evaluation of b at step 2: eval_loss is inf"
        );
        non_finite.look("evaluation", " at step 3", &values(2.0));
        non_finite.look("evaluation of b", " at step 3", &values(2.0));
        assert!(non_finite.is_empty());
    }
}
