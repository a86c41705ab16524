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

mod write;

use std::ops::Range;
use std::path::{Path, PathBuf};

use oarlock_comm::MappedFile;
use serde::{Deserialize, Serialize};

use super::encode::Encoder;
use super::error::{Error, Result};
use super::hash::{hash_bytes, hash_file};
use super::report::RowReport;
use super::source::Source;

pub use write::Progress;

const MAGIC: u64 = u64::from_ne_bytes(*b"oarltokn");
/// Version 1 (texts only, a header of 64 bytes) is built again.
const VERSION: u64 = 2;
const HEADER_BYTES: usize = 80;
/// In the header: records are conversations, with runs of targets and with their own ends.
const CONVERSATIONS: u64 = 1 << 8;

/// What a cache was built from.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Origin {
    files: Vec<Stamp>,
    /// What became of the rows, where they were read by their format.
    #[serde(default)]
    report: Option<RowReport>,
    /// How many records each data set has; caches of before this was counted have none.
    #[serde(default)]
    parts: Vec<u64>,
    /// What it was encoded with.
    #[serde(default)]
    encoder: String,
    /// A sum over the tokens and what is learned of them; caches of before this was kept have none.
    #[serde(default)]
    tokens: Option<u64>,
}

/// A file as it was. Size and time are looked at first; only when they differ is the content hashed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Stamp {
    path: PathBuf,
    n_bytes: u64,
    modified_ns: u64,
    hash: u64,
}

impl Stamp {
    fn of(path: &Path) -> Result<Stamp> {
        let (n_bytes, modified_ns) = Stamp::outside(path)?;
        let hash = hash_file(path).map_err(|e| Error::read(path, e))?;
        Ok(Stamp { path: path.into(), n_bytes, modified_ns, hash })
    }

    fn outside(path: &Path) -> Result<(u64, u64)> {
        let metadata = std::fs::metadata(path).map_err(|e| Error::read(path, e))?;
        let modified = metadata.modified().map_err(|e| Error::read(path, e))?;
        let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok((metadata.len(), since.as_nanos() as u64))
    }

    fn holds(&self, path: &Path) -> Result<bool> {
        let (n_bytes, modified_ns) = Stamp::outside(path)?;
        if n_bytes != self.n_bytes {
            return Ok(false);
        }
        Ok(modified_ns == self.modified_ns || hash_file(path).map_err(|e| Error::read(path, e))? == self.hash)
    }
}

impl Origin {
    fn of(source: &Source) -> Result<Origin> {
        Ok(Origin {
            files: source.files().map(Stamp::of).collect::<Result<_>>()?,
            report: None,
            parts: Vec::new(),
            encoder: String::new(),
            tokens: None,
        })
    }

    fn holds(&self, source: &Source) -> Result<bool> {
        Ok(source.files().count() == self.files.len() && self.changed(source)?.is_none())
    }

    /// The first file of the source that is not as it was.
    fn changed<'s>(&self, source: &'s Source) -> Result<Option<&'s Path>> {
        for (stamp, file) in self.files.iter().zip(source.files()) {
            if !stamp.holds(file)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}

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

/// The fixed beginning of the file.
#[derive(Clone, Copy)]
struct Header {
    id_bytes: u64,
    conversations: bool,
    n_tokens: u64,
    n_records: u64,
    /// Numbers in the lists of runs of targets.
    n_labels: u64,
    /// Numbers in the lists of segments; with none there are no lists.
    n_segments: u64,
    origin_bytes: u64,
    vocab_size: u64,
    body_hash: u64,
}

/// Where the parts of a file stand.
#[derive(Debug, PartialEq)]
struct Layout {
    ids: Range<usize>,
    offsets: Range<usize>,
    labels: Option<Lists>,
    segments: Option<Lists>,
    origin: Range<usize>,
}

/// Where a list of numbers for each record stands.
#[derive(Debug, PartialEq)]
struct Lists {
    offsets: Range<usize>,
    numbers: Range<usize>,
}

impl Layout {
    /// Where all ends that says what the tokens are.
    fn end_of_tokens(&self) -> usize {
        let lists = self.segments.as_ref().or(self.labels.as_ref());
        lists.map_or(self.offsets.end, |lists| lists.numbers.end)
    }
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let kind = VERSION << 32 | if self.conversations { CONVERSATIONS } else { 0 } | self.id_bytes;
        let words = [
            MAGIC,
            kind,
            self.n_tokens,
            self.n_records,
            self.n_labels,
            self.n_segments,
            self.origin_bytes,
            self.vocab_size,
            self.body_hash,
            0,
        ];
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(bytemuck::cast_slice(&words));
        let hash = hash_bytes(&bytes[..HEADER_BYTES - 8]);
        bytes[HEADER_BYTES - 8..].copy_from_slice(&hash.to_ne_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Header, String> {
        let word = |i: usize| {
            let word = bytes.get(8 * i..8 * i + 8).and_then(|word| word.try_into().ok());
            word.map(u64::from_ne_bytes).ok_or("it ends inside the header")
        };
        if word(0)? != MAGIC {
            return Err("it is not a token cache of this kind of machine".into());
        }
        if word(1)? >> 32 != VERSION {
            return Err(format!("it is of version {}, and this program reads {VERSION}", word(1)? >> 32));
        }
        if word(9)? != hash_bytes(&bytes[..HEADER_BYTES - 8]) {
            return Err("its header is damaged".into());
        }
        Ok(Header {
            id_bytes: word(1)? & 0xff,
            conversations: word(1)? & CONVERSATIONS != 0,
            n_tokens: word(2)?,
            n_records: word(3)?,
            n_labels: word(4)?,
            n_segments: word(5)?,
            origin_bytes: word(6)?,
            vocab_size: word(7)?,
            body_hash: word(8)?,
        })
    }

    /// Where the parts stand; `None` when the numbers overflow.
    fn layout(&self) -> Option<Layout> {
        let mut end = HEADER_BYTES as u64;
        let mut part = |n: u64, size: u64| -> Option<Range<usize>> {
            let begin = end.checked_next_multiple_of(8)?;
            end = begin.checked_add(n.checked_mul(size)?)?;
            Some(usize::try_from(begin).ok()?..usize::try_from(end).ok()?)
        };
        let n_offsets = self.n_records.checked_add(1)?;
        let ids = part(self.n_tokens, self.id_bytes)?;
        let offsets = part(n_offsets, 8)?;
        let mut lists = |n: u64| Some(Lists { offsets: part(n_offsets, 8)?, numbers: part(n, 4)? });
        let labels = if self.conversations { Some(lists(self.n_labels)?) } else { None };
        let segments = if self.n_segments > 0 { Some(lists(self.n_segments)?) } else { None };
        Some(Layout { ids, offsets, labels, segments, origin: part(self.origin_bytes, 1)? })
    }
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
