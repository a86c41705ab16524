//! The safetensors files of a model, mapped into memory, and what is in them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use oarlock_comm::MappedFile;
use oarlock_config::json;
use safetensors::SafeTensors;
use serde::de::IgnoredAny;

use super::index::Listing;
use super::located::Located;
use crate::{Error, Result};

/// Files in memory, and what is in them.
#[derive(Default)]
pub struct MappedFiles {
    /// In the order in which they were opened.
    pub files: Vec<MappedFile>,
    /// By the names that the files use.
    pub tensors: BTreeMap<String, Located>,
    /// What the files say of themselves.
    pub(super) metadata: HashMap<String, String>,
    /// Warnings about them.
    pub(super) notes: Vec<String>,
}

impl MappedFiles {
    /// The files of a folder.
    pub(super) fn of_folder(dir: &Path) -> Result<MappedFiles> {
        let listing = Listing::of(dir)?;
        let mut mapped = MappedFiles::open(listing.files.iter().map(|name| dir.join(name)))?;
        mapped.notes = listing.contradictions(&mapped.tensors);
        Ok(mapped)
    }

    /// Maps safetensors files and reads their headers.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged, and a tensor that two of them hold.
    pub fn open(paths: impl Iterator<Item = PathBuf>) -> Result<MappedFiles> {
        let mut mapped = MappedFiles::default();
        for path in paths {
            let map = MappedFile::open(&path).map_err(Error::io("read", &path))?;
            mapped.list(&path, &map)?;
            mapped.files.push(map);
        }
        Ok(mapped)
    }

    /// Adds what is in the next file.
    fn list(&mut self, path: &Path, map: &[u8]) -> Result<()> {
        let (header_len, metadata) = SafeTensors::read_metadata(map).map_err(|e| {
            Error::bad_file(
                path,
                format!(
                    "{e}: the file is damaged or cut off ({} bytes); copy or download it again",
                    map.len()
                ),
            )
        })?;
        let (data, file) = (8 + header_len, self.files.len());
        json::from_slice::<IgnoredAny>(&map[8..data]).map_err(|e| Error::bad_file(path, e.to_string()))?;
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let bytes = data + start..data + end;
            let located = Located { file, bytes, shape: info.shape.clone(), dtype: info.dtype, packed: None };
            if self.tensors.insert(name.clone(), located).is_some() {
                return Err(Error::bad_file(
                    path,
                    format!("\"{name}\" is also in another file of the folder; remove one of them"),
                ));
            }
        }
        self.metadata.extend(metadata.metadata().clone().unwrap_or_default());
        Ok(())
    }
}
