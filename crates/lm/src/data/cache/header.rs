//! The header of a cache, where its parts lie, and what it was built from.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::error::{Error, Result};
use super::super::hash::{hash_bytes, hash_file};
use super::super::report::RowReport;
use super::super::source::Source;

const MAGIC: u64 = u64::from_ne_bytes(*b"oarltokn");

/// Version 1 (texts only, a header of 64 bytes) is built again.
const VERSION: u64 = 2;

pub(super) const HEADER_BYTES: usize = 80;

/// In the header: records are conversations, with runs of targets and with their own ends.
const CONVERSATIONS: u64 = 1 << 8;

/// What a cache was built from.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) files: Vec<Stamp>,
    /// What became of the rows, where they were read by their format.
    #[serde(default)]
    pub(super) report: Option<RowReport>,
    /// How many records each data set has; caches of before this was counted have none.
    #[serde(default)]
    pub(super) parts: Vec<u64>,
    /// What it was encoded with.
    #[serde(default)]
    pub(super) encoder: String,
    /// A sum over the tokens and what is learned of them; caches of before this was kept have none.
    #[serde(default)]
    pub(super) tokens: Option<u64>,
}

/// A file as it was. Size and time are looked at first; only when they differ is the content hashed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) path: PathBuf,
    pub(super) n_bytes: u64,
    pub(super) modified_ns: u64,
    pub(super) hash: u64,
}

impl Stamp {
    pub(super) fn of(path: &Path) -> Result<Stamp> {
        let (n_bytes, modified_ns) = Stamp::outside(path)?;
        let hash = hash_file(path).map_err(|e| Error::read(path, e))?;
        Ok(Stamp { path: path.into(), n_bytes, modified_ns, hash })
    }

    pub(super) fn outside(path: &Path) -> Result<(u64, u64)> {
        let metadata = std::fs::metadata(path).map_err(|e| Error::read(path, e))?;
        let modified = metadata.modified().map_err(|e| Error::read(path, e))?;
        let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok((metadata.len(), since.as_nanos() as u64))
    }

    pub(super) fn holds(&self, path: &Path) -> Result<bool> {
        let (n_bytes, modified_ns) = Stamp::outside(path)?;
        if n_bytes != self.n_bytes {
            return Ok(false);
        }
        Ok(modified_ns == self.modified_ns || hash_file(path).map_err(|e| Error::read(path, e))? == self.hash)
    }
}

impl Origin {
    pub(super) fn of(source: &Source) -> Result<Origin> {
        Ok(Origin {
            files: source.files().map(Stamp::of).collect::<Result<_>>()?,
            report: None,
            parts: Vec::new(),
            encoder: String::new(),
            tokens: None,
        })
    }

    pub(super) fn holds(&self, source: &Source) -> Result<bool> {
        Ok(source.files().count() == self.files.len() && self.changed(source)?.is_none())
    }

    /// The first file of the source that is not as it was.
    pub(super) fn changed<'s>(&self, source: &'s Source) -> Result<Option<&'s Path>> {
        for (stamp, file) in self.files.iter().zip(source.files()) {
            if !stamp.holds(file)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}

/// The fixed beginning of the file.
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub(super) id_bytes: u64,
    pub(super) conversations: bool,
    pub(super) n_tokens: u64,
    pub(super) n_records: u64,
    /// Numbers in the lists of runs of targets.
    pub(super) n_labels: u64,
    /// Numbers in the lists of segments; with none there are no lists.
    pub(super) n_segments: u64,
    pub(super) origin_bytes: u64,
    pub(super) vocab_size: u64,
    pub(super) body_hash: u64,
}

/// Where the parts of a file stand.
#[derive(Debug, PartialEq)]
pub(super) struct Layout {
    pub(super) ids: Range<usize>,
    pub(super) offsets: Range<usize>,
    pub(super) labels: Option<Lists>,
    pub(super) segments: Option<Lists>,
    pub(super) origin: Range<usize>,
}

/// Where a list of numbers for each record stands.
#[derive(Debug, PartialEq)]
pub(super) struct Lists {
    pub(super) offsets: Range<usize>,
    pub(super) numbers: Range<usize>,
}

impl Layout {
    /// Where all ends that says what the tokens are.
    pub(super) fn end_of_tokens(&self) -> usize {
        let lists = self.segments.as_ref().or(self.labels.as_ref());
        lists.map_or(self.offsets.end, |lists| lists.numbers.end)
    }
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
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

    pub(super) fn parse(bytes: &[u8]) -> std::result::Result<Header, String> {
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
    pub(super) fn layout(&self) -> Option<Layout> {
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
