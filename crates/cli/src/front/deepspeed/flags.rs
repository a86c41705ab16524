//! The flags of DeepSpeed's launcher.

use crate::config::flags::{Abbreviations, Flags};
use crate::config::keys::Key;
use crate::config::keys::Status::{Later, Used};
use crate::config::keys::ValueType::{Bool, Choice, Int, Path, Text};

const ANY: i64 = i64::MIN;

/// The flags, with those of releases before 0.19.7 for elastic runs, and our own at the end.
#[rustfmt::skip]
pub const FLAGS: Flags = Flags {
    command: "deepspeed",
    bare_switches: true,
    operands: "SCRIPT [arguments]",
    about: "Starts a program once for each GPU of the machines in a hostfile, or of this one.",
    keys: &[
        Key::flag(Path, "hostfile", "/job/hostfile", Used, "File of machines, a line `NAME slots=N` each"),
        Key::flag(Text, "include", "", Used, "Machines and slots to use: NAME[:SLOT[,SLOT …]][@NAME…]"),
        Key::flag(Text, "exclude", "", Used, "Machines and slots not to use, written alike"),
        Key::flag(Int(ANY), "num_nodes", "-1", Used, "Use the first so many machines"),
        Key::flag(Int(ANY), "num_gpus", "-1", Used, "Use so many slots of each machine, from 0 on"),
        Key::flag(Int(0), "master_port", "29500", Used, "Port at which rank 0 listens"),
        Key::flag(Text, "master_addr", "", Used, "Address of the first machine; unset: it is asked"),
        Key::flag(Int(ANY), "node_rank", "-1", Used, "Which machine this is, with --no_ssh"),
        Key::flag(Text, "launcher", "pdsh", Used, "Program that reaches other machines: pdsh, ssh, openmpi, mpich, impi, mvapich, slurm"),
        Key::flag(Text, "launcher_args", "", Used, "Further arguments of that program, in one word"),
        Key::flag(Bool, "module", "", Used, "SCRIPT is a Python module"),
        Key::flag(Bool, "no_python", "", Used, "SCRIPT is a program of its own"),
        Key::flag(Bool, "no_local_rank", "", Used, "Do not begin the script's arguments with --local_rank=N"),
        Key::flag(Bool, "no_ssh", "", Used, "Start the ranks of this machine only; each machine is started by hand"),
        Key::flag(Bool, "no_ssh_check", "", Used, "Do not try first whether a machine can be reached"),
        Key::flag(Bool, "force_multi", "", Used, "Use the launcher for a single machine, too"),
        Key::flag(Bool, "save_pid", "", Used, "Write the launcher's process id to /tmp/ID.deepspeed while it runs"),
        Key::flag(Path, "enable_each_rank_log", "None", Used, "Folder for a log file of each rank"),
        Key::flag(Choice(&["tune", "run"]), "autotuning", "", Later("no configurations are tried out; `oarlock estimate-memory` tells what each stage takes"), "Search the fastest configuration first"),
        Key::flag(Bool, "bind_cores_to_rank", "", Used, "Give each rank its share of the cores"),
        Key::flag(Text, "bind_core_list", "", Used, "The cores to share, as in 1,3-5,7; unset: all"),
        Key::flag(Int(1), "ssh_port", "", Used, "Port of ssh on other machines"),
        Key::flag(Path, "venv_script", "", Used, "Script that other machines source first"),
        Key::flag(Choice(&["debug", "info", "warning", "error", "critical"]), "log_level", "info", Used, "error and critical: say nothing that is not an error"),
        Key::flag(Bool, "quiet", "", Used, "The same as --log_level error"),
        Key::flag(Bool, "elastic_training", "", Used, "Machines may come and go"),
        Key::flag(Int(ANY), "min_elastic_nodes", "-1", Used, "The fewest machines of an elastic run; -1: one"),
        Key::flag(Int(ANY), "max_elastic_nodes", "-1", Used, "The most machines of an elastic run; -1: all"),
        Key::flag(Bool, "cpu", "", Used, "Our own: ranks on the CPU, as DS_ACCELERATOR=cpu says, too"),
        Key::flag(Bool, "mpi_rank", "", Used, "Our own: run SCRIPT as the rank that MPICH's variables say"),
        Key::flag(Text, "run_label", "", Used, "Our own: what tells the processes of a run from others; nothing reads it"),
        Key::flag(Text, "world_info", "", Used, "Our own: all machines with their slots, instead of a hostfile, as --include is written"),
    ],
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
