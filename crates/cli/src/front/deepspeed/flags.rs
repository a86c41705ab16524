//! The flags of DeepSpeed's launcher.

use crate::config::flags::{Abbreviations, Flags};
use crate::config::keys::Row;
use crate::config::keys::Status::{Later, Used};
use crate::config::keys::ValueType::{Bool, Choice, Int, Path, Text};

const ANY: i64 = i64::MIN;

oarlock_config::key_table! {
    /// The flags.
    pub const KEYS = [
        HOSTFILE: String = Row::flag(Path, "hostfile", "/job/hostfile", Used, "File of machines, a line `NAME slots=N` each"),
        INCLUDE: Option<String> = Row::flag(Text, "include", "", Used, "Machines and slots to use: NAME[:SLOT[,SLOT …]][@NAME…]"),
        EXCLUDE: Option<String> = Row::flag(Text, "exclude", "", Used, "Machines and slots not to use, written alike"),
        NUM_NODES: i64 = Row::flag(Int(ANY), "num_nodes", "-1", Used, "Use the first N machines"),
        NUM_GPUS: i64 = Row::flag(Int(ANY), "num_gpus", "-1", Used, "Use N slots of each machine, from 0 on"),
        MASTER_PORT: i64 = Row::flag(Int(0), "master_port", "29500", Used, "Port at which rank 0 listens"),
        MASTER_ADDR: Option<String> = Row::flag(Text, "master_addr", "", Used, "Address of the first machine; unset: it is asked"),
        NODE_RANK: i64 = Row::flag(Int(ANY), "node_rank", "-1", Used, "Which machine this is, with --no_ssh"),
        LAUNCHER: String = Row::flag(Text, "launcher", "pdsh", Used, "Program that reaches other machines: pdsh, ssh, openmpi, mpich, impi, mvapich, slurm"),
        LAUNCHER_ARGS: Option<String> = Row::flag(Text, "launcher_args", "", Used, "Further arguments of that program, in one word"),
        MODULE: bool = Row::flag(Bool, "module", "", Used, "SCRIPT is a Python module"),
        NO_PYTHON: bool = Row::flag(Bool, "no_python", "", Used, "SCRIPT is a program of its own"),
        NO_LOCAL_RANK: bool = Row::flag(Bool, "no_local_rank", "", Used, "Do not begin the script's arguments with --local_rank=N"),
        NO_SSH: bool = Row::flag(Bool, "no_ssh", "", Used, "Start the ranks of this machine only; each machine is started by hand"),
        NO_SSH_CHECK: bool = Row::flag(Bool, "no_ssh_check", "", Used, "Do not try first whether a machine can be reached"),
        FORCE_MULTI: bool = Row::flag(Bool, "force_multi", "", Used, "Use the launcher for a single machine, too"),
        SAVE_PID: bool = Row::flag(Bool, "save_pid", "", Used, "Write the launcher's process id to /tmp/ID.deepspeed while it runs"),
        ENABLE_EACH_RANK_LOG: String = Row::flag(Path, "enable_each_rank_log", "None", Used, "Folder for a log file of each rank"),
        AUTOTUNING: Option<String> = Row::flag(Choice(&["tune", "run"]), "autotuning", "", Later("no configurations are tried out; `oarlock estimate-memory` tells what each stage takes"), "Search the fastest configuration first"),
        BIND_CORES_TO_RANK: bool = Row::flag(Bool, "bind_cores_to_rank", "", Used, "Give each rank its share of the cores"),
        BIND_CORE_LIST: Option<String> = Row::flag(Text, "bind_core_list", "", Used, "The cores to share, as in 1,3-5,7; unset: all"),
        SSH_PORT: Option<i64> = Row::flag(Int(1), "ssh_port", "", Used, "Port of ssh on other machines"),
        VENV_SCRIPT: Option<String> = Row::flag(Path, "venv_script", "", Used, "Script that other machines source first"),
        LOG_LEVEL: String = Row::flag(Choice(&["debug", "info", "warning", "error", "critical"]), "log_level", "info", Used, "error and critical: say nothing that is not an error"),
        QUIET: bool = Row::flag(Bool, "quiet", "", Used, "The same as --log_level error"),
        ELASTIC_TRAINING: bool = Row::flag(Bool, "elastic_training", "", Used, "Machines may come and go"),
        MIN_ELASTIC_NODES: i64 = Row::flag(Int(ANY), "min_elastic_nodes", "-1", Used, "The fewest machines of an elastic run; -1: one"),
        MAX_ELASTIC_NODES: i64 = Row::flag(Int(ANY), "max_elastic_nodes", "-1", Used, "The most machines of an elastic run; -1: all"),
        CPU: bool = Row::flag(Bool, "cpu", "", Used, "Our own: ranks on the CPU, as DS_ACCELERATOR=cpu says, too"),
        MPI_RANK: bool = Row::flag(Bool, "mpi_rank", "", Used, "Our own: run SCRIPT as the rank that MPICH's variables say"),
        RUN_LABEL: Option<String> = Row::flag(Text, "run_label", "", Used, "Our own: what tells the processes of a run from others; nothing reads it"),
        WORLD_INFO: Option<String> = Row::flag(Text, "world_info", "", Used, "Our own: all machines with their slots, instead of a hostfile, as --include is written"),
    ];
}

/// The flags, with those of releases before 0.19.7 for elastic runs, and our own at the end.
#[rustfmt::skip]
pub const FLAGS: Flags = Flags {
    command: "deepspeed",
    bare_switches: true,
    operands: "SCRIPT [arguments]",
    example: "deepspeed --num_gpus 2 src/train.py recipes/sft.yaml",
    about: "Starts a program once for each GPU of the machines in a hostfile, or of this one.",
    keys: KEYS,
    aliases: &[
        ("H", "hostfile"),
        ("i", "include"),
        ("e", "exclude"),
        ("q", "quiet"),
        ("num_accelerators", "num_gpus"),
    ],
    abbreviations: Abbreviations::AllBut(&[
        "elastic_training",
        "min_elastic_nodes",
        "max_elastic_nodes",
        "cpu",
        "mpi_rank",
        "run_label",
        "world_info",
    ]),
};
