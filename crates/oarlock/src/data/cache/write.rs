//! Writes a token cache: reads texts in batches, encodes them on all threads, appends, renames.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use twox_hash::XxHash64;

use super::super::error::{Error, Result};
use super::super::source::Source;
use super::super::tokenizer::Tokenizer;
use super::{HEADER_BYTES, Header, Origin};

/// Text encoded at a time: enough for all threads, little in memory.
const BATCH_BYTES: usize = 4 << 20;
/// The end of a temporary file's name.
const TEMPORARY: &str = "building";
/// A temporary file that nobody has written to for so long is that of a build that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// How far a build has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of text encoded.
    pub text_bytes: u64,
    /// Records encoded.
    pub records: u64,
    /// Tokens written.
    pub tokens: u64,
}

/// Writes the cache of `source` to `path`, whole or not at all.
pub(super) fn write(
    path: &Path,
    source: &Source,
    tokenizer: &Tokenizer,
    origin: &Origin,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(|e| Error::write(dir, e))?;
    remove_abandoned(path);
    let (mut temporary, file) = Temporary::create(path)?;
    write_to(file, path, source, tokenizer, origin, on_progress)?;
    std::fs::rename(&temporary.path, path).map_err(|e| Error::write(path, e))?;
    temporary.renamed = true;
    Ok(())
}

/// Writes the content of a cache; the header goes in last.
fn write_to(
    file: impl Write + Seek,
    path: &Path,
    source: &Source,
    tokenizer: &Tokenizer,
    origin: &Origin,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let failed = |e: io::Error| Error::write(path, e);
    let vocab_size = tokenizer.vocab_size()?;
    let id_bytes = if vocab_size > 1 << 16 { 4 } else { 2 };
    let mut out = Summed { out: BufWriter::with_capacity(1 << 20, file), hasher: XxHash64::with_seed(0) };
    out.out.write_all(&[0; HEADER_BYTES]).map_err(failed)?;
    let mut offsets = vec![0u64];
    let mut progress = Progress { text_bytes: 0, records: 0, tokens: 0 };
    let mut texts = source.texts();
    loop {
        let batch = next_batch(&mut texts)?;
        if batch.is_empty() {
            break;
        }
        let encoded: Vec<Vec<u32>> = tokenizer.encode_batch(&batch)?;
        for ids in &encoded {
            progress.tokens += ids.len() as u64;
            offsets.push(progress.tokens);
            out.ids(ids, id_bytes).map_err(failed)?;
        }
        progress.records += batch.len() as u64;
        progress.text_bytes += batch.iter().map(|t| t.len() as u64).sum::<u64>();
        on_progress(progress);
    }
    let n_tokens = progress.tokens;
    let fill = (n_tokens * id_bytes).next_multiple_of(8) - n_tokens * id_bytes;
    let origin = serde_json::to_vec(origin).map_err(|e| failed(e.into()))?;
    let mut finish = || -> io::Result<()> {
        out.bytes(&[0; 8][..fill as usize])?;
        out.bytes(bytemuck::cast_slice(&offsets))?;
        out.bytes(&origin)?;
        let header = Header {
            id_bytes,
            n_tokens,
            n_records: progress.records,
            origin_bytes: origin.len() as u64,
            vocab_size: vocab_size as u64,
            body_hash: out.hasher.finish(),
        };
        out.out.seek(SeekFrom::Start(0))?;
        out.out.write_all(&header.to_bytes())?;
        out.out.flush()
    };
    finish().map_err(failed)
}

/// The next texts, about `BATCH_BYTES` of them; none at the end.
fn next_batch(texts: &mut impl Iterator<Item = Result<String>>) -> Result<Vec<String>> {
    let (mut batch, mut n_bytes) = (Vec::new(), 0);
    while n_bytes < BATCH_BYTES {
        match texts.next() {
            None => break,
            Some(text) => {
                let text = text?;
                n_bytes += text.len().max(1);
                batch.push(text);
            }
        }
    }
    Ok(batch)
}

/// A writer that sums what passes through it.
struct Summed<W: Write> {
    out: BufWriter<W>,
    hasher: XxHash64,
}

impl<W: Write> Summed<W> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.write(bytes);
        self.out.write_all(bytes)
    }

    fn ids(&mut self, ids: &[u32], id_bytes: u64) -> io::Result<()> {
        if id_bytes == 4 {
            return self.bytes(bytemuck::cast_slice(ids));
        }
        let narrow: Vec<u16> = ids.iter().map(|&id| id as u16).collect();
        self.bytes(bytemuck::cast_slice(&narrow))
    }
}

/// A file under a passing name, removed unless it is renamed.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// The name is this thread's alone, so that builds at the same time do not meet.
    fn create(path: &Path) -> Result<(Temporary, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let unique = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let temporary = path.with_extension(format!("{unique}.{TEMPORARY}"));
        let file = File::create_new(&temporary).map_err(|e| Error::write(&temporary, e))?;
        Ok((Temporary { path: temporary, renamed: false }, file))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // It may be gone already; there is nothing else to do about it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes what killed builds of the same cache left behind.
fn remove_abandoned(path: &Path) {
    let (Some(dir), Some(stem)) = (path.parent(), path.file_stem()) else { return };
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let (name, stem) = (name.to_string_lossy(), stem.to_string_lossy());
        let ours = name.starts_with(&*stem) && name.ends_with(TEMPORARY);
        let modified = entry.metadata().and_then(|m| m.modified());
        let idle = modified.ok().and_then(|t| SystemTime::now().duration_since(t).ok());
        if ours && idle.is_some_and(|idle| idle > ABANDONED) {
            // Another build may be faster at it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::super::tokenizer::tests::small;
    use super::*;

    /// A disk with room for so many bytes.
    struct SmallDisk(Cursor<Vec<u8>>, usize);

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.position() as usize + bytes.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for SmallDisk {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    #[test]
    fn a_full_disk_is_explained_wherever_it_fills_up() {
        let (dir, tokenizer) = small();
        let source = Source::resolve("text.txt", dir.path(), None).unwrap();
        let origin = Origin::of(&source).unwrap();
        let path = dir.path().join("cache/x.tokens");
        let write = |room| {
            let disk = SmallDisk(Cursor::default(), room);
            write_to(disk, &path, &source, &tokenizer, &origin, &mut |_| {})
        };
        let needed = (0..100_000).step_by(16).find(|&room| write(room).is_ok()).unwrap();
        assert!(needed > 300);
        for room in (0..needed - 16).step_by(97) {
            let error = write(room).unwrap_err().to_string();
            assert!(error.contains("x.tokens: no storage space; make room in"), "{error}");
        }
    }

    #[test]
    fn a_failed_build_leaves_nothing() {
        let (dir, tokenizer) = small();
        std::fs::write(dir.path().join("bad.txt"), b"good\nbad \xff\n").unwrap();
        let source = Source::resolve("bad.txt", dir.path(), None).unwrap();
        let cache = dir.path().join("cache");
        let origin = Origin::of(&source).unwrap();
        let error = write(&cache.join("x.tokens"), &source, &tokenizer, &origin, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("bad.txt:2: invalid UTF-8"), "{error}");
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 0);
    }

    #[test]
    fn only_old_leftovers_of_the_same_cache_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["x.1-0.building", "x.2-0.building", "y.3-0.building"];
        for name in names {
            let file = File::create(dir.path().join(name)).unwrap();
            if name != names[1] {
                file.set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
            }
        }
        remove_abandoned(&dir.path().join("x.tokens"));
        assert_eq!(names.map(|n| dir.path().join(n).exists()), [false, true, true]);
    }
}
