//! What a launcher that is not ours tells a rank through its environment: torchrun and Accelerate, DeepSpeed, the
//! launchers of MPI, and Slurm. It only reads variables; `join.rs` connects the ranks.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::transport_kind::{HAS_MPI, TRANSPORT, TransportKind, gloo_obstacle, why_no_gloo, why_no_mpi};

/// How long the ranks wait for each other at the start, in seconds.
const LIMIT: &str = "OARLOCK_JOIN_TIMEOUT";
const DEFAULT_LIMIT: Duration = Duration::from_secs(300);
/// The variable with how long the network may be gone.
const LINK: &str = "OARLOCK_LINK_TIMEOUT";
const DEFAULT_LINK: Duration = Duration::from_secs(120);
/// After this time a waiting rank says whom it waits for.
pub(crate) const NOTICE: Duration = Duration::from_secs(5);

/// Looks up a variable.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A rank's place in a world that another launcher started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The kind of launcher, for messages.
    pub launcher: &'static str,
    /// This rank among all.
    pub rank: usize,
    /// All ranks.
    pub world_size: usize,
    /// The variable that said how many ranks there are.
    pub world_size_variable: &'static str,
    /// This rank among those of this machine.
    pub local_rank: usize,
    /// The ranks of this machine.
    pub local_world_size: usize,
    /// What sets this run apart from others of the same user on this machine, as far as variables say.
    pub(crate) run_id: String,
    /// The same without the address of rank 0, which may have another name on each machine.
    pub(crate) common_id: String,
    /// The variables that are different for each rank, as the launcher wrote them.
    pub(crate) rank_variables: Vec<(&'static str, String)>,
    /// Whether the ranks were started as those of MPI: by one of its launchers or Slurm, also with a script between.
    pub(crate) is_mpi: bool,
    /// Whether the launcher says where rank 0 is (`MASTER_ADDR`, `MASTER_PORT`).
    pub(crate) has_address: bool,
    /// The transport that `OARLOCK_TRANSPORT` asks for.
    pub(crate) requested: Option<TransportKind>,
}

/// The variables of one kind of launcher. Where several names are listed, the first that is set counts.
struct Family {
    launcher: &'static str,
    /// The variable that only this kind of launcher sets; without it the others come from somewhere else.
    marker: &'static str,
    rank: &'static str,
    world_size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_world_size: &'static [&'static str],
    machines: &'static [&'static str],
    run: &'static [&'static str],
}

/// In the order of precedence: a launcher inside another's job sets its own variables and leaves the others.
const FAMILIES: [Family; 6] = [
    Family {
        launcher: "torchrun, accelerate or deepspeed",
        marker: "RANK",
        rank: "RANK",
        world_size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_world_size: &["LOCAL_WORLD_SIZE", "LOCAL_SIZE"],
        machines: &["GROUP_WORLD_SIZE", "CROSS_SIZE"],
        run: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    Family {
        launcher: "Open MPI",
        marker: "OMPI_COMM_WORLD_RANK",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_world_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        machines: &[],
        run: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Family {
        launcher: "MVAPICH",
        marker: "MV2_COMM_WORLD_RANK",
        rank: "MV2_COMM_WORLD_RANK",
        world_size: &["MV2_COMM_WORLD_SIZE"],
        local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
        local_world_size: &["MV2_COMM_WORLD_LOCAL_SIZE"],
        machines: &[],
        run: &[],
    },
    Family {
        launcher: "MPICH or Intel MPI",
        marker: "MPI_LOCALRANKID",
        rank: "PMI_RANK",
        world_size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_world_size: &["MPI_LOCALNRANKS"],
        machines: &[],
        run: &[],
    },
    Family {
        launcher: "srun",
        // A batch script has the others too, but no step: it is not a rank.
        marker: "SLURM_STEP_ID",
        rank: "SLURM_PROCID",
        world_size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_world_size: &[],
        machines: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
        run: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
    Family {
        launcher: "a launcher that speaks PMI",
        marker: "PMI_RANK",
        rank: "PMI_RANK",
        world_size: &["PMI_SIZE"],
        local_rank: &[],
        local_world_size: &[],
        machines: &[],
        run: &[],
    },
];

/// Slurm numbers its own steps, such as the shell of `salloc`, from here on.
const FIRST_SPECIAL_STEP: usize = 0xffff_fff0;

impl Launched {
    /// Reads the environment of this process; `None` where no known launcher left its variables.
    ///
    /// # Errors
    /// As [`read`](Launched::read).
    pub fn from_env() -> Result<Option<Launched>> {
        Launched::read(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads the variables that `lookup` finds.
    ///
    /// # Errors
    /// When a variable is missing beside others, is malformed, or contradicts another; it is named.
    pub fn read(lookup: Lookup) -> Result<Option<Launched>> {
        let lookup = |name: &str| lookup(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let step = lookup("SLURM_STEP_ID").and_then(|step| step.parse::<usize>().ok());
        let inside = |family: &&Family| match family.marker {
            "SLURM_STEP_ID" => step.is_some_and(|s| s < FIRST_SPECIAL_STEP) && lookup(family.rank).is_some(),
            // LLaMA-Factory's launcher was once told so which machine this is.
            "RANK"
                if lookup("NNODES").is_some()
                    && lookup("WORLD_SIZE").is_none()
                    && lookup("LOCAL_RANK").is_none() =>
            {
                false
            }
            marker => lookup(marker).is_some(),
        };
        match FAMILIES.iter().find(inside) {
            Some(family) => {
                let mut found = family.read(&lookup)?;
                let is_same =
                    |other: &Launched| (other.rank, other.world_size) == (found.rank, found.world_size);
                let mut others = FAMILIES.iter().filter(|other| other.marker != "RANK" && inside(other));
                found.is_mpi = others.any(|other| other.read(&lookup).is_ok_and(|other| is_same(&other)));
                found.requested = requested(&lookup)?;
                // A job of one task says nothing about ranks: the program may start its own.
                let is_job = family.marker != "RANK" && found.world_size == 1;
                Ok(Some(found).filter(|_| !is_job))
            }
            None if lookup("WORLD_SIZE").is_some() && lookup("LOCAL_RANK").is_some() => Err(missing("RANK")),
            None => Ok(None),
        }
    }

    /// The transport of this world: what `OARLOCK_TRANSPORT` asks for, else shared memory where one machine has all ranks,
    /// else MPI where its launcher has started them, else Gloo.
    ///
    /// # Errors
    /// [`Error::SeveralMachines`] where none can be; [`Error::Join`] where MPI or Gloo is asked for and cannot be.
    pub fn transport(&self) -> Result<TransportKind> {
        let has_mpi = self.is_mpi && HAS_MPI;
        // Asked only where it matters: it loads the library.
        let has_gloo = || self.has_address && gloo_obstacle().is_none();
        let one_machine = self.world_size == self.local_world_size;
        match self.requested {
            Some(TransportKind::Mpi) if has_mpi => Ok(TransportKind::Mpi),
            Some(TransportKind::Mpi) => Err(Error::Join(why_no_mpi())),
            Some(TransportKind::Gloo) if has_gloo() => Ok(TransportKind::Gloo),
            Some(TransportKind::Gloo) => Err(Error::Join(why_no_gloo())),
            Some(TransportKind::SharedMemory) | None if one_machine => Ok(TransportKind::SharedMemory),
            Some(TransportKind::SharedMemory) => {
                let (all, here, launcher) = (self.world_size, self.local_world_size, self.launcher);
                Err(Error::Join(format!(
                    "{TRANSPORT}=shm asks for shared memory, which connects ranks of one machine, and {launcher} started {all} \
                     ranks of which {here} are on this machine; unset {TRANSPORT} (ranks of one machine share memory by \
                     themselves), or start all ranks on one machine"
                )))
            }
            None if has_mpi => Ok(TransportKind::Mpi),
            None if has_gloo() => Ok(TransportKind::Gloo),
            _ => Err(Error::SeveralMachines {
                world_size: self.world_size,
                local_world_size: self.local_world_size,
                launcher: self.launcher,
            }),
        }
    }
}

impl Family {
    fn read(&self, lookup: Lookup) -> Result<Launched> {
        let first =
            |names: &[&'static str]| names.iter().find_map(|&name| Some((name, number(lookup, name)?)));
        let some = |names: &[&'static str]| match first(names) {
            Some((name, number)) => number.map(|number| Some((name, number))),
            None => Ok(None),
        };
        let (_, rank) = some(&[self.rank])?.ok_or_else(|| missing(self.rank))?;
        let (size_from, world_size) =
            some(self.world_size)?.ok_or_else(|| missing(self.world_size[self.world_size.len() - 1]))?;
        below(lookup, self.rank, rank, size_from, world_size)?;
        let machines = some(self.machines)?.map_or(1, |(_, machines)| machines);
        let local_rank = some(self.local_rank)?;
        let local_size = some(self.local_world_size)?;
        // A launcher that does not set the number of machines has one. With several it is enough to know that this machine
        // has fewer ranks than all.
        let local_world_size = match local_size {
            Some((_, size)) => size,
            None if machines > 1 => world_size.div_ceil(machines).min(world_size.saturating_sub(1)),
            None => world_size,
        };
        if let Some((name, size)) = local_size
            && !(1..=world_size).contains(&size)
        {
            return Err(malformed(lookup, name, format!("a number from 1 to {size_from}={world_size}")));
        }
        if let (Some((name, rank)), Some((size_from, size))) = (local_rank, local_size) {
            below(lookup, name, rank, size_from, size)?;
        }
        if let Some((name, local)) = local_rank
            && local_world_size == world_size
        {
            below(lookup, name, local, size_from, world_size)?;
        }
        if lookup("MASTER_PORT").is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return Err(malformed(lookup, "MASTER_PORT", "a port from 1 to 65535".into()));
        }
        let word = |name: &&str| Some(format!("{name}={}", lookup(name)?));
        let common = ["MASTER_PORT"].iter().chain(self.run).filter_map(word);
        let common_id = common.collect::<Vec<_>>().join(" ");
        let address = word(&"MASTER_ADDR").into_iter();
        let run_id =
            address.chain(Some(common_id.clone()).filter(|id| !id.is_empty())).collect::<Vec<_>>().join(" ");
        let own = std::iter::once(&self.rank).chain(self.local_rank);
        Ok(Launched {
            launcher: self.launcher,
            rank,
            world_size,
            world_size_variable: size_from,
            local_rank: local_rank.map_or(rank, |(_, rank)| rank),
            local_world_size,
            run_id: if run_id.is_empty() { self.launcher.into() } else { run_id },
            common_id: if common_id.is_empty() { self.launcher.into() } else { common_id },
            rank_variables: own.filter_map(|&name| Some((name, lookup(name)?))).collect(),
            is_mpi: false,
            has_address: ["MASTER_ADDR", "MASTER_PORT"].iter().all(|name| lookup(name).is_some()),
            requested: None,
        })
    }
}

/// How long ranks, and the launchers of numbered machines, wait for each other at the start: `OARLOCK_JOIN_TIMEOUT` in
/// seconds, or 300 s.
///
/// # Errors
/// When the variable is not a whole number from 1 on.
pub fn join_limit() -> Result<Duration> {
    seconds(LIMIT, DEFAULT_LIMIT)
}

/// How long the network between machines may be gone until a machine counts as lost: `OARLOCK_LINK_TIMEOUT` in seconds, or 120 s.
///
/// # Errors
/// When the variable is not a whole number from 1 on.
pub fn link_timeout() -> Result<Duration> {
    seconds(LINK, DEFAULT_LINK)
}

/// A variable in seconds.
fn seconds(name: &'static str, default: Duration) -> Result<Duration> {
    let Some(value) = std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()) else {
        return Ok(default);
    };
    match value.parse::<u32>() {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(u64::from(seconds))),
        _ => {
            let expected = "whole seconds, at least 1".into();
            Err(Error::Variable { name, value: Some(value), expected })
        }
    }
}

/// The transport that `OARLOCK_TRANSPORT` asks for.
fn requested(lookup: Lookup) -> Result<Option<TransportKind>> {
    match lookup(TRANSPORT).as_deref() {
        None => Ok(None),
        Some("shm") => Ok(Some(TransportKind::SharedMemory)),
        Some("mpi") => Ok(Some(TransportKind::Mpi)),
        Some("gloo") => Ok(Some(TransportKind::Gloo)),
        Some(_) => Err(malformed(lookup, TRANSPORT, "shm, mpi or gloo".into())),
    }
}

/// A variable as a number, if it is set.
fn number(lookup: Lookup, name: &'static str) -> Option<Result<usize>> {
    let parsed = lookup(name)?.parse::<u32>().map(|number| number as usize);
    Some(parsed.map_err(|_| malformed(lookup, name, "a whole number".into())))
}

fn below(lookup: Lookup, name: &'static str, rank: usize, size_from: &str, size: usize) -> Result<()> {
    match rank < size {
        true => Ok(()),
        false => Err(malformed(lookup, name, format!("a rank below {size_from}={size}"))),
    }
}

fn malformed(lookup: Lookup, name: &'static str, expected: String) -> Error {
    Error::Variable { name, value: lookup(name), expected }
}

fn missing(name: &'static str) -> Error {
    Error::Variable { name, value: None, expected: "a number, beside the launcher's other variables".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Option<Launched>> {
        let pairs: Vec<(&str, &str)> =
            words.split_whitespace().map(|word| word.split_once('=').unwrap()).collect();
        Launched::read(&|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned()))
    }

    const TORCHRUN: &str = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=1 \
        MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0";

    fn place(words: &str) -> (&'static str, usize, usize, usize, usize) {
        let found = read(words).unwrap().unwrap();
        (found.launcher, found.rank, found.world_size, found.local_rank, found.local_world_size)
    }

    #[test]
    fn each_launcher_is_understood() {
        let torch = FAMILIES[0].launcher;
        assert_eq!(place(TORCHRUN), (torch, 1, 2, 1, 2));
        let deepspeed =
            "RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_SIZE=2 CROSS_SIZE=1 MASTER_ADDR=h MASTER_PORT=1";
        assert_eq!(place(deepspeed), (torch, 1, 2, 1, 2));
        assert_eq!(place("RANK=1 WORLD_SIZE=2"), (torch, 1, 2, 1, 2));
        let ompi = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 \
            OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=prterun-1 PMIX_RANK=3";
        assert_eq!(place(ompi), ("Open MPI", 3, 4, 3, 4));
        let hydra = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
        assert_eq!(place(hydra), ("MPICH or Intel MPI", 1, 2, 1, 2));
        let srun =
            "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_NNODES=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0";
        assert_eq!(place(srun), ("srun", 1, 2, 1, 2));
        assert_eq!(place("PMI_RANK=1 PMI_SIZE=2").1, 1);
        // Started by hydra inside a Slurm job, by torchrun inside that.
        assert_eq!(place(&format!("{srun} {hydra}")).0, "MPICH or Intel MPI");
        assert_eq!(place(&format!("{srun} {hydra} {TORCHRUN}")).0, torch);
    }

    #[test]
    fn a_batch_script_and_a_job_of_one_task_are_no_ranks() {
        assert_eq!(read("").unwrap(), None);
        assert_eq!(read("WORLD_SIZE=2").unwrap(), None);
        assert_eq!(read("NNODES=2 RANK=1 MASTER_ADDR=a MASTER_PORT=1").unwrap(), None);
        assert_eq!(read("RANK= WORLD_SIZE=2").unwrap(), None);
        assert_eq!(read("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0").unwrap(), None);
        let salloc = "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_STEP_ID=4294967290";
        assert_eq!(read(salloc).unwrap(), None);
        assert_eq!(read("SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 SLURM_STEP_ID=0").unwrap(), None);
        assert_eq!(read("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1").unwrap(), None);
        assert_eq!(read("RANK=0 WORLD_SIZE=1").unwrap().unwrap().world_size, 1);
    }

    #[test]
    fn runs_and_restarts_are_told_apart() {
        let run = |words: &str| read(words).unwrap().unwrap().run_id;
        let other = |from: &str, to: &str| run(&TORCHRUN.replace(from, to));
        let all = [
            run(TORCHRUN),
            other("29500", "29501"),
            other("127.0.0.1", "localhost"),
            other("RUN_ID=none", "RUN_ID=a"),
            other("RESTART_COUNT=0", "RESTART_COUNT=1"),
        ];
        assert!((1..all.len()).all(|i| !all[..i].contains(&all[i])), "{all:?}");
        assert_eq!(run(TORCHRUN), other("RANK=1", "RANK=0"));
        // The first machine may know itself by another name than the others do.
        let common = |words: &str| read(words).unwrap().unwrap().common_id;
        assert_eq!(common(TORCHRUN), common(&TORCHRUN.replace("127.0.0.1", "localhost")));
        assert_ne!(common(TORCHRUN), common(&TORCHRUN.replace("29500", "29501")));
    }

    #[test]
    fn several_machines_meet_over_mpi_or_gloo_or_are_refused_by_name() {
        let transport = |words: &str| read(words).unwrap().unwrap().transport();
        let of_torch = [
            "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4",
            "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 GROUP_WORLD_SIZE=2",
        ];
        let srun = "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NNODES=2 SLURM_STEP_ID=0";
        // A script between srun and the rank may say the same in torchrun's words.
        let of_mpi = [srun.to_owned(), format!("{srun} {}", of_torch[0])];
        let has_gloo = gloo_obstacle().is_none();
        let says = match (has_gloo, HAS_MPI) {
            (true, _) => "MASTER_ADDR and MASTER_PORT: set both",
            (false, true) => "mpirun",
            (false, false) => "libgloo-dev",
        };
        for words in of_torch.map(str::to_owned).iter().chain(of_mpi.iter().filter(|_| !HAS_MPI)) {
            let error = transport(words).unwrap_err();
            assert!(
                matches!(error, Error::SeveralMachines { world_size: 8, local_world_size: 4, .. }),
                "{error}"
            );
            assert!(error.to_string().contains(says), "{error}");
            let found = transport(&format!("{words} MASTER_ADDR=a MASTER_PORT=1"));
            assert_eq!(found.is_ok_and(|kind| kind == TransportKind::Gloo), gloo_obstacle().is_none());
        }
        for words in of_mpi.iter().filter(|_| HAS_MPI) {
            assert_eq!(transport(words).unwrap(), TransportKind::Mpi);
        }
        assert_eq!(transport(TORCHRUN).unwrap(), TransportKind::SharedMemory);
    }

    #[test]
    fn a_requested_transport_is_taken_or_refused() {
        let transport = |words: &str| read(words).and_then(|place| place.unwrap().transport());
        assert_eq!(
            transport(&format!("{TORCHRUN} OARLOCK_TRANSPORT=shm")).unwrap(),
            TransportKind::SharedMemory
        );
        for (words, says) in [
            (format!("{TORCHRUN} OARLOCK_TRANSPORT=mpi"), "OARLOCK_TRANSPORT=mpi asks for MPI"),
            (
                format!("{TORCHRUN} OARLOCK_TRANSPORT=shm")
                    .replace("LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"),
                "OARLOCK_TRANSPORT=shm asks for shared memory, which connects ranks of one machine",
            ),
            (format!("{TORCHRUN} OARLOCK_TRANSPORT=tcp"), "OARLOCK_TRANSPORT=tcp: expected shm, mpi or gloo"),
        ] {
            let error = transport(&words).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let gloo = transport(&format!("{TORCHRUN} OARLOCK_TRANSPORT=gloo"));
        assert_eq!(gloo.is_ok_and(|kind| kind == TransportKind::Gloo), gloo_obstacle().is_none());
        let mpirun = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2";
        assert_eq!(
            transport(&format!("{mpirun} OARLOCK_TRANSPORT=mpi"))
                .is_ok_and(|kind| kind == TransportKind::Mpi),
            HAS_MPI
        );
        assert_eq!(transport(mpirun).unwrap(), TransportKind::SharedMemory);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, says) in [
            ("RANK=1 ", "RANK=one ", "RANK=one: expected a whole number"),
            ("RANK=1 ", "RANK=-1 ", "RANK=-1: expected a whole number"),
            ("RANK=1 ", "RANK=2 ", "RANK=2: expected a rank below WORLD_SIZE=2"),
            (" WORLD_SIZE=2", " WORLD_SIZE=2.0", "WORLD_SIZE=2.0: expected a whole number"),
            (" WORLD_SIZE=2", "", "WORLD_SIZE is not set: expected a number"),
            ("LOCAL_RANK=1", "LOCAL_RANK=x", "LOCAL_RANK=x: expected a whole number"),
            ("LOCAL_RANK=1", "LOCAL_RANK=7", "LOCAL_RANK=7: expected a rank below LOCAL_WORLD_SIZE=2"),
            ("LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=0", "LOCAL_WORLD_SIZE=0: expected a number from 1"),
            ("LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3: expected a number from 1"),
            ("PORT=29500", "PORT=http", "MASTER_PORT=http: expected a port from 1 to 65535"),
            ("PORT=29500", "PORT=0", "MASTER_PORT=0: expected a port from 1 to 65535"),
        ] {
            let error = read(&TORCHRUN.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let error = read("WORLD_SIZE=2 LOCAL_RANK=0").unwrap_err().to_string();
        assert!(error.contains("RANK is not set"), "{error}");
        let error = read("PMI_RANK=0").unwrap_err().to_string();
        assert!(error.contains("PMI_SIZE is not set"), "{error}");
    }
}
