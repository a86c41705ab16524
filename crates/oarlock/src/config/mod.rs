//! Configuration: what was written in files, arguments and the environment becomes one immutable plan in which
//! every value knows its origin.
//!
//! [`written`] reads texts into entries, [`resolve`] joins them into one setting for every key of the
//! [`table`], [`dialect`] adds what blocks of other programs' configurations say, [`build`] turns the settings into a [`TrainConfig`]. All problems are reported together.

pub mod accelerate;
pub mod build;
mod checks;
mod deepspeed;
pub mod dialect;
pub mod environment;
pub mod explain;
pub mod flags;
pub mod keys;
mod kwargs;
mod model;
pub mod monitor;
mod optimizer;
pub mod paths;
pub mod plan;
pub mod problem;
mod recompute;
pub mod resolve;
mod schedule;
pub mod shape;
pub mod sharding;
pub mod source;
pub mod table;
pub mod value;
pub mod words;
pub mod written;
pub mod yaml;

#[cfg(test)]
mod tests;

pub use deepspeed::{DeepSpeedConfig, DeepSpeedPlan};
pub use monitor::*;
pub use plan::*;
pub use problem::{Problem, Problems};
pub use shape::*;
pub use sharding::*;
pub use source::Origin;
pub use words::Words;
pub use written::Arguments;

/// The configuration of `oarlock train FILE.yaml key=value …`; `environment` looks up a variable.
///
/// # Errors
/// Everything that is wrong or not there, all at once.
pub fn train_config(
    arguments: &Arguments,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<TrainConfig, Problems> {
    train_config_of(arguments.layers()?, environment)?.complete()
}

/// The configuration that layers of settings say together, later ones over earlier ones, and then the environment.
/// It may ask for what is not there: see [`TrainConfig::missing`].
///
/// # Errors
/// Everything that is wrong, all at once, and then also what is not there.
pub fn train_config_of(
    mut layers: Vec<written::Layer>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<TrainConfig, Problems> {
    layers.insert(0, monitor::environment(environment));
    let refused = match environment::layer(environment) {
        Ok(layer) => {
            layers.push(layer);
            Problems::default()
        }
        Err(problems) => problems,
    };
    let (mut settings, mut problems) = resolve::resolve(&layers);
    problems.append(refused);
    let dialects = dialect::read(&mut settings, &mut problems);
    let mut config = build::build(settings, dialects, problems)?;
    dialect::auto::tell(&mut config);
    Ok(config)
}
