//! Trackers, and what a DeepSpeed configuration has its engine report.

use oarlock_comm::{Operation, Recorded};

use super::*;

fn engine(block: &str) -> EngineReports {
    good(&format!("deepspeed: {block}\n")).values.monitor.engine
}

#[test]
fn trackers_are_named_in_report_to() {
    assert_eq!(good("").monitor, MonitorArgs::default());
    assert_eq!(good("report_to: none\nlogging_dir: logs\n").monitor, MonitorArgs::default());
    let wandb = |name: &str| Tracker::Wandb {
        project: "huggingface".to_owned(),
        entity: String::new(),
        group: String::new(),
        name: name.to_owned(),
    };
    assert_eq!(
        good("report_to: [jsonl, wandb]\nrun_name: first\n").monitor.trackers,
        [wandb("first"), Tracker::Jsonl("out/runs/metrics.jsonl".into())]
    );
    let swanlab = |folder: &str, name: &str| Tracker::SwanLab {
        folder: folder.into(),
        project: "llamafactory".to_owned(),
        workspace: String::new(),
        name: name.to_owned(),
    };
    let all = [
        Tracker::TensorBoard("logs".into()),
        wandb(""),
        swanlab("swanlog", ""),
        Tracker::Csv("logs".into()),
        Tracker::Jsonl("logs/metrics.jsonl".into()),
    ];
    assert_eq!(good("report_to: all\nlogging_dir: logs\n").monitor.trackers, all);
    let environment = [("WANDB_PROJECT", "theirs"), ("TENSORBOARD_LOGGING_DIR", "boards")];
    let trackers = |text: &str| {
        train(&format!("{MINIMUM}report_to: all\n{text}"), &[], &environment).unwrap().values.monitor.trackers
    };
    let project = |trackers: &[Tracker]| match &trackers[1] {
        Tracker::Wandb { project, .. } => project.clone(),
        other => panic!("{other:?} is not wandb"),
    };
    let from_environment = trackers("");
    assert_eq!(from_environment[0], Tracker::TensorBoard("boards".into()));
    assert_eq!(project(&from_environment), "theirs");
    let written = trackers("logging_dir: logs\nwandb_project: ours\n");
    assert_eq!((&written[0], project(&written)), (&all[0], "ours".to_owned()));
    // LLaMA-Factory's key adds SwanLab, once.
    for text in ["use_swanlab: true\n", "use_swanlab: true\nreport_to: swanlab\n"] {
        let trackers = good(&format!("{text}run_name: first\nswanlab_mode: local\n")).values.monitor.trackers;
        assert_eq!(trackers, [swanlab("swanlog", "first")]);
    }
    let words = "use_swanlab: true\nrun_name: first\nswanlab_run_name: second\nswanlab_project: p\n\
                 swanlab_workspace: team\nswanlab_logdir: here\n";
    let said = Tracker::SwanLab {
        folder: "here".into(),
        project: "p".to_owned(),
        workspace: "team".to_owned(),
        name: "second".to_owned(),
    };
    assert_eq!(good(words).monitor.trackers, [said]);
    let environment = [("SWANLAB_LOGDIR", "theirs")];
    let found = train(&format!("{MINIMUM}use_swanlab: true\n"), &[], &environment).unwrap();
    assert_eq!(found.values.monitor.trackers, [swanlab("theirs", "")]);
    assert_eq!(good("swanlab_project: a/b\n").monitor, MonitorArgs::default());
    let json = good("report_to: csv\nbf16: true\nlearning_rate: 1e-4\n").as_json();
    let said = ["report_to", "bf16", "learning_rate", "num_processes"].map(|name| json[name].to_string());
    assert_eq!(said, ["\"csv\"", "true", "0.0001", "1"]);
}

#[test]
fn monitors_of_deepspeed_have_its_places() {
    assert_eq!(engine("{}"), EngineReports::default());
    let off = "{tensorboard: {enabled: false, job_name: a}, csv_monitor: {output_path: b}, comms_logger: {verbose: true}}";
    assert_eq!(engine(off), EngineReports::default());
    let on = "{tensorboard: {enabled: true, output_path: tb, job_name: first}, csv_monitor: {enabled: true}, \
              wandb: {enabled: true, team: us}, steps_per_print: 10, wall_clock_breakdown: true}";
    let expected = EngineReports {
        monitors: vec![
            Tracker::TensorBoard("tb/first".into()),
            Tracker::Wandb {
                project: "deepspeed".to_owned(),
                entity: "us".to_owned(),
                group: String::new(),
                name: String::new(),
            },
            Tracker::Csv("DeepSpeedJobName".into()),
        ],
        steps_per_print: Some(10),
        wall_clock_breakdown: true,
        ..EngineReports::default()
    };
    assert_eq!(engine(on), expected);
}

#[test]
fn profiles_are_those_of_deepspeed() {
    let defaults =
        FlopsArgs { after_steps: 1, depth: None, top: 1, detailed: true, recompute_factor: 0.0, file: None };
    assert_eq!(engine("{flops_profiler: {enabled: true}}").flops_profiler, Some(defaults.clone()));
    let said = "{flops_profiler: {enabled: true, profile_step: 5, module_depth: 2, detailed: false, output_file: p.txt}}";
    let expected =
        FlopsArgs { after_steps: 5, depth: Some(2), detailed: false, file: Some("p.txt".into()), ..defaults };
    assert_eq!(engine(said).flops_profiler, Some(expected));

    let all = engine("{comms_logger: {enabled: true, prof_ops: [broadcast]}}").comms_logger.unwrap();
    assert_eq!(all, CommsArgs { recorded: Recorded::default(), verbose: false });
    let some = "{comms_logger: {enabled: true, verbose: true, debug: true, prof_all: false, \
                prof_ops: [all_gather_into_tensor, all_reduce]}}";
    let only = Some(vec![Operation::AllGather, Operation::AllReduce]);
    assert_eq!(
        engine(some).comms_logger,
        Some(CommsArgs { recorded: Recorded { only, by_site: true }, verbose: true })
    );
}

#[test]
fn what_is_wrong_in_the_blocks_is_named() {
    for (block, expected) in [
        ("{tensorboard: {enable: true}}", "unknown key `enable` in `tensorboard` (did you mean `enabled`?)"),
        (
            "{comet: {enabled: true}}",
            "`comet.enabled: true` is not supported yet (use tensorboard, wandb or csv_monitor)",
        ),
        (
            "{comms_logger: {enabled: true, prof_ops: [all_reduc]}}",
            "no collective `all_reduc` (did you mean `all_reduce`?)",
        ),
        ("{csv_monitor: yes}", "`csv_monitor` takes a mapping"),
    ] {
        let problems = bad(&format!("deepspeed: {block}\n"), &[], &[]);
        assert!(problems.contains(expected), "{block}: {problems}");
    }
}
