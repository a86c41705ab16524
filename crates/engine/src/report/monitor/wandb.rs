//! Weights & Biases without a connection: the folder of an offline run, which `wandb sync` uploads later.
//!
//! `run-<id>.wandb` is a log of records, each a protocol buffer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::protobuf::Message;
use super::record_log::{Header, RecordLog};
use super::scalars::{Monitor, host, name_of_time, now, run_id};
use super::yaml::{in_yaml, scalar_in_yaml};
use crate::report::file_error::{Result, io_error};
use crate::report::files;

/// Where a run belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Belongs {
    /// The project.
    pub project: String,
    /// The team or user; empty for the account that uploads it.
    pub entity: String,
    /// The group inside the project; empty for none.
    pub group: String,
    /// The run's name; empty for one that the server chooses.
    pub name: String,
}

/// An offline run.
#[derive(Debug)]
pub struct Wandb {
    log: RecordLog,
    /// Records so far.
    n_records: i64,
    folder: PathBuf,
    belongs: Belongs,
    id: String,
    /// The value that everything is plotted over, where that is not the step itself.
    axis: Option<&'static str>,
    /// History records so far.
    rows: u64,
    /// The newest value of each name, as JSON.
    summary: BTreeMap<String, String>,
    started: Duration,
    clock: Instant,
}

/// How a log begins.
const LOG: &Header = b":W&B\xe1\xbe\x00";

/// What a reader must understand at least; the first version with this format of records.
const MIN_CONSUMER: &str = "0.70.0";

impl Wandb {
    /// Begins a run `<folder>/offline-run-<time>-<id>`. With an `axis` values are plotted over a value of this name,
    /// which is added to each record; without, over `x` as the step.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn begin(folder: &Path, belongs: Belongs, axis: Option<&'static str>) -> Result<Wandb> {
        let started = now();
        let id = run_id(started);
        let folder = folder.join(format!("offline-run-{}-{id}", name_of_time(started)));
        let files = folder.join("files");
        std::fs::create_dir_all(&files).map_err(io_error("create", &files))?;
        let mut wandb = Wandb {
            log: RecordLog::create(&folder.join(format!("run-{id}.wandb")), LOG)?,
            n_records: 0,
            folder,
            belongs,
            id,
            axis,
            rows: 0,
            summary: BTreeMap::new(),
            started,
            clock: Instant::now(),
        };
        let producer = concat!("oarlock ", env!("CARGO_PKG_VERSION"));
        let version = Message::default().text(1, producer).text(2, MIN_CONSUMER);
        wandb.push(HEADER, Message::default().message(1, version))?;
        Ok(wandb)
    }

    /// A record of this kind, numbered.
    fn push(&mut self, kind: u32, content: Message) -> Result<()> {
        self.n_records += 1;
        let record = Message::default().int(1, self.n_records).message(kind, content);
        self.log.push(&record.into_bytes())
    }

    /// The run itself, whose configuration is a part of its record.
    fn run(&self, config: &Map<String, Value>) -> Message {
        let Belongs { project, entity, group, name } = &self.belongs;
        let update = config.iter().fold(Message::default(), |update, (key, value)| {
            update.message(1, Message::default().text(1, key).text(16, &value.to_string()))
        });
        let start = Message::default()
            .int(1, self.started.as_secs() as i64)
            .int(2, i64::from(self.started.subsec_nanos()));
        Message::default()
            .text(1, &self.id)
            .text(2, entity)
            .text(3, project)
            .message(4, update)
            .text(6, group)
            .text(8, name)
            .text(13, &host())
            .message(17, start)
    }
}

// The numbers of the records that a run is made of.
const HISTORY: u32 = 2;
const SUMMARY: u32 = 3;
const METRIC: u32 = 12;
const RUN: u32 = 17;
const EXIT: u32 = 18;
const HEADER: u32 = 21;

/// A number as Python's json writes it, which has words for what JSON has none.
fn number(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    match x.is_infinite() {
        true => if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        false => json!(x).to_string(),
    }
}

/// Values by name, as JSON: a summary, and the first part of a history record.
fn values_of(items: &[(String, String)]) -> Message {
    items.iter().fold(Message::default(), |record, (name, value)| {
        record.message(1, Message::default().text(1, name).text(16, value))
    })
}

/// A history record: values at a step.
fn history(step: u64, items: &[(String, String)]) -> Message {
    values_of(items).message(2, Message::default().int(1, i64::try_from(step).unwrap_or(i64::MAX)))
}

impl Monitor for Wandb {
    fn config(&mut self, config: &Map<String, Value>) -> Result<()> {
        self.push(RUN, self.run(config))?;
        if let Some(axis) = self.axis {
            self.push(METRIC, Message::default().text(1, axis))?;
            let synced = Message::default().int(1, 1);
            self.push(METRIC, Message::default().text(2, "*").text(4, axis).message(6, synced))?;
        }
        let values: String = config
            .iter()
            .map(|(key, value)| format!("{}:\n    value: {}\n", scalar_in_yaml(&json!(key)), in_yaml(value)))
            .collect();
        files::replace(
            &self.folder.join("files/config.yaml"),
            format!("wandb_version: 1\n{values}").as_bytes(),
        )
    }

    fn scalars(&mut self, x: u64, values: &[(&str, f64)]) -> Result<()> {
        let step = if self.axis.is_some() { self.rows } else { x };
        self.rows += 1;
        let values = values.iter().map(|(name, value)| (*name, number(*value)));
        let beside = [
            ("_timestamp", number(now().as_secs_f64())),
            ("_runtime", number(self.clock.elapsed().as_secs_f64())),
            ("_step", step.to_string()),
        ];
        let items: Vec<(String, String)> = values
            .chain(self.axis.map(|axis| (axis, x.to_string())))
            .chain(beside)
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        self.push(HISTORY, history(step, &items))?;
        self.push(SUMMARY, values_of(&items))?;
        self.summary.extend(items);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let runtime = self.clock.elapsed().as_secs();
        let values =
            self.summary.iter().map(|(name, value)| format!("{}: {value}", Value::from(name.as_str())));
        let values: Vec<String> =
            values.chain([format!("\"_wandb\": {}", json!({ "runtime": runtime }))]).collect();
        let folder = self.folder.join("files");
        std::fs::create_dir_all(&folder).map_err(io_error("create", &folder))?;
        files::replace(
            &folder.join("wandb-summary.json"),
            format!("{{{}}}\n", values.join(", ")).as_bytes(),
        )?;
        self.push(EXIT, Message::default().int(2, i64::try_from(runtime).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::read::{Field, fields, one};
    use super::super::record_log;
    use super::*;

    const GOLDEN: &[u8] = include_bytes!("../../../../oarlock/tests/golden/monitors/run.wandb");

    /// The records of a whole log.
    fn records(bytes: &[u8]) -> Vec<Vec<(u32, Field)>> {
        let (found, end) = record_log::records(bytes, LOG).unwrap();
        assert_eq!(end, bytes.len());
        found.iter().map(|record| fields(record)).collect()
    }

    #[test]
    fn the_log_of_the_original_is_read_and_written_alike() {
        let kinds: Vec<u32> = records(GOLDEN).iter().map(|record| record.last().unwrap().0).collect();
        assert_eq!(kinds, [HISTORY, HISTORY, EXIT]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.wandb");
        let mut log = RecordLog::create(&path, LOG).unwrap();
        let item = |name: &str, value: String| (name.to_owned(), value);
        let long = format!("\"{}\"", "x".repeat(40_000));
        for (number, kind, content) in [
            (1, HISTORY, history(8, &[item("Train/Samples/lr", number(0.5)), item("nan", number(f64::NAN))])),
            (2, HISTORY, history(16, &[item("long", long)])),
            (3, EXIT, Message::default().int(2, 7)),
        ] {
            log.push(&Message::default().int(1, number).message(kind, content).into_bytes()).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == GOLDEN);
    }

    #[test]
    fn a_run_has_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let belongs = Belongs { project: "deepspeed".to_owned(), ..Belongs::default() };
        let mut run = Wandb::begin(folder.path(), belongs, Some("train/global_step")).unwrap();
        run.config(&Map::from_iter([("lr".to_owned(), json!(1e-7))])).unwrap();
        for step in [10, 20] {
            run.scalars(step, &[("train/loss", 2.0 / step as f64), ("bad", f64::INFINITY)]).unwrap();
        }
        run.finish().unwrap();
        let name = run.folder.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("offline-run-2") && name.ends_with(&run.id) && name.len() == 36, "{name}");
        let records = records(&std::fs::read(run.folder.join(format!("run-{}.wandb", run.id))).unwrap());
        let kinds: Vec<u32> = records.iter().map(|record| record.last().unwrap().0).collect();
        assert_eq!(kinds, [HEADER, RUN, METRIC, METRIC, HISTORY, SUMMARY, HISTORY, SUMMARY, EXIT]);
        let numbers: Vec<Field> = records.iter().map(|record| one(record, 1)).collect();
        assert_eq!(numbers, (1..=9).map(Field::Int).collect::<Vec<_>>());
        let row = one(&records[6], HISTORY).fields();
        assert_eq!(one(&one(&row, 2).fields(), 1), Field::Int(1), "the second row");
        let items: Vec<(String, String)> = row
            .iter()
            .filter(|(number, _)| *number == 1)
            .map(|(_, item)| (one(&item.fields(), 1).text(), one(&item.fields(), 16).text()))
            .collect();
        let item = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            items[..3],
            [item("train/loss", "0.1"), item("bad", "Infinity"), item("train/global_step", "20")]
        );
        let read = |name: &str| std::fs::read_to_string(run.folder.join("files").join(name)).unwrap();
        assert_eq!(read("config.yaml"), "wandb_version: 1\n\"lr\":\n    value: 1.0e-7\n");
        let summary = read("wandb-summary.json");
        assert!(summary.contains("\"bad\": Infinity"), "as Python's json writes it: {summary}");
        let summary: Value = serde_json::from_str(&summary.replace("Infinity", "null")).unwrap();
        assert_eq!((&summary["train/loss"], &summary["train/global_step"]), (&json!(0.1), &json!(20)));
    }
}
