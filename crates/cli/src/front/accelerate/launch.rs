//! `accelerate launch`: turns the flags and the file into processes and the settings of their training. Where Accelerate
//! ignores a setting, this command follows it and prints a note.

use crate::config::accelerate::keys;
use std::time::{Duration, SystemTime};

use crate::config::accelerate::keys::FLAGS;
use crate::config::accelerate::{File, meaning};
use crate::config::environment;
use crate::config::flags::{Abbreviations, Flags, Parsed};
use crate::config::keys::{Key, Row, Status};
use crate::config::location::ValueSource;
use crate::config::resolve::{Settings, refuse};
use crate::config::value::boolean;
use crate::config::written::{Authority, Entry, Layer};
use crate::config::yaml::Data;
use crate::config::{Problem, Problems, Words, train_config_of};
use crate::console::{Outcome, print};
use crate::front::job::{Job, Program};
use crate::front::script::{self, Call, Script};
use crate::front::training::Training;
use crate::front::variable::env_var;
use crate::launch::devices::Devices;
use crate::launch::spec::{Binding, Nodes, Output, PerRank, Restarts};
use crate::launch::{self, Launch};

use super::command::COMMAND;
use super::machines::{LaunchSettings, PORT, Ranks};
use super::strategy::{self, DistributedType, Strategy};
use super::{cluster, exported};

/// The flags of the command.
pub(super) const LAUNCH: Flags = Flags {
    command: "accelerate launch",
    operands: "SCRIPT [arguments]",
    example: "accelerate launch --num_processes 2 src/train.py recipes/sft.yaml",
    about: "Starts an Oarlock run, or any program, on several processes.",
    keys: FLAGS,
    aliases: &[("q", "quiet"), ("m", "module"), ("t", "tee")],
    abbreviations: Abbreviations::None,
    ..COMMAND
};

/// This machine, as far as a launch depends on it.
pub(super) struct Machine<'a> {
    /// Its devices, where these GPUs alone are visible.
    pub devices: &'a dyn Fn(Option<&str>) -> Devices,
    /// Looks up a variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

/// What the words of a command mean.
pub(super) struct Resolved {
    pub launch: Launch,
    pub script: Script,
    /// The settings of an Oarlock run.
    pub layers: Vec<Layer>,
    pub notes: Vec<String>,
    /// Whether the number of ranks is a default.
    pub ranks_are_default: bool,
}

/// Runs the command.
pub(super) fn run(words: &Words, started: SystemTime) -> Outcome {
    let parsed = LAUNCH.parse(words, &mut Problems::default());
    if parsed.help {
        return print(&LAUNCH.help());
    }
    let machine = Machine { devices: &Devices::here, environment: &env_var };
    let resolved = resolve(words, &machine)?;
    let again = ["accelerate", "launch"].map(str::to_owned).into_iter().chain(words.to_vec());
    job(again.collect(), resolved, &parsed)?.run(started)
}

/// The job of what was resolved.
fn job(words: Vec<String>, resolved: Resolved, parsed: &Parsed) -> Result<Job, Problems> {
    let Resolved { launch, script, layers, notes, ranks_are_default } = resolved;
    let mut job = Job::new(words, launch, script, layers, parsed)?;
    if let (Program::Training(config), true) = (&job.program, ranks_are_default) {
        // The run's configuration decides.
        job.launch.nodes = Nodes::Static { ranks: vec![config.ranks.num_processes], this: 0 };
    }
    if job.launch.quiet {
        job.notes.clear();
    } else {
        job.notes.splice(0..0, notes);
    }
    Ok(job)
}

/// What words mean on a machine.
///
/// # Errors
/// Everything that is wrong, all at once.
pub(super) fn resolve(words: &Words, machine: &Machine) -> Result<Resolved, Problems> {
    let mut problems = Problems::default();
    let parsed = LAUNCH.parse(words, &mut problems);
    let flags = &parsed.settings;
    let file = cluster::launch_settings(flags.get(keys::CONFIG_FILE), machine.environment);
    let file = file.unwrap_or_else(|wrong| {
        problems.append(wrong);
        None
    });
    let mut all = match &file {
        Some(file) => flags.clone().over(&file.settings),
        None => flags.clone(),
    };
    refuse(&mut all, &mut problems);
    let (mut notes, mut defaulted) = (Vec::new(), Vec::new());
    let mut strategy = strategy::choose(flags, file.as_ref(), &mut notes, &mut problems);
    let chosen = strategy.clone();
    let visible = all.get(keys::GPU_IDS).filter(|ids| *ids != "all").map(str::to_owned);
    let visible = visible.or_else(|| (machine.environment)("CUDA_VISIBLE_DEVICES"));
    let devices = (machine.devices)(visible.as_deref());
    let settings = LaunchSettings { flags, all: &all, file: file.as_ref(), devices: &devices };
    let ranks = settings.ranks(&strategy, &mut defaulted, &mut problems);
    several(&ranks, &mut strategy, &mut notes);
    let (nodes, master) = settings.nodes(&ranks, &mut defaulted, &mut problems);

    let mut launch = Launch::local(1);
    launch.nodes = nodes;
    launch.master = master;
    launch.rdzv_conf = settings.conf(&mut problems);
    let each = launch.local_ranks();
    let stays = parsed.dry_run || parsed.print_config;
    if let Some(problem) = settings.gpus(each, &strategy) {
        if stays {
            notes.push(format!("to be started here, it lacks something: {}", problem.line()));
        } else {
            problems.push(problem);
        }
    }
    surroundings(&all, &mut launch, &mut problems);
    let call = Call { module: all.get(keys::MODULE), no_python: all.get(keys::NO_PYTHON) }.checked(
        &all,
        [keys::MODULE.row, keys::NO_PYTHON.row],
        &mut problems,
    );
    let script = script::resolve(&parsed.rest, call, LAUNCH.command);
    let machines = launch.worker(0, 0).local_ranks.len();
    let command = |name: &str| settings.deepspeed_command(name, each, &launch.master, &parsed.rest.to_vec());
    let several = machines > 1 && strategy.kind == DistributedType::DeepSpeed;
    starters(&all, several.then_some(&command), &mut notes, &mut problems);
    let Some(script) = script.map_err(|wrong| problems.append(wrong)).ok() else { return Err(problems) };
    notes.extend(chosen.cpu_note(flags, matches!(script, Script::Training(_))));
    let mut layers = Vec::new();
    match &script {
        Script::Training(training) => {
            if launch.master.port == 0 {
                // Its ranks meet in shared memory, and only see the port.
                launch.master.port = PORT;
            }
            if let Some(ids) = all.get(keys::GPU_IDS).filter(|ids| *ids != "all") {
                launch.env = vec![("CUDA_VISIBLE_DEVICES".to_owned(), ids.to_owned())];
            }
            layers = training_layers(&settings, &strategy, &ranks, training, &mut notes, &mut problems);
            launch.threads = all
                .said(keys::NUM_CPU_THREADS_PER_PROCESS)
                .map(|_| all.get(keys::NUM_CPU_THREADS_PER_PROCESS).unwrap_or_default());
        }
        Script::Command(_) => {
            launch.alone = strategy.kind == DistributedType::No && machines == 1 && each == 1;
            launch.threads = threads(&settings, &strategy, each, machine, &mut defaulted);
            let here = std::env::current_dir().map(|path| path.display().to_string()).unwrap_or_default();
            let paths = (machine.environment)("PYTHONPATH");
            launch.env = exported::variables(&all, file.as_ref(), &strategy, paths.as_deref(), &here);
            programs(&all, file.as_ref(), &strategy, &mut notes, &mut problems);
        }
    }
    without_meaning(&all, file.as_ref(), &script, &mut notes);
    if file.is_none() {
        for key in [keys::MIXED_PRECISION, keys::DYNAMO_BACKEND] {
            if flags.setting(key).location().is_none() {
                defaulted.push(format!("`--{key}` was set to a value of `'no'`"));
            }
        }
        notes.insert(0, defaults_note(&defaulted));
    }
    notes.retain(|note| !note.is_empty());
    if let Script::Training(training) = &script
        && !problems.is_empty()
    {
        // The problems of the run itself are reported together with the others.
        let layers = training.layers.iter().chain(&layers).cloned().collect();
        problems.append(match train_config_of(layers, machine.environment) {
            Ok(config) => config.missing(),
            Err(wrong) => wrong,
        });
    }
    let ranks_are_default = ranks.location.is_none() && file.is_none();
    problems.into_result(|| Resolved { launch, script, layers, notes, ranks_are_default })
}

/// Several ranks without another strategy are data parallel.
fn several(ranks: &Ranks, strategy: &mut Strategy, notes: &mut Vec<String>) {
    if ranks.count < 2 || strategy.kind != DistributedType::No {
        return;
    }
    strategy.kind = DistributedType::Ddp;
    if strategy.cpu
        || ranks.location.as_ref().is_some_and(|location| location.source.read_from == ValueSource::File)
    {
        notes.push(format!(
            "{} processes are asked for, so as many data parallel ranks start; Accelerate would start one process here",
            ranks.count
        ));
    }
}

/// Who starts the machines of DeepSpeed, where there are several: `command` is what Accelerate would run then.
fn starters(
    all: &Settings,
    command: Option<impl Fn(&str) -> String>,
    notes: &mut Vec<String>,
    problems: &mut Problems,
) {
    let name = all.get(keys::DEEPSPEED_MULTINODE_LAUNCHER);
    let Some(command) = command.filter(|_| name != Some("standard")) else {
        let unread =
            [keys::DEEPSPEED_HOSTFILE, keys::DEEPSPEED_EXCLUSION_FILTER, keys::DEEPSPEED_INCLUSION_FILTER];
        let unread: Vec<&str> =
            unread.into_iter().filter(|key| all.said(*key).is_some()).map(Key::name).collect();
        if !unread.is_empty() {
            notes.push(format!(
                "nobody reads {} here, nor with Accelerate: they are for launchers that start several machines \
                 (deepspeed_multinode_launcher)",
                unread.join(", ")
            ));
        }
        return;
    };
    match name {
        Some(name) => {
            let message = format!("`{name}` starts the machines of a hostfile, which is what `deepspeed` does");
            problems.push(all.problem(message, &[keys::DEEPSPEED_MULTINODE_LAUNCHER.row]).help(format!(
                "run `{}`, which is what Accelerate would run; or write `standard`, and start this command on each machine",
                command(name)
            )));
        }
        None => notes.push(format!(
            "this command starts this machine only (deepspeed_multinode_launcher: standard); Accelerate would run `{}`",
            command("pdsh")
        )),
    }
}

/// Restarts, output, cores.
fn surroundings(all: &Settings, launch: &mut Launch, problems: &mut Problems) {
    launch.restarts = Restarts {
        max: u32::try_from(all.get(keys::MAX_RESTARTS)).unwrap_or(u32::MAX),
        // A tenth of a second is the least that makes sense, a day the most.
        monitor_interval: Duration::from_secs_f64(all.get(keys::MONITOR_INTERVAL).clamp(0.001, 86400.0)),
    };
    launch.role = match all.get(keys::ROLE) {
        "" => keys::ROLE.row.default.to_owned(),
        role => role.to_owned(),
    };
    launch.quiet = all.get(keys::QUIET);
    if all.get(keys::ENABLE_CPU_AFFINITY) {
        launch.binding = Binding::Share;
    }
    let tee = all.get(keys::TEE);
    let tee = PerRank::parse(tee).unwrap_or_else(|| {
        let help = "write 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), or by local rank as in 0:3,1:1";
        problems.push(all.problem(format!("`{tee}` says no streams"), &[keys::TEE.row]).help(help));
        PerRank::default()
    });
    launch.output = Output { log_dir: all.get(keys::LOG_DIR).map(Into::into), tee, ..Output::default() };
}

/// OMP_NUM_THREADS of a program: the flag, else the variable, else on the CPU the share of the cores, else one.
fn threads(
    settings: &LaunchSettings,
    strategy: &Strategy,
    each: usize,
    machine: &Machine,
    defaulted: &mut Vec<String>,
) -> Option<usize> {
    if settings.all.said(keys::NUM_CPU_THREADS_PER_PROCESS).is_some() {
        return Some(settings.all.get(keys::NUM_CPU_THREADS_PER_PROCESS).unwrap_or_default());
    }
    if strategy.kind == DistributedType::DeepSpeed && !strategy.cpu {
        return None;
    }
    let variable = (machine.environment)("OMP_NUM_THREADS").and_then(|text| text.parse::<usize>().ok());
    let share = settings.devices.cores / each.max(1);
    if variable.is_none() && strategy.cpu && settings.all.said(keys::NUM_PROCESSES).is_some() && share > 1 {
        defaulted.push(format!("`--num_cpu_threads_per_process` was set to `{share}`, the cores of a rank"));
        return Some(share);
    }
    Some(variable.unwrap_or(1).max(1))
}

/// The settings of an Oarlock run.
fn training_layers(
    settings: &LaunchSettings,
    strategy: &Strategy,
    ranks: &Ranks,
    training: &Training,
    notes: &mut Vec<String>,
    problems: &mut Problems,
) -> Vec<Layer> {
    let (all, file) = (settings.all, settings.file);
    if strategy.kind == DistributedType::MegatronLm {
        let problem = Problem::new(
            "Megatron-LM divides layers and matrices, and the ranks of an Oarlock run hold complete ones",
        );
        let problem = strategy.location.iter().fold(problem, |problem, location| problem.at(location, ""));
        problems.push(problem.help("choose DEEPSPEED or FSDP to divide states, gradients and parameters"));
    }
    if exported::parallel(all, file) {
        parallel(all, ranks, problems);
    }
    if let Some(file) = file {
        refuse(&mut file.own.clone(), problems);
    }
    if all.said(keys::DEEPSPEED_MOE_LAYER_CLS_NAMES).is_some() {
        let message = "no model of ours has mixtures of experts";
        let problem = all.problem(message.to_owned(), &[keys::DEEPSPEED_MOE_LAYER_CLS_NAMES.row]);
        problems.push(problem.help("leave the names away"));
    }
    if all.get(keys::ZERO3_INIT_FLAG) == Some("true")
        && all.said(keys::ZERO_STAGE).is_some_and(|_| all.get(keys::ZERO_STAGE).unwrap_or_default() < 3)
    {
        notes.push("zero3_init_flag is for stage 3, so it is false, as with Accelerate".to_owned());
    }
    let mut entries = meaning::entries(all, &strategy.engine(), problems);
    let of_deepspeed = [keys::GRADIENT_ACCUMULATION_STEPS.row, keys::GRADIENT_CLIPPING.row];
    if strategy.kind != DistributedType::DeepSpeed {
        let counted = entries_of(all, of_deepspeed);
        if !counted.is_empty() {
            notes.push(format!("with Accelerate only DeepSpeed reads {counted}; here it counts"));
        }
    }
    if let Some(location) = &ranks.location {
        entries.push(Entry::new("num_processes", ranks.count.to_string(), location));
    }
    if exported::parallel(all, file)
        && let Some(setting) = all.said(keys::PARALLELISM_CONFIG_SP_SIZE)
        && let Some(location) = setting.location()
    {
        entries.push(Entry::new("sequence_parallel_size", setting.value.to_string(), location));
    }
    if strategy.cpu
        && let Some(location) = strategy.cpu_location(settings.flags, file)
    {
        entries.push(environment::device_cpu(&location));
    }
    if let Some(setting) = all.said(keys::NUM_CPU_THREADS_PER_PROCESS)
        && let Some(location) = setting.location()
    {
        entries.push(Entry::new("num_threads_per_process", setting.value.to_string(), location));
    }
    let precision = meaning::precision(all).unwrap_or_else(|problem| {
        problems.push(problem);
        Vec::new()
    });
    // `accelerate config` writes `no` into the file where the user chose nothing; as a flag it is a choice.
    let is_flag = settings.flags.setting(keys::MIXED_PRECISION).location().is_some();
    let mut precision = if is_flag || precision.iter().any(is_on) { precision } else { Vec::new() };
    if let Some(note) = differs(&precision, training) {
        notes.push(note);
        if training.own_precision_decides {
            precision.clear();
        }
    }
    // As many ranks as GPUs, where neither the launcher nor the run says another number.
    let all_gpus = Some(settings.devices.gpus)
        .filter(|gpus| *gpus > 1 && ranks.location.is_none() && file.is_none() && !strategy.cpu)
        .filter(|_| !environment::asks_for_cpu(&training.layers, &|_| None))
        .filter(|_| {
            !training.layers.iter().flat_map(|layer| &layer.entries).any(|one| one.key == "num_processes")
        })
        .map(|gpus| environment::number_of_ranks(environment::said_by("the GPUs", &gpus.to_string())));
    vec![
        Layer { authority: Authority::Replaces, entries: all_gpus.into_iter().collect() },
        Layer { authority: Authority::Replaces, entries: precision },
        Layer { authority: Authority::MustAgree, entries },
    ]
}

/// Those of some settings that say something, as they would be written.
fn entries_of(all: &Settings, keys: [&'static Row; 2]) -> String {
    let said = keys.into_iter().filter_map(|key| all.said(key));
    said.map(|setting| format!("--{} {}", setting.key.name, setting.value)).collect::<Vec<_>>().join(", ")
}

fn is_on(entry: &Entry) -> bool {
    matches!(&entry.value.data, Data::Scalar { text, .. } if boolean(text) == Some(true))
}

/// What to say where the run's own settings ask for another precision, and which of them decides.
fn differs(precision: &[Entry], training: &Training) -> Option<String> {
    let location = &precision.first()?.location;
    let last = |key: &str| {
        training
            .layers
            .iter()
            .flat_map(|layer| &layer.entries)
            .rfind(|entry| entry.key == key)
            .filter(|entry| is_on(entry))
    };
    let own = last("bf16").or_else(|| last("fp16"))?;
    let launcher = precision.iter().find(|entry| is_on(entry)).map_or("f32", |entry| entry.key.as_str());
    if launcher == own.key {
        return None;
    }
    let (key, written_at) = (&own.key, &own.location);
    Some(match training.own_precision_decides {
        true => format!(
            "`{key}: true` ({written_at}) decides, as in LLaMA-Factory, over the launcher's {launcher} ({location})"
        ),
        false => {
            format!("{launcher} ({location}) decides, as with Accelerate, over `{key}: true` ({written_at})")
        }
    })
}

/// Ranks that are parallel in other ways than by their data.
fn parallel(all: &Settings, ranks: &Ranks, problems: &mut Problems) {
    for (key, what) in
        [(keys::PARALLELISM_CONFIG_TP_SIZE, "matrices"), (keys::PARALLELISM_CONFIG_CP_SIZE, "sequences")]
    {
        if all.get(key) > 1 {
            let message =
                format!("`{key}` divides {what}, and the ranks of an Oarlock run are data parallel");
            problems
                .push(all.problem(message, &[key.row]).help("write 1, and ask for more data parallel ranks"));
        }
    }
    let both = [keys::PARALLELISM_CONFIG_DP_REPLICATE_SIZE, keys::PARALLELISM_CONFIG_DP_SHARD_SIZE];
    let [replicate, shard] = both.map(|key| all.get(key));
    let both = both.map(|key| key.row);
    if replicate > 1 && shard > 1 {
        problems.push(
            all.problem("groups of ranks that hold the same are not taken from these keys", &both)
                .help("write `fsdp_sharding_strategy: HYBRID_SHARD`: a group is a machine"),
        );
    } else if (replicate > 1 || shard > 1) && replicate.max(shard) != ranks.count {
        let message = format!("{} ranks are described, and {} asked for", replicate.max(shard), ranks.count);
        problems.push(all.problem(message, &both).help("write the number of ranks, or leave it out"));
    } else if replicate > 1 {
        let problem = all.problem("ranks that all hold the same divide nothing", &both[..1]);
        problems
            .push(problem.help("write `distributed_type: MULTI_GPU` or `fsdp_sharding_strategy: NO_SHARD`"));
    }
}

/// What Accelerate makes of settings inside a program.
fn programs(
    all: &Settings,
    file: Option<&File>,
    strategy: &Strategy,
    notes: &mut Vec<String>,
    problems: &mut Problems,
) {
    let from_file =
        |key: &'static Row| file.is_some_and(|file| file.settings.setting(key).location().is_some());
    if strategy.kind == DistributedType::Fsdp && from_file(keys::FSDP_SYNC_MODULE_STATES.row) {
        let is = |key: Key<String>| boolean(all.get(key)) == Some(true);
        if is(keys::FSDP_CPU_RAM_EFFICIENT_LOADING) && !is(keys::FSDP_SYNC_MODULE_STATES) {
            let both = [keys::FSDP_SYNC_MODULE_STATES.row, keys::FSDP_CPU_RAM_EFFICIENT_LOADING.row];
            problems.push(
                all.problem("`fsdp_cpu_ram_efficient_loading` needs `fsdp_sync_module_states`: only rank 0 has weights", &both)
                    .help("write `fsdp_sync_module_states: true`"),
            );
        }
    }
    if strategy.kind == DistributedType::DeepSpeed && all.said(keys::DEEPSPEED_CONFIG_FILE).is_some() {
        let named = |key: &&'static Row| {
            file.is_some_and(|file| file.settings.setting(*key).is_written()) && from_file(key)
        };
        let by_flag = all
            .said(keys::MIXED_PRECISION)
            .and_then(|s| s.location())
            .is_some_and(|location| location.source.read_from == ValueSource::Arguments);
        let beside: Vec<&str> = [
            keys::GRADIENT_ACCUMULATION_STEPS.row,
            keys::GRADIENT_CLIPPING.row,
            keys::ZERO_STAGE.row,
            keys::OFFLOAD_OPTIMIZER_DEVICE.row,
            keys::OFFLOAD_PARAM_DEVICE.row,
            keys::OFFLOAD_OPTIMIZER_NVME_PATH.row,
            keys::OFFLOAD_PARAM_NVME_PATH.row,
            keys::ZERO3_SAVE_16BIT_MODEL.row,
            keys::MIXED_PRECISION.row,
        ]
        .into_iter()
        .filter(|key| !(key.name == keys::MIXED_PRECISION.name() && by_flag))
        .filter(named)
        .map(|key| key.name)
        .collect();
        if let (Some(file), false) = (file, beside.is_empty()) {
            notes.push(format!(
                "the program's own Accelerate refuses {} in `{}` beside `deepspeed_config_file`; say it by flags, or in \
                 the file of DeepSpeed",
                beside.join(", "),
                file.name
            ));
        }
    }
}

/// One note on all that is known and means nothing: for an Oarlock run; of other programs only what is about TPUs.
fn without_meaning(all: &Settings, file: Option<&File>, script: &Script, notes: &mut Vec<String>) {
    let ours = matches!(script, Script::Training(_));
    let handed_on =
        |name: &str| ["dynamo_", "fp8_", "megatron_lm_"].iter().any(|part| name.starts_with(part));
    let own = file.into_iter().flat_map(|file| file.own.iter());
    let idle: Vec<&str> = all
        .iter()
        .chain(own)
        .filter(|setting| setting.location().is_some() && matches!(setting.key.status, Status::NoEffect(_)))
        .map(|setting| setting.key.name)
        .filter(|name| ours || !handed_on(name))
        .collect();
    if !idle.is_empty() {
        notes.push(format!("accepted without meaning here: {}", idle.join(", ")));
    }
}

/// One note about all values that are defaults.
fn defaults_note(defaulted: &[String]) -> String {
    if defaulted.is_empty() || launch::is_rank() {
        return String::new();
    }
    let lines: String = defaulted.iter().map(|line| format!("\n\t{line}")).collect();
    format!(
        "The following values were not passed to `accelerate launch` and had defaults used instead:{lines}\nPass them, \
         or run `accelerate config` to write them down."
    )
}
