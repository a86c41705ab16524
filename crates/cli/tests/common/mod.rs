//! What the tests of the command share: a folder with a small model and a text, and the command with a time limit.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

#[path = "../../../oarlock/tests/common/mod.rs"]
mod shared;

use serde_json::Value;
use tempfile::TempDir;

pub use shared::{golden, is_alive, until, weights};

/// A configuration that a test completes with `output_dir` and whatever else it needs.
const CONFIG: &str = "\
model_name_or_path: model
dataset: text.jsonl
cutoff_len: 32
per_device_train_batch_size: 6
learning_rate: 3e-3
lr_scheduler_type: cosine
warmup_steps: 2
weight_decay: 0.1
max_steps: 10
logging_steps: 1
save_strategy: no
num_processes: 2
num_threads_per_process: 1
stage: pt
finetuning_type: full
";

/// A folder of its own with `model/`, `text.jsonl` and `train.yaml`. The command runs in it.
pub struct Site {
    folder: TempDir,
    program: PathBuf,
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct CommandOutput {
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A command that runs; it is killed with this value.
pub struct Running {
    child: Child,
    outputs: [PathBuf; 2],
}

impl Site {
    pub fn new() -> Site {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_oarlock"));
        let site = Site { folder: tempfile::tempdir().unwrap(), program };
        fs::create_dir(site.path("model")).unwrap();
        for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(golden().join(name), site.path("model").join(name)).unwrap();
        }
        fs::copy(golden().join("text.jsonl"), site.path("text.jsonl")).unwrap();
        site.write("train.yaml", CONFIG);
        site
    }

    /// With a copy of the program, whose pages no other test shares: the memory that is measured depends on this alone.
    pub fn with_own_program() -> Site {
        let mut site = Site::new();
        let copy = site.path("program");
        // By a process of its own: a file that this one has open for writing cannot be started by other threads.
        assert!(Command::new("cp").args([&site.program, &copy]).status().unwrap().success());
        site.program = copy;
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The command, in this folder and with nothing of the tests' environment that it looks at.
    pub fn oarlock(&self, words: &[&str]) -> Command {
        self.inside(Command::new(&self.program), words)
    }

    /// A shell script in which `$0` is the program.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = self.inside(Command::new("sh"), &["-c", script]);
        command.arg(&self.program);
        command
    }

    fn inside(&self, mut command: Command, words: &[&str]) -> Command {
        let launchers = ["OARLOCK_", "OMPI_", "MV2_", "MPI_", "PMI_", "SLURM_"];
        let names = [
            "WORLD_SIZE",
            "RANK",
            "LOCAL_RANK",
            "NPROC_PER_NODE",
            "NNODES",
            "WANDB_PROJECT",
            "SWANLAB_LOGDIR",
            "TENSORBOARD_LOGGING_DIR",
        ];
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if names.contains(&&*name) || launchers.iter().any(|start| name.starts_with(start)) {
                command.env_remove(name);
            }
        }
        // A GPU of this machine is not to be met by chance; a test that wants one names the folder of its libraries.
        command.env("OARLOCK_CUDA_LIBRARIES", self.path("no libraries"));
        // What looks like a model of a hub is asked for nowhere; a test that wants that says where the hub is.
        command.env("HF_HUB_OFFLINE", "1").env("HF_HUB_CACHE", "no-cache");
        // Help is in the language of the reader.
        command.env("LC_ALL", "C.UTF-8");
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// `oarlock train train.yaml output_dir=… words…`.
    pub fn training(&self, output: &str, words: &[&str]) -> Command {
        let output = format!("output_dir={output}");
        let mut command = self.oarlock(&["train", "train.yaml", &output]);
        command.args(words);
        command
    }

    /// A training run that must succeed.
    pub fn train(&self, output: &str, words: &[&str]) -> CommandOutput {
        let said = run(self.training(output, words));
        assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
        said
    }

    /// The records of trainer_log.jsonl that have a loss: step, and the bits of loss and gradient norm.
    pub fn losses(&self, output: &str) -> Vec<(u64, u64, u64)> {
        let bits = |record: &Value, key: &str| record[key].as_f64().unwrap().to_bits();
        self.log(output)
            .iter()
            .filter(|record| record.get("loss").is_some())
            .map(|record| {
                (record["current_steps"].as_u64().unwrap(), bits(record, "loss"), bits(record, "grad_norm"))
            })
            .collect()
    }

    /// The whole records of trainer_log.jsonl; none where it is not there yet.
    pub fn log(&self, output: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(output).join("trainer_log.jsonl")).unwrap_or_default();
        text.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The bytes of the model that a run ended with.
    pub fn model(&self, output: &str) -> Vec<u8> {
        self.read(&format!("{output}/model.safetensors"))
    }
}

/// Runs a command to its end.
pub fn run(command: Command) -> CommandOutput {
    start(command).wait()
}

/// Starts a command; its outputs go to files, so that it never waits for a reader.
pub fn start(mut command: Command) -> Running {
    let folder = command.get_current_dir().unwrap().to_path_buf();
    let names = tempfile::Builder::new().prefix("said-").tempdir_in(folder).unwrap().keep();
    let outputs = [names.join("stdout"), names.join("stderr")];
    let file = |path: &PathBuf| File::create(path).unwrap();
    let child = command.stdout(file(&outputs[0])).stderr(file(&outputs[1])).spawn().unwrap();
    Running { child, outputs }
}

impl CommandOutput {
    /// Standard error in one line: problems are wrapped, in a frame.
    pub fn message(&self) -> String {
        let is_frame = |word: &&str| word.chars().all(|c| "│╭╰─·┬╯".contains(c));
        self.stderr.split_whitespace().filter(|word| !is_frame(word)).collect::<Vec<_>>().join(" ")
    }
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub fn stdout(&self) -> String {
        fs::read_to_string(&self.outputs[0]).unwrap()
    }

    /// What it has told standard error so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.outputs[1]).unwrap()).into_owned()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> CommandOutput {
        let status = until("the end of the command", || self.child.try_wait().unwrap());
        let [stdout, stderr] = self
            .outputs
            .each_ref()
            .map(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned());
        CommandOutput { code: status.code(), signal: status.signal(), stdout, stderr }
    }

    /// The processes of the ranks, in the order of ranks, once all of them run.
    pub fn ranks(&self, n_ranks: usize) -> Vec<u32> {
        until("all ranks", || {
            let ranks = ranks_of(self.pid());
            (ranks.len() == n_ranks).then_some(ranks)
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Where it has ended already there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rank processes below a launcher: those whose environment says which rank they are.
fn ranks_of(launcher: u32) -> Vec<u32> {
    let mut ranks = Vec::new();
    for pid in
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
    {
        if parent(pid) == Some(launcher)
            && let Some(rank) = rank_of(pid)
        {
            ranks.push((rank, pid));
        }
    }
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, pid)| pid).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// `OARLOCK_SHARED_MEMORY=file,rank,ranks,token`, or what mpirun says.
fn rank_of(pid: u32) -> Option<usize> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let environment = String::from_utf8_lossy(&environment);
    let said = |name: &str| environment.split('\0').find_map(|entry| entry.strip_prefix(name));
    match said("OARLOCK_SHARED_MEMORY=") {
        Some(place) => place.split(',').nth(1)?.parse().ok(),
        None => said("OMPI_COMM_WORLD_RANK=")?.parse().ok(),
    }
}
