//! Which build of a program this process runs.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;

use twox_hash::XxHash3_64;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// The version of Oarlock, which many builds have, and the XXH3 of the program that this process runs, which no other build
/// has: `0.1.0+0123456789abcdef`. Ranks of several builds compute other bits, so they do not join one world.
///
/// The program is read once in a process, at several GB/s: a few milliseconds.
pub fn build() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| named(build_hash()))
}

/// The hash alone; 0 where the program cannot be read.
pub(crate) fn build_hash() -> u64 {
    static HASH: OnceLock<u64> = OnceLock::new();
    // The file that runs, also when another one has its name by now.
    *HASH.get_or_init(|| hash(Path::new("/proc/self/exe")).unwrap_or(0))
}

/// How a build is shown.
pub(crate) fn named(hash: u64) -> String {
    format!("{}+{hash:016x}", env!("CARGO_PKG_VERSION"))
}

fn hash(path: &Path) -> io::Result<u64> {
    let (mut file, mut hasher, mut chunk) = (File::open(path)?, XxHash3_64::with_seed(0), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hasher.finish()),
            n => hasher.write(&chunk[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_byte_is_another_build() {
        assert_eq!(build(), build());
        assert!(build().starts_with(concat!(env!("CARGO_PKG_VERSION"), "+")) && build().len() > 16);
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).unwrap();
            hash(&folder.path().join(name)).unwrap()
        };
        let mut program = vec![7; 3 * CHUNK + 1];
        let first = write("first", &program);
        assert_eq!(write("copy", &program), first);
        program[2 * CHUNK] = 8;
        assert_ne!(write("changed", &program), first);
    }
}
