//! All tokens of a data set in one memory-mapped file, built once and shared by every rank.
//!
//! It holds the ids of every record, where each record begins, and what is learned of it, but no packing: how rows are
//! cut can change without tokenizing again. A file is written under another name and renamed into place, so it is whole
//! or absent; a sum over its content tells damage. It is not synced to disk: what a power cut leaves is found damaged
//! and built again.
//!
//! Layout (native byte order), each part filled to 8 bytes: the header of 80 bytes; the ids (2 or 4 bytes each); the
//! `n_records + 1` record offsets (u64). Of conversations, whose tokens are not all learned, also the runs of targets: a
//! list for each record, as `n_records + 1` offsets (u64) and begin and end of each run (u32, counted from the record's
//! first token; an empty run is a target that is the end-of-text token). Where records have several segments, the list of where those after the first begin, likewise. Last the
//! origin (JSON): which files it was built from. A cache of texts has neither list.

mod header;
mod write;

use std::ops::Range;
use std::path::{Path, PathBuf};

use oarlock_comm::MappedFile;

use super::encode::Encoder;
use super::error::{Error, Result};
use super::hash::hash_bytes;
use super::report::RowReport;
use super::source::Source;

use header::{HEADER_BYTES, Header, Layout, Lists, Origin};
pub use write::Progress;

/// What a cache was encoded with, beside another encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// With the same tokenizer and settings.
    Same,
    /// With the same tokenizer, and another template or other settings.
    OtherSettings,
    /// With another tokenizer.
    OtherTokenizer,
}

/// What `TokenCache::build` did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// The file.
    pub path: PathBuf,
    /// Whether it was there and still right.
    pub reused: bool,
    /// Why a file that was there had to be built again.
    pub reason: Option<String>,
}

/// The tokens of a data set, record by record.
///
/// The tokens are mapped; what says where they are is copied, so that a file that changes under a run cannot lead it
/// astray: it reads zeros, and [`check`](Self::check) says so.
#[derive(Debug)]
pub struct TokenCache {
    map: MappedFile,
    path: PathBuf,
    layout: Layout,
    offsets: Box<[u64]>,
    labels: Option<Numbers>,
    segments: Option<Numbers>,
    wide: bool,
    vocab_size: u64,
    body_hash: u64,
}

/// A list of numbers for each record.
#[derive(Debug)]
struct Numbers {
    offsets: Box<[u64]>,
    numbers: Box<[u32]>,
}

impl Numbers {
    fn of(&self, record: u64) -> &[u32] {
        let record = record as usize;
        &self.numbers[self.offsets[record] as usize..self.offsets[record + 1] as usize]
    }
}

impl TokenCache {
    /// The file in `dir` that holds the tokens of `source` under a tokenizer, or an [`Encoder`]. Other settings give
    /// other names; another version of the format does not.
    pub fn path<'a>(dir: &Path, source: &Source, encoder: impl Into<Encoder<'a>>) -> PathBuf {
        let encoder = encoder.into();
        let formats = if encoder.reads_formats() { source.formats() } else { String::new() };
        let identity = format!("1 {}\n{}{formats}", encoder.identity(), source.identity());
        dir.join(format!("{}-{:016x}.tokens", source.label(), hash_bytes(identity.as_bytes())))
    }

    /// Makes sure that the cache of `source` under a tokenizer, or an [`Encoder`], is in `dir`: leaves it when it is
    /// whole and the records have not changed, and builds it otherwise, on all threads of the current pool. One rank
    /// does this; the others `open` the file afterward. `on_progress` is called now and then while it builds.
    ///
    /// # Errors
    /// When a record is bad, the tokenizer cannot be used, or the file cannot be written.
    pub fn build<'a>(
        dir: &Path,
        source: &Source,
        encoder: impl Into<Encoder<'a>>,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Build> {
        let encoder = encoder.into();
        let path = TokenCache::path(dir, source, encoder);
        let reason = match TokenCache::open(&path).and_then(|cache| cache.verify().map(|()| cache)) {
            Ok(cache) if cache.origin()?.holds(source)? => {
                return Ok(Build { path, reused: true, reason: None });
            }
            Ok(_) => Some("the text has changed".into()),
            Err(Error::Read { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => None,
            Err(Error::Cache { cause, .. }) => Some(cause),
            Err(e) => Some(e.to_string()),
        };
        // Before the text is read, so that a change meanwhile is noticed.
        let origin = Origin::of(source)?;
        write::write(&path, source, encoder, &origin, on_progress)?;
        Ok(Build { path, reused: false, reason })
    }

    /// Opens a cache. Looks at its header, offsets and lists; `build` has looked at the ids.
    ///
    /// # Errors
    /// When the file is missing, cut short, damaged in its header or of another version.
    pub fn open(path: &Path) -> Result<TokenCache> {
        let map = MappedFile::open(path).map_err(|e| Error::read(path, e))?;
        let damaged = |cause: String| Error::Cache { path: path.into(), cause };
        let header = Header::parse(&map).map_err(damaged)?;
        let layout = header.layout().filter(|layout| layout.origin.end == map.len());
        let layout = layout.ok_or_else(|| damaged("it is cut short".into()))?;
        if !matches!(header.id_bytes, 2 | 4) {
            return Err(damaged(format!("its ids have {} bytes", header.id_bytes)));
        }
        let Header { id_bytes, n_tokens, vocab_size, body_hash, .. } = header;
        let lists = |lists: &Lists| Numbers {
            offsets: numbers(&map, &lists.offsets).into(),
            numbers: numbers(&map, &lists.numbers).into(),
        };
        let cache = TokenCache {
            offsets: numbers(&map, &layout.offsets).into(),
            labels: layout.labels.as_ref().map(lists),
            segments: layout.segments.as_ref().map(lists),
            map,
            path: path.into(),
            layout,
            wide: id_bytes == 4,
            vocab_size,
            body_hash,
        };
        cache.check()?;
        let counts = |offsets: &[u64], n: u64| {
            offsets.first() == Some(&0) && offsets.last() == Some(&n) && offsets.is_sorted()
        };
        if !counts(&cache.offsets, n_tokens) {
            return Err(damaged("its record offsets do not fit its tokens".into()));
        }
        for lists in [&cache.labels, &cache.segments].into_iter().flatten() {
            let ascend = |record: u64| {
                let (numbers, offsets) = (lists.of(record), &cache.offsets);
                let len = offsets[record as usize + 1] - offsets[record as usize];
                numbers.is_sorted() && numbers.last().is_none_or(|&last| u64::from(last) <= len)
            };
            let n_numbers = lists.numbers.len() as u64;
            if !counts(&lists.offsets, n_numbers) || !(0..header.n_records).all(ascend) {
                return Err(damaged("its targets do not fit its records".into()));
            }
        }
        Ok(cache)
    }

    /// Whether all tokens that were copied so far stood in the file.
    ///
    /// # Errors
    /// When it has become shorter.
    pub fn check(&self) -> Result<()> {
        self.map.check().map_err(|e| Error::read(&self.path, e))
    }

    /// Copies a cache to another path, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn copy_file(from: &Path, to: &Path) -> Result<()> {
        write::copy(from, to)
    }

    /// Whether it was encoded with this encoder.
    ///
    /// # Errors
    /// A damaged file.
    pub fn made_by<'a>(&self, encoder: impl Into<Encoder<'a>>) -> Result<Made> {
        let (own, other) = (self.origin()?.encoder, encoder.into().identity());
        let tokenizer = |identity: &str| identity.split(' ').next().map(str::to_owned);
        Ok(match own == other {
            true => Made::Same,
            false if tokenizer(&own) == tokenizer(&other) => Made::OtherSettings,
            false => Made::OtherTokenizer,
        })
    }

    /// Reads the whole file and compares it with its sum.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify(&self) -> Result<()> {
        let same = hash_bytes(&self.map[HEADER_BYTES..]) == self.body_hash;
        self.check()?;
        if same { Ok(()) } else { Err(self.damaged("its content is damaged")) }
    }

    /// What became of the rows that it was built from, where they were read by the format of their data set.
    ///
    /// # Errors
    /// A damaged file.
    pub fn report(&self) -> Result<Option<RowReport>> {
        Ok(self.origin()?.report)
    }

    /// The files that it was built from, each with the hash of what was in it, and a hash of what they became: the tokens, what is
    /// learned of them, and the data set of each. Where they lay, and when they were written, is not part of it.
    ///
    /// # Errors
    /// A damaged file.
    pub fn made_of(&self) -> Result<(Vec<(PathBuf, u64)>, u64)> {
        let Origin { files, report: _, parts, encoder: _, tokens } = self.origin()?;
        let tokens =
            tokens.unwrap_or_else(|| hash_bytes(&self.map[HEADER_BYTES..self.layout.end_of_tokens()]));
        let identity = format!("{tokens:x} {parts:?} {}", self.vocab_size);
        let files = files.into_iter().map(|stamp| (stamp.path, stamp.hash)).collect();
        Ok((files, hash_bytes(identity.as_bytes())))
    }

    /// The number of records of each of the data sets that it was built from.
    ///
    /// # Errors
    /// A damaged file, or one that was built before this was counted.
    pub fn parts(&self) -> Result<Vec<u64>> {
        let parts = self.origin()?.parts;
        let sum = parts.iter().try_fold(0u64, |sum, n| sum.checked_add(*n));
        if sum == Some(self.n_records()) {
            return Ok(parts);
        }
        Err(self.damaged("it does not say where each data set ends; set overwrite_cache: true once"))
    }

    /// The number of tokens, without any that packing adds.
    pub fn n_tokens(&self) -> u64 {
        self.offsets().last().copied().unwrap_or(0)
    }

    /// The number of records.
    pub fn n_records(&self) -> u64 {
        self.offsets().len() as u64 - 1
    }

    /// All ids are below this.
    pub fn vocab_size(&self) -> u64 {
        self.vocab_size
    }

    /// Whether records are conversations: they hold their own ends, and not all of their tokens are targets.
    pub fn holds_conversations(&self) -> bool {
        self.layout.labels.is_some()
    }

    /// Whether records have several segments.
    pub fn has_segments(&self) -> bool {
        self.layout.segments.is_some()
    }

    /// Whether records are single answers with a label: pairs of which one is empty.
    pub(super) fn holds_unpaired_preferences(&self) -> bool {
        let len = self.offsets().get(1).copied().unwrap_or(0);
        self.n_records() > 0 && matches!(self.segments(0), [at] if *at == 0 || u64::from(*at) == len)
    }

    /// The runs of targets of a record, counted from its first token; `None` where all tokens are targets.
    pub(super) fn targets(&self, record: u64) -> Option<impl Iterator<Item = Range<usize>> + '_> {
        let runs = self.labels.as_ref()?.of(record).chunks_exact(2);
        Some(runs.map(|run| run[0] as usize..run[1] as usize))
    }

    /// Where the segments of a record after the first begin, counted from its first token.
    pub(super) fn segments(&self, record: u64) -> &[u32] {
        self.segments.as_ref().map_or(&[], |lists| lists.of(record))
    }

    /// Where each record begins in the stream of tokens, and where the last ends.
    pub(super) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Copies the tokens `begin..begin + out.len()` of the stream.
    pub(super) fn copy(&self, begin: u64, out: &mut [i32]) {
        let range = begin as usize..begin as usize + out.len();
        if self.wide {
            let ids: &[u32] = numbers(&self.map, &self.layout.ids);
            out.iter_mut().zip(&ids[range]).for_each(|(out, &id)| *out = id as i32);
        } else {
            let ids: &[u16] = numbers(&self.map, &self.layout.ids);
            out.iter_mut().zip(&ids[range]).for_each(|(out, &id)| *out = i32::from(id));
        }
    }

    fn origin(&self) -> Result<Origin> {
        serde_json::from_slice(&self.map[self.layout.origin.clone()])
            .map_err(|_| self.damaged("its origin is unreadable"))
    }

    fn damaged(&self, cause: &str) -> Error {
        Error::Cache { path: self.path.clone(), cause: cause.into() }
    }
}

/// A part of a file as numbers.
fn numbers<'m, T: bytemuck::AnyBitPattern>(map: &'m MappedFile, part: &Range<usize>) -> &'m [T] {
    bytemuck::try_cast_slice(&map[part.clone()]).unwrap_or(&[])
}

#[cfg(test)]
mod tests;
