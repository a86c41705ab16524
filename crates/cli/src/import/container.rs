//! A file of `torch.save`: a zip archive with a pickle, and the bytes of each storage as they are in memory.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use zip::{CompressionMethod, ZipArchive};

use super::error::{ImportProblem, PickleProblem};
use super::pickle::{Element, Pickle, Value, View};
use super::refusal::refused;
use crate::error::{Error, Result};

/// The largest pickle; the values of tensors are not in it.
const MAX_PICKLE_BYTES: usize = 64 << 20;

/// An open file.
#[derive(Debug)]
pub struct TorchFile {
    /// Where it is.
    pub path: PathBuf,
    file: File,
    storages: Storages,
}

/// By their names, where storages lie, and their sizes in bytes.
type Storages = HashMap<String, (u64, u64)>;

/// Elements that lie in a file in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where they begin, in bytes.
    pub offset: u64,
    /// How many.
    pub n_elems: u64,
    /// What they are.
    pub element: Element,
}

impl Run {
    /// A part of it, as far as it goes.
    pub fn part(self, first: u64, n_elems: u64) -> Run {
        let first = first.min(self.n_elems);
        let offset = self.offset + first * self.element.n_bytes();
        Run { offset, n_elems: n_elems.min(self.n_elems - first), ..self }
    }
}

impl TorchFile {
    /// Opens a file and reads its pickle.
    pub fn open(path: &Path) -> Result<(TorchFile, Pickle)> {
        let file = oarlock_comm::open_file(path).map_err(Error::io("open", path))?;
        let (storages, pickle) = read(&file).map_err(|problem| refused(path, problem))?;
        let pickle = Pickle::read(&pickle).map_err(|problem| refused(path, problem))?;
        Ok((TorchFile { path: path.to_path_buf(), file, storages }, pickle))
    }

    /// Reads the whole file, and compares the bytes of each entry with its CRC-32. `torch.load` does not, and would give
    /// damaged weights. A file of `set_crc32_options(False)` has zeros there, which say nothing.
    ///
    /// # Errors
    /// Names the first entry that has changed since it was written.
    pub fn check(&self) -> Result<()> {
        let bad =
            |cause: zip::result::ZipError| refused(&self.path, ImportProblem::Container(cause.to_string()));
        let mut zip = ZipArchive::new(BufReader::with_capacity(1 << 20, &self.file)).map_err(bad)?;
        for index in 0..zip.len() {
            let mut entry = zip.by_index(index).map_err(bad)?;
            if entry.crc32() == 0 {
                continue;
            }
            io::copy(&mut entry, &mut io::sink()).map_err(|cause| match cause.kind() {
                ErrorKind::InvalidData => {
                    let entry = entry.name().map_or_else(|_| format!("number {index}"), Into::into);
                    refused(&self.path, ImportProblem::Damaged { entry })
                }
                _ => Error::io("read", &self.path)(cause),
            })?;
        }
        Ok(())
    }

    /// The elements of a tensor, `what` for messages, and its sizes.
    pub fn tensor(&self, what: &str, view: View<'_>) -> Result<(Run, Vec<u64>)> {
        let bad =
            |why: &str| refused(&self.path, ImportProblem::Tensor { what: what.into(), why: why.into() });
        let (Value::Tensor { first, shape, strides, .. }, Some(Value::Storage { element, key, n_elems })) =
            (view.value, view.storage())
        else {
            return Err(bad("is none"));
        };
        let mut size = 1u64;
        for (dim, stride) in shape.iter().zip(strides).rev() {
            if *dim > 1 && *stride != size {
                return Err(bad("does not lie in a row"));
            }
            size = size.checked_mul(*dim).ok_or_else(|| bad("is larger than any memory"))?;
        }
        let (offset, bytes) = *self.storages.get(key).ok_or_else(|| bad("has no bytes in the file"))?;
        let end = first.checked_add(size).filter(|end| end <= n_elems);
        let fits = end.and_then(|end| end.checked_mul(element.n_bytes())).is_some_and(|end| end <= bytes);
        if !fits {
            return Err(bad("goes beyond its storage"));
        }
        let offset = offset + first * element.n_bytes();
        Ok((Run { offset, n_elems: size, element: *element }, shape.clone()))
    }

    /// Reads the first elements of a run, as many as there is room for, as f32.
    pub fn read(&self, run: Run, out: &mut [f32]) -> Result<()> {
        let failed = Error::io("read", &self.path);
        if run.element == Element::F32 {
            return self.file.read_exact_at(bytemuck::cast_slice_mut(out), run.offset).map_err(failed);
        }
        let widen: fn(u16) -> f32 = match run.element {
            Element::Bf16 => |bits| bf16::from_bits(bits).to_f32(),
            Element::F16 => |bits| f16::from_bits(bits).to_f32(),
            Element::F32 | Element::Other(_) => {
                let problem = "has elements that are none of f32, bf16 and f16".to_string();
                let what = "of a parameter".to_string();
                return Err(refused(&self.path, ImportProblem::Tensor { what, why: problem }));
            }
        };
        let mut bits = vec![0u16; out.len()];
        self.file.read_exact_at(bytemuck::cast_slice_mut(&mut bits), run.offset).map_err(failed)?;
        out.iter_mut().zip(bits).for_each(|(out, bits)| *out = widen(bits));
        Ok(())
    }
}

/// Where the storages lie, and the bytes of the pickle.
fn read(file: &File) -> std::result::Result<(Storages, Vec<u8>), ImportProblem> {
    let bad = ImportProblem::Container;
    let file_bytes = file.metadata().map_err(|cause| bad(cause.to_string()))?.len();
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|cause| bad(cause.to_string()))?;
    let (mut storages, mut pickle) = (HashMap::new(), None);
    for index in 0..zip.len() {
        let mut entry = zip.by_index_raw(index).map_err(|cause| bad(cause.to_string()))?;
        let name = entry.name().map_err(|cause| bad(cause.to_string()))?.into_owned();
        if entry.compression() != CompressionMethod::Stored || entry.encrypted() {
            return Err(bad(format!("{name} is compressed or encrypted")));
        }
        let start = entry.data_start().ok_or_else(|| bad(format!("{name} lies nowhere")))?;
        if start.checked_add(entry.size()).is_none_or(|end| end > file_bytes) {
            return Err(bad(format!("{name} goes beyond the end of the file")));
        }
        // The first folder is named after the file, as it was called when it was saved.
        match name.split_once('/').map(|(_, inside)| inside) {
            Some("byteorder") => {
                let mut order = Vec::new();
                entry.take(16).read_to_end(&mut order).map_err(|cause| bad(cause.to_string()))?;
                if order != b"little" {
                    return Err(
                        bad("it was written by a machine whose numbers are not little-endian".into()),
                    );
                }
            }
            Some("data.pkl") => {
                if entry.size() > MAX_PICKLE_BYTES as u64 {
                    let problem = PickleProblem::TooLarge { what: "bytes", limit: MAX_PICKLE_BYTES };
                    return Err(problem.into());
                }
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).map_err(|cause| bad(cause.to_string()))?;
                pickle = Some(bytes);
            }
            Some(inside) => {
                if let Some(key) = inside.strip_prefix("data/") {
                    storages.insert(key.to_string(), (start, entry.size()));
                }
            }
            None => {}
        }
    }
    Ok((storages, pickle.ok_or_else(|| bad("it has no data.pkl".into()))?))
}
