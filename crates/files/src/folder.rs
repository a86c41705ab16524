//! Folders that are held open while a file in them is written, and folders of one user.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// A name in a folder that is held open, so that no step of a write can be led to another folder.
pub(crate) struct Place {
    folder: OwnedFd,
    name: OsString,
}

impl Place {
    pub(crate) fn of(path: &Path) -> io::Result<Place> {
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a name of a file"));
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(folder, flags | OFlags::RDONLY, Mode::empty()) {
            // A folder that may be written and not listed.
            Err(Errno::ACCESS) => rustix::fs::open(folder, flags | OFlags::PATH, Mode::empty())?,
            folder => folder?,
        };
        Ok(Place { folder, name: name.to_owned() })
    }

    /// Makes a file that is not there; a link at its place is there.
    pub(crate) fn create(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.folder, name, flags, Mode::from_raw_mode(0o666))?.into())
    }

    pub(crate) fn symlink(&self, to: &Path, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(to, &self.folder, name)?)
    }

    /// Gives what lies under another name of the folder the name of the place.
    pub(crate) fn take(&self, from: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.folder, from, &self.folder, &self.name)?)
    }

    pub(crate) fn remove(&self, name: &OsStr) {
        // It may be gone already; the failure that led here is the one to report.
        let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
    }

    /// Brings the names to the disk, where the file system can.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.folder) {
            // A folder that cannot be listed, or a file system that has nothing to bring.
            Ok(()) | Err(Errno::BADF | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Makes a folder, and those above it, for this user alone, where it is missing. One that is there must be this user's; if others
/// may write it, they may not any more.
///
/// # Errors
/// The operating system's; a folder of another user, or a link.
pub fn private_folder(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent() {
        fs::create_dir_all(above)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let folder = File::from(held(path)?);
    let found = folder.metadata()?;
    if !is_own(&found) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder belongs to another user"));
    }
    match is_shared(&found) {
        true => folder.set_permissions(fs::Permissions::from_mode(0o700)),
        false => Ok(()),
    }
}

/// Reads a file of a [`private_folder`]. Both must be this user's, and nobody else may write the folder: otherwise it is as if
/// the file were not there.
///
/// # Errors
/// The operating system's; [`io::ErrorKind::NotFound`] where others had a hand in it.
pub fn read_private(folder: &Path, name: &str) -> io::Result<Vec<u8>> {
    let folder = File::from(held(folder)?);
    let found = folder.metadata()?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(&folder, name, flags, Mode::empty())?);
    let own = file.metadata()?;
    if !is_own(&found) || is_shared(&found) || !is_own(&own) || !own.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A folder that is not a link.
fn held(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn is_own(found: &Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
}

fn is_shared(found: &Metadata) -> bool {
    found.mode() & 0o022 != 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_private_folder_is_this_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("caches/own");
        private_folder(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        fs::write(own.join("code"), "kept").unwrap();
        assert_eq!(read_private(&own, "code").unwrap(), b"kept");
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_private(&own, "code").unwrap_err().kind(), io::ErrorKind::NotFound, "{mode:o}");
            private_folder(&own).unwrap();
            assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        }
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        private_folder(&own).unwrap();
        assert_eq!(read_private(&own, "code").unwrap(), b"kept");
        let link = folder.path().join("link");
        symlink(&own, &link).unwrap();
        assert!(private_folder(&link).is_err() && read_private(&link, "code").is_err());
        symlink(own.join("code"), own.join("other")).unwrap();
        assert!(read_private(&own, "other").is_err());
        // Whoever is root here can show a file and a folder of somebody else.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(own.join("code"), Some(65534), None).unwrap();
            assert!(read_private(&own, "code").is_err());
            std::os::unix::fs::chown(&own, Some(65534), None).unwrap();
            assert!(private_folder(&own).unwrap_err().to_string().contains("another user"));
        }
    }
}
