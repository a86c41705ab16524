//! How a process group begins: the rank that this thread is, the environment of a launcher, or what the program says.

use std::path::PathBuf;
use std::time::Duration;

use oarlock_comm::{Communicator, Launched};

use super::backend::Backend;
use super::group::ProcessGroup;
use super::rank::{self, DefaultGroup};
use super::world;
use crate::{Error, Result};

/// How long to wait for a rank that lives but does not come, as torch waits with gloo.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// DeepSpeed's variable for the same, in minutes.
const DEEPSPEED_TIMEOUT: &str = "DEEPSPEED_TIMEOUT";

/// What a program says of its process group. A rank that knows its place, by its thread or from its launcher, needs none
/// of it; what is said all the same must be so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitOptions {
    /// Where ranks without a launcher meet, all on this machine: `env://` (the default: at `MASTER_ADDR` and
    /// `MASTER_PORT`), `tcp://host:port` or `file:///path`. Nothing is opened there; it sets runs apart. Ranks that
    /// different processes start, such as two terminals, also give one word in `OARLOCK_RUN_ID`.
    pub init_method: Option<String>,
    /// This rank; by default `RANK`.
    pub rank: Option<usize>,
    /// All ranks; by default `WORLD_SIZE`.
    pub world_size: Option<usize>,
    /// How long to wait for a rank that lives but does not come; by default 30 minutes.
    pub timeout: Option<Duration>,
}

/// Where ranks meet that say themselves who they are.
#[derive(Debug, PartialEq, Eq)]
enum Method {
    Env,
    Tcp { host: String, port: u16 },
    File(PathBuf),
}

impl Method {
    fn of(text: Option<&str>) -> Result<Method> {
        let wrong = |text: &str| {
            Error::Usage(format!(
                "init_method {text:?}: expected env://, tcp://HOST:PORT with a port from 1 to 65535, or file:// with an \
                 absolute path"
            ))
        };
        let Some(text) = text else { return Ok(Method::Env) };
        if text == "env://" {
            return Ok(Method::Env);
        }
        if let Some(address) = text.strip_prefix("tcp://") {
            let (host, port) = address.rsplit_once(':').ok_or_else(|| wrong(text))?;
            let port = port.parse().ok().filter(|&port| port > 0 && !host.is_empty());
            return Ok(Method::Tcp { host: host.to_owned(), port: port.ok_or_else(|| wrong(text))? });
        }
        let path = text.strip_prefix("file://").map(PathBuf::from).filter(|path| path.is_absolute());
        path.map(Method::File).ok_or_else(|| wrong(text))
    }

    /// Joins ranks that no launcher of this environment speaks of.
    fn join(&self, options: &InitOptions, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Communicator> {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let number = |given: Option<usize>, name: &str, parameter: &str| match (given, self) {
            (Some(number), _) => Ok(number.to_string()),
            (None, Method::Env) => set(name).ok_or_else(|| expected(name, parameter)),
            (None, _) => Err(Error::Usage(format!(
                "init_process_group: `{parameter}` is not said; with tcp:// and file:// the program says `rank` and \
                 `world_size`, and with env:// a launcher does"
            ))),
        };
        let rank = number(options.rank, "RANK", "rank")?;
        let world_size = number(options.world_size, "WORLD_SIZE", "world_size")?;
        let (master, port, run) = match self {
            Method::Env => {
                let address = |name| set(name).ok_or_else(|| expected(name, "init_method"));
                (address("MASTER_ADDR")?, address("MASTER_PORT")?, None)
            }
            Method::Tcp { host, port } => (host.clone(), port.to_string(), None),
            Method::File(path) => ("file".to_owned(), "1".to_owned(), Some(path.display().to_string())),
        };
        let place = Launched::read(&|name| match name {
            "RANK" | "LOCAL_RANK" => Some(rank.clone()),
            "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => Some(world_size.clone()),
            "MASTER_ADDR" => Some(master.clone()),
            "MASTER_PORT" => Some(port.clone()),
            "TORCHELASTIC_RUN_ID" => run.clone(),
            _ => None,
        })?;
        match place {
            Some(place) if place.world_size > 1 => {
                Ok(oarlock_comm::join_launched(&place, &rank::print_note)?)
            }
            _ => Ok(Communicator::solo()),
        }
    }
}

fn expected(name: &str, parameter: &str) -> Error {
    Error::Usage(format!(
        "init_process_group: environment variable {name} expected, but not set; start the program with a launcher \
         (`accelerate launch`, `torchrun`), start its ranks from code (`distributed::spawn`), or say `{parameter}` in \
         `InitOptions`"
    ))
}

/// Makes the default process group of this rank, which the functions of this module use. In a rank of
/// [`spawn`](super::spawn) or [`spawn_processes`](super::spawn_processes), and in one that a launcher started, it is the
/// group of all its ranks.
///
/// # Errors
/// A second default group; a backend that does not run here; variables or options that are missing, make no sense or
/// contradict the rank's place; ranks that do not come.
pub fn init_process_group(backend: Backend, options: &InitOptions) -> Result<ProcessGroup> {
    begin(backend, options, TIMEOUT, false)
}

/// DeepSpeed's `init_distributed`: as [`init_process_group`], but it finds nothing to do where there is a default group,
/// and a program that no launcher started is a world of one. Its timeout is that of `DEEPSPEED_TIMEOUT`, in minutes, where
/// `options` says none.
///
/// # Errors
/// As [`init_process_group`].
pub fn init_distributed(backend: Option<Backend>, options: &InitOptions) -> Result<ProcessGroup> {
    if world::is_initialized() {
        return world::world();
    }
    let timeout = match rank::variable(DEEPSPEED_TIMEOUT) {
        None => TIMEOUT,
        Some(value) => match value.trim().parse::<u32>() {
            Ok(minutes) if minutes > 0 => Duration::from_secs(60 * u64::from(minutes)),
            _ => {
                return Err(Error::Usage(format!(
                    "{DEEPSPEED_TIMEOUT}={value}: expected a whole number of minutes, from 1 on"
                )));
            }
        },
    };
    begin(backend.unwrap_or(Backend::Gloo), options, timeout, true)
}

fn begin(
    backend: Backend,
    options: &InitOptions,
    timeout: Duration,
    may_be_alone: bool,
) -> Result<ProcessGroup> {
    if world::is_initialized() {
        return Err(Error::Usage(
            "init_process_group: this rank has a default process group already; `destroy_process_group` ends it, and \
             `new_group` makes groups of some of its ranks"
                .to_owned(),
        ));
    }
    backend.check()?;
    let method = Method::of(options.init_method.as_deref())?;
    if let (Some(rank), Some(world_size)) = (options.rank, options.world_size)
        && rank >= world_size
    {
        return Err(Error::Usage(format!(
            "init_process_group: rank {rank} of world_size {world_size}; ranks are numbered from 0 to world_size - 1"
        )));
    }
    let current = rank::current();
    let is_own = current.is_none();
    let says_nothing = options.rank.is_none() && rank::variable("RANK").is_none();
    let comm = match current {
        Some(comm) => comm,
        None => match oarlock_comm::from_env(&rank::print_note)? {
            Some(comm) => comm,
            None if may_be_alone && says_nothing && method == Method::Env => Communicator::solo(),
            None => method.join(options, &rank::variable)?,
        },
    };
    for (name, said, is) in
        [("rank", options.rank, comm.rank()), ("world_size", options.world_size, comm.world_size())]
    {
        if let Some(said) = said.filter(|&said| said != is) {
            return Err(Error::Usage(format!(
                "init_process_group: `{name}` is {said}, but whoever started this rank made it {is}; leave `{name}` out of \
                 `InitOptions`, or say the same"
            )));
        }
    }
    comm.set_timeout(options.timeout.unwrap_or(timeout));
    rank::set_default_group(DefaultGroup { comm: comm.clone(), is_own });
    Ok(ProcessGroup::over(comm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_those_of_torch() {
        let of = |text: &str| Method::of(Some(text));
        assert_eq!(Method::of(None).unwrap(), Method::Env);
        assert_eq!(of("env://").unwrap(), Method::Env);
        let tcp = Method::Tcp { host: "localhost".to_owned(), port: 23456 };
        assert_eq!(of("tcp://localhost:23456").unwrap(), tcp);
        assert_eq!(of("file:///tmp/meet").unwrap(), Method::File(PathBuf::from("/tmp/meet")));
        for wrong in
            ["tcp://localhost", "tcp://:1", "tcp://a:0", "tcp://a:65536", "file://meet", "http://a:1", ""]
        {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.contains("expected env://, tcp://HOST:PORT"), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_is_missing_is_named_as_torch_names_it() {
        let said = |options: InitOptions, variables: &[(&str, &str)]| {
            let lookup = |name: &str| {
                variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
            };
            let method = Method::of(options.init_method.as_deref()).unwrap();
            method.join(&options, &lookup).map(|comm| comm.world_size())
        };
        let names = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];
        let all =
            [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];
        for (i, name) in names.into_iter().enumerate() {
            let error = said(InitOptions::default(), &all[..i]).unwrap_err().to_string();
            assert!(error.contains(&format!("environment variable {name} expected, but not set")), "{error}");
        }
        assert_eq!(said(InitOptions::default(), &all).unwrap(), 1);
        let of = |method: &str, rank, world_size| InitOptions {
            init_method: Some(method.to_owned()),
            rank,
            world_size,
            timeout: None,
        };
        let error = said(of("tcp://localhost:1", None, Some(1)), &all).unwrap_err().to_string();
        assert!(error.contains("`rank` is not said"), "{error}");
        assert_eq!(said(of("file:///meet", Some(0), Some(1)), &[]).unwrap(), 1);
    }
}
