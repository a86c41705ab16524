//! The files of a model in GGUF: one, or the parts that llama-gguf-split makes of it.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use oarlock_comm::MappedFile;
use oarlock_gguf::{Gguf, Tensor};

/// What was found, or what is wrong.
pub(super) type Found<T> = std::result::Result<T, String>;

/// Maps the file at a path, and the other parts beside it where it is the first of several.
///
/// # Errors
/// A file that cannot be read, a part that is not the first one, and parts that are missing.
pub(super) fn open(path: &Path) -> Result<Vec<MappedFile>> {
    let refuse = |problem: String| Error::new(ErrorKind::InvalidData, problem);
    let first = MappedFile::open(path)?;
    let (number, count) = {
        let gguf = Gguf::new(&first[..]).map_err(|error| refuse(error.to_string()))?;
        place(&gguf).map_err(refuse)?
    };
    first.check()?;
    if count < 2 {
        return Ok(vec![first]);
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let ending = |number: u64| format!("-{number:05}-of-{count:05}.gguf");
    let Some(stem) = name.strip_suffix(&ending(number + 1)) else {
        return Err(refuse(format!(
            "the file is part {} of {count} (split.no), and its name does not end in {}; give it that name",
            number + 1,
            ending(number + 1)
        )));
    };
    if number > 0 {
        return Err(refuse(format!(
            "the file is part {} of {count}; name the first one, {stem}{}",
            number + 1,
            ending(1)
        )));
    }
    let part = |number: u64| {
        let other = path.with_file_name(format!("{stem}{}", ending(number)));
        MappedFile::open(&other).map_err(|error| {
            // Not found would mean that the model has no such settings.
            refuse(format!(
                "part {number} of {count}, {}, cannot be read: {error}; fetch it as well",
                other.display()
            ))
        })
    };
    std::iter::once(Ok(first)).chain((2..=count).map(part)).collect()
}

/// The number of a part, from 0, and how many there are. A file of its own is the first of one.
fn place(gguf: &Gguf<&[u8]>) -> Found<(u64, u64)> {
    let number = |key: &str, default: u64| {
        let found = gguf.get::<u64>(key).map_err(shown)?.unwrap_or(default);
        // The type of both is u16.
        u16::try_from(found).map(u64::from).map_err(|_| format!("{key} is {found}; expected less than 65536"))
    };
    Ok((number("split.no", 0)?, number("split.count", 1)?.max(1)))
}

/// A model whose parts have been read.
pub(super) struct Model<'a> {
    parts: Vec<Gguf<&'a [u8]>>,
}

impl<'a> Model<'a> {
    /// The model of the bytes of its parts, in their order.
    ///
    /// # Errors
    /// Parts that do not belong together.
    pub(super) fn of(files: impl Iterator<Item = &'a [u8]>) -> Found<Model<'a>> {
        let parts = files.map(|bytes| Gguf::new(bytes).map_err(shown)).collect::<Found<Vec<_>>>()?;
        if parts.is_empty() {
            return Err("there is no file".to_owned());
        }
        let model = Model { parts };
        let n_parts = model.parts.len() as u64;
        if n_parts < 2 {
            return Ok(model);
        }
        for (part, number) in model.parts.iter().zip(0..) {
            let found = place(part)?;
            if found != (number, n_parts) {
                return Err(format!(
                    "the file of part {} of {n_parts} says that it is part {} of {}; the parts are of several models",
                    number + 1,
                    found.0 + 1,
                    found.1
                ));
            }
        }
        let n_tensors = model.tensors().count() as u64;
        if let Some(expected) = model.keys().get::<u64>("split.tensors.count").map_err(shown)?
            && expected != n_tensors
        {
            return Err(format!(
                "the parts have {n_tensors} tensors, and {expected} were written (split.tensors.count)"
            ));
        }
        let mut names = HashSet::new();
        let all = model.tensors().map(|(_, tensor)| tensor.name().to_owned());
        let twice = all.into_iter().find(|name| !names.insert(name.clone()));
        match twice {
            Some(twice) => Err(format!("two parts have the tensor {}", twice.escape_debug())),
            None => Ok(model),
        }
    }

    /// The file with the keys of the model: the first one.
    pub(super) fn keys(&self) -> &Gguf<&'a [u8]> {
        // `of` has made sure that there is one.
        &self.parts[0]
    }

    /// The bytes of a part.
    pub(super) fn bytes(&self, part: usize) -> &'a [u8] {
        self.parts[part].bytes()
    }

    /// All tensors, each with the number of its part.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (usize, Tensor<'_>)> {
        self.parts
            .iter()
            .enumerate()
            .flat_map(|(part, gguf)| gguf.tensors().map(move |tensor| (part, tensor)))
    }

    /// The tensor of a name.
    pub(super) fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.parts.iter().find_map(|gguf| gguf.tensor(name).ok())
    }
}

/// An error as text.
pub(super) fn shown(error: impl Display) -> String {
    error.to_string()
}
