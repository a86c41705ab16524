//! The ranks of one machine.

use super::flags as keys;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use oarlock_comm::available_cores;
use tempfile::TempPath;

use super::filter::Slots;
use crate::config::keys::Key;
use crate::config::resolve::Settings;
use crate::config::{Problem, Problems};
use crate::console::{Failure, Outcome};
use crate::error::{Error, Result};
use crate::launch::spec::{Binding, Master, Nodes, Output, PerRank, Streams};
use crate::launch::{Launch, is_our_rank};

/// How the ranks of machine `node` are started.
pub fn launch(
    settings: &Settings,
    slots: &Slots,
    node: usize,
    master: &Master,
    cpu: bool,
) -> std::result::Result<Launch, Problem> {
    let ranks: Vec<usize> = slots.iter().map(|(_, slots)| slots.len()).collect();
    let own: &[usize] = slots.get(node).map_or(&[], |(_, slots)| slots);
    let mut launch = Launch::local(own.len());
    (launch.binding, launch.threads) = binding(settings, own.len(), slots.len() == 1)?;
    launch.nodes = Nodes::Static { ranks, this: node };
    if settings.get(keys::ELASTIC_TRAINING) {
        let bound = |key: Key<i64>, unset: usize| usize::try_from(settings.get(key)).unwrap_or(unset);
        let (fewest, most) = (bound(keys::MIN_ELASTIC_NODES, 1), bound(keys::MAX_ELASTIC_NODES, slots.len()));
        if fewest == 0 || fewest > most {
            let both = [keys::MIN_ELASTIC_NODES.row, keys::MAX_ELASTIC_NODES.row];
            let problem = settings.problem(format!("{fewest} to {most} machines is not a range"), &both);
            return Err(problem.help("write at least 1 for the fewest, and not fewer for the most"));
        }
        let endpoint = (master.addr.clone(), master.port);
        launch.nodes = Nodes::Elastic { ranks: own.len(), count: fewest..=most, endpoint };
    }
    launch.master = master.clone();
    launch.deepspeed_env = true;
    launch.local_rank_argument = !settings.get(keys::NO_LOCAL_RANK);
    launch.output = output(settings)?;
    let visible: Vec<String> = own.iter().map(usize::to_string).collect();
    launch.env.push(("CUDA_VISIBLE_DEVICES".to_owned(), visible.join(",")));
    if cpu {
        launch.env.push(("DS_ACCELERATOR".to_owned(), "cpu".to_owned()));
    }
    let level = settings.get(keys::LOG_LEVEL);
    launch.quiet = settings.get(keys::QUIET) || matches!(level, "error" | "critical");
    Ok(launch)
}

/// The cores of the ranks, and how many of them each has; of another machine they are not known.
fn binding(
    settings: &Settings,
    ranks: usize,
    here: bool,
) -> std::result::Result<(Binding, Option<usize>), Problem> {
    // A rank of ours gets the words of its launcher, is bound already, and sees its own cores alone.
    if !settings.get(keys::BIND_CORES_TO_RANK) || is_our_rank() {
        return Ok((Binding::None, None));
    }
    let (binding, cores) = match settings.get(keys::BIND_CORE_LIST) {
        None => (Binding::Share, here.then(|| available_cores().len())),
        Some(text) => {
            let Some(cores) = core_list(text) else {
                let problem =
                    settings.problem(format!("`{text}` is not a list of cores"), &[keys::BIND_CORE_LIST.row]);
                return Err(problem.help("write numbers and ranges that rise, as in 1,3-5,7"));
            };
            let n_cores = cores.len();
            (Binding::Of(cores), Some(n_cores))
        }
    };
    if let Some(cores) = cores.filter(|cores| *cores < ranks) {
        let message = format!("{cores} cores cannot be divided among {ranks} ranks");
        let problem = settings.problem(message, &[keys::BIND_CORE_LIST.row, keys::BIND_CORES_TO_RANK.row]);
        return Err(problem.help("every rank needs a core of its own; remove --bind_cores_to_rank"));
    }
    Ok((binding, cores.map(|cores| cores / ranks.max(1))))
}

/// `1,3-5,7` as numbers; they rise.
pub fn core_list(text: &str) -> Option<Vec<usize>> {
    /// More than any machine has.
    const MOST: usize = 1 << 16;
    let mut cores: Vec<usize> = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last > MOST || cores.last().is_some_and(|before| first <= *before) {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

fn output(settings: &Settings) -> std::result::Result<Output, Problem> {
    let folder = settings.get(keys::ENABLE_EACH_RANK_LOG);
    if matches!(folder, "" | "None") {
        return Ok(Output::default());
    }
    if Path::new(&folder).is_file() {
        let problem = settings.problem(format!("`{folder}` is a file"), &[keys::ENABLE_EACH_RANK_LOG.row]);
        return Err(problem.help("name a folder for the logs of the ranks"));
    }
    let all = PerRank { all: Streams { out: true, err: true }, ranks: Vec::new() };
    Ok(Output { log_dir: Some(folder.into()), redirects: all, ..Output::default() })
}

/// Writes the file that names this process, where DeepSpeed does; it is removed when the value is dropped.
pub fn pid_file() -> Result<TempPath> {
    let pid = std::process::id();
    let path = PathBuf::from(format!("/tmp/{pid}.deepspeed"));
    oarlock_files::replace(&path, pid.to_string()).map_err(Error::io("write", &path))?;
    TempPath::try_from_path(&path).map_err(Error::io("find", path))
}

/// A place that MPICH and its relatives say in one of several variables, which must not differ.
fn mpi_variable(
    names: [&str; 2],
    read: &dyn Fn(&str) -> Option<String>,
) -> std::result::Result<String, Problem> {
    match names.map(read) {
        [Some(one), Some(other)] if one != other => {
            Err(Problem::new(format!("{} is {one}, but {} is {other}", names[0], names[1]))
                .help("both name the place of this rank; remove one of them"))
        }
        [Some(value), _] | [None, Some(value)] => Ok(value),
        [None, None] => Err(Problem::new(format!("neither {} nor {} is set", names[0], names[1]))
            .help("--mpi_rank is for ranks that mpirun of MPICH has started")),
    }
}

/// RANK and LOCAL_RANK of a rank that MPICH started.
pub fn mpi_rank(
    read: &dyn Fn(&str) -> Option<String>,
) -> std::result::Result<[(&'static str, String); 2], Problems> {
    let mut problems = Problems::default();
    let mut take = |names| {
        mpi_variable(names, read).unwrap_or_else(|problem| {
            problems.push(problem);
            String::new()
        })
    };
    let rank = take(["PMIX_RANK", "PMI_RANK"]);
    let local_rank = take(["PALS_LOCAL_RANKID", "MPI_LOCALRANKID"]);
    problems.into_result(|| [("RANK", rank), ("LOCAL_RANK", local_rank)])
}

/// Becomes a program, with variables; it does not return unless that fails.
pub fn become_program(argv: &[String], variables: [(&'static str, String); 2]) -> Outcome {
    let Some((program, arguments)) = argv.split_first() else { return Ok(()) };
    let error = Command::new(program).args(arguments).envs(variables).exec();
    Err(Failure::Error(Error::io("run", program)(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_listed_as_in_the_original() {
        assert_eq!(core_list("1,3-5,7"), Some(vec![1, 3, 4, 5, 7]));
        assert_eq!(core_list("0"), Some(vec![0]));
        for wrong in ["", "a", "1,", "3-1", "1,1", "1-4,3", "5,1", "1-2-3", "-1", "0-99999999999"] {
            assert_eq!(core_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_rank_of_mpich_finds_its_place() {
        let found = |variables: &[(&str, &str)]| {
            let read = |name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            };
            mpi_rank(&read).map(|[(_, rank), (_, local)]| (rank, local))
        };
        assert_eq!(
            found(&[("PMI_RANK", "5"), ("MPI_LOCALRANKID", "1")]).unwrap(),
            ("5".to_owned(), "1".to_owned())
        );
        let both = [("PMIX_RANK", "5"), ("PMI_RANK", "5"), ("PALS_LOCAL_RANKID", "0")];
        assert_eq!(found(&both).unwrap(), ("5".to_owned(), "0".to_owned()));
        let problems = found(&[("PMIX_RANK", "5"), ("PMI_RANK", "4")]).unwrap_err().to_string();
        assert!(problems.contains("PMIX_RANK is 5, but PMI_RANK is 4"), "{problems}");
        assert!(problems.contains("neither PALS_LOCAL_RANKID nor MPI_LOCALRANKID is set"), "{problems}");
    }

    #[test]
    fn the_pid_file_goes_with_its_value() {
        let file = pid_file().unwrap();
        let path = file.to_path_buf();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), std::process::id().to_string());
        drop(file);
        assert!(!path.exists());
    }
}
