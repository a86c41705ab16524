//! What the environment says about a training run: the ranks, from any launcher, and what Accelerate's launcher hands on.

use oarlock_comm::Launched;
use oarlock_config::dialect::accelerate::{Lookup, USE_FSDP, asks, take};
use oarlock_config::settings::location::Location;
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::Settings;
use oarlock_config::settings::value::boolean;

use super::accelerate::keys::{self, FLAGS, OF_DEEPSPEED, OF_FSDP, PRECISION, Variable};
use super::accelerate::{Engine, meaning};
use super::written::{Authority, Entry, Layer};
use super::yaml::Node;

pub use oarlock_config::dialect::accelerate::{said_by, said_in};

/// The settings that the environment makes; `read` looks up a variable. They must agree with what is written.
///
/// Any launcher says how many ranks there are; that of Accelerate says precision, accumulation, clipping and what
/// shards the states.
///
/// # Errors
/// If the ranks are on several machines, or a variable is not of its type.
pub fn layer(read: &Lookup<'_>) -> Result<Layer, Problems> {
    let mut entries: Vec<Entry> = ranks(read)?.into_iter().collect();
    entries.extend(on_cpu(read).map(|said| device_cpu(&said.location)));
    entries.extend(accelerate(read)?);
    Ok(Layer { authority: Authority::MustAgree, entries })
}

/// A value as the number of ranks.
pub fn number_of_ranks(value: Node) -> Entry {
    Entry::of("num_processes", value)
}

/// The setting that ranks compute on the CPU, as something else said.
pub fn device_cpu(location: &Location) -> Entry {
    Entry::new("device", "cpu".to_owned(), location)
}

/// The variable of Accelerate or DeepSpeed that asks for the CPU.
fn on_cpu(read: &Lookup<'_>) -> Option<Entry> {
    let deepspeed = said_in("DS_ACCELERATOR", read).filter(|said| said.value.word() == Some("cpu"));
    asks("ACCELERATE_USE_CPU", read).or(deepspeed)
}

/// Whether layers of settings, or the environment, ask for the CPU: where that decides by default how many ranks there
/// are, before everything is resolved.
pub fn asks_for_cpu(layers: &[Layer], read: &Lookup<'_>) -> bool {
    let last = |key: &str| {
        let mut all = layers.iter().flat_map(|layer| &layer.entries);
        all.rfind(|entry| entry.key == key).and_then(|entry| entry.value.word())
    };
    let is_on = |key: &str| last(key).and_then(boolean) == Some(true);
    last("device") == Some("cpu") || is_on("use_cpu") || is_on("no_cuda") || on_cpu(read).is_some()
}

/// How many ranks there are: what a launcher says that started this one (see [`Launched`]), else WORLD_SIZE.
fn ranks(read: &Lookup<'_>) -> Result<Option<Entry>, Problem> {
    let variable = |name: &str| said_in(name, read);
    let wrong = |name: &str, error: &oarlock_comm::Error| match variable(name) {
        Some(entry) => Problem::new(error.to_string()).at(&entry.value.location, "from the launcher"),
        None => Problem::new(error.to_string()),
    };
    let ranks = match Launched::read(read) {
        Ok(Some(launched)) => {
            let name = launched.world_size_variable;
            launched.transport().map_err(|error| wrong(name, &error))?;
            variable(name)
        }
        Ok(None) => variable("WORLD_SIZE"),
        Err(error @ oarlock_comm::Error::Variable { name, .. }) => return Err(wrong(name, &error)),
        Err(error) => return Err(Problem::new(error.to_string())),
    };
    Ok(ranks.map(|entry| number_of_ranks(entry.value)))
}

/// What Accelerate's launcher says.
fn accelerate(lookup: &Lookup<'_>) -> Result<Vec<Entry>, Problems> {
    let mut problems = Problems::default();
    let mut settings = Settings::of(FLAGS);
    let engine = match (asks("ACCELERATE_USE_DEEPSPEED", lookup), asks(USE_FSDP, lookup)) {
        (Some(entry), _) => Engine::DeepSpeed(entry.location),
        (None, Some(entry)) => Engine::Fsdp(entry.location),
        (None, None) => Engine::Plain,
    };
    let of_engine: &[Variable] = match engine {
        // Accumulation and clipping are among them, and count for every engine.
        Engine::DeepSpeed(_) | Engine::Plain => OF_DEEPSPEED,
        Engine::Fsdp(_) => OF_FSDP,
    };
    let precision = Variable { flag: keys::MIXED_PRECISION.row, name: PRECISION, lower: false };
    let accumulation = OF_DEEPSPEED.iter().filter(|one| one.flag.name.starts_with("gradient_"));
    let mut read: Vec<&Variable> = vec![&precision];
    read.extend(of_engine);
    if matches!(engine, Engine::Fsdp(_)) {
        read.extend(accumulation);
    }
    take(read.into_iter(), lookup, &mut settings, &mut problems);
    let mut entries = meaning::entries(&settings, &engine, &mut problems);
    match meaning::precision(&settings) {
        // A precision of none is what it says where nothing was chosen.
        Ok(precision) => entries.extend(precision.into_iter().filter(|one| one.value.word() == Some("true"))),
        Err(problem) => problems.push(problem),
    }
    problems.into_result(|| entries)
}
