//! The two ways in which reports reach the disk: a file that is replaced as a whole, and a file that grows by
//! whole lines. After a crash or on a full disk neither holds half of anything, and a file that is removed comes back.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use super::file_error::{Result, io_error};

/// Writes a file beside its place and renames it in, so that a reader sees the old or the new one.
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    oarlock_files::replace(path, content).map_err(io_error("write", path))
}

/// Makes room where others may have a file of this name: what is there goes to the first free `NAME.1`, `NAME.2` ….
pub fn set_aside(path: &Path) -> Result<()> {
    if !fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0) {
        return Ok(());
    }
    let named = |number: u32| {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{number}"));
        path.with_file_name(name)
    };
    let free = (1..).map(named).find(|path| fs::symlink_metadata(path).is_err());
    free.map_or(Ok(()), |free| fs::rename(path, free)).map_err(io_error("move", path))
}

/// Writes a JSON value as Hugging Face does: indented, with a newline at the end.
pub fn replace_json(path: &Path, value: &serde_json::Value) -> Result<()> {
    replace(path, format!("{value:#}\n").as_bytes())
}

/// The file at a path where that is not the open `file` any more, to go on in: a new one with what `file` holds if it was
/// removed, or another one that somebody put in its place without a name for the old one. What was written to the old one would be lost with it. Says so once in
/// a process.
pub(super) fn moved(file: &mut File, path: &Path) -> Option<File> {
    static WARN: Once = Once::new();
    let (message, now) = match fs::metadata(path) {
        Ok(named) => {
            let own = file.metadata().ok()?;
            if (own.dev(), own.ino()) == (named.dev(), named.ino()) {
                return None;
            }
            // It has another name now, as where another run set it aside: what is in its place is not this run's.
            if own.nlink() > 0 {
                WARN.call_once(|| {
                    let message = "it was moved, and another file is in its place; the run goes on in the one that was moved";
                    let _ = writeln!(io::stderr(), "warning: {}: {message}", path.display());
                });
                return None;
            }
            let now = oarlock_files::append(path);
            ("another file is in its place, and the run goes on in that one", now)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            ("it was removed, and is made again with what it held", copy_of(file, path))
        }
        Err(_) => return None,
    };
    WARN.call_once(|| {
        let message = now.as_ref().map_or_else(
            |error| {
                format!(
                    "it was removed and cannot be made again ({error}); what the run logs from now on is lost"
                )
            },
            |_| message.to_owned(),
        );
        // Where nobody listens the run goes on all the same.
        let _ = writeln!(io::stderr(), "warning: {}: {message}", path.display());
    });
    now.ok()
}

/// A new file with the content of an open one, of which the path is gone.
fn copy_of(file: &mut File, path: &Path) -> io::Result<File> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mut new = oarlock_files::append_new(path)?;
    file.rewind()?;
    io::copy(file, &mut new)?;
    Ok(new)
}

/// What becomes of lines that a resumed run does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// They are the run's own, which writes them again.
    Dropped,
    /// They may be another run's: the file is set aside as it is.
    SetAside,
}

impl Rest {
    /// Of a file in `folder` for a run whose own folder is `own`.
    pub fn of(folder: &Path, own: &Path) -> Rest {
        if folder.starts_with(own) { Rest::Dropped } else { Rest::SetAside }
    }
}

/// A file that grows by whole lines.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl LineFile {
    /// Begins an empty file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = oarlock_files::begin(path).map_err(io_error("create", path))?;
        Ok(LineFile { path: path.to_owned(), file, len: 0 })
    }

    /// Begins an empty file where others may have one of this name, which is set aside.
    pub fn beside(path: &Path) -> Result<Self> {
        set_aside(path)?;
        LineFile::create(path)
    }

    /// Continues a file, or begins it. Half a line at its end, left by a crash, is cut off.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = oarlock_files::append(path).map_err(io_error("open", path))?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(io_error("read", path))?;
        let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) as u64;
        let mut lines = LineFile { path: path.to_owned(), file, len: whole };
        lines.cut().map_err(io_error("write", path))?;
        Ok(lines)
    }

    /// Continues a file of JSON records, or begins it. It keeps the records whose number under `key` is at most `last`; a
    /// resumed run writes the later ones again.
    pub fn resume(path: &Path, key: &str, last: u64, rest: Rest) -> Result<Self> {
        let number = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?.get(key)?.as_u64();
        Self::keep(path, |line| number(line).is_some_and(|at| at <= last), rest)
    }

    /// Continues a file, or begins it. It keeps the whole lines for which `is_kept` holds.
    pub fn keep(path: &Path, is_kept: impl Fn(&str) -> bool, rest: Rest) -> Result<Self> {
        if path.exists() {
            let text = oarlock_comm::read_file(path, oarlock_comm::MAX_RECORDS_BYTES)
                .map_err(io_error("read", path))?;
            let text = String::from_utf8_lossy(&text);
            let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let (kept, cut): (Vec<&str>, Vec<&str>) = whole.partition(|line| is_kept(line));
            if rest == Rest::SetAside && !cut.is_empty() {
                set_aside(path)?;
            }
            replace(path, kept.concat().as_bytes())?;
        }
        Self::open(path)
    }

    /// Whether no line is in the file.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a line in one write. If that fails, what got through is cut off again.
    pub fn push(&mut self, line: &str) -> Result<()> {
        if let Some(file) = moved(&mut self.file, &self.path) {
            self.len = file.metadata().map_err(io_error("read", &self.path))?.len();
            self.file = file;
        }
        let line = format!("{line}\n");
        match self.file.write_all(line.as_bytes()) {
            Ok(()) => {
                self.len += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                // The first error is the one to report; half a line is cut off at the next open at the latest.
                let _ = self.cut();
                Err(io_error("write", &self.path)(error))
            }
        }
    }

    fn cut(&mut self) -> std::io::Result<()> {
        self.file.set_len(self.len)?;
        self.file.seek(SeekFrom::Start(self.len)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Error;
    use super::*;

    #[test]
    fn half_a_line_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for (before, after) in
            [("a\nb\nc", "a\nb\nnew\n"), ("torn", "new\n"), ("", "new\n"), ("a\n", "a\nnew\n")]
        {
            std::fs::write(&path, before).unwrap();
            LineFile::open(&path).unwrap().push("new").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        }
    }

    #[test]
    fn a_file_that_is_removed_comes_back_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out/log");
        fs::create_dir(folder.path().join("out")).unwrap();
        for open in [LineFile::create, LineFile::open] {
            let mut lines = open(&path).unwrap();
            lines.push("before").unwrap();
            fs::remove_dir_all(folder.path().join("out")).unwrap();
            for line in ["after", "more"] {
                lines.push(line).unwrap();
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), "before\nafter\nmore\n");
            // Another run sets it aside and begins its own, which stays its own.
            set_aside(&path).unwrap();
            let mut others = LineFile::create(&path).unwrap();
            others.push("other").unwrap();
            lines.push("aside").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "other\n");
            let aside = path.with_file_name("log.1");
            assert_eq!(fs::read_to_string(&aside).unwrap(), "before\nafter\nmore\naside\n");
            fs::rename(&aside, &path).unwrap();
            // An editor puts another file in its place.
            fs::write(folder.path().join("edited"), "edited\n").unwrap();
            fs::rename(folder.path().join("edited"), &path).unwrap();
            lines.push("after").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "edited\nafter\n");
            fs::remove_file(&path).unwrap();
        }
        // Where it cannot be made again, the run goes on.
        let mut lines = LineFile::create(&path).unwrap();
        fs::remove_dir_all(folder.path().join("out")).unwrap();
        fs::write(folder.path().join("out"), "no folder").unwrap();
        lines.push("lost").unwrap();
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        replace(&path, b"old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        let error = replace(&folder.path().join("no/such/file"), b"x").unwrap_err().to_string();
        assert!(error.starts_with("cannot write `") && error.contains("no/such/file"), "{error}");
    }

    #[test]
    fn what_is_there_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.txt");
        set_aside(&path).unwrap();
        for (number, text) in [(1, "first"), (2, "second")] {
            fs::write(&path, text).unwrap();
            super::super::flops::save(&path, "a profile").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "a profile\n");
            assert_eq!(
                fs::read_to_string(folder.path().join(format!("profile.txt.{number}"))).unwrap(),
                text
            );
            fs::remove_file(&path).unwrap();
        }
        // A folder keeps its name, and nothing goes into its place.
        fs::create_dir(&path).unwrap();
        assert!(super::super::flops::save(&path, "a profile").is_err());
        assert!(path.is_dir());
    }

    #[test]
    fn a_full_disk_is_an_error_with_advice() {
        // Every write to /dev/full fails as a full disk does.
        let file = File::options().write(true).open("/dev/full").unwrap();
        let mut lines = LineFile { path: PathBuf::from("/dev/full"), file, len: 0 };
        let error = lines.push("lost").unwrap_err();
        assert!(
            matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull)
        );
        assert!(error.to_string().ends_with("free some space, then run the same command again: it resumes"));
    }
}
