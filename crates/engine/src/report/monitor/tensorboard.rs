//! TensorBoard's event files: records with checksums, each an `Event` of TensorFlow's protocol buffers.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Map, Value};

use super::checksum::masked_crc32c;
use super::protobuf::Message;
use super::scalars::{Monitor, host, now};
use crate::report::file_error::{Result, io_error};
use crate::report::files::moved;

/// An event file of its own in a folder, which TensorBoard shows as one run with those that are there already.
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    file: File,
}

/// Event files that this process began.
static BEGUN: AtomicU32 = AtomicU32::new(0);

impl TensorBoard {
    /// Begins a file; what other files of the folder hold beyond `after` (anything, where that is `None`) TensorBoard
    /// forgets, because it will be written again.
    ///
    /// # Errors
    /// If the folder or the file cannot be made.
    pub fn open(folder: &Path, after: Option<u64>) -> Result<TensorBoard> {
        std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        let (time, count) = (now(), BEGUN.fetch_add(1, Ordering::Relaxed));
        let name =
            format!("events.out.tfevents.{:010}.{}.{}.{count}", time.as_secs(), host(), std::process::id());
        let path = folder.join(name);
        let file = oarlock_files::append_new(&path).map_err(io_error("create", &path))?;
        let mut board = TensorBoard { path, file };
        let seconds = time.as_secs_f64();
        board.write(Message::default().double(1, seconds).text(3, "brain.Event:2"))?;
        let first = after.map_or(0, |x| x.saturating_add(1));
        board.write(event(seconds, first).message(7, Message::default().int(1, SESSION_START)))?;
        Ok(board)
    }

    /// A record in one write, so that a reader or a crash finds whole ones.
    fn write(&mut self, event: Message) -> Result<()> {
        if let Some(file) = moved(&mut self.file, &self.path) {
            self.file = file;
        }
        self.file.write_all(&record(&event.into_bytes())).map_err(io_error("write", &self.path))
    }
}

const SESSION_START: i64 = 1;
const STRING: i64 = 7;

/// Length and data, each with its checksum.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(data.len() + 16);
    out.extend(length);
    out.extend(masked_crc32c(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_crc32c(data).to_le_bytes());
    out
}

fn event(seconds: f64, step: u64) -> Message {
    Message::default().double(1, seconds).int(2, i64::try_from(step).unwrap_or(i64::MAX))
}

fn scalars(seconds: f64, step: u64, values: &[(&str, f64)]) -> Message {
    let summary = values.iter().fold(Message::default(), |summary, (name, value)| {
        summary.message(1, Message::default().text(1, name).chosen_float(2, *value as f32))
    });
    event(seconds, step).message(5, summary)
}

/// Words for the tab of texts, in Markdown.
fn text(seconds: f64, name: &str, words: &str) -> Message {
    let plugin = Message::default().text(1, "text");
    let shape = Message::default().message(2, Message::default().int(1, 1));
    let tensor = Message::default().int(1, STRING).message(2, shape).bytes(8, words.as_bytes());
    let value = Message::default()
        .text(1, &format!("{name}/text_summary"))
        .message(8, tensor)
        .message(9, Message::default().message(1, plugin));
    event(seconds, 0).message(5, Message::default().message(1, value))
}

impl Monitor for TensorBoard {
    fn config(&mut self, config: &Map<String, Value>) -> Result<()> {
        let json = format!("{:#}", Value::Object(config.clone()));
        // Four spaces make a block of code.
        let words: String = json.lines().map(|line| format!("    {line}\n")).collect();
        self.write(text(now().as_secs_f64(), "args", &words))
    }

    fn scalars(&mut self, x: u64, values: &[(&str, f64)]) -> Result<()> {
        self.write(scalars(now().as_secs_f64(), x, values))
    }
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::read::{Field, fields, one};
    use super::*;

    const GOLDEN: &[u8] = include_bytes!("../../../../oarlock/tests/golden/monitors/events.tfevents");

    /// The events of a file, whose checksums hold.
    fn events(mut bytes: &[u8]) -> Vec<Vec<(u32, Field)>> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let crc = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(crc(8), masked_crc32c(&bytes[..8]));
            assert_eq!(crc(12 + length), masked_crc32c(&bytes[12..12 + length]));
            found.push(fields(&bytes[12..12 + length]));
            bytes = &bytes[16 + length..];
        }
        found
    }

    #[test]
    fn records_are_those_of_tensorboard_to_the_byte() {
        let written = [
            record(&Message::default().double(1, 1.5e9).text(3, "brain.Event:2").into_bytes()),
            record(&event(1.5e9, 41).message(7, Message::default().int(1, SESSION_START)).into_bytes()),
            record(&scalars(1.5e9 + 0.25, 48, &[("Train/Samples/lr", 5e-5), ("zero", 0.0)]).into_bytes()),
            record(&text(1.5e9 + 0.5, "args", "    {}\n").into_bytes()),
        ];
        assert!(written.concat() == GOLDEN);
        assert_eq!(events(GOLDEN).len(), 4);
    }

    #[test]
    fn a_file_is_read_back_and_a_second_one_stands_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("runs");
        let mut board = TensorBoard::open(&folder, None).unwrap();
        board.config(&Map::from_iter([("bf16".to_owned(), true.into())])).unwrap();
        board.scalars(5, &[("train/loss", 2.5), ("train/epoch", 0.1)]).unwrap();
        let events = events(&std::fs::read(&board.path).unwrap());
        assert_eq!(one(&events[0], 3).text(), "brain.Event:2");
        assert_eq!(one(&one(&events[1], 7).fields(), 1), Field::Int(1), "a session starts");
        let value = one(&one(&events[2], 5).fields(), 1).fields();
        assert_eq!(one(&value, 1).text(), "args/text_summary");
        assert_eq!(one(&one(&value, 8).fields(), 8).text(), "    {\n      \"bf16\": true\n    }\n");
        assert_eq!(one(&events[3], 2), Field::Int(5));
        let values: Vec<_> = one(&events[3], 5)
            .fields()
            .iter()
            .map(|(_, value)| (one(&value.fields(), 1).text(), one(&value.fields(), 2)))
            .collect();
        let expected = [("train/loss", 2.5), ("train/epoch", 0.1)];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), Field::Float(value))));

        std::fs::remove_dir_all(&folder).unwrap();
        board.scalars(6, &[("train/loss", 2.0)]).unwrap();
        assert_eq!(self::events(&std::fs::read(&board.path).unwrap()).len(), 5, "a removed file comes back");

        let resumed = TensorBoard::open(&folder, Some(5)).unwrap();
        assert_ne!(resumed.path, board.path);
        let events = self::events(&std::fs::read(&resumed.path).unwrap());
        assert_eq!(one(&events[1], 2), Field::Int(6), "what lies beyond step 5 is forgotten");
    }
}
