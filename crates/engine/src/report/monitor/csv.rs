//! DeepSpeed's `csv_monitor`: one file for each name, with the lines `x,value` under a header.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::scalars::Monitor;
use crate::report::file_error::{Result, io_error};
use crate::report::files::{LineFile, Rest};
use crate::report::python::repr;

/// The files `<folder>/<name>.csv`, with `_` for what separates the words of a name.
#[derive(Debug)]
pub struct Csv {
    folder: PathBuf,
    after: Option<u64>,
    rest: Rest,
    files: BTreeMap<String, LineFile>,
}

impl Csv {
    /// Begins anew, or goes on after `x`: lines beyond it will be written again, and `rest` becomes of those there.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn open(folder: &Path, after: Option<u64>, rest: Rest) -> Result<Csv> {
        std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        Ok(Csv { folder: folder.to_owned(), after, rest, files: BTreeMap::new() })
    }

    fn begin(&self, name: &str) -> Result<LineFile> {
        let path = self.folder.join(format!("{}.csv", name.replace(['/', ' '], "_")));
        // LineFile end as Python's csv module ends them.
        let header = format!("step,{}\r", name.rsplit('/').next().unwrap_or(name));
        let x = |line: &str| line.split(',').next().and_then(|x| x.parse::<u64>().ok());
        let is_header = |line: &str| line.trim_end() == header.trim_end();
        let mut lines = match self.after {
            Some(after) => LineFile::keep(
                &path,
                |line| is_header(line) || x(line).is_some_and(|x| x <= after),
                self.rest,
            )?,
            None => LineFile::beside(&path)?,
        };
        if lines.is_empty() {
            lines.push(&header)?;
        }
        Ok(lines)
    }
}

impl Monitor for Csv {
    fn scalars(&mut self, x: u64, values: &[(&str, f64)]) -> Result<()> {
        for (name, value) in values {
            let line = format!("{x},{}\r", repr(*value));
            if let Some(lines) = self.files.get_mut(*name) {
                lines.push(&line)?;
            } else {
                let mut lines = self.begin(name)?;
                lines.push(&line)?;
                self.files.insert((*name).to_owned(), lines);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_and_a_resumed_run_cuts_what_it_writes_again() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("out/DeepSpeedJobName");
        let mut csv = Csv::open(&folder, None, Rest::Dropped).unwrap();
        for x in [8, 16, 24] {
            csv.scalars(x, &[("Train/Samples/lr", 5e-5), ("loss", f64::from(x as u32))]).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read("Train_Samples_lr.csv"), "step,lr\r\n8,5e-05\r\n16,5e-05\r\n24,5e-05\r\n");
        // Killed in the middle of a line.
        std::fs::write(folder.join("loss.csv"), read("loss.csv") + "32,3").unwrap();
        let mut csv = Csv::open(&folder, Some(16), Rest::SetAside).unwrap();
        csv.scalars(24, &[("loss", 1.5), ("new", f64::NAN)]).unwrap();
        assert_eq!(read("loss.csv"), "step,loss\r\n8,8.0\r\n16,16.0\r\n24,1.5\r\n");
        // The lines of whoever else wrote there are kept.
        assert_eq!(read("loss.csv.1"), "step,loss\r\n8,8.0\r\n16,16.0\r\n24,24.0\r\n32,3");
        assert_eq!(read("new.csv"), "step,new\r\n24,nan\r\n");
        Csv::open(&folder, None, Rest::Dropped).unwrap().scalars(8, &[("loss", 2.0)]).unwrap();
        assert_eq!(read("loss.csv"), "step,loss\r\n8,2.0\r\n");
        let error = Csv::open(&folder.join("new.csv"), None, Rest::Dropped).unwrap_err().to_string();
        assert!(error.starts_with("cannot create `"), "{error}");
    }
}
