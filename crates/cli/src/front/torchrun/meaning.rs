//! What the flags of torchrun mean together: machines, ports, restarts, output.

use super::flags as keys;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use oarlock_comm::wire::{TOKEN, TOKEN_FILE};
use oarlock_comm::{STOPPING, StopSignals, signal_of_name};

use crate::config::keys::{Key, Row};
use crate::config::resolve::Settings;
use crate::config::{MOST_RANKS, Problem, Problems};
use crate::launch::agents::{self, AgentsError, Meeting};
use crate::launch::devices::Devices;
use crate::launch::spec::{Binding, Locality, Master, Nodes, Output, PerRank, Restarts};
use crate::launch::{Launch, STARTED};

/// Looks up a variable.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The launch that settings describe; what is wrong with them is reported, and something stands in for it.
pub(super) fn launch(settings: &Settings, read: Read, problems: &mut Problems) -> Launch {
    let mut take = Take { settings, problems };
    let ranks = take.or(1, |s| ranks(s, read("CUDA_VISIBLE_DEVICES").as_deref()));
    let machines = take.or(1..=1, machines);
    let (nodes, master) =
        take.or((Nodes::Static { ranks: vec![ranks], this: 0 }, free()), |s| meeting(s, ranks, machines));
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    let grace = match settings.get(keys::SHUTDOWN_TIMEOUT) {
        Some(timeout) => seconds(timeout),
        None => take.or(Duration::from_secs(30), |_| shutdown(read("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"))),
    };
    let log_dir = settings.get(keys::LOG_DIR).filter(|dir| *dir != "/dev/null").map(PathBuf::from);
    let output = Output {
        log_dir,
        redirects: take.or(PerRank::default(), |s| streams(s, keys::REDIRECTS)),
        tee: take.or(PerRank::default(), |s| streams(s, keys::TEE)),
        only: take.or(None, only),
        prefix: false,
        mark: read("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        filters: [keys::DUPLICATE_STDOUT_FILTERS, keys::DUPLICATE_STDERR_FILTERS]
            .map(|key| filters(settings.get(key).unwrap_or(""))),
    };
    Launch {
        meets: true,
        nodes,
        master,
        rdzv_conf: take.or(String::new(), |s| conf(s, read)),
        run_id: named(settings, keys::RDZV_ID),
        role: named(settings, keys::ROLE),
        restarts: Restarts {
            max: u32::try_from(settings.get(keys::MAX_RESTARTS)).unwrap_or(u32::MAX),
            // As often as the ranks themselves are looked at.
            monitor_interval: seconds(settings.get(keys::MONITOR_INTERVAL)).max(Duration::from_millis(10)),
        },
        binding: binding(settings),
        output,
        grace,
        signals: take.or(STOPPING.to_vec(), signals),
        virtual_local_rank: settings.get(keys::VIRTUAL_LOCAL_RANK),
        ..Launch::local(ranks)
    }
}

/// Takes one thing after the other, and notes what is wrong.
struct Take<'a> {
    settings: &'a Settings,
    problems: &'a mut Problems,
}

impl Take<'_> {
    fn or<T>(&mut self, instead: T, read: impl FnOnce(&Settings) -> Result<T, Problem>) -> T {
        read(self.settings).unwrap_or_else(|problem| {
            self.problems.push(problem);
            instead
        })
    }
}

/// A name, the default where it is empty.
fn named(settings: &Settings, key: Key<String>) -> String {
    match settings.get(key) {
        "" => key.row.default.to_owned(),
        name => name.to_owned(),
    }
}

/// Any free port of this machine.
fn free() -> Master {
    Master { addr: "127.0.0.1".to_owned(), port: 0 }
}

/// The ranks of this machine.
fn ranks(settings: &Settings, visible: Option<&str>) -> Result<usize, Problem> {
    const KEY: Key<String> = keys::NPROC_PER_NODE;
    // `auto` is a word of its own here, not the default.
    let text = settings.word(KEY);
    let devices = Devices::here(visible);
    match text {
        "auto" => Ok(devices.count()),
        "cpu" => Ok(devices.cores),
        "gpu" | "cuda" if devices.gpus > 0 => Ok(devices.gpus),
        "gpu" | "cuda" => Err(settings
            .problem("the GPUs of this machine are asked for, and it has none", &[KEY.row])
            .help(format!("to run the same on CPU ranks: --nproc-per-node {}, one a core", devices.cores))),
        text => match text.parse::<usize>() {
            Ok(ranks) if (1..=MOST_RANKS).contains(&ranks) => Ok(ranks),
            _ => Err(settings
                .problem(
                    format!(
                        "invalid value `{text}` of --nproc-per-node: expected an integer, auto, gpu or cpu"
                    ),
                    &[KEY.row],
                )
                .help(format!("an integer is from 1 to {MOST_RANKS}"))),
        },
    }
}

/// How few and how many machines.
fn machines(settings: &Settings) -> Result<RangeInclusive<usize>, Problem> {
    agents::nodes(settings.get(keys::NNODES)).map_err(|error| wrong(settings, &error, keys::NNODES.row))
}

/// What is wrong with a flag of the meeting.
fn wrong(settings: &Settings, error: &AgentsError, key: &'static Row) -> Problem {
    settings.problem(error.to_string(), &[key])
}

/// The machines, and where rank 0 listens.
fn meeting(
    settings: &Settings,
    ranks: usize,
    machines: RangeInclusive<usize>,
) -> Result<(Nodes, Master), Problem> {
    let one = || (Nodes::Static { ranks: vec![ranks], this: 0 }, free());
    if settings.get(keys::STANDALONE) {
        return Ok(one());
    }
    let location =
        |text: &str| agents::endpoint(text).map_err(|error| wrong(settings, &error, keys::RDZV_ENDPOINT.row));
    let backend = settings.get(keys::RDZV_BACKEND);
    let endpoint = settings.said(keys::RDZV_ENDPOINT).and(settings.get(keys::RDZV_ENDPOINT));
    match backend.to_ascii_lowercase().as_str() {
        "static" => {}
        "c10d" if endpoint.is_none() && *machines.end() == 1 => return Ok(one()),
        "c10d" => {
            let Some(endpoint) = endpoint else {
                let text = "machines are to meet, and nothing says where";
                let problem = settings.problem(text, &[keys::NNODES.row, keys::RDZV_BACKEND.row]);
                return Err(problem.help("add --rdzv-endpoint HOST:PORT, the same on all machines"));
            };
            let endpoint = location(endpoint)?;
            let master = Master { addr: endpoint.0.clone(), port: 0 };
            return Ok((Nodes::Elastic { ranks, count: machines, endpoint }, master));
        }
        "etcd" | "etcd-v2" | "etcd_v2" => {
            let text = format!("`--rdzv-backend {backend}` needs a server of etcd, which is not spoken here");
            let problem = settings.problem(text, &[keys::RDZV_BACKEND.row]);
            return Err(problem.help("c10d needs no server: --rdzv-backend c10d --rdzv-endpoint HOST:PORT"));
        }
        _ => {
            let problem = settings
                .problem(format!("there is no `--rdzv-backend {backend}`"), &[keys::RDZV_BACKEND.row]);
            return Err(problem.help("take static or c10d"));
        }
    }
    if machines.start() != machines.end() {
        let text = "machines that come and go cannot have fixed numbers";
        let problem = settings.problem(text, &[keys::NNODES.row, keys::RDZV_BACKEND.row]);
        return Err(
            problem.help("add --rdzv-backend c10d --rdzv-endpoint HOST:PORT, or give --nnodes one number")
        );
    }
    let master = match &endpoint {
        Some(endpoint) => {
            let (addr, port) = location(endpoint)?;
            Master { addr, port }
        }
        None if *machines.end() == 1 && settings.said(keys::MASTER_PORT).is_none() => free(),
        None => {
            let port = u16::try_from(settings.get(keys::MASTER_PORT))
                .map_err(|_| settings.problem("a port is a number up to 65535", &[keys::MASTER_PORT.row]))?;
            Master::at(settings.get(keys::MASTER_ADDR), port)
        }
    };
    let this = settings.get(keys::NODE_RANK);
    if this >= *machines.end() {
        let text = format!("machine {this} of {} is none of the run", machines.end());
        let problem = settings.problem(text, &[keys::NODE_RANK.row, keys::NNODES.row]);
        return Err(problem.help("machines are counted from 0: --node-rank is below --nnodes"));
    }
    Ok((Nodes::Static { ranks: vec![ranks; *machines.end()], this }, master))
}

/// `KEY=VALUE,…`, as a meeting accepts it.
fn conf(settings: &Settings, read: Read) -> Result<String, Problem> {
    let addr = settings.get(keys::LOCAL_ADDR).map(|addr| format!("local_addr={addr}"));
    let insecure = settings.get(keys::INSECURE_RENDEZVOUS).then(|| "insecure=1".to_owned());
    let parts = settings.get(keys::RDZV_CONF).map(str::to_owned).into_iter().chain(addr).chain(insecure);
    let text = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
    let mut meeting = Meeting::new((String::new(), 1), String::new(), 1..=1);
    // A rank of ours has the words of its launcher, and in the variable the token of its round, which is another one.
    let is_our_rank = read(STARTED).is_some();
    let is_token = |name: &str| name == TOKEN || name == TOKEN_FILE;
    let read = |name: &str| if is_our_rank && is_token(name) { None } else { read(name) };
    meeting.configure(&text, &read).map_err(|error| wrong(settings, &error, keys::RDZV_CONF.row))?;
    Ok(text)
}

/// The streams that a flag names.
fn streams(settings: &Settings, key: Key<String>) -> Result<PerRank, Problem> {
    let text = settings.get(key);
    PerRank::parse(text).ok_or_else(|| {
        let flag = key.name().replace('_', "-");
        settings
            .problem(format!("`--{flag} {text}` names no streams"), &[key.row])
            .help("0 is none, 1 stdout, 2 stderr, 3 both; by local rank as in 0:1,1:2")
    })
}

/// The local ranks that are shown.
fn only(settings: &Settings) -> Result<Option<Vec<usize>>, Problem> {
    let Some(text) = settings.get(keys::LOCAL_RANKS_FILTER).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let ranks: Result<Vec<usize>, _> = text.split(',').map(|rank| rank.trim().parse()).collect();
    ranks.map(Some).map_err(|_| {
        settings
            .problem(
                format!("`--local-ranks-filter {text}` is not a list of ranks"),
                &[keys::LOCAL_RANKS_FILTER.row],
            )
            .help("write numbers with commas, as in 0,1")
    })
}

/// Words with commas between them; two commas are one that belongs to a word.
fn filters(text: &str) -> Vec<String> {
    let words = text.replace(",,", "\0");
    words.split(',').map(|word| word.replace('\0', ",")).filter(|word| !word.is_empty()).collect()
}

fn binding(settings: &Settings) -> Binding {
    match settings.get(keys::NUMA_BINDING) {
        Some("node") => Binding::SharedBy(Locality::Node),
        Some("socket") => Binding::SharedBy(Locality::Socket),
        Some("core-complex") => Binding::SharedBy(Locality::Cache),
        Some(_) => Binding::Share,
        None => Binding::None,
    }
}

fn signals(settings: &Settings) -> Result<Vec<i32>, Problem> {
    let text = settings.get(keys::SIGNALS_TO_HANDLE);
    let number = |name: &str| {
        let signal = signal_of_name(name).filter(|signal| StopSignals::can_catch(*signal));
        signal.ok_or_else(|| {
            settings
                .problem(
                    format!("`{}` is not a signal that can be handled", name.trim()),
                    &[keys::SIGNALS_TO_HANDLE.row],
                )
                .help("write names with commas, as in SIGTERM,SIGINT,SIGUSR1")
        })
    };
    text.split(',').filter(|name| !name.trim().is_empty()).map(number).collect()
}

/// Seconds in a variable of the original.
fn shutdown(value: Option<String>) -> Result<Duration, Problem> {
    let Some(value) = value.filter(|value| !value.trim().is_empty()) else {
        return Ok(Duration::from_secs(30));
    };
    let seconds =
        value.trim().parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| {
        Problem::new(format!("TORCH_ELASTIC_SHUTDOWN_TIMEOUT={value} is not a number of seconds"))
            .help("write seconds, as in 30")
    })
}
