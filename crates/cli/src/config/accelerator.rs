//! Reads `accelerator_config`: the settings of transformers that stand there are those of loaders that feed ranks, which here
//! have one form.

use oarlock_config::settings::keys::Key;
use oarlock_config::settings::kwargs::Kwargs;
use oarlock_config::settings::node::Entry;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

use super::table as keys;

/// The key.
const KEY: Key<Vec<Entry>> = keys::ACCELERATOR_CONFIG;

/// Checks that nothing is asked for that the loaders do not do; what is wrong with it goes to `problems`.
pub fn check(settings: &Settings, problems: &mut Problems) {
    let setting = settings.setting(KEY);
    if setting.broken {
        return;
    }
    let mut kwargs = Kwargs::new(KEY.name(), [setting, setting], settings.get(KEY), problems);
    // Which process reads a batch, and how it is copied, changes no batch.
    for name in ["dispatch_batches", "use_seedable_sampler", "non_blocking"] {
        kwargs.flag(name);
    }
    if kwargs.flag("split_batches") == Some(true) {
        kwargs.reject("`split_batches: true` is not supported: a batch size is that of each rank".to_owned());
    }
    if kwargs.flag("even_batches") == Some(false) {
        kwargs.reject("`even_batches: false` is not supported: every rank has as many batches".to_owned());
    }
    if kwargs.flag("use_configured_state") == Some(true) {
        kwargs.reject("`use_configured_state: true` is not supported: a run makes its own state".to_owned());
    }
    if kwargs.is_said("gradient_accumulation_kwargs") {
        kwargs.reject(
            "`gradient_accumulation_kwargs` is not supported: write gradient_accumulation_steps".to_owned(),
        );
    }
    kwargs.finish();
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MINIMUM, good, train};

    #[test]
    fn what_changes_nothing_is_taken_and_the_rest_is_refused() {
        good(
            "accelerator_config: {dispatch_batches: false, split_batches: false, even_batches: true, non_blocking: true}",
        );
        good("accelerator_config: {dispatch_batches: null, gradient_accumulation_kwargs: null}");
        for (text, message) in [
            ("{split_batches: true}", "a batch size is that of each rank"),
            ("{even_batches: false}", "every rank has as many batches"),
            ("{gradient_accumulation_kwargs: {num_steps: 2}}", "write gradient_accumulation_steps"),
            ("{dispatch_batch: true}", "did you mean `dispatch_batches`?"),
            ("{dispatch_batches: 7}", "`dispatch_batches` takes true or false"),
        ] {
            let problems = train(&format!("{MINIMUM}accelerator_config: {text}"), &[], &[]).unwrap_err();
            assert_eq!(problems.len(), 1, "{problems}");
            assert!(problems.to_string().contains(message), "{problems}");
        }
    }
}
