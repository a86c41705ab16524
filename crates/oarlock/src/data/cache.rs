//! All tokens of a data set in one memory-mapped file, built once and shared by every rank.
//!
//! It holds the ids of every record and where each record begins, but no packing: how rows are cut can change without
//! tokenising again. A file is written under another name and renamed into place, so it is whole or absent; a sum
//! over its content tells damage. It is not synced to disk: what a power cut leaves is found damaged and built anew.
//!
//! Layout (native byte order): the header of 64 bytes; the ids (2 or 4 bytes each), filled to 8 bytes; the
//! `n_records + 1` record offsets (u64); the origin (JSON): which files it was built from.

mod write;

use std::ops::Range;
use std::path::{Path, PathBuf};

use oarlock_comm::MappedFile;
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::hash::{hash_bytes, hash_file};
use super::source::Source;
use super::tokenizer::Tokenizer;

pub use write::Progress;

const MAGIC: u64 = u64::from_ne_bytes(*b"oarltokn");
const VERSION: u64 = 1;
const HEADER_BYTES: usize = 64;

/// What a cache was built from.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Origin {
    files: Vec<Stamp>,
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
        Ok(Origin { files: source.files().map(Stamp::of).collect::<Result<_>>()? })
    }

    fn holds(&self, source: &Source) -> Result<bool> {
        let files: Vec<&Path> = source.files().collect();
        if files.len() != self.files.len() {
            return Ok(false);
        }
        for (stamp, file) in self.files.iter().zip(files) {
            if !stamp.holds(file)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What `TokenCache::build` did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// The file.
    pub path: PathBuf,
    /// Whether it was there and still right.
    pub reused: bool,
    /// Why a file that was there had to be built anew.
    pub reason: Option<String>,
}

/// The fixed beginning of the file.
struct Header {
    id_bytes: u64,
    n_tokens: u64,
    n_records: u64,
    origin_bytes: u64,
    vocab_size: u64,
    body_hash: u64,
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let kind = VERSION << 32 | self.id_bytes;
        let words = [
            MAGIC,
            kind,
            self.n_tokens,
            self.n_records,
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
        let header = bytes.get(..HEADER_BYTES).ok_or("it ends inside the header")?;
        let word = |i: usize| u64::from_ne_bytes(header[8 * i..8 * i + 8].try_into().unwrap_or_default());
        if word(0) != MAGIC {
            return Err("it is no token cache of this kind of machine".into());
        }
        if word(1) >> 32 != VERSION {
            return Err(format!("it is of version {}, and this program reads {VERSION}", word(1) >> 32));
        }
        if word(7) != hash_bytes(&header[..HEADER_BYTES - 8]) {
            return Err("its header is damaged".into());
        }
        Ok(Header {
            id_bytes: word(1) & 0xffff_ffff,
            n_tokens: word(2),
            n_records: word(3),
            origin_bytes: word(4),
            vocab_size: word(5),
            body_hash: word(6),
        })
    }

    /// Where ids, offsets and origin stand; `None` when the numbers overflow.
    fn layout(&self) -> Option<[Range<usize>; 3]> {
        let span = |begin: u64, n: u64, size: u64| -> Option<Range<usize>> {
            let end = begin.checked_add(n.checked_mul(size)?)?;
            Some(usize::try_from(begin).ok()?..usize::try_from(end).ok()?)
        };
        let ids = span(HEADER_BYTES as u64, self.n_tokens, self.id_bytes)?;
        let offsets = span((ids.end as u64).checked_next_multiple_of(8)?, self.n_records.checked_add(1)?, 8)?;
        let origin = span(offsets.end as u64, self.origin_bytes, 1)?;
        Some([ids, offsets, origin])
    }
}

/// The tokens of a data set, record by record.
#[derive(Debug)]
pub struct TokenCache {
    map: MappedFile,
    path: PathBuf,
    ids: Range<usize>,
    offsets: Range<usize>,
    origin: Range<usize>,
    wide: bool,
    vocab_size: u64,
    body_hash: u64,
}

impl TokenCache {
    /// The file in `dir` that holds the tokens of `source` under `tokenizer`. Other settings give other names.
    pub fn path(dir: &Path, source: &Source, tokenizer: &Tokenizer) -> PathBuf {
        let identity = format!("{VERSION} {:x}\n{}", tokenizer.fingerprint(), source.identity());
        dir.join(format!("{}-{:016x}.tokens", source.label(), hash_bytes(identity.as_bytes())))
    }

    /// Makes sure that the cache of `source` under `tokenizer` is in `dir`: leaves it when it is whole and the text
    /// has not changed, and builds it otherwise, on all threads of the current pool. One rank does this; the others
    /// `open` the file afterwards. `on_progress` is called now and then while it builds.
    ///
    /// # Errors
    /// When a record is bad, the tokenizer cannot be used, or the file cannot be written.
    pub fn build(
        dir: &Path,
        source: &Source,
        tokenizer: &Tokenizer,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Build> {
        let path = TokenCache::path(dir, source, tokenizer);
        let reason = match TokenCache::open(&path).and_then(|cache| cache.verify().map(|()| cache)) {
            Ok(cache) if cache.origin()?.holds(source)? => {
                return Ok(Build { path, reused: true, reason: None });
            }
            Ok(_) => Some("the text has changed".into()),
            Err(Error::Read { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => None,
            Err(Error::Cache { cause, .. }) => Some(cause),
            Err(e) => Some(e.to_string()),
        };
        // Before the text is read: if it changes meanwhile, the next start notices.
        let origin = Origin::of(source)?;
        write::write(&path, source, tokenizer, &origin, on_progress)?;
        Ok(Build { path, reused: false, reason })
    }

    /// Opens a cache. Looks at its header and offsets; `build` has looked at the ids.
    ///
    /// # Errors
    /// When the file is missing, cut short, damaged in its header or of another version.
    pub fn open(path: &Path) -> Result<TokenCache> {
        let map = MappedFile::open(path).map_err(|e| Error::read(path, e))?;
        let damaged = |cause: String| Error::Cache { path: path.into(), cause };
        let header = Header::parse(&map).map_err(damaged)?;
        let layout = header.layout().filter(|[.., origin]| origin.end == map.len());
        let [ids, offsets, origin] = layout.ok_or_else(|| damaged("it is cut short".into()))?;
        if !matches!(header.id_bytes, 2 | 4) {
            return Err(damaged(format!("its ids have {} bytes", header.id_bytes)));
        }
        let (wide, vocab_size, body_hash) = (header.id_bytes == 4, header.vocab_size, header.body_hash);
        let cache = TokenCache { map, path: path.into(), ids, offsets, origin, wide, vocab_size, body_hash };
        let offsets = cache.offsets();
        if offsets.first() != Some(&0) || offsets.last() != Some(&header.n_tokens) || !offsets.is_sorted() {
            return Err(damaged("its record offsets do not fit its tokens".into()));
        }
        Ok(cache)
    }

    /// Reads the whole file and compares it with its sum.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify(&self) -> Result<()> {
        let same = hash_bytes(&self.map[HEADER_BYTES..]) == self.body_hash;
        if same { Ok(()) } else { Err(self.damaged("its content is damaged")) }
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

    /// Where each record begins in the stream of tokens, and where the last ends.
    pub(super) fn offsets(&self) -> &[u64] {
        bytemuck::try_cast_slice(&self.map[self.offsets.clone()]).unwrap_or(&[0])
    }

    /// Copies the tokens `begin..begin + out.len()` of the stream.
    pub(super) fn copy(&self, begin: u64, out: &mut [i32]) {
        let bytes = &self.map[self.ids.clone()];
        let range = begin as usize..begin as usize + out.len();
        if self.wide {
            let ids: &[u32] = bytemuck::try_cast_slice(bytes).unwrap_or(&[]);
            out.iter_mut().zip(&ids[range]).for_each(|(out, &id)| *out = id as i32);
        } else {
            let ids: &[u16] = bytemuck::try_cast_slice(bytes).unwrap_or(&[]);
            out.iter_mut().zip(&ids[range]).for_each(|(out, &id)| *out = i32::from(id));
        }
    }

    fn origin(&self) -> Result<Origin> {
        serde_json::from_slice(&self.map[self.origin.clone()])
            .map_err(|_| self.damaged("its origin is unreadable"))
    }

    fn damaged(&self, cause: &str) -> Error {
        Error::Cache { path: self.path.clone(), cause: cause.into() }
    }
}

#[cfg(test)]
mod tests;
