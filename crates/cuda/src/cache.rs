//! Machine code on disk, by a hash of all that it depends on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::nvrtc;
use crate::source::{HEADERS, Unit};

/// What a file begins with. The number changes with the format.
const MAGIC: &[u8; 16] = b"oarlock cubin 1\n";
/// Magic, checksum, length.
const HEADER: usize = 16 + 16 + 8;
/// Held by whoever compiles many units.
const LOCK: &str = "compile.lock";

/// A folder of machine code, or none.
pub struct Cache {
    folder: Option<PathBuf>,
    problem: Mutex<Option<String>>,
}

impl Cache {
    /// In this folder, which is made when it is needed.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: Some(folder.into()), problem: Mutex::default() }
    }

    /// Nothing is kept.
    pub fn none() -> Cache {
        Cache { folder: None, problem: Mutex::default() }
    }

    /// In `oarlock/cuda` of the folder for caches: XDG_CACHE_HOME, or `.cache` in HOME. None without both.
    pub fn from_environment() -> Cache {
        let absolute = |name: &str| {
            // The specification of XDG says to ignore relative paths.
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        caches.map_or(Cache::none(), |caches| Cache::among(&caches))
    }

    /// Where [`Cache::from_environment`] finds it if `XDG_CACHE_HOME` is this folder.
    pub fn among(caches: &Path) -> Cache {
        Cache::in_folder(caches.join("oarlock/cuda"))
    }

    /// Where it is.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Why something was not written, if so.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was written under a key; none where there is nothing, or not all of it as it was written.
    pub(crate) fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let mut file = oarlock_files::read_private(self.folder.as_ref()?, &key.name()).ok()?;
        let code = file.get(HEADER..)?;
        if file[..HEADER] != header(code) {
            return None;
        }
        Some(file.split_off(HEADER))
    }

    /// Waits until no other process compiles many units into the folder: ranks of a machine begin together, and one of them
    /// compiles what all need. None where nothing is kept. The lock ends with the file.
    pub(crate) fn lock(&self) -> Option<File> {
        let folder = self.folder.as_ref()?;
        oarlock_files::private_folder(folder).ok()?;
        let file = oarlock_files::open_or_create(&folder.join(LOCK)).ok()?;
        // A file system without locks has units compiled more than once.
        let _ = file.lock();
        Some(file)
    }

    /// Writes a file that nobody sees before it is whole. A failure costs only time, later.
    pub(crate) fn write(&self, key: &Key, code: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = write_whole(folder, &key.name(), &[&header(code), code].concat()) {
            let said = format!("{}: {error}", folder.display());
            *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
        }
    }
}

fn header(code: &[u8]) -> Vec<u8> {
    let mut checksum = Key::new();
    checksum.add_bytes(code);
    [&MAGIC[..], &checksum.0.to_le_bytes(), &(code.len() as u64).to_le_bytes()].concat()
}

fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    oarlock_files::private_folder(folder)?;
    oarlock_files::replace(&folder.join(name), bytes)
}

/// A hash of texts: FNV-1a with 128 bits, by Fowler, Noll and Vo.
pub(crate) struct Key(u128);

impl Key {
    pub(crate) fn new() -> Key {
        Key(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul((1 << 88) + 0x13b);
        }
    }

    /// Adds a text and its end, so that the same letters divided otherwise are another key.
    pub(crate) fn add(&mut self, text: &str) {
        self.add_bytes(text.as_bytes());
        self.add_bytes(&(text.len() as u64).to_le_bytes());
    }

    /// What the machine code of a unit depends on, by this version of the compiler.
    pub(crate) fn of(unit: &Unit, arch: &str, version: &str) -> Key {
        let mut key = Key::new();
        key.add(version);
        nvrtc::options(unit, arch).iter().for_each(|option| key.add(option));
        for source in [unit.source].iter().chain(HEADERS) {
            key.add(source.file);
            key.add(source.text);
        }
        key
    }

    /// The name of its file.
    pub(crate) fn name(&self) -> String {
        format!("{:032x}.cubin", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{source, table};

    #[test]
    fn the_hash_is_that_of_its_authors() {
        let mut key = Key::new();
        key.add_bytes(b"foobar");
        assert_eq!(key.0, 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn the_folder_is_that_of_caches() {
        // The environment of a test may have neither variable.
        let cache = Cache::from_environment();
        assert!(cache.folder().is_none_or(|folder| folder.ends_with("oarlock/cuda")));
    }

    #[test]
    fn a_key_depends_on_all_that_the_code_depends_on() {
        let unit = table::units().remove(0);
        let base = Key::of(&unit, "sm_90a", "13.0").name();
        assert_eq!(base, Key::of(&unit, "sm_90a", "13.0").name());
        let mut others = vec![Key::of(&unit, "sm_80", "13.0"), Key::of(&unit, "sm_90a", "13.1")];
        let mut changed = unit.clone();
        changed.source.text = "";
        others.push(Key::of(&changed, "sm_90a", "13.0"));
        let mut defined = unit.clone();
        defined.defines.push(("X", "1".into()));
        others.push(Key::of(&defined, "sm_90a", "13.0"));
        // All headers are a part of it.
        let mut by_hand = Key::new();
        by_hand.add("13.0");
        nvrtc::options(&unit, "sm_90a").iter().for_each(|option| by_hand.add(option));
        for source in std::iter::once(&unit.source).chain(HEADERS) {
            by_hand.add(source.file);
            by_hand.add(source.text);
        }
        assert_eq!(by_hand.name(), base);
        others.push(Key::of(&Unit { source: source::COPY, ..unit }, "sm_90a", "13.0"));
        let mut names: Vec<String> = others.iter().map(Key::name).chain([base]).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 6);
    }
}
