//! Configuration: what was written in files, arguments and the environment becomes one immutable [`ResolvedConfig`] in which
//! every value knows its origin.
//!
//! [`written`] reads texts into entries, [`resolve`] joins them into one setting for every key of the [`table`],
//! [`dialect`] adds what blocks of other programs' configurations say, [`build`] turns the settings into values. All
//! problems are reported together.

pub mod accelerate;
mod accelerator;
mod auto;
mod best;
pub mod build;
mod checks;
pub mod defaults;
pub mod environment;
pub mod explain;
pub mod export;
pub mod finetuning;
pub mod flags;
pub mod hub;
pub mod hub_data;
pub mod language;
mod learning;
mod low_rank;
mod model;
pub mod monitor;
mod new_tokens;
pub mod objective;
mod other_methods;
pub mod paths;
mod pipeline;
mod predicting;
mod quantization;
mod recompute;
pub mod render;
pub mod resolved;
pub mod table;
pub mod texts;
pub mod words;
pub mod written;
pub mod yaml;

#[cfg(test)]
mod dialect_tests;
#[cfg(test)]
mod tests;

use resolve::Settings;

pub use oarlock::config::*;
pub use oarlock_config::dialect;
pub use oarlock_config::settings::location::Origin;
pub use oarlock_config::settings::{Problem, Problems, keys, location, problem, resolve, value};
pub use resolved::ResolvedConfig;
pub use words::Words;
pub use written::Arguments;

/// The configuration of `oarlock train FILE.yaml key=value …`; `environment` looks up a variable.
///
/// # Errors
/// Everything that is wrong or not there, all at once.
pub fn train_config(
    arguments: &Arguments,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<ResolvedConfig, Problems> {
    train_config_of(arguments.layers()?, environment)?.complete()
}

/// The configuration that layers of settings say together, later ones over earlier ones, and then the environment.
/// It may ask for what is not there: see [`ResolvedConfig::missing`].
///
/// # Errors
/// Everything that is wrong, all at once, and then also what is not there.
pub fn train_config_of(
    mut layers: Vec<written::Layer>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<ResolvedConfig, Problems> {
    if let Some(problem) = table::newer_format(&layers) {
        return Err(problem.into());
    }
    layers.insert(0, monitor::environment(environment));
    let refused = match environment::layer(environment) {
        Ok(layer) => {
            layers.push(layer);
            Problems::default()
        }
        Err(problems) => problems,
    };
    let (mut settings, mut problems) = (Settings::of(table::KEYS), Problems::default());
    for layer in &layers {
        resolve::add(layer, &mut settings, &table::unknown, &mut problems);
    }
    problems.append(refused);
    let dialects = dialect::read(&mut settings, &yaml::file, &mut problems);
    let mut config = build::build(settings, dialects, problems)?;
    auto::describe(&mut config);
    config.values.description = config.description();
    Ok(config)
}
