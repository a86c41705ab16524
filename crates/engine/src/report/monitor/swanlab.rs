//! SwanLab without a connection: the folder of an offline run, which `swanlab sync` uploads later.
//!
//! `run-<id>.swanlab` is a log of records, each a protocol buffer: the start first, then for each name a column and its
//! values, and the end of the run last. `files/config.yaml` holds the configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::protobuf::Message;
use super::record_log::{Header, RecordLog};
use super::scalars::{Monitor, name_of_time, now, run_id};
use super::yaml::{in_yaml, scalar_in_yaml};
use crate::report::file_error::{Result, io_error};
use crate::report::files;

/// Where a run belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Belongs {
    /// The project.
    pub project: String,
    /// The organization or user; empty for the account that uploads it.
    pub workspace: String,
    /// The run's name; empty for one that SwanLab chooses.
    pub name: String,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Finished,
    /// By an error.
    Crashed,
    /// By whoever stopped it.
    Aborted,
}

/// An offline run.
#[derive(Debug)]
pub struct SwanLab {
    log: RecordLog,
    folder: PathBuf,
    belongs: Belongs,
    id: String,
    /// Columns and values so far.
    n_records: i64,
    /// The names that have a column.
    columns: BTreeSet<String>,
    /// A log has one end: what follows the first does not count.
    has_ended: bool,
}

/// How a log begins; the last byte is the version of the format.
const LOG: &Header = b":SWL\xd6\xe1\x02";

// The kinds of records.
const START: u32 = 10;
const FINISH: u32 = 11;
const COLUMN: u32 = 12;
const SCALAR: u32 = 13;
const SAVE: u32 = 20;

// The numbers of records that a log holds once. The others count from 1.
const NUMBER_OF_START: i64 = -1;
const NUMBER_OF_FINISH: i64 = -2;
const NUMBER_OF_CONFIG: i64 = -3;

/// The logs that [`end`] has ended, which take no more records: a signal may end a run whose thread still trains.
static ENDED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn ended() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The type of columns and values: numbers.
const OF_NUMBERS: i64 = 1;

impl SwanLab {
    /// Begins a run `<folder>/run-<time>-<id>`.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn begin(folder: &Path, belongs: Belongs) -> Result<SwanLab> {
        let started = now();
        let id = run_id(started);
        // The record of the configuration names its file by a path that holds everywhere.
        let folder = std::path::absolute(folder).map_err(io_error("find", folder))?;
        let folder = folder.join(format!("run-{}-{id}", name_of_time(started)));
        let files = folder.join("files");
        std::fs::create_dir_all(&files).map_err(io_error("create", &files))?;
        let mut log = RecordLog::create(&log_of(&folder, &id), LOG)?;
        let start = Message::default()
            .text(1, &belongs.project)
            .text(2, &belongs.workspace)
            .text(4, &belongs.name)
            .text(10, &id)
            .message(12, timestamp(started));
        log.push(&record(NUMBER_OF_START, START, start))?;
        Ok(SwanLab { log, folder, belongs, id, n_records: 0, columns: BTreeSet::new(), has_ended: false })
    }

    /// What tells others which run this is, as [`end`] reads it.
    pub fn public(&self) -> Value {
        json!({
            "project_name": self.belongs.project,
            "experiment_name": self.belongs.name,
            "run_id": self.id,
            "run_dir": self.folder.display().to_string(),
            "mode": "offline",
        })
    }

    fn end(&mut self, end: End, error: &str) -> Result<()> {
        if self.has_ended {
            return Ok(());
        }
        self.has_ended = true;
        self.write(&finish(end, error))
    }

    fn push(&mut self, kind: u32, content: Message) -> Result<()> {
        self.n_records += 1;
        self.write(&record(self.n_records, kind, content))
    }

    fn write(&mut self, record: &[u8]) -> Result<()> {
        // Nobody ends it meanwhile.
        let ended = ended();
        if ended.contains(&log_of(&self.folder, &self.id)) { Ok(()) } else { self.log.push(record) }
    }
}

impl Monitor for SwanLab {
    fn config(&mut self, config: &Map<String, Value>) -> Result<()> {
        let path = self.folder.join("files/config.yaml");
        files::replace(&path, yaml(config).as_bytes())?;
        let path = path.display().to_string();
        // Type 1: it is the configuration.
        let save = Message::default().text(1, "config").text(2, &path).int(5, 1);
        self.write(&record(NUMBER_OF_CONFIG, SAVE, save))
    }

    fn scalars(&mut self, x: u64, values: &[(&str, f64)]) -> Result<()> {
        let step = i64::try_from(x).unwrap_or(i64::MAX);
        for (name, value) in values {
            if self.columns.insert((*name).to_owned()) {
                self.push(COLUMN, column(name))?;
            }
            self.push(SCALAR, scalar(name, step, now(), *value))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.end(End::Finished, "")
    }

    fn failed(&mut self, error: &str) -> Result<()> {
        self.end(End::Crashed, error)
    }
}

/// Ends the run that [`SwanLab::public`] tells of, where its process was ended before it could do so. A run that has ended
/// stays as it is.
///
/// # Errors
/// A log that is not there, or cannot be written.
pub fn end(public: &Value, end: End, error: &str) -> Result<()> {
    let text = |key: &str| public.get(key).and_then(Value::as_str);
    let (Some(folder), Some(id)) = (text("run_dir"), text("run_id")) else { return Ok(()) };
    let path = log_of(Path::new(folder), id);
    let mut ended = ended();
    let (mut log, records) = RecordLog::reopen(&path, LOG)?;
    if records.last().is_some_and(|last| number_of(last) == Some(NUMBER_OF_FINISH)) {
        return Ok(());
    }
    log.push(&finish(end, error))?;
    ended.insert(path);
    Ok(())
}

/// The log in the folder of a run.
fn log_of(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("run-{id}.swanlab"))
}

fn record(number: i64, kind: u32, content: Message) -> Vec<u8> {
    Message::default().int(1, number).message(2, timestamp(now())).message(kind, content).into_bytes()
}

/// The number of a record, which is its first field.
fn number_of(record: &[u8]) -> Option<i64> {
    let digits = record.strip_prefix(&[8])?.iter().take(10).enumerate();
    let mut number = 0_u64;
    for (place, digit) in digits {
        number |= u64::from(digit & 0x7f) << (7 * place);
        if *digit < 0x80 {
            return Some(number as i64);
        }
    }
    None
}

fn timestamp(time: Duration) -> Message {
    Message::default().int(1, time.as_secs() as i64).int(2, i64::from(time.subsec_nanos()))
}

/// A column of the user's own, in the section that its name begins with.
fn column(name: &str) -> Message {
    let section = name.split_once('/').map_or("", |(section, _)| section);
    Message::default().int(1, 1).int(2, OF_NUMBERS).text(3, name).text(5, section).int(6, 3)
}

fn scalar(name: &str, step: i64, time: Duration, value: f64) -> Message {
    Message::default()
        .text(1, name)
        .int(2, step)
        .int(3, OF_NUMBERS)
        .message(4, timestamp(time))
        .message(5, Message::default().double(1, value))
}

fn finish(end: End, error: &str) -> Vec<u8> {
    let state = match end {
        End::Finished => 1,
        End::Crashed => 2,
        End::Aborted => 3,
    };
    let content = Message::default().int(1, state).text(2, error).message(3, timestamp(now()));
    record(NUMBER_OF_FINISH, FINISH, content)
}

/// The configuration as SwanLab keeps it: of each key the value, a description and the place in the order.
fn yaml(config: &Map<String, Value>) -> String {
    let line = |(place, (key, value)): (usize, (&String, &Value))| {
        format!(
            "{}:\n  desc: ''\n  sort: {place}\n  value: {}\n",
            scalar_in_yaml(&json!(key)),
            in_yaml(value)
        )
    };
    config.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::read::{Field, fields, one};
    use super::super::record_log;
    use super::*;

    /// What swanlab 0.10.3 writes for the records below.
    const GOLDEN: &[u8] = include_bytes!("../../../../oarlock/tests/golden/monitors/run.swanlab");

    /// A record: number, kind and content.
    type Record = (i64, u32, Vec<(u32, Field)>);

    /// The records of a whole log.
    fn records(bytes: &[u8]) -> Vec<Record> {
        let (found, end) = record_log::records(bytes, LOG).unwrap();
        assert_eq!(end, bytes.len());
        let read = |record: &Vec<u8>| {
            let all = fields(record);
            let (kind, content) = all.last().unwrap().clone();
            let number = match one(&all, 1) {
                Field::Int(number) => number as i64,
                other => panic!("{other:?} is no number"),
            };
            assert_eq!(number_of(record), Some(number));
            (number, kind, content.fields())
        };
        found.iter().map(read).collect()
    }

    #[test]
    fn the_log_of_the_original_is_read_and_written_alike() {
        let kinds: Vec<(i64, u32)> =
            records(GOLDEN).iter().map(|(number, kind, _)| (*number, *kind)).collect();
        let expected = [(-1, START), (-3, SAVE), (1, COLUMN), (2, SCALAR), (3, SCALAR), (-2, FINISH)];
        assert_eq!(kinds, expected);
        let time = Duration::new(1_500_000_000, 250_000_000);
        let numbered = |number: i64, kind: u32, content: Message| {
            Message::default().int(1, number).message(2, timestamp(time)).message(kind, content).into_bytes()
        };
        let start = Message::default()
            .text(1, "llamafactory")
            .text(2, "team")
            .text(4, "first")
            .text(10, "abcd1234")
            .message(12, timestamp(time));
        let save = Message::default().text(1, "config").text(2, "/run/files/config.yaml").int(5, 1);
        let end = Message::default().int(1, 2).text(2, &"x".repeat(40_000)).message(3, timestamp(time));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.swanlab");
        let mut log = RecordLog::create(&path, LOG).unwrap();
        for record in [
            numbered(NUMBER_OF_START, START, start),
            numbered(NUMBER_OF_CONFIG, SAVE, save),
            numbered(1, COLUMN, column("train/loss")),
            numbered(2, SCALAR, scalar("train/loss", 0, time, 0.0)),
            numbered(3, SCALAR, scalar("train/loss", 10, time, f64::NAN)),
            numbered(NUMBER_OF_FINISH, FINISH, end),
        ] {
            log.push(&record).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == GOLDEN);
    }

    fn begin(folder: &Path) -> SwanLab {
        let belongs = Belongs { project: "p".to_owned(), name: "first".to_owned(), ..Belongs::default() };
        let mut run = SwanLab::begin(folder, belongs).unwrap();
        run.config(&Map::from_iter([("lr".to_owned(), json!(1e-7))])).unwrap();
        for step in [10, 20] {
            run.scalars(step, &[("train/loss", 2.0 / step as f64), ("bad", f64::INFINITY)]).unwrap();
        }
        run
    }

    fn read(run: &SwanLab) -> Vec<Record> {
        records(&std::fs::read(log_of(&run.folder, &run.id)).unwrap())
    }

    /// The state in which a run ended, and why.
    fn end_of(run: &SwanLab) -> Option<(Field, String)> {
        let records = read(run);
        let (number, kind, content) = records.last().unwrap();
        assert_eq!(*number == NUMBER_OF_FINISH, *kind == FINISH);
        let why = content.iter().find(|(field, _)| *field == 2).map(|(_, why)| why.clone());
        (*kind == FINISH).then(|| (one(content, 1), why.map(|why| why.text()).unwrap_or_default()))
    }

    #[test]
    fn a_run_has_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = begin(folder.path());
        assert_eq!(end_of(&run), None);
        run.finish().unwrap();
        let name = run.folder.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("run-2") && name.ends_with(&run.id) && name.len() == 28, "{name}");
        let records = read(&run);
        let kinds: Vec<(i64, u32)> = records.iter().map(|(number, kind, _)| (*number, *kind)).collect();
        let expected = [
            (-1, START),
            (-3, SAVE),
            (1, COLUMN),
            (2, SCALAR),
            (3, COLUMN),
            (4, SCALAR),
            (5, SCALAR),
            (6, SCALAR),
            (-2, FINISH),
        ];
        assert_eq!(kinds, expected);
        let start = &records[0].2;
        assert_eq!((one(start, 1).text(), one(start, 10).text()), ("p".to_owned(), run.id.clone()));
        assert!(start.iter().all(|(field, _)| *field != 2), "whoever uploads it chooses the workspace");
        assert_eq!(one(&records[2].2, 5).text(), "train");
        let value = &records[6].2;
        assert_eq!((one(value, 1).text(), one(value, 2)), ("train/loss".to_owned(), Field::Int(20)));
        assert_eq!(one(&one(value, 5).fields(), 1), Field::Double(0.1));
        let path = one(&records[1].2, 2).text();
        assert!(Path::new(&path).is_absolute());
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "\"lr\":\n  desc: ''\n  sort: 0\n  value: 1.0e-7\n"
        );
        assert_eq!(end_of(&run), Some((Field::Int(1), String::new())));
    }

    #[test]
    fn how_a_run_ended_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = begin(folder.path());
        run.failed("no space").unwrap();
        let crashed = Some((Field::Int(2), "no space".to_owned()));
        assert_eq!(end_of(&run), crashed);
        run.finish().unwrap();
        end(&run.public(), End::Aborted, "stopped").unwrap();
        assert_eq!(end_of(&run), crashed);
        assert_eq!(read(&run).iter().filter(|(_, kind, _)| *kind == FINISH).count(), 1);

        // Its process was killed within a record.
        let mut run = begin(folder.path());
        let path = log_of(&run.folder, &run.id);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 2]).unwrap();
        end(&run.public(), End::Aborted, "stopped by signal 2").unwrap();
        // What its thread still tells is not written.
        run.scalars(30, &[("train/loss", 0.5)]).unwrap();
        run.finish().unwrap();
        assert_eq!(end_of(&run), Some((Field::Int(3), "stopped by signal 2".to_owned())));
        assert_eq!(read(&run).len(), 8);

        // What is no run.
        for public in [json!(null), json!({"run_id": 3}), json!({"run_id": "x"})] {
            end(&public, End::Aborted, "").unwrap();
        }
        let gone = json!({"run_id": "x", "run_dir": folder.path().display().to_string()});
        end(&gone, End::Aborted, "").unwrap_err();
    }
}
