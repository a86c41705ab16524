//! The flags of torchrun, with what each means here.

use crate::config::flags::{Abbreviations, Flags};
use crate::config::keys::Range::NotNegative;
use crate::config::keys::Row;
use crate::config::keys::Status::{Later, NoEffect, Used};
use crate::config::keys::ValueType::{Bool, Choice, Float, Int, Path, Text};

oarlock_config::key_table! {
    /// The flags.
    pub(super) const KEYS = [
        NNODES: String = Row::flag(Text, "nnodes", "1", Used, "Machines: a number, or as few and as many as MIN:MAX"),
        NPROC_PER_NODE: String = Row::flag(Text, "nproc_per_node", "1", Used, "Ranks of this machine: a number; auto: its GPUs, else its cores; gpu; cpu"),
        RDZV_BACKEND: String = Row::flag(Text, "rdzv_backend", "static", Used, "How machines meet: static (their number and --node-rank are known) or c10d (they meet at --rdzv-endpoint)"),
        RDZV_ENDPOINT: Option<String> = Row::flag(Text, "rdzv_endpoint", "", Used, "Where machines meet, HOST[:PORT], port 29400 unless said"),
        RDZV_ID: String = Row::flag(Text, "rdzv_id", "none", Used, "The name of the run, the same on all machines"),
        RDZV_CONF: Option<String> = Row::flag(Text, "rdzv_conf", "", Used, "Further settings of the meeting: KEY=VALUE,…"),
        INSECURE_RENDEZVOUS: bool = Row::flag(Bool, "insecure_rendezvous", "", Used, "Our own: machines may meet at public addresses without a token, where anybody can join"),
        STANDALONE: bool = Row::flag(Bool, "standalone", "", Used, "One machine, at a free port, whatever is said of meetings"),
        MAX_RESTARTS: i64 = Row::flag(Int(0), "max_restarts", "0", Used, "How often all ranks are started again after a failure"),
        MONITOR_INTERVAL: f64 = Row::flag(Float(NotNegative), "monitor_interval", "0.1", Used, "Seconds between two looks at the other machines"),
        START_METHOD: String = Row::flag(Choice(&["spawn", "fork", "forkserver"]), "start_method", "spawn", NoEffect("ranks are always processes of their own"), "How Python starts functions as processes"),
        EVENT_LOG_HANDLER: Option<String> = Row::flag(Text, "event_log_handler", "", Later("it names a Python object; the table of failures and --log-dir tell what happened"), "Where torch's agent logs its events"),
        ROLE: String = Row::flag(Text, "role", "default", Used, "The role of the ranks, in ROLE_NAME and before their lines"),
        MODULE: bool = Row::flag(Bool, "module", "", Used, "The script is a Python module, as with `python -m`"),
        NO_PYTHON: bool = Row::flag(Bool, "no_python", "", Used, "The script is a program of its own"),
        RUN_PATH: bool = Row::flag(Bool, "run_path", "", Used, "The script is a file with Python in it, whatever its name"),
        LOG_DIR: Option<String> = Row::flag(Path, "log_dir", "", Used, "Where files of ranks go: DIR/<run id>_…/attempt_<n>/<local rank>/"),
        REDIRECTS: String = Row::flag(Text, "redirects", "0", Used, "Streams that go into files instead: 0 none, 1 stdout, 2 stderr, 3 both; by local rank as 0:1,1:2"),
        TEE: String = Row::flag(Text, "tee", "0", Used, "Streams that go into files as well, written as for --redirects"),
        LOCAL_RANKS_FILTER: Option<String> = Row::flag(Text, "local_ranks_filter", "", Used, "The local ranks whose output is shown: 0,1"),
        DUPLICATE_STDOUT_FILTERS: Option<String> = Row::flag(Text, "duplicate_stdout_filters", "", Used, "Lines of stdout with one of these words are also in filtered_stdout.log; `,,` is a comma"),
        DUPLICATE_STDERR_FILTERS: Option<String> = Row::flag(Text, "duplicate_stderr_filters", "", Used, "Lines of stderr with one of these words are also in filtered_stderr.log; `,,` is a comma"),
        NODE_RANK: usize = Row::flag(Int(0), "node_rank", "0", Used, "Which machine this is, of a static meeting"),
        MASTER_ADDR: String = Row::flag(Text, "master_addr", "127.0.0.1", Used, "The machine of rank 0, of a static meeting"),
        MASTER_PORT: i64 = Row::flag(Int(0), "master_port", "29500", Used, "The port at which rank 0 listens there"),
        LOCAL_ADDR: Option<String> = Row::flag(Text, "local_addr", "", Used, "The address by which other machines reach this one"),
        LOGS_SPECS: Option<String> = Row::flag(Text, "logs_specs", "", Later("it names a Python class; --log-dir, --redirects and --tee say where output goes"), "A class that says where the output of ranks goes"),
        NUMA_BINDING: Option<String> = Row::flag(Choice(&["node", "socket", "exclusive", "core-complex"]), "numa_binding", "", Used, "Cores of a rank: all of its memory node, socket or last cache, or a share of its own (exclusive)"),
        SIGNALS_TO_HANDLE: String = Row::flag(Text, "signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", Used, "Signals that are handed on to the ranks, and end the run"),
        SHUTDOWN_TIMEOUT: Option<f64> = Row::flag(Float(NotNegative), "shutdown_timeout", "", Used, "Seconds that ranks have to end before they are killed; TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30"),
        VIRTUAL_LOCAL_RANK: bool = Row::flag(Bool, "virtual_local_rank", "", Used, "Each rank sees one GPU, its own, and has LOCAL_RANK 0"),
    ];
}

/// The table. Each is also read from the variable `PET_<FLAG>`.
#[rustfmt::skip]
pub(crate) const FLAGS: Flags = Flags {
    command: "torchrun",
    bare_switches: true,
    operands: "SCRIPT [arguments]",
    example: "torchrun --nproc-per-node 2 src/train.py recipes/sft.yaml",
    about: "Starts a program as many ranks on one or several machines, and again when one of them fails.",
    keys: KEYS,
    aliases: &[("m", "module"), ("r", "redirects"), ("t", "tee")],
    abbreviations: Abbreviations::AllBut(&[]),
};
