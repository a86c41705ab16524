//! Every flag of torchrun, and what flags mean together. The list of flags is made with the original: make-flags.sh.

use std::time::Duration;

use super::job;
use crate::config::Words;
use crate::config::flags::assert_abbreviations;
use crate::front::job::{Job, Program};
use crate::launch::Launch;
use crate::launch::spec::{Binding, Locality, Master, Nodes, Restarts};

use super::flags::FLAGS;

fn parse(line: &[&str], environment: &[(&str, &str)]) -> Result<Job, String> {
    let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
    let read = |name: &str| {
        environment.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
    };
    job(words.clone(), &Words::new(&words), &read)
        .map_err(|problems| crate::config::render::render(&problems, false, 100))
}

/// Flags before a program that needs no Python.
fn launch(line: &str) -> Launch {
    let words: Vec<&str> = line.split_whitespace().chain(["--no-python", "sh"]).collect();
    parse(&words, &[]).unwrap_or_else(|problems| panic!("{line}: {problems}")).launch
}

fn refused(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().chain(["--no-python", "sh"]).collect();
    parse(&words, &[]).map(|job| format!("{:?}", job.launch)).expect_err(line)
}

/// How a flag is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    /// It changes the launch.
    Changes,
    /// It changes how the program is called.
    Calls,
    /// It is accepted, and its meaning is what happens anyway.
    Anyway,
    /// It is refused with this reason.
    Refused(&'static str),
    /// It shows the help.
    Help,
}

use Answer::{Anyway, Calls, Changes, Help, Refused};

const ANSWERS: &[(&str, &str, Answer)] = &[
    ("--duplicate-stderr-filters", "apple,orange", Changes),
    ("--duplicate-stdout-filters", "apple", Changes),
    ("--event-log-handler", "console", Refused("a Python object")),
    ("--help", "", Help),
    ("--local-addr", "10.0.0.7", Changes),
    ("--local-ranks-filter", "0,2", Changes),
    ("--log-dir", "logs", Changes),
    ("--logs-specs", "mine", Refused("a Python class")),
    ("--master-addr", "node0", Changes),
    ("--master-port", "29600", Changes),
    ("--max-restarts", "3", Changes),
    ("--module", "", Calls),
    ("--monitor-interval", "2.5", Changes),
    ("--nnodes", "2", Changes),
    ("--no-python", "", Calls),
    ("--node-rank", "1", Changes),
    ("--nproc-per-node", "4", Changes),
    ("--numa-binding", "node", Changes),
    ("--rdzv-backend", "etcd", Refused("c10d needs no server")),
    ("--rdzv-conf", "join_timeout=5", Changes),
    ("--rdzv-endpoint", "node0:29500", Changes),
    ("--rdzv-id", "run7", Changes),
    ("--redirects", "0:1,1:2", Changes),
    ("--role", "trainer", Changes),
    ("--run-path", "", Calls),
    ("--shutdown-timeout", "5", Changes),
    ("--signals-to-handle", "SIGTERM,SIGUSR1", Changes),
    ("--standalone", "", Changes),
    ("--start-method", "fork", Anyway),
    ("--tee", "3", Changes),
    ("--virtual-local-rank", "", Changes),
    ("-h", "", Help),
    ("-m", "", Calls),
    ("-r", "3", Changes),
    ("-t", "2", Changes),
];

/// Flags in whose company another one has its meaning.
fn company(flag: &str) -> &'static [&'static str] {
    match flag {
        "--node-rank" | "--master-addr" => &["--nnodes", "2"],
        "--standalone" => &["--nnodes", "2", "--rdzv-id", "x"],
        "--local-addr" | "--rdzv-conf" => {
            &["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0"]
        }
        _ => &[],
    }
}

#[test]
fn every_flag_of_the_original_is_answered() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/front/torchrun/tests/make-flags.sh");
    let flags: Vec<&str> = include_str!("flags.txt").lines().collect();
    assert!(flags.len() > 50);
    for flag in flags {
        let hyphens = format!("{}{}", &flag[..2], flag[2..].replace('_', "-"));
        let found = ANSWERS.iter().find(|(name, _, _)| *name == hyphens);
        let &(_, value, answer) = found.unwrap_or_else(|| panic!("{flag} is not answered"));
        let base: Vec<&str> = company(&hyphens).iter().copied().chain([script]).collect();
        let mut words = company(&hyphens).to_vec();
        words.push(flag);
        words.extend(Some(value).filter(|value| !value.is_empty()));
        words.push(script);
        let plain = parse(&base, &[]).unwrap();
        let Program::Command(plain_argv) = plain.program else { panic!("a program") };
        match (answer, parse(&words, &[])) {
            (Changes, Ok(job)) => assert_ne!(job.launch, plain.launch, "{flag}"),
            (Anyway, Ok(job)) => assert_eq!(job.launch, plain.launch, "{flag}"),
            (Calls, Ok(job)) => {
                let Program::Command(argv) = job.program else { panic!("a program") };
                // A file with Python in it is called so anyway.
                assert_eq!(argv != plain_argv, flag.replace('_', "-") != "--run-path", "{flag}: {argv:?}");
            }
            (Refused(reason), Err(problems)) => assert!(problems.contains(reason), "{flag}: {problems}"),
            (Help, Ok(_)) => {
                let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
                assert!(super::FLAGS.parse(&Words::new(&words), &mut Default::default()).help, "{flag}");
            }
            (answer, Ok(_)) => panic!("{flag} is {answer:?}, but it was accepted"),
            (answer, Err(problems)) => panic!("{flag} is {answer:?}, but: {problems}"),
        }
    }
}

#[test]
fn variables_stand_for_flags_that_nobody_wrote() {
    let environment =
        [("PET_NPROC_PER_NODE", "3"), ("PET_MAX_RESTARTS", "2"), ("PET_NO_PYTHON", "1"), ("PET_ROLE", "a")];
    let job = parse(&["--role", "b", "sh"], &environment).unwrap();
    assert_eq!((job.launch.local_ranks(), job.launch.restarts.max), (3, 2));
    assert_eq!(job.launch.role, "b");
    assert!(matches!(&job.program, Program::Command(argv) if argv == &["sh"]));
    let problems = parse(&["--no-python", "sh"], &[("PET_MAX_RESTARTS", "many")]).unwrap_err();
    assert!(problems.contains("PET_MAX_RESTARTS"), "{problems}");
}

#[test]
fn machines_meet_as_in_the_original() {
    let master = |addr: &str, port| Master { addr: addr.to_owned(), port };
    // One machine takes a free port unless one is named.
    assert_eq!(launch("--nproc-per-node 2").master, master("127.0.0.1", 0));
    assert_eq!(launch("--master-port 29501").master, master("127.0.0.1", 29501));
    assert_eq!(launch("--standalone --nnodes 1 --master-port 29501").master.port, 0);
    let two = launch("--nproc-per-node=8 --nnodes=2 --node-rank=1 --master-addr=node0");
    assert_eq!(two.nodes, Nodes::Static { ranks: vec![8, 8], this: 1 });
    assert_eq!(two.master, master("node0", 29500));
    assert_eq!(launch("--nnodes 2 --rdzv-endpoint node1").master, master("node1", 29400));
    assert_eq!(launch("--nnodes 2 --rdzv-endpoint [::1]:7").master, master("::1", 7));
    let elastic = launch(
        "--nnodes 1:4 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint node0 --rdzv-conf join_timeout=9,is_host=1",
    );
    let endpoint = ("node0".to_owned(), 29400);
    assert_eq!(elastic.nodes, Nodes::Elastic { ranks: 2, count: 1..=4, endpoint });
    assert_eq!(elastic.rdzv_conf, "join_timeout=9,is_host=1");
    // Machines with numbers meet by the same settings.
    assert_eq!(launch("--nnodes 2 --rdzv-conf insecure=1").rdzv_conf, "insecure=1");
    assert_eq!(launch("--nnodes 2 --insecure-rendezvous").rdzv_conf, "insecure=1");
    // With c10d and one machine nobody else is to be met.
    assert_eq!(launch("--rdzv-backend c10d --nproc-per-node 2"), launch("--nproc-per-node 2"));
}

#[test]
fn restarts_streams_signals_and_cores_are_read() {
    let of =
        launch("--max-restarts 3 --monitor-interval 1.5 --shutdown-timeout 4 --redirects 3 --tee 0:3,1:2");
    assert_eq!(of.restarts, Restarts { max: 3, monitor_interval: Duration::from_millis(1500) });
    assert_eq!(of.grace, Duration::from_secs(4));
    let streams = |of: crate::launch::spec::Streams| (of.out, of.err);
    assert_eq!(streams(of.output.redirects.of(7)), (true, true));
    let tee = [0, 1, 2].map(|rank| streams(of.output.tee.of(rank)));
    assert_eq!(tee, [(true, true), (false, true), (false, false)]);
    assert_eq!(launch("--signals-to-handle SIGTERM,usr1").signals, [15, 10]);
    assert_eq!(launch("--numa-binding exclusive").binding, Binding::Share);
    assert_eq!(launch("--numa-binding core-complex").binding, Binding::SharedBy(Locality::Cache));
    let filters = launch("--duplicate-stdout-filters a,b,,c").output.filters;
    assert_eq!(filters[0], ["a", "b,c"]);
    assert_eq!(launch("--log-dir /dev/null").output.log_dir, None);
    let waits = [("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")];
    assert_eq!(parse(&["--no-python", "sh"], &waits).unwrap().launch.grace, Duration::from_secs(7));
}

#[test]
fn programs_are_called_as_in_the_original() {
    let argv = |line: &[&str]| match parse(line, &[]).unwrap().program {
        Program::Command(argv) => argv,
        Program::Training(_) => panic!("a program"),
    };
    assert_eq!(argv(&["--no-python", "my program", "--nnodes", "9"]), ["my program", "--nnodes", "9"]);
    assert_eq!(argv(&["-m", "pkg.mod", "-x"])[1..], ["-u", "-m", "pkg.mod", "-x"]);
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("a b.py");
    std::fs::write(&script, "").unwrap();
    let script = script.to_str().unwrap();
    assert_eq!(argv(&[script, "--lr", "1e-4"])[1..], ["-u", script, "--lr", "1e-4"]);
}

#[test]
fn what_cannot_be_is_told_with_what_to_do() {
    for (line, said) in [
        ("--nnodes 0", "N or MIN:MAX"),
        ("--nnodes 3:2", "N or MIN:MAX"),
        ("--nnodes 1:2", "--rdzv-backend c10d"),
        ("--nnodes 2 --node-rank 2", "counted from 0"),
        ("--nproc-per-node many", "expected an integer, auto, gpu or cpu"),
        ("--nproc-per-node 0", "from 1"),
        ("--nproc-per-node xpu", "expected an integer, auto, gpu or cpu"),
        ("--rdzv-backend zeus", "static or c10d"),
        ("--nnodes 2 --rdzv-backend c10d", "--rdzv-endpoint HOST:PORT"),
        ("--nnodes 2 --rdzv-endpoint node0:x", "host:port"),
        ("--rdzv-conf join_timeot=3", "one of join_timeout"),
        ("--rdzv-conf join_timeout", "key=value"),
        ("--redirects 4", "3 both"),
        ("--tee 0:1,1", "3 both"),
        ("--local-ranks-filter a", "0,1"),
        ("--signals-to-handle SIGKILL", "not a signal that can be handled"),
        ("--numa-binding moon", "core-complex"),
        ("--max-restarts -1", "at least 0"),
        ("--master-port 70000 --nnodes 2", "65535"),
        ("--nproc-per-nodes 2", "did you mean"),
        ("--module", "are mutually exclusive"),
    ] {
        let problems = refused(line);
        assert!(problems.contains(said), "{line}: {problems}");
    }
    assert!(parse(&[], &[]).unwrap_err().contains("missing argument: script"));
}

#[test]
fn flags_are_cut_short_as_in_the_original() {
    assert_abbreviations(&FLAGS, "torchrun");
    assert_eq!(
        format!("{:?}", launch("--nproc_per 2 --nnode 1")),
        format!("{:?}", launch("--nproc_per_node 2 --nnodes 1"))
    );
    assert!(refused("--lo 0").contains("ambiguous option: --lo could match --log_dir, --"));
}

/// Machines may have other numbers of ranks: what depends on all of them is left open until they have met.
#[test]
fn the_ranks_of_other_machines_are_not_guessed() {
    let folder = tempfile::tempdir().unwrap();
    let written = |text: &str| {
        let path = folder.path().join("train.yaml");
        let more = "model_name_or_path: m\ndataset: d.jsonl\nstage: pt\noutput_dir: out\ncutoff_len: 32\n";
        std::fs::write(&path, format!("{more}{text}")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let job = |text: &str, ranks: &str| {
        let file = written(text);
        parse(&["--nnodes", "2", "--nproc-per-node", ranks, "--master-addr", "node0", "train.py", &file], &[])
    };
    for text in [
        "num_processes: 4\n",
        "pipeline_model_parallel_size: 2\n",
        "sequence_parallel_size: 2\n",
        "deepspeed: {train_batch_size: 12, train_micro_batch_size_per_gpu: 3}\n",
    ] {
        for ranks in ["1", "3"] {
            let job = job(text, ranks).unwrap_or_else(|problems| panic!("{text}{ranks}: {problems}"));
            assert!(job.on(&[1, 3]).is_ok(), "{text}{ranks}");
            assert!(job.on(&[1, 4]).is_err(), "{text}{ranks}");
        }
    }
    let wrong = job("num_processes: 3\n", "3").unwrap_err();
    assert!(
        wrong.contains("`num_processes` is 3, but this machine has 3 of the ranks of 2 machines"),
        "{wrong}"
    );
}

/// A rank of ours gets the words of its launcher, with the token of its round in the variable.
#[test]
fn a_rank_is_not_asked_for_the_token_of_the_meeting() {
    let (one, other) = ("9f86d081884c7d659a2feaa0c55ad015", "a3f5c2e19b7d4068e1d2c3b4a5968778");
    let conf = format!("token={one}");
    let line = ["--nnodes", "2", "--master-addr", "node0", "--rdzv-conf", &conf, "--no-python", "sh"];
    let refused = parse(&line, &[("OARLOCK_RDZV_TOKEN", other)]).map(|_| ()).unwrap_err();
    assert!(refused.contains("token is given as well"), "{refused}");
    let rank = [("OARLOCK_RDZV_TOKEN", other), ("OARLOCK_STARTED", "1")];
    assert_eq!(parse(&line, &rank).map(|job| job.launch.rdzv_conf), Ok(conf.clone()));
}
