//! Samples from a file of JSON lines.

use std::path::Path;

use oarlock_config::json;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// Reads a file with one JSON value a line into a data set in memory; empty lines do not count.
///
/// ```
/// use oarlock::dataloader::{DataLoader, json_lines};
///
/// # fn main() -> oarlock::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("points.jsonl");
/// std::fs::write(&path, "[0.0, 1.0]\n[2.0, 3.0]\n")?;
/// let points: Vec<[f32; 2]> = json_lines(&path)?;
/// let loader = DataLoader::new(points, 2).collate(|points, _device| Ok(points.concat()));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Io`] for a file that cannot be read, and [`Error::BadFile`], with the line, for one that holds something else.
pub fn json_lines<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<Vec<T>> {
    let path = path.as_ref();
    let text =
        oarlock_comm::read_text(path, oarlock_comm::MAX_RECORDS_BYTES).map_err(Error::io("read", path))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            let problem = |error| Error::bad_file(path, format!("line {}: {error}", i + 1));
            json::from_str(line).map_err(problem)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.jsonl");
        std::fs::write(&path, "1\n\n2\n").unwrap();
        assert_eq!(json_lines::<i32>(&path).unwrap(), [1, 2]);
        std::fs::write(&path, "1\n\n\"two\"\n").unwrap();
        let said = json_lines::<i32>(&path).unwrap_err().to_string();
        assert!(said.contains("numbers.jsonl: line 3: invalid type: string \"two\", expected i32"), "{said}");
        let said = json_lines::<i32>(folder.path().join("absent")).unwrap_err().to_string();
        assert!(said.starts_with("cannot read ") && said.contains("No such file"), "{said}");
    }
}
