//! The end of a run: the last evaluation, the final model, the figures of the whole.

use oarlock_comm::{ProcessMemory, Scalar};
use oarlock_config::config::{Finetuning, ObjectiveArgs, TrainConfig};
use oarlock_engine::Result;

use super::state::Run;
use crate::train::lock::OutputLock;
use crate::train::model::convert;
use crate::train::written::CONVERTED;

impl Run<'_> {
    pub(super) fn finish(&mut self) -> Result<()> {
        let done = self.done;
        if self.config.eval.at_end {
            self.evaluate(done)?;
        }
        if self.config.train.enabled {
            self.accelerator.communicator().set_phase("saving the model");
            self.lock.iter_mut().try_for_each(OutputLock::renew)?;
            let output = &self.config.save.output_dir;
            self.accelerator.save_pretrained(&self.model, output, self.model_files()?)?;
            self.convert_pissa()?;
        }
        // All together, so that pages that ranks share are counted alike.
        self.accelerator.wait_for_everyone()?;
        let mut memory = [ProcessMemory::current().map_or(0.0, |own| own.pss as f64)];
        self.accelerator.communicator().all_reduce_f64(&mut memory, Scalar::Max)?;
        let mut first = done;
        if let Some(journal) = &mut self.journal {
            first = journal.first_step();
            let samples = self.loader.position() - self.first_position;
            journal.finish(samples, done - first)?;
            if self.skipped > 0 {
                journal.message(&format!(
                    "{} of {done} steps were skipped: their gradients were not finite in f16",
                    self.skipped
                ))?;
            }
        }
        // The model is on the disk by now, whatever becomes of its answers; and what they take was not predicted.
        self.predict()?;
        if self.config.train.enabled {
            self.write_card()?;
        }
        if let Some(journal) = &mut self.journal {
            let output = self.config.save.output_dir.display();
            let word = if self.non_finite.is_empty() { "done" } else { "ended" };
            let mut text = match &self.resumed {
                Some(dir) if self.config.train.enabled && done == first => format!(
                    "nothing was trained: this run was finished already, and {} is its last step; to train further, write a \
                     larger num_train_epochs or max_steps (and early_stopping_steps, where that has ended it); model and logs \
                     are in {output}",
                    dir.display()
                ),
                _ if !self.config.train.enabled => {
                    format!("{word}: nothing was trained; the results are in {output}")
                }
                _ => format!("{word}: {done} steps; model and logs are in {output}"),
            };
            text.push_str(&format!("\ntime by phase: {}", self.timer.take()));
            let again = self.accelerator.device().profile().recomputing();
            if !again.is_zero() && done > first {
                let millis = again.as_secs_f64() * 1e3 / (done - first) as f64;
                text.push_str(&format!("\nactivation checkpointing: recomputing took {millis:.1} ms a step"));
            }
            let staged = self.accelerator.device().staged_ops();
            if !staged.is_empty() {
                text.push_str(&format!(
                    "\nrun on the CPU between copies, without a form for the GPU: {}",
                    staged.join(", ")
                ));
            }
            if let Some(line) =
                self.forecast.as_mut().and_then(|forecast| forecast.compared(memory[0] as u64))
            {
                text.push_str(&format!("\n{line}"));
            }
            journal.message(&text)?;
            if let Some(command) = trial(self.config).filter(|_| word == "done" && done > first) {
                journal.hint(&format!("try it: {command}"));
            }
        }
        self.accelerator.wait_for_everyone()?;
        self.settle_doubts()
    }

    /// Writes the adapter of PiSSA that was saved last as one of the base as it was, where that is asked for.
    fn convert_pissa(&mut self) -> Result<()> {
        let (Finetuning::Adapter(args), Some(journal)) = (&self.config.train.finetuning, &mut self.journal)
        else {
            return Ok(());
        };
        if !args.convert_pissa {
            return Ok(());
        }
        let dir = &self.config.save.output_dir;
        if !self.adaptation.as_ref().is_some_and(|adaptation| adaptation.config.is_pissa()) {
            return journal.message("`pissa_convert` changes nothing: the adapter did not begin with PiSSA");
        }
        let out = dir.join(CONVERTED);
        convert(self.config, &self.hf, dir, &out, self.accelerator.device())?;
        journal.message(&format!("Converted PiSSA adapter saved at: {}.", out.display()))
    }
}

/// The command by which a person tries what was trained; none for models that write no text, and for adapters, whose base it
/// would have to name as this run found it.
fn trial(config: &TrainConfig) -> Option<String> {
    let writes = !matches!(config.train.objective, ObjectiveArgs::Rewards);
    let whole = !matches!(config.train.finetuning, Finetuning::Adapter(_));
    let output = config.save.output_dir.to_str().filter(|name| name.chars().all(is_plain));
    let output = output.filter(|_| writes && whole && config.train.enabled)?;
    Some(match config.data.chat {
        Some(_) => format!("oarlock chat {output}"),
        None => format!("oarlock generate {output} --prompt \"Once upon a time\""),
    })
}

/// Whether a shell takes a letter as it is.
fn is_plain(letter: char) -> bool {
    letter.is_alphanumeric() || "/._-+=@%".contains(letter)
}
