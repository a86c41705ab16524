//! Importance matrices: how much each input column of each weight matters, as llama-imatrix collects it.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Deref;

use crate::cursor::Cursor;
use crate::error::{Error, Result, shown};
use crate::metadata::Metadata;
use crate::plan::TensorPlan;
use crate::reader::{Gguf, MAGIC};
use crate::tensor::Tensor;
use crate::types::TensorType;
use crate::writer::Writer;

/// The ends of the names of the two tensors of a weight.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// The squares of what was multiplied with a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    sums: Vec<f32>,
    counts: Vec<f32>,
}

/// What was seen of each weight of a model while texts went through it.
///
/// It is a GGUF file today, and was one of another form (`.dat`) before. Both are read and written.
///
/// ```
/// use oarlock_gguf::{Importance, ImportanceMatrix};
///
/// let mut matrix = ImportanceMatrix { datasets: vec!["train.txt".into()], n_chunks: 1, chunk_tokens: 512, ..Default::default() };
/// matrix.insert("blk.0.attn_q.weight", Importance::new(vec![1024.0, 512.0], vec![512.0])?);
/// let mut file = Vec::new();
/// matrix.write(&mut file)?;
///
/// let again = ImportanceMatrix::read(&file)?;
/// assert_eq!(again.weights("blk.0.attn_q.weight"), Some(vec![2.0, 1.0]));
/// # Ok::<(), oarlock_gguf::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportanceMatrix {
    /// The files that the texts came from.
    pub datasets: Vec<String>,
    /// The number of chunks that went through the model.
    pub n_chunks: u32,
    /// The tokens of a chunk; 0 where it is not known, as in the older form.
    pub chunk_tokens: u32,
    /// What was seen of each weight, by the name of its tensor.
    pub entries: BTreeMap<String, Importance>,
}

impl Importance {
    /// The sums of squares of all columns, expert after expert, and for each expert the number of rows that were seen.
    ///
    /// # Errors
    /// Lengths that do not belong together, and numbers that are negative or not finite.
    pub fn new(sums: Vec<f32>, counts: Vec<f32>) -> Result<Importance> {
        Importance::at(0, sums, counts)
    }

    fn at(at: u64, sums: Vec<f32>, counts: Vec<f32>) -> Result<Importance> {
        let wrong = |problem| Error::Importance { at, problem };
        if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
            let (n_sums, n_counts) = (sums.len(), counts.len());
            return Err(wrong(format!("{n_sums} sums do not belong to {n_counts} counts")));
        }
        match sums.iter().chain(&counts).find(|number| !(0.0..=f32::MAX).contains(*number)) {
            Some(number) => Err(wrong(format!("it holds {number}, and numbers from 0 were expected"))),
            None => Ok(Importance { sums, counts }),
        }
    }

    /// How much the columns matter, expert after expert. The columns of an expert that saw nothing matter alike.
    pub fn weights(&self) -> Vec<f32> {
        let n_columns = self.sums.len() / self.counts.len();
        let experts = self.sums.chunks(n_columns).zip(&self.counts);
        let weight = |sum: f32, count: f32| if count > 0.0 { sum / count } else { 1.0 };
        experts.flat_map(|(sums, count)| sums.iter().map(move |sum| weight(*sum, count.round()))).collect()
    }
}

impl ImportanceMatrix {
    /// Reads a matrix in either form.
    ///
    /// # Errors
    /// What neither form allows, with its place.
    pub fn read(bytes: &[u8]) -> Result<ImportanceMatrix> {
        match bytes.starts_with(&MAGIC) {
            true => ImportanceMatrix::of(&Gguf::new(bytes)?),
            false => ImportanceMatrix::read_legacy(bytes),
        }
    }

    /// Sets what was seen of a weight.
    pub fn insert(&mut self, name: impl Into<String>, importance: Importance) {
        self.entries.insert(name.into(), importance);
    }

    /// How much the columns of a weight matter, expert after expert, unless nothing is known of it.
    pub fn weights(&self, name: &str) -> Option<Vec<f32>> {
        self.entries.get(name).map(Importance::weights)
    }

    /// Writes the matrix as a GGUF file.
    ///
    /// # Errors
    /// Names that are too long for tensors, and errors of the sink.
    pub fn write(&self, sink: impl Write) -> Result<()> {
        let mut metadata = Metadata::new();
        metadata.set("general.type", "imatrix")?;
        metadata.set("imatrix.datasets", self.datasets.as_slice())?;
        metadata.set("imatrix.chunk_count", self.n_chunks)?;
        metadata.set("imatrix.chunk_size", self.chunk_tokens)?;
        let plan = |name: String, columns: usize, experts: usize| {
            // As in files of llama.cpp, dimensions of 1 at the end are left away.
            let dims = [columns as u64, experts as u64];
            TensorPlan::new(name, &dims[..if experts > 1 { 2 } else { 1 }], TensorType::F32)
        };
        let mut plans = Vec::with_capacity(2 * self.entries.len());
        for (name, Importance { sums, counts }) in &self.entries {
            plans.push(plan(format!("{name}{SUMS}"), sums.len() / counts.len(), counts.len()));
            plans.push(plan(format!("{name}{COUNTS}"), 1, counts.len()));
        }
        let mut writer = Writer::begin(sink, &metadata, plans)?;
        for Importance { sums, counts } in self.entries.values() {
            writer.write_rows(sums, None)?;
            writer.write_rows(counts, None)?;
        }
        writer.finish().map(|_| ())
    }

    /// Writes the matrix in the older form, which keeps means alone.
    ///
    /// # Errors
    /// What is too long for 32 bits, and errors of the sink.
    pub fn write_legacy(&self, mut sink: impl Write) -> Result<()> {
        let mut bytes = Vec::new();
        put_count(self.entries.len(), &mut bytes)?;
        for (name, Importance { sums, counts }) in &self.entries {
            put_count(name.len(), &mut bytes)?;
            bytes.extend_from_slice(name.as_bytes());
            let most = counts.iter().fold(0.0_f32, |most, count| if *count > most { *count } else { most });
            let chunks = (most / self.chunk_tokens.max(1) as f32).ceil();
            bytes.extend_from_slice(&(chunks as i32).to_le_bytes());
            put_count(sums.len(), &mut bytes)?;
            let columns = sums.len() / counts.len();
            for (sums, count) in sums.chunks(columns).zip(counts) {
                for sum in sums {
                    let mean = if *count > 0.0 { sum / count } else { 1.0 };
                    bytes.extend_from_slice(&(mean * chunks).to_le_bytes());
                }
            }
        }
        bytes.extend_from_slice(&self.n_chunks.to_le_bytes());
        let dataset = self.datasets.last().map_or("", String::as_str);
        put_count(dataset.len(), &mut bytes)?;
        bytes.extend_from_slice(dataset.as_bytes());
        sink.write_all(&bytes)?;
        Ok(sink.flush()?)
    }

    fn of<B: Deref<Target = [u8]>>(gguf: &Gguf<B>) -> Result<ImportanceMatrix> {
        let datasets = gguf.get::<Vec<&[u8]>>("imatrix.datasets")?.unwrap_or_default();
        let mut matrix = ImportanceMatrix {
            datasets: datasets.into_iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
            n_chunks: gguf.get("imatrix.chunk_count")?.unwrap_or_default(),
            chunk_tokens: gguf.get("imatrix.chunk_size")?.unwrap_or_default(),
            entries: BTreeMap::new(),
        };
        let numbers = |tensor: Tensor<'_>| match tensor.tensor_type() {
            TensorType::F32 => tensor.to_f32(),
            other => {
                let problem = format!("{} has type {other}, and F32 was expected", shown(tensor.name()));
                Err(Error::Importance { at: 0, problem })
            }
        };
        for tensor in gguf.tensors() {
            if let Some(name) = tensor.name().strip_suffix(SUMS) {
                let counts = gguf.tensor(&format!("{name}{COUNTS}"))?;
                matrix.insert(name, Importance::new(numbers(tensor)?, numbers(counts)?)?);
            } else if let Some(name) = tensor.name().strip_suffix(COUNTS) {
                gguf.tensor(&format!("{name}{SUMS}"))?;
            }
        }
        match matrix.entries.is_empty() {
            true => {
                Err(Error::Importance { at: 0, problem: "it knows no weights; collect it again".to_owned() })
            }
            false => Ok(matrix),
        }
    }

    fn read_legacy(bytes: &[u8]) -> Result<ImportanceMatrix> {
        let mut cursor = Cursor::new(bytes, 0);
        let part = "an importance matrix";
        let n_entries = count(&mut cursor, 1, "entries")?;
        let mut matrix = ImportanceMatrix::default();
        for _ in 0..n_entries {
            let at = cursor.at() as u64;
            let n_name_bytes = count(&mut cursor, 1, "bytes of a name")?;
            let name = String::from_utf8_lossy(cursor.take(n_name_bytes, &part)?).into_owned();
            let n_chunks = i32::from_le_bytes(cursor.array(&part)?);
            let n_sums = count(&mut cursor, 1, "columns")?;
            let sums = cursor.take(n_sums * 4, &part)?;
            let (sums, _) = sums.as_chunks::<4>();
            let sums = sums.iter().map(|sum| f32::from_le_bytes(*sum)).collect();
            // Where no chunk is counted, the sums are taken as they are.
            let counts = vec![n_chunks.max(1) as f32];
            matrix.insert(name, Importance::at(at, sums, counts)?);
        }
        // The oldest files end here.
        if cursor.left() > 0 {
            matrix.n_chunks = cursor.u32(&part)?;
        }
        if cursor.left() > 0 {
            let n_bytes = count(&mut cursor, 0, "bytes of a data set's name")?;
            let name = String::from_utf8_lossy(cursor.take(n_bytes, &part)?).into_owned();
            matrix.datasets.extend(Some(name).filter(|name| !name.is_empty()));
        }
        Ok(matrix)
    }
}

/// A number of things of the older form, at least this many.
fn count(cursor: &mut Cursor<'_>, least: i32, what: &str) -> Result<u64> {
    let at = cursor.at() as u64;
    let found = i32::from_le_bytes(cursor.array(&"an importance matrix")?);
    let enough = u64::try_from(found).ok().filter(|_| found >= least);
    enough.ok_or_else(|| Error::Importance {
        at,
        problem: format!(
            "it has {found} {what}, and at least {least} were expected; this is no importance matrix"
        ),
    })
}

fn put_count(n: usize, bytes: &mut Vec<u8>) -> Result<()> {
    let n = i32::try_from(n).map_err(|_| Error::Unwritable {
        name: "the importance matrix".to_owned(),
        problem: format!("it has a part of {n} elements, which 32 bits do not count"),
    })?;
    bytes.extend_from_slice(&n.to_le_bytes());
    Ok(())
}
