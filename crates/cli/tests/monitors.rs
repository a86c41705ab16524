//! A training run with every monitor on: what their files and lines hold is what trainer_log.jsonl holds.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{Site, run, start, until};

const DEEPSPEED: &str = r#"{
  "zero_optimization": {"stage": 2},
  "steps_per_print": 5,
  "wall_clock_breakdown": true,
  "tensorboard": {"enabled": true, "output_path": "boards", "job_name": "first"},
  "csv_monitor": {"enabled": true, "output_path": "tables"},
  "wandb": {"enabled": true, "group": "g", "project": "p"},
  "flops_profiler": {"enabled": true, "profile_step": 2, "output_file": "reports/flops.txt"},
  "comms_logger": {"enabled": true, "verbose": true, "prof_all": true}
}"#;

/// A number of a log line: step, name, value.
type Scalar = (u64, String, f64);

/// The numbers of an event file, read by the format's documentation alone.
fn board(folder: &Path) -> Vec<Scalar> {
    let mut scalars = Vec::new();
    for file in files(folder, "events.out.tfevents") {
        let bytes = fs::read(file).unwrap();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let event = fields(&rest[12..12 + length]);
            rest = &rest[16 + length..];
            let step = event.iter().find(|(number, _)| *number == 2).map_or(0, |(_, value)| varint(value));
            for (_, summary) in event.iter().filter(|(number, _)| *number == 5) {
                for (_, value) in fields(summary) {
                    let value = fields(&value);
                    let of =
                        |number| value.iter().find(|(own, _)| *own == number).map(|(_, bytes)| bytes.clone());
                    if let Some(number) = of(2) {
                        let number = f32::from_le_bytes(number.try_into().unwrap());
                        scalars.push((step, String::from_utf8(of(1).unwrap()).unwrap(), f64::from(number)));
                    }
                }
            }
        }
    }
    scalars
}

/// The numbers of the only run below this folder, and its end: the state and why. The log is smaller than a block.
fn swanlab(folder: &Path) -> (Vec<Scalar>, Option<(u64, String)>) {
    let runs = files(folder, "run-");
    assert_eq!(runs.len(), 1, "{runs:?}");
    let bytes = fs::read(&files(&runs[0], "run-")[0]).unwrap();
    assert!(bytes.len() < 32768, "{}", bytes.len());
    let (mut rest, mut scalars, mut end) =
        (bytes.strip_prefix(b":SWL\xd6\xe1\x02").unwrap(), Vec::new(), None);
    while !rest.is_empty() {
        let length = usize::from(u16::from_le_bytes(rest[4..6].try_into().unwrap()));
        let record = fields(&rest[7..7 + length]);
        rest = &rest[7 + length..];
        let (kind, content) = record.last().unwrap();
        let content = fields(content);
        let of = |number| content.iter().find(|(own, _)| *own == number).map(|(_, bytes)| bytes.clone());
        let text = |number| String::from_utf8(of(number).unwrap_or_default()).unwrap();
        let number = |number| of(number).map_or(0, |bytes| varint(&bytes));
        if *kind == 13 {
            let value = fields(&of(5).unwrap());
            let value =
                value.first().map_or(0.0, |(_, bytes)| f64::from_le_bytes(bytes[..].try_into().unwrap()));
            scalars.push((number(2), text(1), value));
        } else if *kind == 11 {
            assert!(end.is_none() && rest.is_empty(), "a run ends once");
            end = Some((number(1), text(2)));
        }
    }
    (scalars, end)
}

/// The fields of a protocol buffer with the bytes of their values.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn cut<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (head, tail) = bytes.split_at(count);
        *bytes = tail;
        head
    }
    let mut found = Vec::new();
    let number = |bytes: &mut &[u8]| {
        let count = bytes.iter().position(|byte| *byte < 0x80).unwrap() + 1;
        cut(bytes, count).to_vec()
    };
    while !bytes.is_empty() {
        let tag = varint(&number(&mut bytes));
        let value = match tag & 7 {
            0 => number(&mut bytes),
            1 => cut(&mut bytes, 8).to_vec(),
            2 => {
                let count = varint(&number(&mut bytes)) as usize;
                cut(&mut bytes, count).to_vec()
            }
            _ => cut(&mut bytes, 4).to_vec(),
        };
        found.push((tag >> 3, value));
    }
    found
}

fn varint(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
}

/// The files below a folder whose names begin so.
fn files(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    paths.sort();
    paths
}

/// Column `name` of the log, by its steps.
fn column(log: &[Value], name: &str) -> Vec<(u64, f64)> {
    let value = |record: &Value| Some((record["current_steps"].as_u64()?, record.get(name)?.as_f64()?));
    log.iter().filter_map(value).collect()
}

fn named(scalars: &[Scalar], name: &str) -> Vec<(u64, f64)> {
    scalars.iter().filter(|(_, own, _)| own == name).map(|(x, _, value)| (*x, *value)).collect()
}

fn in_f32(values: &[(u64, f64)]) -> Vec<(u64, f64)> {
    values.iter().map(|(x, value)| (*x, f64::from(*value as f32))).collect()
}

#[test]
fn every_monitor_holds_the_losses_of_the_log() {
    let site = Site::new();
    site.write("ds.json", DEEPSPEED);
    let words = [
        "deepspeed=ds.json",
        "report_to=all",
        "run_name=tiny",
        "val_size=0.2",
        "eval_strategy=steps",
        "eval_steps=5",
    ];
    let said = site.train("out", &words);
    let log = site.log("out");
    let losses = column(&log, "loss");
    assert_eq!(losses.len(), 10);

    // Over steps, under the names of transformers.
    let runs = site.path("out/runs");
    let scalars = board(&runs);
    assert_eq!(named(&scalars, "train/loss"), in_f32(&losses));
    assert_eq!(named(&scalars, "train/learning_rate"), in_f32(&column(&log, "lr")));
    assert_eq!(named(&scalars, "train/grad_norm"), in_f32(&column(&log, "grad_norm")));
    assert_eq!(named(&scalars, "eval/loss"), in_f32(&column(&log, "eval_loss")));
    assert_eq!(named(&scalars, "train/train_loss").len(), 1, "the mean at the end");
    let lines = String::from_utf8(site.read("out/runs/metrics.jsonl")).unwrap();
    let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let reported: Vec<(u64, f64)> = records
        .iter()
        .filter_map(|record| Some((record["step"].as_u64()?, record.get("train/loss")?.as_f64()?)))
        .collect();
    assert_eq!(reported, losses);
    let table = |path: &str| {
        let text = String::from_utf8(site.read(path)).unwrap();
        let mut lines = text.split_terminator("\r\n").map(|line| line.split_once(',').unwrap());
        assert_eq!(lines.next().unwrap().0, "step");
        lines.map(|(x, value)| (x.parse().unwrap(), value.parse().unwrap())).collect::<Vec<(u64, f64)>>()
    };
    assert_eq!(table("out/runs/train_loss.csv"), losses);

    // Over samples, under the names of DeepSpeed: two ranks with batches of 6.
    let over_samples: Vec<(u64, f64)> = losses.iter().map(|(step, loss)| (12 * step, *loss)).collect();
    assert_eq!(table("tables/DeepSpeedJobName/Train_Samples_train_loss.csv"), over_samples);
    let scalars = board(&site.path("boards/first"));
    assert_eq!(named(&scalars, "Train/Samples/train_loss"), in_f32(&over_samples));
    // The rate after a step is that of the next one.
    let rates: Vec<f64> = named(&scalars, "Train/Samples/lr").into_iter().map(|(_, lr)| lr).collect();
    let of_steps: Vec<f64> = in_f32(&column(&log, "lr")).into_iter().map(|(_, lr)| lr).collect();
    assert_eq!(rates[..9], of_steps[1..]);
    assert!(named(&scalars, "Train/Samples/loss_scale").is_empty());
    for part in ["forward", "backward", "backward_inner", "backward_allreduce", "step"] {
        let times = table(&format!("tables/DeepSpeedJobName/Train_Samples_elapsed_time_ms_{part}.csv"));
        assert!(times.len() == 10 && times.iter().all(|(_, ms)| *ms >= 0.0), "{part}: {times:?}");
    }

    // Two offline runs: one for each set of names.
    let offline = files(&site.path("wandb"), "offline-run-");
    assert_eq!(offline.len(), 2);
    let mut summaries: Vec<Value> = offline
        .iter()
        .map(|run| serde_json::from_slice(&fs::read(run.join("files/wandb-summary.json")).unwrap()).unwrap())
        .collect();
    summaries.sort_by_key(|summary| summary.get("train/loss").is_none());
    assert_eq!(summaries[0]["train/loss"], losses[9].1);
    assert_eq!(summaries[0]["train/global_step"], 10);
    assert_eq!(summaries[1]["Train/Samples/train_loss"], losses[9].1);
    assert_eq!(summaries[1]["_step"], 120);
    for run in &offline {
        let logs = files(run, "run-");
        assert!(logs.len() == 1 && fs::read(&logs[0]).unwrap().starts_with(b":W&B"), "{logs:?}");
    }

    // An offline run of SwanLab.
    let (scalars, end) = swanlab(&site.path("swanlog"));
    assert_eq!(named(&scalars, "train/loss"), losses);
    assert_eq!(named(&scalars, "eval/loss"), column(&log, "eval_loss"));
    assert_eq!(end, Some((1, String::new())), "it has finished");
    let run: Value = serde_json::from_slice(&site.read("out/swanlab_public_config.json")).unwrap();
    assert_eq!((&run["project_name"], &run["experiment_name"]), (&"llamafactory".into(), &"tiny".into()));

    // The lines of the engine.
    let count = |words: &str| said.stdout.lines().filter(|line| line.starts_with(words)).count();
    assert_eq!((count("step=5, skipped=0, lr=["), count("step=10, skipped=0, lr=[")), (1, 1));
    assert!(said.stdout.contains("mom=[(0.9, 0.999)]"));
    assert_eq!((count("time (ms) | fwd_microstep: "), count("time (ms) | fwd: ")), (2, 2));
    assert_eq!(count("Comm. Op "), 3, "twice on the way and at the end: {}", said.stdout);
    assert!(count("reduce_scatter") == 3 && count("all_gather") >= 3, "{}", said.stdout);

    let report = String::from_utf8(site.read("reports/flops.txt")).unwrap();
    for words in [
        "Profile Summary at step 3:",
        "world size:                                                             2\n",
        "batch size per GPU:                                                     6\n",
        "params per GPU:                                                         31.26 K\n",
        "fwd MACs per GPU:                                                       6.76 MMACs\n",
        "depth 4:\n",
        "(q_proj): Linear(1.02 K = 3.28% Params, 196.61 KMACs = 2.91% MACs, ",
    ] {
        assert!(report.contains(words), "no {words:?} in {report}");
    }
    assert!(!report.contains("= 0% latency"), "every module was timed: {report}");
    assert!(said.stdout.contains("flops_profiler: the profile is in reports/flops.txt"));
}

#[test]
fn monitors_change_no_bit_and_a_resumed_run_tells_each_step_once() {
    let site = Site::new();
    site.write("ds.json", DEEPSPEED);
    site.train("plain", &["deepspeed={zero_optimization: {stage: 2}}"]);
    let words =
        ["deepspeed=ds.json", "report_to=csv,jsonl,tensorboard", "save_strategy=steps", "save_steps=4"];
    site.train("out", &words);
    assert_eq!(site.losses("out"), site.losses("plain"));
    assert!(site.model("out") == site.model("plain"));

    let steps = || {
        let text = String::from_utf8(site.read("out/runs/metrics.jsonl")).unwrap();
        let losses = text.lines().filter(|line| line.contains("\"train/loss\""));
        losses
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    let table =
        || String::from_utf8(site.read("tables/DeepSpeedJobName/Train_Samples_train_loss.csv")).unwrap();
    let (before, whole) = (steps(), table());
    assert_eq!(before, (1..=10).collect::<Vec<_>>());
    let resumed = ["resume_from_checkpoint=out/checkpoint-4"];
    let said = site.train("out", &[&words[..], &resumed].concat());
    assert_eq!((steps(), table()), (before, whole));
    assert_eq!(files(&site.path("out/runs"), "events.out.tfevents").len(), 2);
    assert!(said.stdout.contains("flops_profiler: this run made no step 3"), "{}", said.stdout);
}

/// SwanLab is told how a run ended, also where its processes could not say so.
#[test]
fn a_run_that_did_not_finish_says_so_to_swanlab() {
    let send = |pid: u32, signal: Signal| {
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    };
    for ranks in ["num_processes=1", "num_processes=2"] {
        // By an error of the run: a folder is in the place of a file.
        let site = Site::new();
        fs::create_dir_all(site.path("logs/train_loss.csv")).unwrap();
        let said = run(site.training("out", &["report_to=swanlab,csv", "logging_dir=logs", ranks]));
        assert_eq!(said.code, Some(1), "{said:?}");
        let (scalars, end) = swanlab(&site.path("swanlog"));
        let (state, why) = end.expect("an end");
        assert_eq!(named(&scalars, "train/loss").len(), 1);
        assert!(state == 2 && why.contains("train_loss.csv"), "{ranks}: {state} {why}");

        // By who stops it.
        let site = Site::new();
        let words = ["report_to=swanlab", "max_steps=100000", ranks];
        let running = start(site.training("out", &words));
        until("a step", || (!site.log("out").is_empty()).then_some(()));
        send(running.pid(), Signal::INT);
        let said = running.wait();
        assert_eq!(said.code, Some(130), "{said:?}");
        let (_, end) = swanlab(&site.path("swanlog"));
        assert_eq!(end, Some((3, "stopped by signal 2".to_owned())), "{ranks}");
    }

    // By what kills a rank.
    let site = Site::new();
    let running = start(site.training("out", &["report_to=swanlab", "max_steps=100000"]));
    until("a step", || (!site.log("out").is_empty()).then_some(()));
    send(running.ranks(2)[0], Signal::KILL);
    running.wait();
    let (_, end) = swanlab(&site.path("swanlog"));
    let (state, why) = end.expect("an end");
    assert!(state == 2 && why.contains("SIGKILL"), "{state} {why}");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let site = Site::new();
    let said = run(site.training("out", &["report_to=tensorboard", "logging_dir=text.jsonl"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("cannot create `text.jsonl`"), "{said:?}");
}
