//! What the environment says about a training: the ranks, from any launcher, and what Accelerate's launcher hands on.

use std::sync::Arc;

use oarlock_comm::Launched;

use super::accelerate::keys::{FLAGS, OF_DEEPSPEED, OF_FSDP, PRECISION, Variable};
use super::accelerate::{Engine, meaning};
use super::dialect::{self, settle};
use super::problem::{Problem, Problems};
use super::resolve::{self, Settings};
use super::sharding::ShardArgs;
use super::source::{Place, Source, SourceKind};
use super::value::{Field, boolean};
use super::written::{Authority, Entry, Layer};
use super::yaml::{Data, Node};

/// What looks up a variable.
type Read<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The variable that asks for FSDP.
const USE_FSDP: &str = "ACCELERATE_USE_FSDP";

/// The settings that the environment makes; `read` looks up a variable. They must agree with what is written.
///
/// Any launcher says how many ranks there are; that of Accelerate says precision, accumulation, clipping and what
/// divides the states.
///
/// # Errors
/// If the ranks are on several machines, or a variable is not of its type.
pub fn layer(read: &Read<'_>) -> Result<Layer, Problems> {
    let variable = |name: &str| variable(name, read);
    let mut entries: Vec<Entry> = ranks(read, &variable)?.into_iter().collect();
    entries.extend(accelerate(&variable)?);
    Ok(Layer { authority: Authority::MustAgree, entries })
}

/// What FSDP's variables of Accelerate's launcher say is divided among so many ranks; `None` where it does not ask for FSDP.
///
/// # Errors
/// Everything that is wrong in them, or not there.
pub fn fsdp(read: &Read<'_>, ranks: usize) -> Result<Option<ShardArgs>, Problems> {
    let asks = |field: &Field| boolean(field.value.place.text().trim()) == Some(true);
    if variable(USE_FSDP, read).filter(asks).is_none() {
        return Ok(None);
    }
    let mut entries = accelerate(&|name| variable(name, read))?;
    entries.retain(|entry| entry.key == "fsdp_config");
    let (mut settings, mut problems) =
        resolve::resolve(&[Layer { authority: Authority::MustAgree, entries }]);
    let mut dialects = dialect::read(&mut settings, &mut problems);
    problems.append(dialects.missing());
    let ranks = i64::try_from(ranks).unwrap_or(i64::MAX);
    let (shard, _) = dialect::shard(&mut dialects, ranks, &mut problems);
    problems.into_result(|| Some(shard))
}

/// What a variable says, if it says anything.
pub fn variable(name: &str, read: &Read<'_>) -> Option<Field> {
    let text = read(name).filter(|value| !value.trim().is_empty())?;
    let value = said_by(name, text.trim());
    let place = Place { bytes: 0..name.len(), source: value.place.source.clone() };
    Some(Field { name: name.to_owned(), place, value })
}

/// A value that the environment says, by a variable or in another way that has a name.
pub fn said_by(name: &str, value: &str) -> Node {
    let text = format!("{name}={value}");
    let source = Arc::new(Source { kind: SourceKind::Environment, name: "environment".to_owned(), text });
    Node::scalar(value, Place { bytes: name.len() + 1..source.text.len(), source })
}

/// A value as the number of ranks.
pub fn number_of_ranks(value: Node) -> Entry {
    Entry { key: "num_processes".to_owned(), inner: None, place: value.place.clone(), value }
}

/// How many ranks there are: what a launcher says that started this one (see [`Launched`]), else WORLD_SIZE.
fn ranks(read: &Read<'_>, variable: &dyn Fn(&str) -> Option<Field>) -> Result<Option<Entry>, Problem> {
    let wrong = |name: &str, error: &oarlock_comm::Error| match variable(name) {
        Some(field) => Problem::new(error.to_string()).at(&field.value.place, "from the launcher"),
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
    Ok(ranks.map(|field| number_of_ranks(field.value)))
}

/// What Accelerate's launcher says.
fn accelerate(variable: &dyn Fn(&str) -> Option<Field>) -> Result<Vec<Entry>, Problems> {
    let mut problems = Problems::default();
    let mut settings = Settings::of(FLAGS);
    let on =
        |name: &str| variable(name).filter(|field| boolean(field.value.place.text().trim()) == Some(true));
    let engine = match (on("ACCELERATE_USE_DEEPSPEED"), on(USE_FSDP)) {
        (Some(field), _) => Engine::DeepSpeed(field.place),
        (None, Some(field)) => Engine::Fsdp(field.place),
        (None, None) => Engine::Plain,
    };
    let of_engine: &[Variable] = match engine {
        // Accumulation and clipping are among them, and count for every engine.
        Engine::DeepSpeed(_) | Engine::Plain => OF_DEEPSPEED,
        Engine::Fsdp(_) => OF_FSDP,
    };
    let precision = Variable { flag: "mixed_precision", name: PRECISION, lower: false };
    let accumulation = OF_DEEPSPEED.iter().filter(|one| one.flag.starts_with("gradient_"));
    let mut read: Vec<&Variable> = vec![&precision];
    read.extend(of_engine);
    if matches!(engine, Engine::Fsdp(_)) {
        read.extend(accumulation);
    }
    for one in read {
        if let (Some(field), Some(setting)) = (variable(one.name), settings.get_mut(one.flag))
            && let Err(problem) = settle(setting, &field)
        {
            problems.push(problem);
        }
    }
    let mut entries = meaning::entries(&settings, &engine, &mut problems);
    match meaning::precision(&settings) {
        // A precision of none is what it says where nothing was chosen.
        Ok(precision) => entries.extend(precision.into_iter().filter(is_on)),
        Err(problem) => problems.push(problem),
    }
    problems.into_result(|| entries)
}

fn is_on(entry: &Entry) -> bool {
    matches!(&entry.value.data, Data::Scalar { text, .. } if text == "true")
}
