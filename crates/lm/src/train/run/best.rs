//! The best model of a run: evaluations compared, the end before the end, and the best checkpoint as the final model.

use oarlock_engine::report::log::Metrics;
use oarlock_engine::{Result, checkpoint};

use super::state::Run;
use crate::train::best::{self, Verdict};
use crate::train::data::EvalData;

impl Run<'_> {
    /// Refuses a metric that no evaluation will have.
    pub(super) fn check_metric(&self) -> Result<()> {
        let Some(args) = self.config.save.best.as_ref().filter(|_| !self.data.eval.is_empty()) else {
            return Ok(());
        };
        let evals: Vec<Option<&str>> = self.data.eval.iter().map(|data| data.name.as_deref()).collect();
        best::check_metric(&args.metric, &evals, &best::metrics(&*self.objective))
    }

    /// Compares the results of an evaluation with those before; all ranks get the same verdict.
    pub(super) fn judge(&mut self, results: &[(String, f64)]) -> Result<Verdict> {
        let Some(args) = &self.config.save.best else { return Ok(Verdict::default()) };
        let value = results.iter().find(|(name, _)| *name == args.metric).map(|(_, value)| *value);
        let mut verdict = Verdict::default();
        if let (Some(journal), Some(value)) = (&mut self.journal, value) {
            verdict = best::judge(args, journal.state_mut(), value);
            if let (true, Some(patience), Some((step, metric))) =
                (verdict.stops, args.patience, best::best_evaluation(args, journal.state(), |_| true))
            {
                journal.message(&format!(
                    "early stopping: {} has not improved on {metric:.4} of step {step} in {patience} evaluations",
                    args.metric
                ))?;
            }
        }
        let warnings = [u8::from(verdict.is_best), u8::from(verdict.stops)];
        let warnings = self.accelerator.communicator().broadcast_bytes(0, &warnings)?;
        Ok(Verdict { is_best: warnings.first() == Some(&1), stops: warnings.get(1) == Some(&1) })
    }

    /// Whether the run had ended early before it was resumed.
    pub(super) fn had_stopped(&self) -> Result<bool> {
        let Some(args) = self.config.save.best.as_ref().filter(|args| args.patience.is_some()) else {
            return Ok(false);
        };
        let stopped = self.journal.as_ref().is_some_and(|journal| best::has_stopped(args, journal.state()));
        let warnings = self.accelerator.communicator().broadcast_bytes(0, &[u8::from(stopped)])?;
        Ok(warnings.first() == Some(&1))
    }

    /// Goes back to the best checkpoint, where the final model is to be that one.
    pub(super) fn load_best(&mut self) -> Result<()> {
        if !self.config.save.best.as_ref().is_some_and(|args| args.load_at_end) {
            return Ok(());
        }
        self.accelerator.communicator().set_phase("loading the best checkpoint");
        let output = &self.config.save.output_dir;
        let mut chosen = String::new();
        if let Some(journal) = &mut self.journal {
            let best = best::checkpoint(journal.state(), output);
            let whole = checkpoint::list(output)?.into_iter().filter(|listed| listed.problem.is_none());
            let found = whole.map(|listed| listed.path).find(|path| Some(path) == best.as_ref());
            let metric = journal.state().best_metric.unwrap_or(f64::NAN);
            match (&found, best) {
                (Some(dir), _) => {
                    journal.message(&format!("Loading best model from {} (score: {metric}).", dir.display()))?;
                }
                (None, Some(best)) => journal.message(&format!(
                    "warning: the best checkpoint {} is not there or not whole; the final model is the last one",
                    best.display()
                ))?,
                (None, None) => journal.message(
                    "warning: no checkpoint was evaluated, so there is no best one; the final model is the last one",
                )?,
            }
            chosen = found.map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
        }
        let chosen = self.accelerator.communicator().broadcast_bytes(0, chosen.as_bytes())?;
        if !chosen.is_empty() {
            // How far the run is stays as it is.
            let position = self.loader.position();
            self.accelerator.load_checkpoint(String::from_utf8_lossy(&chosen).as_ref().as_ref())?;
            self.loader.set_position(position);
        }
        Ok(())
    }
}

/// The results of an evaluation as the log names them.
pub(super) fn named(data: &EvalData, loss: f64, metrics: &Metrics) -> Vec<(String, f64)> {
    let of = data.name.as_ref().map_or(String::new(), |name| format!("{name}_"));
    let all = [("loss", loss)].into_iter().chain(metrics.iter().copied());
    all.map(|(metric, value)| (format!("eval_{of}{metric}"), value)).collect()
}
