//! Hostfiles, filters and commands against what the original's own functions make of them
//! (`tests/golden/deepspeed_launcher.json`), and what each flag changes.

use std::path::PathBuf;

use serde_json::Value;

use super::*;
use crate::config::flags::assert_abbreviations;
use crate::config::keys::Status;
use crate::front::job::Program;
use crate::launch::spec::{Binding, Nodes};

const GPUS: Devices = Devices { gpus: 4, cores: 6 };
const CPU: Devices = Devices { gpus: 0, cores: 2 };

fn golden(part: &str) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/deepspeed_launcher.json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    all[part].as_array().unwrap().clone()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap()
}

fn pool(value: &Value) -> Pool {
    serde_json::from_value(value.clone()).unwrap()
}

/// Our outcome against the original's: the same machines, or an error of both.
fn same<E: std::fmt::Display>(case: &Value, ours: Result<Value, E>) {
    match (ours, case.get("error")) {
        (Ok(ours), None) => assert_eq!(ours, case["hosts"], "{case}"),
        (Err(_), Some(_)) => {}
        (Ok(ours), Some(_)) => panic!("{case}: {ours}"),
        (Err(error), None) => panic!("{case}: {error}"),
    }
}

#[test]
fn hostfiles_are_read_as_by_the_original() {
    for case in golden("hostfiles") {
        let ours = hostfile::parse(text(&case, "text"));
        if let (Err((error, _)), Some(theirs)) = (&ours, case.get("error")) {
            let kind = match error {
                hostfile::Error::Twice(_) => "multiple entries for ",
                hostfile::Error::BadLine(_) | hostfile::Error::BadName(_) => "a bad entry: ",
                hostfile::Error::Empty => "is empty",
                hostfile::Error::TooMany => panic!("{case}: the original has no such limit"),
            };
            assert!(theirs.as_str().unwrap().contains(kind), "{case}: {error}");
        }
        same(&case, ours.map(|pool| serde_json::to_value(pool).unwrap()).map_err(|(error, _)| error));
    }
}

#[test]
fn what_stands_behind_the_slots_of_a_machine_is_told() {
    let text = "a slots=2 max_slots=4 # both\n# slots=1 x\nb slots=2 max_slot=9\nc slots=3x\nd slots=1 max-slots=2\n";
    assert_eq!(hostfile::unread(text), [(3, "max_slot=9".to_owned()), (4, "x".to_owned())]);
}

#[test]
fn a_hostfile_without_end_is_refused_at_once() {
    let lines = |n: usize| (0..n).map(|i| format!("worker-{i} slots=8\n")).collect::<String>();
    assert_eq!(hostfile::parse(&lines(1 << 16)).unwrap().len(), 1 << 16);
    assert_eq!(hostfile::parse(&lines((1 << 16) + 1)).unwrap_err().0, hostfile::Error::TooMany);
}

#[test]
fn filters_leave_what_the_original_leaves() {
    let cases = golden("filters");
    assert!(cases.len() >= 100);
    for case in cases {
        let ours = filter::apply(&pool(&case["pool"]), text(&case, "include"), text(&case, "exclude"));
        same(&case, ours.map(|slots| serde_json::to_value(slots).unwrap()));
    }
    for case in golden("trims") {
        let count = |name: &str| case[name].as_i64().unwrap();
        let slots = filter::trim(filter::all(&pool(&case["pool"])), count("num_nodes"), count("num_gpus"));
        same::<Problem>(&case, Ok(serde_json::to_value(slots).unwrap()));
    }
}

#[test]
fn a_world_is_read_back() {
    let slots: Slots = vec![("a".to_owned(), vec![0, 3]), ("b".to_owned(), vec![])];
    assert_eq!(filter::world(&slots), "a:0,3@b:");
    assert_eq!(filter::of_world("a:0,3@b:"), Ok(slots));
    assert!(filter::of_world("a").is_err() && filter::of_world("a:x").is_err());
}

/// A folder with a script and, if it is wanted, a hostfile.
struct Site(tempfile::TempDir);

impl Site {
    fn new(hostfile: &str) -> Site {
        let site = Site(tempfile::tempdir().unwrap());
        std::fs::write(site.path("script.py"), "").unwrap();
        if !hostfile.is_empty() {
            std::fs::write(site.path("hostfile"), hostfile).unwrap();
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The plan of `words SCRIPT --lr 1e-4 …`.
    fn plan(
        &self,
        words: &[&str],
        environment: &[(&str, &str)],
        devices: &Devices,
    ) -> Result<Action, Problems> {
        let script = self.text("script.py");
        let mut all: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        if !words.contains(&"--hostfile") && self.path("hostfile").exists() {
            all.splice(0..0, ["--hostfile".to_owned(), self.text("hostfile")]);
        }
        let arguments = [&script, "--lr", "1e-4", "--name", "two words", "--x", "say \"a b\""];
        all.extend(arguments.map(str::to_owned));
        let mut problems = Problems::default();
        let parsed = FLAGS.parse(&Words::new(&all), &mut problems);
        let machine = Machine {
            devices: devices.clone(),
            read: &|name| {
                environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            },
            variables: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            program: "/opt/oarlock".to_owned(),
            folder: self.0.path().to_path_buf(),
            address: &|host, port| (host != "silent").then(|| format!("address of {host} by {port:?}")),
        };
        action(&parsed, &all, problems, &machine)
    }

    fn here(&self, words: &[&str], environment: &[(&str, &str)], devices: &Devices) -> Job {
        match self.plan(words, environment, devices) {
            Ok(Action::Local(job)) => *job,
            Ok(_) => panic!("{words:?} does not stay here"),
            Err(problems) => panic!("{words:?}: {problems}"),
        }
    }

    fn elsewhere(&self, words: &[&str], environment: &[(&str, &str)]) -> Box<Remote> {
        match self.plan(words, environment, &GPUS) {
            Ok(Action::Multinode(remote)) => remote,
            Ok(_) => panic!("{words:?} stays here"),
            Err(problems) => panic!("{words:?}: {problems}"),
        }
    }

    fn refused(&self, words: &[&str], environment: &[(&str, &str)], devices: &Devices) -> String {
        match self.plan(words, environment, devices) {
            Ok(_) => panic!("{words:?} is not refused"),
            Err(problems) => problems.to_string(),
        }
    }
}

/// What stands for the random label of a run.
const LABEL: &str = "LABEL";

fn unlabeled(word: &str) -> String {
    let Some((before, label)) = word.split_once("--run_label=") else { return word.to_owned() };
    let end = label.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(label.len());
    assert!(end >= 16, "{word}");
    format!("{before}--run_label={LABEL}{}", &label[end..])
}

/// The words of the original's command with this program in the place of DeepSpeed's.
fn ours(case: &Value, site: &Site, python: &str) -> Vec<String> {
    let folder = site.0.path().display().to_string();
    let world = |world: &Value| {
        let slots = world.as_object().unwrap().iter();
        filter::world(
            &slots
                .map(|(host, slots)| (host.clone(), serde_json::from_value(slots.clone()).unwrap()))
                .collect(),
        )
    };
    let words: Vec<String> = serde_json::from_value(case["command"].clone()).unwrap();
    let mut out = Vec::new();
    let mut skips = 0;
    for (i, word) in words.iter().enumerate() {
        if skips > 0 {
            skips -= 1;
            continue;
        }
        let follows = |n: usize| words.get(i + n).map_or("", String::as_str);
        match word.as_str() {
            "PYTHON" if follows(3) == "deepspeed.launcher.launch" => {
                out.extend(["/opt/oarlock", "deepspeed", "--no_ssh"].map(str::to_owned));
                out.push(format!("--run_label={LABEL}"));
                skips = 3;
            }
            "PYTHON" if follows(2) == "HELPER" => skips = 1,
            "PYTHON" if follows(3) == "HELPER" => skips = 2,
            "PYTHON" => out.push(python.to_owned()),
            "HELPER" => {
                out.extend(["/opt/oarlock", "deepspeed", "--mpi_rank"].map(str::to_owned));
                skips = 2;
            }
            // It stands there when nobody asked for logs; and our launcher names the file by its own number.
            "--enable_each_rank_log=None" | "PID" => {}
            "SCRIPT" => out.push(site.text("script.py")),
            "HOSTFILE" => out.push(site.text("hostfile")),
            "/tmp/deepspeed_mvapich_hostfile" => out.push(format!("{word}.{}", std::process::id())),
            word => out.push(
                word.replace("--world_info=WORLD", &format!("--world_info={}", world(&case["world"])))
                    .replace("DIRECTORY", &folder),
            ),
        }
    }
    out
}

#[test]
fn commands_are_those_of_the_original() {
    let exports: Vec<(String, String)> =
        golden("exports").into_iter().map(|pair| serde_json::from_value(pair).unwrap()).collect();
    for case in golden("commands") {
        let lines = pool(&case["pool"]).into_iter().map(|(host, slots)| format!("{host} slots={slots}\n"));
        let site = Site::new(&lines.collect::<String>());
        // PYTHONPATH is made from the working directory, in its place among the variables.
        let environment: Vec<(&str, &str)> = exports
            .iter()
            .map(|(name, value)| (name.as_str(), if name == "PYTHONPATH" { "" } else { value.as_str() }))
            .collect();
        let flags: Vec<String> = serde_json::from_value(case["argv"].clone()).unwrap();
        let mut words = vec!["--master_addr", "10.0.0.1"];
        words.extend(flags.iter().map(String::as_str));
        if case.get("error").is_some() {
            site.refused(&words, &environment, &GPUS);
            continue;
        }
        let remote = site.elsewhere(&words, &environment);
        let python = match &remote.job.program {
            Program::Command(argv) => argv[0].clone(),
            Program::Training(_) => panic!("{case}"),
        };
        let path = format!("{}:", site.0.path().display());
        let expected = ours(&case, &site, &python);
        let ours: Vec<String> = remote.commands.start[0]
            .iter()
            .map(|word| unlabeled(&word.replace(&path, path.trim_end_matches(':'))))
            .collect();
        assert_eq!(remote.commands.start.len(), 1);
        assert_eq!(ours, expected, "{case}");
    }
}

/// What a plan comes to, to see that a flag changes it.
fn summary(plan: &Action) -> String {
    match plan {
        Action::Local(job) => format!("{:?} {:?} {:?} {}", job.launch, job.program, job.notes, job.dry_run),
        Action::Multinode(remote) => {
            let commands: Vec<String> =
                remote.commands.start.iter().flatten().map(|word| unlabeled(word)).collect();
            format!("{commands:?} {:?} {:?} {:?}", remote.launches, remote.check, remote.port)
        }
        Action::Exec(argv) => format!("{argv:?}"),
    }
}

#[test]
fn every_flag_of_the_original_changes_the_plan_or_is_refused() {
    let site = Site::new("a slots=2\nb slots=2\n");
    let logs = site.text("logs");
    let other = site.text("other");
    std::fs::write(&other, "c slots=1\nd slots=1\n").unwrap();
    // Flag, a value, and what must be written beside it.
    let cases: &[(&str, &str, &[&str])] = &[
        ("--hostfile", &other, &[]),
        ("-H", &other, &[]),
        ("--include", "a:0@b", &[]),
        ("-i", "a:0@b", &[]),
        ("--exclude", "b:1", &[]),
        ("-e", "b:1", &[]),
        ("--num_nodes", "1", &[]),
        ("--num_gpus", "1", &[]),
        ("--num_accelerators", "1", &[]),
        ("--master_port", "29501", &[]),
        ("--master_addr", "10.0.0.2", &[]),
        ("--node_rank", "1", &["--no_ssh"]),
        ("--launcher", "slurm", &[]),
        ("--launcher_args", "-x A=1", &[]),
        ("--module", "", &[]),
        ("--no_python", "", &[]),
        ("--no_local_rank", "", &[]),
        ("--no_ssh", "", &["--node_rank", "0"]),
        ("--no_ssh_check", "", &[]),
        ("--force_multi", "", &["--num_nodes", "1"]),
        ("--save_pid", "", &[]),
        ("--enable_each_rank_log", &logs, &[]),
        ("--bind_cores_to_rank", "", &[]),
        ("--bind_core_list", "0-3", &["--bind_cores_to_rank"]),
        ("--ssh_port", "22", &[]),
        ("--venv_script", "venv/activate", &[]),
        ("--log_level", "error", &[]),
        ("--quiet", "", &[]),
        ("-q", "", &[]),
        ("--cpu", "", &[]),
    ];
    let base = ["--master_addr", "10.0.0.1"];
    for (flag, value, beside) in cases {
        for hyphens in [false, true] {
            let flag = if hyphens { flag.replace('_', "-") } else { (*flag).to_owned() };
            let written = [&flag, *value];
            let written = if value.is_empty() { &written[..1] } else { &written[..] };
            let of = |words: &[&str]| {
                let words = [&base, *beside, words].concat();
                site.plan(&words, &[], &GPUS)
                    .map(|plan| summary(&plan))
                    .unwrap_or_else(|wrong| wrong.to_string())
            };
            let with = of(written);
            assert!(with != of(&[]), "{flag} changes nothing");
            assert!(!with.contains("has no flag"), "{with}");
        }
    }
    let refused = site.refused(&["--autotuning", "tune"], &[], &GPUS);
    assert!(refused.contains("`autotuning: tune` is not supported yet"), "{refused}");
    for flag in golden("flags") {
        let flag = flag.as_str().unwrap();
        let known =
            ["--help", "-h", "--autotuning"].contains(&flag) || cases.iter().any(|(own, ..)| *own == flag);
        assert!(known, "{flag}");
    }
    assert!(FLAGS.keys.iter().all(|key| !matches!(key.status, Status::NoEffect(_))));
}

fn variables(job: &Job) -> Vec<(&str, &str)> {
    job.launch.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[test]
fn on_one_machine_its_gpus_count_and_else_its_cores() {
    let site = Site::new("");
    let job = site.here(&[], &[], &GPUS);
    assert_eq!(job.launch.nodes, Nodes::Static { ranks: vec![4], this: 0 });
    assert_eq!((job.launch.master.addr.as_str(), job.launch.master.port), ("127.0.0.1", 29500));
    assert!(job.launch.deepspeed_env && job.launch.local_rank_argument);
    assert_eq!(variables(&job), [("CUDA_VISIBLE_DEVICES", "0,1,2,3")]);
    let cpu = ("DS_ACCELERATOR", "cpu");
    for (words, environment, devices, visible) in [
        (&["--include", "localhost:1"][..], &[][..], &GPUS, "1"),
        (&["--exclude", "localhost:1"], &[], &GPUS, "0,2,3"),
        (&["--num_gpus", "2"], &[], &GPUS, "0,1"),
        (&[], &[("CUDA_VISIBLE_DEVICES", "2,3")], &GPUS, "2,3"),
        (&["--num_gpus", "1"], &[("CUDA_VISIBLE_DEVICES", "2,3")], &GPUS, "0"),
        (&[], &[], &CPU, "0,1"),
        (&["--include", "localhost"], &[], &CPU, "0,1"),
        (&["--cpu", "--num_gpus", "3"], &[], &CPU, "0,1,2"),
        (&["--num_gpus", "3"], &[cpu], &CPU, "0,1,2"),
        (&["--cpu", "--include", "localhost:7"], &[], &CPU, "7"),
        (&["--cpu", "--num_gpus", "6"], &[], &GPUS, "0,1,2,3,4,5"),
    ] {
        let job = site.here(words, environment, devices);
        assert_eq!(job.launch.local_ranks(), visible.split(',').count());
        assert_eq!(variables(&job)[0], ("CUDA_VISIBLE_DEVICES", visible), "{words:?}");
        let is_cpu = devices.gpus == 0 || words.contains(&"--cpu");
        assert_eq!(variables(&job).contains(&cpu), is_cpu, "{words:?}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let (alone, two) = (Site::new(""), Site::new("a slots=2\nb slots=2\n"));
    let bad = Site::new("a slots=2\na slots=2\n");
    let option = Site::new("-oProxyCommand=x slots=2\nb slots=2\n");
    let shell = Site::new("a slots=2\nb;x slots=2\n");
    for (site, words, devices, expected) in [
        (
            &alone,
            &["--num_gpus", "8"][..],
            &CPU,
            "8 GPUs are asked for, and this machine has none (to run the same on 8 CPU ranks: add --cpu",
        ),
        (&alone, &["--num_gpus", "8"], &GPUS, "8 GPUs are asked for, and this machine has 4"),
        (&alone, &["--include", "localhost:0,1"], &CPU, "2 GPUs are asked for, and this machine has none"),
        (&alone, &["--include", "localhost:9"], &GPUS, "the machine `localhost` has no slot 9"),
        (&alone, &["--include", "worker-1"], &GPUS, "no machine `worker-1`"),
        (&alone, &["--num_nodes", "2"], &GPUS, "2 machines are asked for, and there is no hostfile"),
        (&alone, &["--exclude", "localhost"], &GPUS, "no slot is left"),
        (&alone, &["--module", "--no_python"], &GPUS, "are mutually exclusive"),
        (&alone, &["--bind_cores_to_rank", "--bind_core_list", "3-1"], &GPUS, "`3-1` is not a list of cores"),
        (
            &alone,
            &["--bind_cores_to_rank", "--bind_core_list", "0-2"],
            &GPUS,
            "3 cores cannot be divided among 4 ranks",
        ),
        (&alone, &["--num_gpus", "9999999999"], &GPUS, "no machine has 9999999999 GPUs"),
        (&alone, &["--master_port", "70000"], &GPUS, "a port is at most 65535"),
        (&two, &["--include", "a", "--exclude", "b"], &GPUS, "are mutually exclusive"),
        (
            &two,
            &["--include", "a", "--num_gpus", "1"],
            &GPUS,
            "--num_nodes and --num_gpus are mutually exclusive",
        ),
        (&two, &["--include", "a:x"], &GPUS, "`a:x` is not NAME or NAME:SLOT"),
        (&two, &["--launcher", "teleport"], &GPUS, "there is no launcher `teleport` (write one of pdsh, ssh"),
        (
            &two,
            &["--no_ssh"],
            &GPUS,
            "invalid value -1 of --node_rank: each node has its own number with --no_ssh (write `--node_rank N`, 0 to 1)",
        ),
        (&two, &["--no_ssh", "--node_rank", "2"], &GPUS, "invalid value 2 of --node_rank"),
        (&two, &["--launcher_args", "a 'b"], &GPUS, "`a 'b` is not a list of arguments"),
        (&two, &["--elastic_training", "--max_elastic_nodes", "0"], &GPUS, "1 to 0 machines is not a range"),
        (&bad, &[], &GPUS, "hostfile:2:1: the hostfile names `a` twice"),
        (&option, &[], &GPUS, "hostfile:1:1: `-oProxyCommand=x` is not a name of a machine"),
        (&shell, &[], &GPUS, "hostfile:2:1: `b;x` is not a name of a machine"),
    ] {
        let said = site.refused(words, &[], devices);
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    // All at once.
    let said = alone.refused(&["--num_gpus", "8", "--launcher", "x", "--autotuning", "run"], &[], &CPU);
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn each_machine_of_several_can_be_started_by_hand() {
    let site = Site::new("a slots=2\nb slots=3\n");
    let job = site.here(&["--no_ssh", "--node_rank", "1", "--master_addr", "a"], &[], &GPUS);
    assert_eq!(job.launch.nodes, Nodes::Static { ranks: vec![2, 3], this: 1 });
    assert_eq!(job.launch.worker(1, 2).rank(), 4);
    let by_us = ["--no_ssh", "--world_info=a:0@b:1,2", "--node_rank=1", "--master_addr=a", "--cpu"];
    let job = Site::new("").here(&by_us, &[], &CPU);
    assert_eq!(job.launch.nodes, Nodes::Static { ranks: vec![1, 2], this: 1 });
    assert_eq!(variables(&job), [("CUDA_VISIBLE_DEVICES", "1,2"), ("DS_ACCELERATOR", "cpu")]);
}

#[test]
fn ssh_starts_this_program_on_each_machine() {
    let site = Site::new("a slots=2\nb slots=2\n");
    std::fs::write(site.path(".deepspeed_env"), "# kept\nSAID=a$b\nTOKEN=s`e\n\nNCCL_DEBUG=WARN\n").unwrap();
    let remote = site.elsewhere(
        &["--launcher", "ssh", "--ssh_port", "22", "--bind_cores_to_rank"],
        &[("NCCL_DEBUG", "INFO"), ("HOMES", "x"), ("AISC_JOB_NAME", "j"), ("NCCL_IB_HCA", "x")],
    );
    let folder = site.0.path().display();
    let script = site.text("script.py");
    for (node, (host, command)) in ["a", "b"].iter().zip(&remote.commands.start).enumerate() {
        assert_eq!(command[..4], ["ssh", "-p", "22", host]);
        assert_eq!(
            unlabeled(&command[4]),
            format!(
                "eval \"$(cat)\"; export NCCL_DEBUG=WARN; export PYTHONPATH={folder}; export SAID=\"a\\$b\";  cd {folder}; /opt/oarlock \
                 deepspeed --no_ssh --run_label=LABEL --world_info=a:0,1@b:0,1 --node_rank={node} --master_addr='address of a by Some(22)' \
                 --master_port=29500 --bind_cores_to_rank {script} --lr 1e-4 --name \"two words\" --x \
                 \"say \\\"a b\\\"\""
            )
        );
    }
    assert_eq!(remote.commands.input.as_ref().unwrap().reveal(), "export TOKEN=\"s\\`e\"; ");
    let note = remote.job.notes.iter().find(|note| note.contains(".deepspeed_env")).unwrap();
    assert!(note.ends_with(".deepspeed_env sets SAID, TOKEN, NCCL_DEBUG on all machines"), "{note}");
    // What is ended is what carries the random label of this run, of this user.
    let label = |remote: &Remote| {
        let (_, label) = remote.commands.start[0][4].split_once("--run_label=").unwrap();
        label.split(' ').next().unwrap().to_owned()
    };
    let pattern = format!("pkill -u \"$(id -u)\" -f '[r]un_label={}'", label(&remote));
    assert_eq!(remote.ending.iter().map(|words| &words[4]).collect::<Vec<_>>(), [&pattern, &pattern]);
    let other = site.elsewhere(&["--launcher", "ssh", "--ssh_port", "22"], &[]);
    assert_ne!(label(&remote), label(&other));
    assert_eq!(remote.check.as_deref(), Some("a"));
    std::fs::write(site.path("env"), "no value\n").unwrap();
    let said = site.refused(&["--launcher", "ssh"], &[("DS_ENV_FILE", "env")], &GPUS);
    assert!(said.contains("env:1:1: a line of variables is NAME=VALUE"), "{said}");
    for name in ["A; touch x; B", "A B", "1A", "", "A-B", "\u{e4}"] {
        std::fs::write(site.path("env"), format!("{name}=1\n")).unwrap();
        let said = site.refused(&["--launcher", "ssh"], &[("DS_ENV_FILE", "env")], &GPUS);
        assert!(said.contains("env:1:1: the name of a variable has letters"), "{name}: {said}");
    }
    // Open MPI starts the ranks of this machine without ssh; pdsh does not.
    let here = Site::new("localhost slots=2\n");
    let own = here.elsewhere(&["--force_multi", "--launcher", "openmpi"], &[]);
    assert_eq!((own.check.as_deref(), own.launches[0].master.addr.as_str()), (None, "127.0.0.1"));
    let own = here.elsewhere(&["--force_multi", "--launcher", "pdsh"], &[]);
    assert_eq!(own.check.as_deref(), Some("localhost"));
    let silent = Site::new("silent slots=1\nb slots=1\n").refused(&[], &[], &GPUS);
    assert!(silent.contains("gives no address of the first machine"), "{silent}");
}

#[test]
fn a_dry_run_shows_the_command_and_every_rank() {
    let site = Site::new("a slots=2\nb slots=2\n");
    let remote = site.elsewhere(&["--include", "a@b:1", "--dry-run"], &[]);
    let outline = remote.outline();
    assert!(
        outline.starts_with("would start 3 rank(s) on 2 machine(s) by pdsh:\n  pdsh -S -f 1024 -w a,b "),
        "{outline}"
    );
    for expected in
        ["MASTER_ADDR=a ", "CROSS_SIZE=2", "machine 0, rank 1:", "machine 1, rank 2: RANK=2 LOCAL_RANK=0"]
    {
        assert!(outline.contains(expected), "{expected}: {outline}");
    }
    let last = outline.lines().last().unwrap();
    assert!(last.contains("CUDA_VISIBLE_DEVICES=1"), "{last}");
    assert!(remote.job.notes[0].contains("`a` stands for the address"), "{:?}", remote.job.notes);
}

#[test]
fn elastic_runs_binding_and_logs_reach_the_launch() {
    let site = Site::new("a slots=2\nb slots=2\n");
    let by_hand = ["--no_ssh", "--node_rank", "0", "--master_addr", "a"];
    let elastic = [&by_hand[..], &["--elastic_training", "--min_elastic_nodes", "1"]].concat();
    let endpoint = ("a".to_owned(), 29500);
    let expected = Nodes::Elastic { ranks: 2, count: 1..=2, endpoint };
    assert_eq!(site.here(&elastic, &[], &GPUS).launch.nodes, expected);

    let alone = Site::new("");
    let bound = ["--num_gpus", "2", "--bind_cores_to_rank", "--bind_core_list", "0,2-4"];
    let launch = alone.here(&bound, &[], &GPUS).launch;
    assert_eq!((launch.binding, launch.threads), (Binding::Of(vec![0, 2, 3, 4]), Some(2)));
    let launch = alone.here(&["--enable_each_rank_log", "logs", "-q"], &[], &GPUS).launch;
    assert_eq!(launch.output.log_dir, Some("logs".into()));
    let streams = launch.output.redirects.of(3);
    assert!(streams.out && streams.err && launch.quiet);
}

#[test]
fn flags_are_cut_short_as_in_the_original() {
    assert_abbreviations(&FLAGS, "deepspeed");
    assert_abbreviations(&report::FLAGS, "ds_report");
}
