//! Files that are replaced as a whole: a reader sees the old or the new one, and a link at their place is replaced itself.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::OFlags;

use crate::folder::Place;
use crate::token::token;

/// A file in the making. It has a name that nobody guesses until it is published, and vanishes if it never is.
pub struct Replacement {
    place: Place,
    part: OsString,
    file: File,
    published: bool,
}

impl Replacement {
    /// Begins the file that `path` is to name.
    ///
    /// # Errors
    /// The operating system's; a device, a pipe or a way into a process at the place, which no file can replace.
    pub fn begin(path: &Path) -> io::Result<Replacement> {
        Replacement::with(path, OFlags::empty())
    }

    fn with(path: &Path, flags: OFlags) -> io::Result<Replacement> {
        refuse_what_is_no_file(path)?;
        let place = Place::of(path)?;
        let part = part_name()?;
        let file = place.create(&part, OFlags::RDWR | flags)?;
        Ok(Replacement { place, part, file, published: false })
    }

    /// Brings the file to the disk and gives it its name.
    ///
    /// # Errors
    /// The operating system's, as of a full disk; then what was there is there still.
    pub fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        self.rename()
    }

    fn rename(&mut self) -> io::Result<()> {
        self.place.take(&self.part)?;
        self.published = true;
        self.place.sync()
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.published {
            self.place.remove(&self.part);
        }
    }
}

/// Writes a whole file: under another name first, so that a reader finds the old or the new one, also after a crash.
///
/// # Errors
/// As [`Replacement`]; then what was there is there still.
pub fn replace(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = Replacement::begin(path)?;
    file.write_all(bytes.as_ref())?;
    file.publish()
}

/// Begins an empty file that grows at its end, in the place of whatever has the name.
///
/// # Errors
/// As [`Replacement::begin`].
pub fn begin(path: &Path) -> io::Result<File> {
    let mut file = Replacement::with(path, OFlags::APPEND)?;
    file.rename()?;
    file.file.try_clone()
}

/// Makes a link to `to`, in the place of whatever has the name.
///
/// # Errors
/// The operating system's.
pub fn link(to: &Path, path: &Path) -> io::Result<()> {
    let place = Place::of(path)?;
    let part = part_name()?;
    place.symlink(to, &part)?;
    place.take(&part).inspect_err(|_| place.remove(&part))
}

/// Short, whatever the final name: that may be as long as the file system allows.
fn part_name() -> io::Result<OsString> {
    Ok(format!(".oarlock-{}.part", token()?).into())
}

/// A device, a pipe or a socket is never replaced by a file, and neither is a link to what a process holds open, such as
/// `/dev/stdout`: whoever names one of them means what it leads to.
fn refuse_what_is_no_file(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_into_a_process =
        || fs::read_link(path).is_ok_and(|to| to.starts_with("/proc") || to.starts_with("/dev"));
    let is_file = match found.is_symlink() {
        true => !is_into_a_process(),
        false => found.is_file() || found.is_dir(),
    };
    if is_file {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a device or a pipe; name a file"))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(255));
        replace(&path, "old").unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()).len(), 1);
        drop(Replacement::begin(&path).unwrap());
        assert_eq!(names(folder.path()).len(), 1);
        let missing = replace(&folder.path().join("no/such"), "x").unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(replace(Path::new("/"), "x").is_err());
        assert!(replace(folder.path(), "x").is_err());
    }

    #[test]
    fn a_link_is_replaced_and_what_it_leads_to_stays() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        for target in [victim.as_path(), Path::new("victim"), Path::new("dangling")] {
            let path = folder.path().join("out");
            let _ = fs::remove_file(&path);
            symlink(target, &path).unwrap();
            replace(&path, "new").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            fs::remove_file(&path).unwrap();
            symlink(target, &path).unwrap();
            begin(&path).unwrap().write_all(b"line").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"line");
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
        }
        // A file with two names loses one of them.
        let path = folder.path().join("second");
        fs::hard_link(&victim, &path).unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(names(folder.path()), ["out", "second", "victim"]);
    }

    #[test]
    fn devices_pipes_and_the_streams_of_a_process_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let streams = folder.path().join("stdout");
        symlink("/proc/self/fd/1", &streams).unwrap();
        let null = folder.path().join("null");
        symlink("/dev/null", &null).unwrap();
        for path in [Path::new("/dev/null"), &streams, &null] {
            for done in [replace(path, "x"), begin(path).map(drop)] {
                assert_eq!(done.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", path.display());
            }
        }
        let mut nothing = Vec::new();
        File::open("/dev/null").unwrap().read_to_end(&mut nothing).unwrap();
        assert!(nothing.is_empty());
    }

    #[test]
    fn a_link_of_ours_takes_the_place_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        for to in ["/bin/true", "/bin/false"] {
            link(Path::new(to), &path).unwrap();
            assert_eq!(fs::read_link(&path).unwrap(), Path::new(to));
        }
        assert_eq!(names(folder.path()), ["tool"]);
    }
}
