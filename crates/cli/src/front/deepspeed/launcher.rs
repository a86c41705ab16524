//! How other machines are reached, and the variable that names a run.

use super::filter::Slots;
use super::flags as keys;
use super::hostfile::Pool;
use crate::config::Problem;
use crate::config::keys::Row;
use crate::config::resolve::Settings;

/// The variable with the name of a run.
pub const RUN_NAME: &str = "OARLOCK_RUN_ID";

/// How other machines are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// One ssh for each machine, our own.
    Ssh,
    /// pdsh, the default.
    Pdsh,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpirun` of MPICH.
    Mpich,
    /// `mpirun` of Intel MPI.
    Impi,
    /// `mpirun` of MVAPICH2-GDR.
    Mvapich,
    /// `srun`.
    Slurm,
}

impl Launcher {
    /// All of them by their names.
    pub const ALL: [(&'static str, Launcher); 7] = [
        ("pdsh", Launcher::Pdsh),
        ("ssh", Launcher::Ssh),
        ("openmpi", Launcher::OpenMpi),
        ("mpich", Launcher::Mpich),
        ("impi", Launcher::Impi),
        ("mvapich", Launcher::Mvapich),
        ("slurm", Launcher::Slurm),
    ];

    /// The launcher that the flag names.
    pub fn of(settings: &Settings) -> Result<Launcher, Problem> {
        let name = settings.get(keys::LAUNCHER).to_ascii_lowercase();
        Launcher::ALL.iter().find(|(other, _)| *other == name).map(|(_, launcher)| *launcher).ok_or_else(
            || {
                let names: Vec<&str> = Launcher::ALL.iter().map(|(name, _)| *name).collect();
                let problem =
                    settings.problem(format!("there is no launcher `{name}`"), &[keys::LAUNCHER.row]);
                problem.help(format!("write one of {}", names.join(", ")))
            },
        )
    }

    /// The program that must be there.
    pub fn program(self) -> &'static str {
        match self {
            Launcher::Ssh => "ssh",
            Launcher::Pdsh => "pdsh",
            Launcher::Slurm => "srun",
            _ => "mpirun",
        }
    }

    /// Whether the ranks that it starts find each other through MPI.
    pub fn is_of_mpi(self) -> bool {
        !matches!(self, Launcher::Ssh | Launcher::Pdsh)
    }

    /// Whether it can start these slots.
    pub fn check(self, settings: &Settings, pool: &Pool, slots: &Slots) -> Result<(), Problem> {
        let name = self.name();
        match self {
            Launcher::Ssh | Launcher::Pdsh => Ok(()),
            Launcher::Slurm => {
                if let Some((host, own)) =
                    slots.iter().find(|(_, own)| own.iter().ne(&(0..own.len()).collect::<Vec<_>>()))
                {
                    let message = format!("slurm counts slots and cannot choose {own:?} of `{host}`");
                    let problem = settings.problem(message, &[keys::INCLUDE.row, keys::EXCLUDE.row]);
                    return Err(problem.help("filter whole machines, or keep the first slots of each"));
                }
                if slots.windows(2).any(|two| two[0].1.len() != two[1].1.len()) {
                    let problem = settings.problem(
                        "slurm needs as many slots on every machine",
                        &[keys::INCLUDE.row, keys::EXCLUDE.row],
                    );
                    return Err(
                        problem.help("filter alike on every machine, or write the same `slots=` for each")
                    );
                }
                Ok(())
            }
            _ => {
                let filters = [keys::INCLUDE.row, keys::EXCLUDE.row, keys::NUM_NODES.row, keys::NUM_GPUS.row];
                let written: Vec<&Row> =
                    filters.into_iter().filter(|key| settings.setting(*key).is_written()).collect();
                if !written.is_empty() {
                    let problem =
                        settings.problem(format!("{name} starts all slots of the hostfile"), &written);
                    return Err(
                        problem.help("write a hostfile with what is to be used, or use --launcher pdsh")
                    );
                }
                if self != Launcher::OpenMpi && pool.windows(2).any(|two| two[0].1 != two[1].1) {
                    let problem = Problem::new(format!("{name} needs as many slots on every machine"));
                    return Err(problem.help("write the same `slots=` for each, or use --launcher pdsh"));
                }
                Ok(())
            }
        }
    }

    fn name(self) -> &'static str {
        Launcher::ALL.iter().find(|(_, launcher)| *launcher == self).map_or("", |(name, _)| *name)
    }
}
