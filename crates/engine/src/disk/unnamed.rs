//! Files without a name, which vanish with their last user.

use std::fs::{File, remove_file};
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A new file in a folder, to be read and written.
///
/// # Errors
/// When the folder takes no file.
pub fn unnamed_file(dir: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        // File systems that know no such files have one whose name is gone at once.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => unlinked_file(dir),
        file => Ok(file?.into()),
    }
}

fn unlinked_file(dir: &Path) -> io::Result<File> {
    let path = dir.join(format!(".oarlock-{}", oarlock_files::token()?));
    let file = oarlock_files::create_new(&path)?;
    remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_is_left_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        for file in [unnamed_file(dir.path()).unwrap(), unlinked_file(dir.path()).unwrap()] {
            file.write_all_at(b"state", 4096).unwrap();
            let mut read = [0; 5];
            file.read_exact_at(&mut read, 4096).unwrap();
            assert_eq!(&read, b"state");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(unnamed_file(&dir.path().join("missing")).is_err());
    }
}
