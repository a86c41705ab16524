//! Tables of what was measured to be the fastest, by GPU, written by `oarlock gpu-check --tune`.
//!
//! A table is text. After a line `arch sm_90`, and perhaps one `device NAME` where it is for no other GPU, each line is an entry:
//! `attention …` ([`attention::Tuned`](crate::attention::Tuned)) or a matrix product ([`blas::Tuned`](crate::blas::Tuned)). What
//! is behind `#` is not read.

use std::path::PathBuf;

use crate::driver::Device;
use crate::error::{Error, Result};

/// The tables that the program has.
const TABLES: &[(&str, &str)] = &[("tuned/sm_90.txt", include_str!("../tuned/sm_90.txt"))];
/// The variable that names a file which is read besides.
pub const VARIABLE: &str = "OARLOCK_CUDA_TUNED";
/// How entries of attention begin.
const ATTENTION: &str = "attention ";

/// What an entry is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A matrix product.
    Product,
    /// A pass of attention.
    Attention,
}

/// A GPU, as tables name it.
pub(crate) struct Gpu<'a> {
    /// Its model.
    pub name: &'a str,
    /// Its architecture.
    pub arch: &'a str,
}

/// What takes an entry without the word of its kind, and whether it is for this GPU; it says what is wrong with it.
pub(crate) type Take<'a> = dyn FnMut(&str, bool) -> std::result::Result<(), String> + 'a;

/// Reads the entries of a kind: those of the program, then those of the file that [`VARIABLE`] names.
///
/// # Errors
/// [`Error::Table`], or the driver's own.
pub(crate) fn read(device: &Device, kind: Kind, take: &mut Take<'_>) -> Result<()> {
    let (name, arch) = (device.name()?, device.arch()?);
    let gpu = Gpu { name: &name, arch: &arch };
    for (file, text) in TABLES {
        read_text((file, text), &gpu, kind, take)?;
    }
    if let Some(file) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        let shown = file.display().to_string();
        let wrong = |error: std::io::Error| Error::Table {
            file: shown.clone(),
            line: 0,
            reason: format!("{VARIABLE} names it, and it cannot be read: {error}"),
        };
        let text = std::fs::read_to_string(&file).map_err(wrong)?;
        read_text((&shown, &text), &gpu, kind, take)?;
    }
    Ok(())
}

/// Reads the entries of a kind in one table.
///
/// # Errors
/// [`Error::Table`].
pub(crate) fn read_text(
    (file, text): (&str, &str),
    gpu: &Gpu<'_>,
    kind: Kind,
    take: &mut Take<'_>,
) -> Result<()> {
    let (mut of_arch, mut of_device) = (false, true);
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Some(wanted) = line.strip_prefix("arch ") {
            // The variant with instructions of its own is the same GPU.
            (of_arch, of_device) = (gpu.arch.trim_end_matches('a') == wanted.trim(), true);
            continue;
        }
        if let Some(wanted) = line.strip_prefix("device ") {
            of_device = gpu.name == wanted.trim();
            continue;
        }
        let (found, entry) = match line.strip_prefix(ATTENTION) {
            Some(entry) => (Kind::Attention, entry),
            None => (Kind::Product, line),
        };
        if found == kind {
            let wrong = |reason| Error::Table { file: file.into(), line: i + 1, reason };
            take(entry, of_arch && of_device).map_err(wrong)?;
        }
    }
    Ok(())
}
