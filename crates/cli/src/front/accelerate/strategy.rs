//! What ranks run on and what shards their states: by flags, by the file, and by what the other flags imply.

use crate::config::Problems;
use crate::config::accelerate::keys;
use crate::config::accelerate::keys::DEEPSPEED;
use crate::config::accelerate::{Engine, File};
use crate::config::keys::{Key, Row};
use crate::config::location::Location;
use crate::config::resolve::Settings;
use crate::config::value::Value;

/// How the ranks are parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DistributedType {
    /// One process that knows of no other.
    No,
    /// Data parallel ranks.
    Ddp,
    /// DeepSpeed.
    DeepSpeed,
    /// FSDP.
    Fsdp,
    /// Megatron-LM.
    MegatronLm,
}

/// What ranks run on and what shards their states.
#[derive(Clone, Debug)]
pub(super) struct Strategy {
    /// How the ranks are parallel.
    pub kind: DistributedType,
    /// Where it is written.
    pub location: Option<Location>,
    /// They run on the CPU.
    pub cpu: bool,
}

impl Strategy {
    /// The sharding of an Oarlock run.
    pub fn engine(&self) -> Engine {
        match (self.kind, &self.location) {
            (DistributedType::DeepSpeed, Some(location)) => Engine::DeepSpeed(location.clone()),
            (DistributedType::Fsdp, Some(location)) => Engine::Fsdp(location.clone()),
            _ => Engine::Plain,
        }
    }

    /// Where the CPU is asked for.
    pub fn cpu_location(&self, flags: &Settings, file: Option<&File>) -> Option<Location> {
        let flag = flags.setting(keys::CPU).location().filter(|_| flags.get(keys::CPU));
        let own = || file.and_then(|file| file.own.setting(keys::USE_CPU).location());
        flag.or_else(own).or(self.location.as_ref()).cloned()
    }

    /// What to say of `--cpu` beside this strategy. What shards states is said of a training run alone, since in a
    /// program that is not of ours it is up to the program.
    pub fn cpu_note(&self, flags: &Settings, trains: bool) -> Option<String> {
        if !flags.get(keys::CPU) || self.kind == DistributedType::No {
            return None;
        }
        let what = self.location.as_ref().map(|location| format!(" ({location})")).unwrap_or_default();
        match (chosen(flags).first(), self.kind) {
            (Some((name, _)), _) => Some(format!(
                "--cpu chooses where ranks run, --{name} how they stand to each other; Accelerate takes only one of them"
            )),
            (None, DistributedType::Ddp) => Some(format!(
                "--cpu chooses where ranks run, and there are as many{what}; Accelerate would start one process"
            )),
            (None, _) => trains.then(|| {
                format!(
                    "--cpu chooses where ranks run, and what shards their states stays{what}; Accelerate would start one \
                     process and shard nothing"
                )
            }),
        }
    }
}

/// The flags that choose, of which one at most may stand.
const CHOOSING: [(Key<bool>, DistributedType); 4] = [
    (keys::MULTI_GPU, DistributedType::Ddp),
    (keys::USE_DEEPSPEED, DistributedType::DeepSpeed),
    (keys::USE_FSDP, DistributedType::Fsdp),
    (keys::USE_MEGATRON_LM, DistributedType::MegatronLm),
];

/// Those of them that are given.
fn chosen(flags: &Settings) -> Vec<(Key<bool>, DistributedType)> {
    CHOOSING.into_iter().filter(|(key, _)| flags.get(*key)).collect()
}

/// Chooses. Flags weigh more than the file, and what they describe more than what they call it.
pub(super) fn choose(
    flags: &Settings,
    file: Option<&File>,
    notes: &mut Vec<String>,
    problems: &mut Problems,
) -> Strategy {
    let chosen = chosen(flags);
    if chosen.len() > 1 {
        let rows: Vec<&Row> = chosen.iter().map(|(key, _)| key.row).collect();
        let written: Vec<String> = rows.iter().map(|key| format!("`--{key}`")).collect();
        let problem = flags.problem(format!("{} are mutually exclusive", written.join(" and ")), &rows);
        problems.push(problem.help("keep one of them; `--cpu` goes with each"));
    }
    let mut strategy = match (chosen.first(), file) {
        (Some((key, kind)), _) => {
            Strategy { kind: *kind, location: flags.setting(*key).location().cloned(), cpu: false }
        }
        (None, Some(file)) => of_file(file, problems),
        (None, None) => Strategy { kind: DistributedType::No, location: None, cpu: false },
    };
    strategy.cpu |= flags.get(keys::CPU) || file.is_some_and(|file| file.own.get(keys::USE_CPU));
    described(flags, &mut strategy, notes, problems);
    strategy
}

/// What a file chooses.
fn of_file(file: &File, problems: &mut Problems) -> Strategy {
    let setting = file.own.setting(keys::DISTRIBUTED_TYPE);
    let name = match &setting.value {
        Value::Text(name) => name.as_str(),
        _ => "NO",
    };
    let kind = match name {
        "NO" => DistributedType::No,
        "DEEPSPEED" => DistributedType::DeepSpeed,
        "FSDP" => DistributedType::Fsdp,
        "MEGATRON_LM" => DistributedType::MegatronLm,
        "MULTI_CPU" | "MULTI_GPU" => DistributedType::Ddp,
        _ => {
            let message = format!("`distributed_type: {name}` asks for devices that ranks do not run on");
            problems.push(
                file.own
                    .problem(message, &[keys::DISTRIBUTED_TYPE.row])
                    .help("write MULTI_GPU, or MULTI_CPU for ranks on cores"),
            );
            DistributedType::Ddp
        }
    };
    Strategy { kind, location: setting.location().cloned(), cpu: name == "MULTI_CPU" }
}

/// Flags of DeepSpeed or FSDP mean DeepSpeed or FSDP.
fn described(flags: &Settings, strategy: &mut Strategy, notes: &mut Vec<String>, problems: &mut Problems) {
    let of_deepspeed = |name: &str| DEEPSPEED.contains(&name) && !name.starts_with("gradient_");
    let first = |of: &dyn Fn(&str) -> bool| {
        flags.iter().find(|setting| of(setting.key.name) && flags.said(setting.key).is_some())
    };
    let found = [
        (first(&of_deepspeed), DistributedType::DeepSpeed, "use_deepspeed", "DeepSpeed"),
        (first(&|name| name.starts_with("fsdp_")), DistributedType::Fsdp, "use_fsdp", "FSDP"),
    ];
    for (setting, kind, flag, title) in found {
        let Some(setting) = setting.filter(|_| strategy.kind != kind) else { continue };
        let name = setting.key.name;
        if matches!(strategy.kind, DistributedType::No | DistributedType::Ddp) {
            notes.push(format!(
                "--{name} means {title}, so {title} it is; Accelerate divides nothing and never reads the flag without \
                 --{flag}"
            ));
            strategy.kind = kind;
            strategy.location = setting.location().cloned();
        } else {
            let problem = flags
                .problem(format!("`--{name}` is of {title}, and another engine is chosen"), &[setting.key]);
            let problem = match &strategy.location {
                Some(location) => problem.at(location, "chosen here"),
                None => problem,
            };
            problems.push(problem.help("keep one of them"));
        }
    }
}
