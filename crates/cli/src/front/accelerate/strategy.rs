//! What ranks run on and what shards their states: by flags, by the file, and by what the other flags imply.

use crate::config::Problems;
use crate::config::accelerate::keys::DEEPSPEED;
use crate::config::accelerate::{Engine, File};
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
        let flag = flags.get("cpu").location().filter(|_| flags.bool("cpu"));
        let own = |name| file.and_then(|file| file.own.get(name).location());
        flag.or_else(|| own("use_cpu")).or(self.location.as_ref()).cloned()
    }

    /// What to say of `--cpu` beside this strategy. What shards states is said of a training alone, since in a program
    /// that is not of ours it is up to the program.
    pub fn cpu_note(&self, flags: &Settings, trains: bool) -> Option<String> {
        if !flags.bool("cpu") || self.kind == DistributedType::No {
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
const CHOOSING: [(&str, DistributedType); 4] = [
    ("multi_gpu", DistributedType::Ddp),
    ("use_deepspeed", DistributedType::DeepSpeed),
    ("use_fsdp", DistributedType::Fsdp),
    ("use_megatron_lm", DistributedType::MegatronLm),
];

/// Those of them that are given.
fn chosen(flags: &Settings) -> Vec<(&'static str, DistributedType)> {
    CHOOSING.into_iter().filter(|(name, _)| flags.bool(name)).collect()
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
        let names: Vec<&str> = chosen.iter().map(|(name, _)| *name).collect();
        let written: Vec<String> = names.iter().map(|name| format!("`--{name}`")).collect();
        let problem = flags.problem(format!("{} exclude each other", written.join(" and ")), &names);
        problems.push(problem.help("keep one of them; `--cpu` goes with each"));
    }
    let mut strategy = match (chosen.first(), file) {
        (Some((name, kind)), _) => {
            Strategy { kind: *kind, location: flags.get(name).location().cloned(), cpu: false }
        }
        (None, Some(file)) => of_file(file, problems),
        (None, None) => Strategy { kind: DistributedType::No, location: None, cpu: false },
    };
    strategy.cpu |= flags.bool("cpu") || file.is_some_and(|file| file.own.bool("use_cpu"));
    described(flags, &mut strategy, notes, problems);
    strategy
}

/// What a file chooses.
fn of_file(file: &File, problems: &mut Problems) -> Strategy {
    let setting = file.own.get("distributed_type");
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
                    .problem(message, &["distributed_type"])
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
        flags.iter().find(|setting| of(setting.key.name) && flags.said(setting.key.name).is_some())
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
            let problem =
                flags.problem(format!("`--{name}` is of {title}, and another engine is chosen"), &[name]);
            let problem = match &strategy.location {
                Some(location) => problem.at(location, "chosen here"),
                None => problem,
            };
            problems.push(problem.help("keep one of them"));
        }
    }
}
