//! Logs and plots: what a run says while it trains, and to whom.

use super::interval::IntervalStrategy;
use crate::settings::keys::Status::{Later, NoEffect, Used};
use crate::settings::keys::ValueType::{self, Bool, Choice, Int, List, Path, Steps, Text};
use crate::settings::secret::Secret;
use crate::settings::section::section;

section! {
    /// Logs.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct LogArgs of Log

    /// The keys of logs.
    pub const LOG = [
        LOGGING_STEPS: f64 = (Steps, "logging_steps", "500", Used, "Steps between log records");
        LOGGING_STRATEGY: String = (Choice(&["no", "steps", "epoch"]), "logging_strategy", "steps", Used, "When to log") => Unrecorded when: IntervalStrategy, "When to log." = |settings| IntervalStrategy::of(settings.get(LOGGING_STRATEGY), settings.get(LOGGING_STEPS));
        LOGGING_FIRST_STEP: bool = (Bool, "logging_first_step", "false", Used, "Log the first step, too") => Unrecorded first_step;
        PLOT_LOSS: bool = (Bool, "plot_loss", "false", Used, "Draw training_loss.png") => Unrecorded plot_loss;
        DISABLE_TQDM: bool = (Bool, "disable_tqdm", "false", Used, "Print plain lines instead of a progress line") => Unrecorded plain;
        REPORT_TO: Vec<String> = (List, "report_to", "none", Used, "Trackers to report to: tensorboard, wandb (offline), swanlab (offline), csv, jsonl, all, none");
        RUN_NAME: Option<String> = (Text, "run_name", "", Used, "Name of the run in wandb and SwanLab");
        WANDB_PROJECT: String = (Text, "wandb_project", "huggingface", Used, "Our own: project of the run in wandb, as WANDB_PROJECT");
        LOGGING_DIR: Option<String> = (Path, "logging_dir", "", Used, "Folder of the files of tensorboard, csv and jsonl; unset: TENSORBOARD_LOGGING_DIR, else runs in output_dir");
        LOG_LEVEL: String = (Text, "log_level", "passive", NoEffect("messages are few"), "Level of messages");
        LOG_LEVEL_REPLICA: String = (Text, "log_level_replica", "warning", NoEffect("rank 0 speaks for all"), "Level of messages of other ranks");
        LOG_ON_EACH_NODE: bool = (Bool, "log_on_each_node", "true", NoEffect("rank 0 speaks for all"), "Messages of every machine");
        LOGGING_NAN_INF_FILTER: bool = (Bool, "logging_nan_inf_filter", "true", NoEffect("losses that are not finite are in no mean"), "Leave nan and inf out of the logged loss");
        INCLUDE_NUM_INPUT_TOKENS_SEEN: bool = (Bool, "include_num_input_tokens_seen", "false", NoEffect("tokens are always counted"), "Count tokens");
        INCLUDE_TOKENS_PER_SECOND: bool = (Bool, "include_tokens_per_second", "false", NoEffect("throughput is always logged"), "Log tokens per second");
        INCLUDE_EFFECTIVE_TOKENS_PER_SECOND: bool = (Bool, "include_effective_tokens_per_second", "false", NoEffect("throughput is always logged"), "Log effective tokens per second");
        MEMORY_STEPS: usize = (Int(0), "memory_steps", "0", Used, "Our own: steps between memory reports; 0: none") => Unrecorded memory_steps;
        MEMORY_CHECK: bool = (Bool, "memory_check", "true", Used, "Our own: refuse a training run that would not fit into memory") => Unrecorded memory_check;
        PROFILE: bool = (Bool, "profile", "false", Used, "Our own: report the time of each phase of a step, and memory, every profile_interval steps") => Unrecorded profile: Option<u64>, "Steps between tables of the time of each phase; `None` for none." = |settings| settings.get(PROFILE).then(|| settings.get(PROFILE_INTERVAL));
        PROFILE_INTERVAL: u64 = (Int(1), "profile_interval", "10", Used, "Our own: optimizer steps between profile reports");
        SKIP_MEMORY_METRICS: bool = (Bool, "skip_memory_metrics", "true", NoEffect("memory is always logged"), "Leave memory out of the logs");
        USE_SWANLAB: bool = (Bool, "use_swanlab", "false", Used, "Report to SwanLab, offline, as report_to: swanlab");
        SWANLAB_PROJECT: String = (Text, "swanlab_project", "llamafactory", Used, "Project of the run in SwanLab");
        SWANLAB_WORKSPACE: Option<String> = (Text, "swanlab_workspace", "", Used, "Workspace of the run in SwanLab; unset: that of whoever uploads it");
        SWANLAB_RUN_NAME: Option<String> = (Text, "swanlab_run_name", "", Used, "Name of the run in SwanLab; unset: run_name");
        SWANLAB_MODE: String = (Choice(&["cloud", "local"]), "swanlab_mode", "cloud", NoEffect("runs are always offline; `swanlab sync` uploads them"), "Where SwanLab logs");
        SWANLAB_API_KEY: Option<Secret> = (ValueType::Secret, "swanlab_api_key", "", NoEffect("nothing is uploaded; `swanlab sync` asks for the key"), "Key of SwanLab");
        SWANLAB_LOGDIR: Option<String> = (Path, "swanlab_logdir", "", Used, "Folder of the offline runs of SwanLab; unset: SWANLAB_LOGDIR, else swanlog");
        SWANLAB_LARK_WEBHOOK_URL: Option<String> = (Text, "swanlab_lark_webhook_url", "", NoEffect("no messages are sent"), "Messages of SwanLab to Lark");
        SWANLAB_LARK_SECRET: Option<Secret> = (ValueType::Secret, "swanlab_lark_secret", "", NoEffect("no messages are sent"), "Secret of these messages");
        ENABLE_TORCH_PROFILER: bool = (Bool, "enable_torch_profiler", "false", Later("times of each phase are always measured"), "Write traces");
        PROFILER_OUTPUT_DIR: Option<String> = (Path, "profiler_output_dir", "", NoEffect("write profile: true"), "Folder of traces");
        PROFILER_WAIT_STEPS: usize = (Int(0), "profiler_wait_steps", "1", NoEffect("write profile: true"), "Steps before a trace");
        PROFILER_WARMUP_STEPS: usize = (Int(0), "profiler_warmup_steps", "1", NoEffect("write profile: true"), "Steps of warming up");
        PROFILER_ACTIVE_STEPS: usize = (Int(0), "profiler_active_steps", "1", NoEffect("write profile: true"), "Steps of a trace");
        PROFILER_REPEAT: usize = (Int(0), "profiler_repeat", "1", NoEffect("write profile: true"), "Number of traces");
        PROFILER_RECORD_SHAPES: bool = (Bool, "profiler_record_shapes", "true", NoEffect("write profile: true"), "Shapes in traces");
        PROFILER_PROFILE_MEMORY: bool = (Bool, "profiler_profile_memory", "true", NoEffect("write profile: true"), "Memory in traces");
        PROFILER_WITH_STACK: bool = (Bool, "profiler_with_stack", "true", NoEffect("write profile: true"), "Call stacks in traces");
        PROFILE_MODULES: Vec<String> = (List, "profile_modules", "", NoEffect("write profile: true"), "Modules that are timed");
    ];
}
