//! Writes a token cache: reads records in batches, encodes them on all threads, appends, renames.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rayon::prelude::*;
use serde::Serialize;
use twox_hash::XxHash64;

use super::super::encode::{Encoder, Encoding};
use super::super::encoded::{Encoded, Labels};
use super::super::error::{Error, Result};
use super::super::record::Content;
use super::super::report::RowReport;
use super::super::sft::Outcome;
use super::super::source::{Row, Source};
use super::header::{HEADER_BYTES, Header, Origin, Stamp};

/// Bytes of records encoded at a time: enough for all threads, little in memory.
const BATCH_BYTES: usize = 4 << 20;
/// The end of a temporary file's name.
const TEMPORARY: &str = "building";
/// A temporary file that nobody has written to for so long is that of a build that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// How far a build has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of records encoded.
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
    encoder: Encoder,
    origin: &Origin,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(|e| Error::write(dir, e))?;
    remove_abandoned(path);
    start_threads()?;
    let (mut temporary, file) = Temporary::create(path)?;
    write_to(file, path, source, encoder, origin, on_progress)?;
    if let Some(file) = origin.changed(source)? {
        let remedy = "start again when no program writes to it";
        return Err(Error::file(file, "the file changed while it was read", remedy));
    }
    std::fs::rename(&temporary.path, path).map_err(|e| Error::write(path, e))?;
    temporary.renamed = true;
    Ok(())
}

/// Copies a cache to `path`, whole or not at all.
pub(super) fn copy(from: &Path, path: &Path) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(|e| Error::write(dir, e))?;
    let (mut temporary, mut file) = Temporary::create(path)?;
    let mut from_file = oarlock_comm::open_file(from).map_err(|e| Error::read(from, e))?;
    io::copy(&mut from_file, &mut file).map_err(|e| Error::write(path, e))?;
    std::fs::rename(&temporary.path, path).map_err(|e| Error::write(path, e))?;
    temporary.renamed = true;
    Ok(())
}

/// Starts the threads that encode, unless the caller has some; where it cannot, rayon would panic later.
fn start_threads() -> Result<()> {
    if rayon::current_thread_index().is_some() {
        return Ok(());
    }
    match rayon::ThreadPoolBuilder::new().build_global() {
        // Without a cause it says that they run already.
        Err(error) if std::error::Error::source(&error).is_some() => Err(Error::Threads(error.to_string())),
        _ => Ok(()),
    }
}

/// Writes the content of a cache; the header goes in last.
fn write_to(
    file: impl Write + Seek,
    path: &Path,
    source: &Source,
    encoder: Encoder,
    origin: &Origin,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let failed = |e: io::Error| Error::write(path, e);
    let vocab_size = encoder.vocab_size()?;
    let id_bytes = if vocab_size > 1 << 16 { 4 } else { 2 };
    let mut out =
        Summed { out: BufWriter::with_capacity(1 << 20, file), hasher: XxHash64::with_seed(0), n_bytes: 0 };
    out.out.write_all(&[0; HEADER_BYTES]).map_err(failed)?;
    let mut offsets = vec![0u64];
    let (mut labels, mut segments) = (Lists::new(), Lists::new());
    let conversations = encoder.content() == Content::Object;
    let mut progress = Progress { text_bytes: 0, records: 0, tokens: 0 };
    let mut report = RowReport::default();
    let mut parts = vec![0u64; source.n_parts()];
    let mut records = source.rows(encoder.content());
    loop {
        let batch = next_batch(&mut records)?;
        if batch.is_empty() {
            break;
        }
        progress.text_bytes += batch.iter().map(|row| row.record.content.len() as u64).sum::<u64>();
        for encoded in encode(encoder, batch) {
            let Encoding { outcome, guessed, unread, part, record } = encoded?;
            guessed.iter().for_each(|kind| report.guess(kind.name()));
            report.unread(unread, &record);
            let encoded = match outcome {
                Outcome::Dropped(reason) => {
                    report.drop(reason, &record);
                    continue;
                }
                Outcome::Encoded(encoded, cuts) => {
                    report.add(&encoded, &cuts);
                    encoded
                }
            };
            progress.records += 1;
            parts[part] += 1;
            progress.tokens += encoded.ids.len() as u64;
            offsets.push(progress.tokens);
            out.ids(&encoded.ids, id_bytes).map_err(failed)?;
            if conversations {
                labels.push(targets(&encoded).into_iter().flat_map(|run| [run.start, run.end]));
                segments.push(encoded.segments);
            }
        }
        on_progress(progress);
    }
    if report.examples == 0 && report.n_dropped() > 0 {
        return Err(report.nothing_left());
    }
    let report = (encoder.reads_formats() || report.is_worth_a_warning()).then_some(report);
    let finish = || -> io::Result<()> {
        out.part(bytemuck::cast_slice(&offsets))?;
        if conversations {
            out.lists(&labels)?;
        }
        if !segments.numbers.is_empty() {
            out.lists(&segments)?;
        }
        let tokens = out.hasher.finish();
        let origin = OriginOut { files: &origin.files, report, parts, encoder: encoder.identity(), tokens };
        let origin = serde_json::to_vec(&origin)?;
        out.part(&origin)?;
        let header = Header {
            id_bytes,
            conversations,
            n_tokens: progress.tokens,
            n_records: progress.records,
            n_labels: labels.numbers.len() as u64,
            n_segments: segments.numbers.len() as u64,
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

/// An [`Origin`] as it is written.
#[derive(Serialize)]
struct OriginOut<'o> {
    files: &'o [Stamp],
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<RowReport>,
    parts: Vec<u64>,
    encoder: String,
    tokens: u64,
}

/// The next records, about `BATCH_BYTES` of them; none at the end.
fn next_batch(records: &mut impl Iterator<Item = Result<Row>>) -> Result<Vec<Row>> {
    let (mut batch, mut n_bytes) = (Vec::new(), 0);
    while n_bytes < BATCH_BYTES {
        match records.next() {
            None => break,
            Some(row) => {
                let row = row?;
                n_bytes += row.record.content.len() + size_of::<Row>();
                batch.push(row);
            }
        }
    }
    Ok(batch)
}

/// The tokens of records, on all threads of the current pool. Each has its own error, so that the first in the order of
/// the records is reported.
fn encode(encoder: Encoder, rows: Vec<Row>) -> Vec<Result<Encoding>> {
    rows.into_par_iter().with_max_len(1).map(|row| encoder.row(row)).collect()
}

/// The targets of a record as runs.
fn targets(encoded: &Encoded) -> Vec<Range<u32>> {
    match &encoded.labels {
        Labels::Spans(spans) => spans.clone(),
        Labels::All => {
            let begins = [0].iter().chain(&encoded.segments);
            let ends = encoded.segments.iter().copied().chain([encoded.ids.len() as u32]);
            begins.zip(ends).map(|(begin, end)| begin + 1..end).filter(|run| !run.is_empty()).collect()
        }
    }
}

/// A list of numbers for each record.
struct Lists {
    offsets: Vec<u64>,
    numbers: Vec<u32>,
}

impl Lists {
    fn new() -> Lists {
        Lists { offsets: vec![0], numbers: Vec::new() }
    }

    fn push(&mut self, list: impl IntoIterator<Item = u32>) {
        self.numbers.extend(list);
        self.offsets.push(self.numbers.len() as u64);
    }
}

/// A writer that sums what passes through it.
struct Summed<W: Write> {
    out: BufWriter<W>,
    hasher: XxHash64,
    n_bytes: u64,
}

impl<W: Write> Summed<W> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.write(bytes);
        self.n_bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// A part of the file, after filling the one before to 8 bytes.
    fn part(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fill = self.n_bytes.next_multiple_of(8) - self.n_bytes;
        self.bytes(&[0; 8][..fill as usize])?;
        self.bytes(bytes)
    }

    fn lists(&mut self, lists: &Lists) -> io::Result<()> {
        self.part(bytemuck::cast_slice(&lists.offsets))?;
        self.part(bytemuck::cast_slice(&lists.numbers))
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
        let unique = oarlock_files::token().map_err(|e| Error::write(path, e))?;
        let temporary = path.with_extension(format!("{unique}.{TEMPORARY}"));
        let file = oarlock_files::create_new(&temporary).map_err(|e| Error::write(&temporary, e))?;
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
            write_to(disk, &path, &source, (&tokenizer).into(), &origin, &mut |_| {})
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
        let error =
            write(&cache.join("x.tokens"), &source, (&tokenizer).into(), &origin, &mut |_| {}).unwrap_err();
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
