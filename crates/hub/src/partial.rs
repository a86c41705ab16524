//! Downloads that are not complete: one file for each writer, named after it, so that two never write the same one.
//!
//! ```text
//! {etag}.oarlock-{host}-{boot}-{pid}-{start}.incomplete
//! ```
//!
//! `boot` is the boot of the machine with the namespace of its process ids, and `start` the time at which the process began.
//! What a writer of the same machine and namespace has left is taken over by renaming, if that process is gone. What others
//! have left, such as the container before this one, is copied once nobody has touched it for a while: such a writer may be
//! alive elsewhere, and a copy never shares a file with it. Whatever is taken over is hashed as a whole.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{At, Error};
use crate::names::Etag;
use crate::reading;

/// What stands between the entity tag and the writer.
const MARK: &str = ".oarlock-";

/// What such names end with, as huggingface's do.
const END: &str = ".incomplete";

/// How long nobody has touched what an unknown writer left, before it is copied. A live one is slower only where the network
/// hangs, and then loses nothing.
const STALE: Duration = Duration::from_secs(60);

/// The partial downloads that this process works on.
static IN_USE: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);

/// A partial download of this process alone.
pub(crate) struct Partial {
    path: PathBuf,
    pub(crate) file: File,
    /// How many bytes it has from an earlier writer.
    pub(crate) n_bytes: u64,
}

impl Partial {
    /// Takes over what an earlier writer left of a file, or begins anew.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(crate) fn begin(folder: &Path, etag: &Etag) -> Result<Partial, Error> {
        let own = Writer::own();
        let path = claim(folder, etag, &own);
        let partial = Partial::open(&path, folder, etag, &own);
        if partial.is_err() {
            in_use().remove(&path);
        }
        partial
    }

    fn open(path: &Path, folder: &Path, etag: &Etag, own: &Writer) -> Result<Partial, Error> {
        // Something of this name was left by this very process, which has ended that download.
        let own_rest = oarlock_files::open(path).ok();
        let mut rests = Rest::all(folder, etag);
        rests.sort_by_key(|rest| std::cmp::Reverse(rest.n_bytes));
        let own_length =
            own_rest.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |found| found.len());
        for rest in rests.iter().filter(|rest| rest.n_bytes > own_length && !in_use().contains(&rest.path)) {
            let taken = match rest.state(own) {
                State::Dead => fs::rename(&rest.path, path).and_then(|()| oarlock_files::open(path)),
                State::Left => copied(&rest.path, path),
                State::Alive => continue,
            };
            // Another process was faster, or the file is not what it seems: there is a next one, or none.
            if let Ok(file) = taken {
                let n_bytes = file.metadata().at(path)?.len();
                return Ok(Partial { path: path.to_owned(), file, n_bytes });
            }
        }
        let file = match own_rest {
            Some(file) => file,
            None => {
                // A link or a file with other names may hold the place.
                let _ = fs::remove_file(path);
                oarlock_files::create_new(path).at(path)?
            }
        };
        Ok(Partial { path: path.to_owned(), file, n_bytes: own_length })
    }

    /// Empties it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0))).at(&self.path)?;
        self.n_bytes = 0;
        Ok(())
    }

    /// Gives the complete file its name, in the place of whatever has it: also of a link, which is never written through.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn publish(self, destination: &Path) -> Result<(), Error> {
        self.file.sync_all().at(&self.path)?;
        match fs::rename(&self.path, destination) {
            // Somebody has cleaned up behind a faster writer of the same file.
            Err(error) if error.kind() == io::ErrorKind::NotFound && destination.is_file() => Ok(()),
            renamed => renamed.at(destination),
        }
    }

    /// Deletes it: what it holds is of no use.
    pub(crate) fn discard(self) {
        // It may be gone already.
        let _ = fs::remove_file(&self.path);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        in_use().remove(&self.path);
    }
}

/// Removes what writers that are gone have left of a file that is complete now.
pub(crate) fn clean(folder: &Path, etag: &Etag) {
    let own = Writer::own();
    let rests = Rest::all(folder, etag);
    for rest in rests.iter().filter(|rest| rest.state(&own) != State::Alive && !in_use().contains(&rest.path))
    {
        // It may be gone already.
        let _ = fs::remove_file(&rest.path);
    }
}

fn in_use() -> MutexGuard<'static, HashSet<PathBuf>> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name that no other thread of this process writes.
fn claim(folder: &Path, etag: &Etag, own: &Writer) -> PathBuf {
    let mut in_use = in_use();
    let mut number = 0;
    loop {
        let start = if number == 0 { own.start.clone() } else { format!("{}x{number}", own.start) };
        let (host, boot, pid) = (&own.host, &own.boot, own.pid);
        let path = folder.join(format!("{etag}{MARK}{host}-{boot}-{pid}-{start}{END}"));
        if in_use.insert(path.clone()) {
            return path;
        }
        number += 1;
    }
}

fn copied(from: &Path, to: &Path) -> io::Result<File> {
    // A link under such a name is nobody's partial download.
    oarlock_files::refuse_link(from)?;
    let mut source = reading::open(from)?;
    let _ = fs::remove_file(to);
    let mut file = oarlock_files::create_new(to)?;
    io::copy(&mut source, &mut file)?;
    Ok(file)
}

/// Who writes a partial download.
#[derive(Debug, PartialEq, Eq)]
struct Writer {
    host: String,
    boot: String,
    pid: u32,
    start: String,
}

impl Writer {
    fn own() -> Writer {
        static PLACE: LazyLock<(String, String)> = LazyLock::new(|| (host(), boot()));
        let (host, boot) = PLACE.clone();
        let pid = std::process::id();
        Writer { host, boot, pid, start: start_of(pid).unwrap_or_else(|| "0".to_owned()) }
    }

    /// Reads the middle of a name. The host may hold hyphens, the others do not.
    fn of(text: &str) -> Option<Writer> {
        let mut parts = text.rsplitn(4, '-');
        let (start, pid, boot, host) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let pid = pid.parse().ok()?;
        Some(Writer { host: host.to_owned(), boot: boot.to_owned(), pid, start: start.to_owned() })
    }
}

/// A partial download that lies here.
struct Rest {
    path: PathBuf,
    writer: Writer,
    n_bytes: u64,
    /// For how long nobody has written to it.
    idle: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Its writer is a process of this machine that is gone.
    Dead,
    /// Its writer cannot be asked, and has not written for a while.
    Left,
    Alive,
}

impl Rest {
    fn all(folder: &Path, etag: &Etag) -> Vec<Rest> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let rest = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let middle = name.to_str()?.strip_prefix(etag.as_str())?.strip_prefix(MARK)?.strip_suffix(END)?;
            let found = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            let idle = found.modified().ok()?.elapsed().unwrap_or_default();
            Some(Rest { path: entry.path(), writer: Writer::of(middle)?, n_bytes: found.len(), idle })
        };
        entries.flatten().filter_map(rest).collect()
    }

    fn state(&self, own: &Writer) -> State {
        let writer = &self.writer;
        if (&writer.host, &writer.boot) == (&own.host, &own.boot) {
            let start = writer.start.split('x').next().unwrap_or_default();
            // What this process itself works on is in `IN_USE`; the rest it has given up.
            let is_own = (writer.pid, start) == (own.pid, own.start.as_str());
            let is_alive = !is_own && start_of(writer.pid).is_some_and(|now| now == start);
            return if is_alive { State::Alive } else { State::Dead };
        }
        if self.idle >= STALE { State::Left } else { State::Alive }
    }
}

/// The name of the machine, as a part of the name of a file.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    name.chars().map(plain).take(64).collect()
}

/// The boot of the machine, and the namespace in which process ids have a meaning.
fn boot() -> String {
    let boot = reading::text(Path::new("/proc/sys/kernel/random/boot_id"), 100).unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
    let boot: String = digits(&boot).chars().take(12).collect();
    let namespace = digits(&namespace.to_string_lossy());
    format!("{boot}{}", namespace.trim_start_matches("pid"))
}

/// When a process began, in ticks since the boot: with its id this is one process for ever.
fn start_of(pid: u32) -> Option<String> {
    let stat = reading::text(&PathBuf::from(format!("/proc/{pid}/stat")), 4096).ok()?;
    // The name in brackets may hold anything; the state follows it, and the start is the twentieth from there.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let is_gone = matches!(fields.first(), Some(&("Z" | "X")));
    fields.get(19).filter(|_| !is_gone).map(|start| (*start).to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn etag() -> Etag {
        Etag::of(&"a".repeat(64)).unwrap()
    }

    fn leave(folder: &Path, writer: &Writer, bytes: &[u8]) -> PathBuf {
        let Writer { host, boot, pid, start } = writer;
        let path = folder.join(format!("{}{MARK}{host}-{boot}-{pid}-{start}{END}", etag()));
        fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn names_say_who_writes() {
        let own = Writer::own();
        assert_eq!(Writer::of(&format!("{}-{}-{}-{}", own.host, own.boot, own.pid, own.start)), Some(own));
        let odd = Writer::of("my-long-host-b00t-12-99x1").unwrap();
        assert_eq!((odd.host.as_str(), odd.pid, odd.start.as_str()), ("my-long-host", 12, "99x1"));
        for wrong in ["", "a-b-c", "h-b-x-1"] {
            assert_eq!(Writer::of(wrong), None);
        }
    }

    #[test]
    fn what_a_dead_writer_left_is_taken_and_what_a_live_one_has_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let own = Writer::own();
        let dead = Writer { start: "1".to_owned(), ..Writer::own() };
        let left = leave(folder.path(), &dead, b"dead");
        // The process that started this one: alive, in the same namespace.
        let parent = std::os::unix::process::parent_id();
        let start = start_of(parent).unwrap();
        let alive =
            leave(folder.path(), &Writer { pid: parent, start, ..Writer::own() }, b"alive and longer");
        let elsewhere = leave(folder.path(), &Writer { host: "elsewhere".to_owned(), ..own }, b"elsewhere");
        let partial = Partial::begin(folder.path(), &etag()).unwrap();
        assert_eq!(partial.n_bytes, 4);
        assert!(!left.exists() && alive.exists() && elsewhere.exists());
        // Another thread of this process writes another file.
        let mut second = Partial::begin(folder.path(), &etag()).unwrap();
        assert_eq!(second.n_bytes, 0);
        assert_ne!(second.path(), partial.path());
        second.file.write_all(b"x").unwrap();
        let blob = folder.path().join("blob");
        partial.publish(&blob).unwrap();
        assert_eq!(fs::read(&blob).unwrap(), b"dead");
        drop(second);
        clean(folder.path(), &etag());
        assert!(alive.exists() && elsewhere.exists());
    }

    #[test]
    fn what_an_unknown_writer_left_is_copied_when_nobody_touches_it() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = Writer { host: "elsewhere".to_owned(), ..Writer::own() };
        let left = leave(folder.path(), &elsewhere, b"some bytes");
        assert_eq!(Partial::begin(folder.path(), &etag()).unwrap().n_bytes, 0);
        let long_ago = std::time::SystemTime::now() - 2 * STALE;
        File::options().write(true).open(&left).unwrap().set_modified(long_ago).unwrap();
        let partial = Partial::begin(folder.path(), &etag()).unwrap();
        assert_eq!(partial.n_bytes, 10);
        assert!(left.exists(), "its writer may be alive");
        partial.publish(&folder.path().join("blob")).unwrap();
        clean(folder.path(), &etag());
        assert!(!left.exists());
    }

    #[test]
    fn a_link_in_the_place_of_a_partial_download_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let first = Partial::begin(folder.path(), &etag()).unwrap();
        let path = first.path().to_owned();
        drop(first);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let mut partial = Partial::begin(folder.path(), &etag()).unwrap();
        partial.file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}
