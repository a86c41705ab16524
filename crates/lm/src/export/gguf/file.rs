//! A GGUF file of an export: what it may replace, how it is written tensor after tensor, and what is read back of it.

use std::io::BufWriter;
use std::ops::Range;
use std::path::{Path, PathBuf};

use oarlock_engine::{Error, Result};
use oarlock_gguf::{Gguf, ImportanceMatrix, Metadata, TensorPlan, Writer};

/// Says in a file that it was written here, so that it may be replaced.
const QUANTIZED_BY: &str = "general.quantized_by";
const OURS: &str = "oarlock";

/// Rows that are read at a time.
const ROWS: usize = 256;

/// Where the elements of tensors come from.
pub(super) trait Rows {
    /// Reads rows of a tensor as llama.cpp has them. `out` has their size.
    fn read(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()>;
}

/// What [`write_gguf`](super::write_gguf) has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenGguf {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub n_bytes: u64,
    /// How many tensors have each type, by the name of the type.
    pub types: Vec<(String, usize)>,
    /// What llama.cpp computes otherwise than this model.
    pub notes: Vec<String>,
}

/// What was written.
pub(super) struct Written {
    pub(super) n_bytes: u64,
    /// How many tensors have each type, by the name of the type.
    pub(super) types: Vec<(String, usize)>,
}

/// # Errors
/// [`Error::Usage`] where a file is in the way that was not written here, unless it may be replaced all the same.
pub(super) fn may_replace(out: &Path, overwrite: bool) -> Result<()> {
    match !overwrite && out.exists() && !is_ours(out) {
        true => Err(Error::Usage(format!(
            "{} was not written by an export; move it, or write `overwrite_output_dir: true` to replace it",
            out.display()
        ))),
        false => Ok(()),
    }
}

/// Writes a file with these keys and tensors, and reads it back. `importance` says how much the columns of tensors matter.
///
/// # Errors
/// Elements that cannot be read, an importance of other columns, a file that cannot be written or that is not what was meant.
pub(super) fn write(
    out: &Path,
    mut metadata: Metadata,
    plans: &[TensorPlan],
    source: &dyn Rows,
    importance: Option<&ImportanceMatrix>,
) -> Result<Written> {
    let unwritable = |error: oarlock_gguf::Error| Error::bad_file(out, error.to_string());
    let io = |error: std::io::Error| Error::io("write", out)(error);
    metadata.set(QUANTIZED_BY, OURS).map_err(unwritable)?;
    let columns = |plan: &TensorPlan| columns(plan, importance);
    // Before anything is written.
    plans.iter().try_for_each(|plan| columns(plan).map(drop))?;
    let mut file = oarlock_files::Replacement::begin(out).map_err(io)?;
    let mut writer =
        Writer::begin(BufWriter::new(&mut file), &metadata, plans.to_vec()).map_err(unwritable)?;
    let mut values = Vec::new();
    for plan in plans {
        let (row, n_rows) = shape(plan);
        let columns = columns(plan)?;
        for start in (0..n_rows).step_by(ROWS) {
            let rows = start..(start + ROWS).min(n_rows);
            values.resize(rows.len() * row, 0.0);
            source.read(&plan.name, rows, &mut values)?;
            writer.write_rows(&values, columns.as_deref()).map_err(unwritable)?;
        }
    }
    let sink = writer.finish().map_err(unwritable)?;
    sink.into_inner().map_err(|error| io(error.into_error()))?;
    file.publish().map_err(io)?;
    check(out, plans, source, importance)
}

/// How much the columns of a tensor matter, where that is known.
///
/// # Errors
/// An importance of another tensor.
fn columns(plan: &TensorPlan, importance: Option<&ImportanceMatrix>) -> Result<Option<Vec<f32>>> {
    let Some(columns) = importance.and_then(|matrix| matrix.weights(&plan.name)) else { return Ok(None) };
    match columns.len() as u64 == plan.row_elems() {
        true => Ok(Some(columns)),
        false => Err(Error::Usage(format!(
            "the importance matrix is one of another model: it has {} columns of {}, and the model {}",
            columns.len(),
            plan.name,
            plan.row_elems()
        ))),
    }
}

/// The elements of a row, and the rows.
fn shape(plan: &TensorPlan) -> (usize, usize) {
    let row = plan.row_elems() as usize;
    (row, plan.dims.iter().skip(1).product::<u64>() as usize)
}

/// Whether a file says that it was written here.
fn is_ours(path: &Path) -> bool {
    let map = oarlock_comm::MappedFile::open(path).ok();
    let gguf = map.as_ref().and_then(|map| Gguf::new(&map[..]).ok());
    gguf.is_some_and(|gguf| gguf.require::<&str>(QUANTIZED_BY).is_ok_and(|by| by == OURS))
}

/// Reads the file back: every tensor is there, and a row of each is that of the weights.
fn check(
    out: &Path,
    plans: &[TensorPlan],
    source: &dyn Rows,
    importance: Option<&ImportanceMatrix>,
) -> Result<Written> {
    let map = oarlock_comm::MappedFile::open(out).map_err(Error::io("read", out))?;
    let broken = |what: String| Error::bad_file(out, format!("the export is broken, do not use it: {what}"));
    let gguf = Gguf::new(&map[..]).map_err(|error| broken(error.to_string()))?;
    let mut types: Vec<(String, usize)> = Vec::new();
    let (mut values, mut expected, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for plan in plans {
        let tensor = gguf.tensor(&plan.name).map_err(|error| broken(error.to_string()))?;
        let name = plan.tensor_type.to_string();
        match types.iter_mut().find(|(known, _)| *known == name) {
            Some((_, n)) => *n += 1,
            None => types.push((name, 1)),
        }
        let (row, n_rows) = shape(plan);
        // One row says whether a tensor is the right one; its blocks were made by the code that is compared with.
        let at = n_rows / 2;
        values.resize(row, 0.0);
        found.resize(row, 0.0);
        expected.resize(row, 0.0);
        source.read(&plan.name, at..at + 1, &mut values)?;
        let columns = columns(plan, importance)?;
        oarlock_gguf::quantize(plan.tensor_type, &values, row, columns.as_deref())
            .and_then(|blocks| oarlock_gguf::dequantize(plan.tensor_type, &blocks, &mut expected))
            .and_then(|()| tensor.dequantize_rows(at as u64, 1, &mut found))
            .map_err(|error| broken(error.to_string()))?;
        if expected.iter().zip(&found).any(|(a, b): (&f32, &f32)| a.to_bits() != b.to_bits()) {
            return Err(broken(format!("row {at} of {} is not that of the weights", plan.name)));
        }
    }
    map.check().map_err(Error::io("read", out))?;
    types.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    Ok(Written { n_bytes: map.len() as u64, types })
}
