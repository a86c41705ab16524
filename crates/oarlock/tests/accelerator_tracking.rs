//! Trackers of custom training loops: what they write, who writes, and what is told to those who misuse them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use oarlock::{
    Accelerator, AcceleratorConfig, Error, LogWith, ProjectConfiguration, Result, SwanLabRun, Tracker,
    TrackerOptions, WandbRun,
};
use oarlock_comm::shm;
use serde_json::{Map, Value, json};

fn config(folder: &Path, log_with: Vec<LogWith>) -> AcceleratorConfig {
    AcceleratorConfig {
        project: ProjectConfiguration {
            project_dir: Some(folder.to_owned()),
            ..ProjectConfiguration::default()
        },
        log_with,
        threads: Some(1),
        ..AcceleratorConfig::default()
    }
}

fn options(folder: &Path) -> TrackerOptions {
    let wandb =
        WandbRun { dir: Some(folder.join("wandb")), name: Some("first".to_owned()), ..WandbRun::default() };
    let swanlab = SwanLabRun { dir: Some(folder.join("swanlog")), ..SwanLabRun::default() };
    TrackerOptions { wandb, swanlab, ..TrackerOptions::default() }
}

fn solo(config: &AcceleratorConfig) -> Accelerator {
    Accelerator::over(oarlock_comm::Communicator::solo(), config).unwrap()
}

/// A custom tracker that records its calls.
struct Mine(Arc<Mutex<Vec<String>>>);

impl Tracker for Mine {
    fn name(&self) -> &str {
        "mine"
    }

    fn start(&mut self, project: &str, config: &Map<String, Value>) -> Result<()> {
        self.0.lock().unwrap().push(format!("{project} {}", Value::Object(config.clone())));
        Ok(())
    }

    fn log(&mut self, values: &[(&str, f64)], step: u64) -> Result<()> {
        if values.iter().any(|(_, value)| value.is_nan()) {
            return Err(Error::Usage("no number".to_owned()));
        }
        self.0.lock().unwrap().push(format!("{step} {values:?}"));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.0.lock().unwrap().push("finished".to_owned());
        Ok(())
    }
}

#[test]
fn figures_go_to_all_trackers_from_the_main_process() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (config, options) = (config(folder, vec![LogWith::All]), options(folder));
    shm::on_threads(2, |comm| {
        let accelerator = Accelerator::over(comm, &config).unwrap();
        accelerator.add_tracker(Mine(seen.clone())).unwrap();
        accelerator.init_trackers("own/loop", &json!({ "lr": 0.5 }), &options).unwrap();
        for step in [3, 5] {
            accelerator.log(&[("loss", 1.0 / step as f64), ("epoch", 0.0)], step).unwrap();
        }
        accelerator.log(&[("accuracy", 1.0)], None).unwrap();
        let tracker = accelerator.get_tracker("tensorboard").unwrap();
        assert_eq!(tracker.is_some(), accelerator.is_main_process());
        accelerator.end_training().unwrap();
        accelerator.end_training().unwrap();
        let late = accelerator.log(&[("loss", 0.0)], 9).unwrap_err().to_string();
        assert_eq!(late, "log: the trackers ended with end_training");
    })
    .unwrap();
    let logs = folder.join("own_loop");
    let read = |name: &str| std::fs::read_to_string(logs.join(name)).unwrap();
    let third = 1.0 / 3.0;
    assert_eq!(
        read("metrics.jsonl"),
        format!(
            "{{\"step\":3,\"loss\":{third},\"epoch\":0.0}}\n{{\"step\":5,\"loss\":0.2,\"epoch\":0.0}}\n\
             {{\"step\":6,\"accuracy\":1.0}}\n"
        )
    );
    assert_eq!(read("loss.csv"), format!("step,loss\r\n3,{third}\r\n5,0.2\r\n"));
    let events =
        std::fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(events.filter(|name| name.starts_with("events.out.tfevents")).count(), 1);
    let mut runs = std::fs::read_dir(folder.join("wandb")).unwrap();
    let run = runs.next().unwrap().unwrap().path();
    assert!(runs.next().is_none());
    let summary = std::fs::read_to_string(run.join("files/wandb-summary.json")).unwrap();
    assert!(summary.contains("\"loss\": 0.2") && summary.contains("\"accuracy\": 1.0"), "{summary}");
    assert!(
        std::fs::read_to_string(run.join("files/config.yaml")).unwrap().contains("\"lr\":\n    value: 0.5")
    );
    let mut runs = std::fs::read_dir(folder.join("swanlog")).unwrap();
    let run = runs.next().unwrap().unwrap().path();
    assert!(runs.next().is_none());
    let settings = std::fs::read_to_string(run.join("files/config.yaml")).unwrap();
    assert_eq!(settings, "\"lr\":\n  desc: ''\n  sort: 0\n  value: 0.5\n");
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], "own/loop {\"lr\":0.5}");
    assert_eq!((seen.len(), seen[3].as_str(), seen[4].as_str()), (5, "6 [(\"accuracy\", 1.0)]", "finished"));
}

#[test]
fn a_resumed_loop_goes_on_in_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = config(folder, vec![LogWith::Jsonl]);
    for (options, value) in [
        (TrackerOptions::default(), 1.0),
        (TrackerOptions { resume_after: Some(0), ..TrackerOptions::default() }, 2.0),
    ] {
        let accelerator = solo(&config);
        accelerator.init_trackers("p", &(), &options).unwrap();
        for _ in 0..2 {
            accelerator.log(&[("x", value)], None).unwrap();
        }
        accelerator.end_training().unwrap();
    }
    let text = std::fs::read_to_string(folder.join("p/metrics.jsonl")).unwrap();
    assert_eq!(text, "{\"step\":0,\"x\":1.0}\n{\"step\":1,\"x\":2.0}\n{\"step\":2,\"x\":2.0}\n");
}

#[test]
fn misuse_is_told() {
    let message = |name: &str| name.parse::<LogWith>().unwrap_err().to_string();
    assert_eq!(
        message("tensorbord"),
        "log_with: there is no tracker \"tensorbord\"; there are all, jsonl, csv, tensorboard, wandb, swanlab. Did you mean \
         \"tensorboard\"?"
    );
    assert!(message("mlflow").starts_with("log_with: mlflow is not built in, as it needs its service"));
    assert_eq!("wandb".parse::<LogWith>().unwrap(), LogWith::Wandb);

    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let accelerator = solo(&config(folder, vec![LogWith::Csv]));
    let early = accelerator.log(&[("x", 0.0)], 1).unwrap_err().to_string();
    assert_eq!(early, "log: the trackers have not begun; call init_trackers first");
    let list = accelerator.init_trackers("p", &[1, 2], &options(folder)).unwrap_err().to_string();
    assert_eq!(list, "init_trackers: settings are a struct or a map, and [1,2] is none");
    accelerator.add_tracker(Mine(Arc::default())).unwrap();
    let twice = accelerator.add_tracker(Mine(Arc::default())).unwrap_err().to_string();
    assert_eq!(twice, "add_tracker: there is a tracker \"mine\" already");
    accelerator.init_trackers("p", &(), &options(folder)).unwrap();
    let again = accelerator.init_trackers("p", &(), &options(folder)).unwrap_err().to_string();
    assert_eq!(again, "init_trackers: the trackers of this accelerator have begun already");
    let unknown = accelerator.get_tracker("cvs").err().unwrap().to_string();
    assert!(unknown.ends_with("there are: csv, mine. Did you mean \"csv\"?"), "{unknown}");
    assert_eq!(accelerator.log(&[("x", f64::NAN)], 1).unwrap_err().to_string(), "no number");

    let homeless = AcceleratorConfig { log_with: vec![LogWith::TensorBoard], ..AcceleratorConfig::default() };
    let message =
        solo(&homeless).init_trackers("p", &(), &TrackerOptions::default()).unwrap_err().to_string();
    assert!(
        message.starts_with("init_trackers: tensorboard writes files; say where with logging_dir"),
        "{message}"
    );
    // Without any tracker there is nothing to do, and nothing to tell.
    solo(&AcceleratorConfig::default()).log(&[("x", 0.0)], 1).unwrap();
}
