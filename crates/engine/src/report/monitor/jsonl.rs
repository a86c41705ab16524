//! Scalars as lines of JSON: `{"step": x, "name": value, …}`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::scalars::Monitor;
use crate::report::file_error::{Result, io_error};
use crate::report::files::{LineFile, Rest};

/// One file.
#[derive(Debug)]
pub struct Jsonl(LineFile);

impl Jsonl {
    /// Begins anew, or goes on after `x`: records beyond it will be written again, and `rest` becomes of those there.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn open(path: &Path, after: Option<u64>, rest: Rest) -> Result<Jsonl> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        }
        Ok(Jsonl(match after {
            Some(after) => LineFile::resume(path, "step", after, rest)?,
            None => LineFile::beside(path)?,
        }))
    }
}

impl Monitor for Jsonl {
    fn scalars(&mut self, x: u64, values: &[(&str, f64)]) -> Result<()> {
        let mut record = Map::from_iter([("step".to_owned(), json!(x))]);
        record.extend(values.iter().map(|(name, value)| ((*name).to_owned(), json!(value))));
        self.0.push(&Value::Object(record).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_lines_and_a_resumed_run_writes_each_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs/metrics.jsonl");
        let mut jsonl = Jsonl::open(&path, None, Rest::Dropped).unwrap();
        for x in 1..=3 {
            jsonl.scalars(x, &[("train/loss", 0.5), ("train/epoch", f64::INFINITY)]).unwrap();
        }
        let read = || std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, read() + "{\"step\": 4, \"tr").unwrap();
        Jsonl::open(&path, Some(1), Rest::Dropped).unwrap().scalars(2, &[("train/loss", 0.25)]).unwrap();
        assert_eq!(
            read(),
            "{\"step\":1,\"train/loss\":0.5,\"train/epoch\":null}\n{\"step\":2,\"train/loss\":0.25}\n"
        );
        // Another run begins a file of its own, and what was there stays.
        let first = read();
        Jsonl::open(&path, None, Rest::Dropped).unwrap();
        assert_eq!(read(), "");
        assert_eq!(std::fs::read_to_string(path.with_extension("jsonl.1")).unwrap(), first);
        // A run that goes on where another one has begun a file leaves that whole.
        let mut others = Jsonl::open(&path, None, Rest::SetAside).unwrap();
        (1..=3).for_each(|x| others.scalars(x, &[("train/loss", 9.0)]).unwrap());
        let theirs = read();
        Jsonl::open(&path, Some(1), Rest::SetAside).unwrap().scalars(2, &[("train/loss", 0.5)]).unwrap();
        assert_eq!(std::fs::read_to_string(path.with_extension("jsonl.2")).unwrap(), theirs);
        assert_eq!(read().lines().count(), 2);
        // Nothing is set aside where all is kept.
        Jsonl::open(&path, Some(2), Rest::SetAside).unwrap();
        assert!(!path.with_extension("jsonl.3").exists());
    }
}
