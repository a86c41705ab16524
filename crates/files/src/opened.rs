//! Files that are opened where they lie. They are plain files with one name, or they are refused.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::replaced::replace;

/// A new file to be read and written.
///
/// # Errors
/// The operating system's; something has the name, be it a link that leads nowhere.
pub fn create_new(path: &Path) -> io::Result<File> {
    exclusive(path, OFlags::empty())
}

/// A new file to be read, and to grow at its end.
///
/// # Errors
/// As [`create_new`].
pub fn append_new(path: &Path) -> io::Result<File> {
    exclusive(path, OFlags::APPEND)
}

/// A file to be read, and to grow at its end; made where it is missing. One with several names, as copies made of hard links
/// have, is parted from the others first.
///
/// # Errors
/// The operating system's; a link, or no plain file.
pub fn append(path: &Path) -> io::Result<File> {
    let flags = OFlags::APPEND | OFlags::CREATE;
    let mut file = plain(path, flags)?;
    if file.metadata()?.nlink() > 1 {
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        replace(path, content)?;
        file = plain(path, flags)?;
    }
    Ok(file)
}

/// A file that exists, of which parts are read and written.
///
/// # Errors
/// The operating system's; a link, a file with several names, or no plain file.
pub fn open(path: &Path) -> io::Result<File> {
    with_one_name(path, plain(path, OFlags::empty())?)
}

/// A file of which parts are read and written, or that is locked; made where it is missing.
///
/// # Errors
/// As [`open`].
pub fn open_or_create(path: &Path) -> io::Result<File> {
    with_one_name(path, plain(path, OFlags::CREATE)?)
}

/// Writes over what a process above this one handed down by its path. Such a path may be `/proc/<process>/fd/<number>`, a way
/// to an open file, which is followed; anything else is replaced as a whole.
///
/// # Errors
/// The operating system's.
pub fn overwrite_handed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parts: Vec<_> = path.components().collect();
    let number =
        |part: &Component<'_>| part.as_os_str().to_str().is_some_and(|text| text.parse::<u32>().is_ok());
    match parts.as_slice() {
        [Component::RootDir, proc, process, fd, file]
            if proc.as_os_str() == "proc" && fd.as_os_str() == "fd" && number(process) && number(file) =>
        {
            let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
            io::Write::write_all(&mut &file, bytes)
        }
        _ => replace(path, bytes),
    }
}

fn exclusive(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))?.into())
}

/// Opens what is not a link; a pipe is not waited for.
fn plain(path: &Path, flags: OFlags) -> io::Result<File> {
    let always = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags | always, Mode::from_raw_mode(0o666)) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) => return Err(is_link(path)),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file; name a file"));
    }
    Ok(file)
}

fn with_one_name(path: &Path, file: File) -> io::Result<File> {
    if file.metadata()?.nlink() <= 1 {
        return Ok(file);
    }
    let problem = format!(
        "the file has other names as well (hard links), which would all change; remove {}, or give another folder",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

/// Refuses a place that a link holds, for files that are replaced and of which a link may be meant to stay, as a user's own
/// configuration.
///
/// # Errors
/// A link at the place; the error says where it leads.
pub fn refuse_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(is_link(path)),
        _ => Ok(()),
    }
}

/// The refusal of a link, which says where it leads.
fn is_link(path: &Path) -> io::Error {
    let target = fs::read_link(path).map_or_else(|_| "a file".to_owned(), |to| format!("{to:?}"));
    let problem = format!(
        "it is a link to {target}, and nothing is written through links; remove it, or name another place"
    );
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_refused_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        for target in [&victim, &folder.path().join("dangling")] {
            let path = folder.path().join("link");
            symlink(target, &path).unwrap();
            for (way, opened) in
                [("append", append(&path)), ("open", open(&path)), ("open_or_create", open_or_create(&path))]
            {
                let error = opened.unwrap_err().to_string();
                assert!(error.contains(&format!("it is a link to {target:?}")), "{way}: {error}");
            }
            assert!(refuse_link(&path).is_err());
            for made in [create_new(&path), append_new(&path)] {
                assert_eq!(made.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            }
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(!folder.path().join("dangling").exists());
        refuse_link(&victim).unwrap();
    }

    #[test]
    fn a_file_with_several_names_keeps_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, path) = (folder.path().join("victim"), folder.path().join("log"));
        fs::write(&victim, "a\n").unwrap();
        fs::hard_link(&victim, &path).unwrap();
        assert!(open(&path).unwrap_err().to_string().contains("other names"));
        assert!(open_or_create(&path).unwrap_err().to_string().contains("other names"));
        append(&path).unwrap().write_all(b"b\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a\nb\n");
        assert_eq!(fs::read(&victim).unwrap(), b"a\n");
    }

    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for path in [pipe.as_path(), Path::new("/dev/null"), Path::new("/dev/full")] {
            for opened in [append(path), open(path), open_or_create(path)] {
                assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", path.display());
            }
        }
    }

    #[test]
    fn what_was_handed_down_may_be_an_open_file_of_a_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a longer text").unwrap();
        let handed = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        overwrite_handed(Path::new(&handed), b"message").unwrap();
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "message");
        // Any other path is a name like others.
        let (victim, path) = (folder.path().join("victim"), folder.path().join("error.json"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &path).unwrap();
        overwrite_handed(&path, b"message").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}
