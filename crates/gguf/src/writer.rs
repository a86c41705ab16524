//! A GGUF file as it is written: the head first, then tensor after tensor.

use std::io::Write;

use crate::error::{Error, Result, shown};
use crate::metadata::{Metadata, put_text};
use crate::plan::TensorPlan;
use crate::reader::MAGIC;
use crate::rows::{is_finite, quantize};

/// The version of the format that is written.
const VERSION: u32 = 3;

/// The key that files with quantised tensors must have.
const QUANTIZATION_VERSION_KEY: &str = "general.quantization_version";

/// The elements that are quantised at once, so that the memory beside the given ones stays small.
const PART_ELEMS: usize = 1 << 22;

/// Writes a file from its beginning to its end, without going back.
///
/// The head names all tensors with their types and places, so they are planned before the first is written.
#[derive(Debug)]
pub struct Writer<W> {
    sink: W,
    alignment: u64,
    plans: Vec<Planned>,
    /// The tensor that comes next, or is being written.
    current: usize,
    /// The bytes of it that are written.
    n_written: u64,
}

#[derive(Debug)]
struct Planned {
    plan: TensorPlan,
    n_bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the head of a file with these keys and tensors.
    ///
    /// # Errors
    /// Names and shapes that llama.cpp does not read, tensors of the same name, quantised tensors without the key
    /// `general.quantization_version`, and errors of the sink.
    pub fn begin(mut sink: W, metadata: &Metadata, tensors: Vec<TensorPlan>) -> Result<Writer<W>> {
        let alignment = metadata.alignment();
        let mut head = Vec::new();
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
        head.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
        metadata.put(&mut head);
        let mut plans = Vec::with_capacity(tensors.len());
        let mut offset = 0_u64;
        for plan in tensors {
            let wrong = |problem: String| unwritable(&plan.name, problem);
            if plan.tensor_type.is_quantized() && !metadata.contains(QUANTIZATION_VERSION_KEY) {
                let problem = format!("it is quantised, and the key {QUANTIZATION_VERSION_KEY} is not set");
                return Err(wrong(problem));
            }
            let n_bytes = plan.check().map_err(wrong)?;
            put_text(plan.name.as_bytes(), &mut head);
            // At most four.
            head.extend_from_slice(&(plan.dims.len() as u32).to_le_bytes());
            plan.dims.iter().for_each(|dim| head.extend_from_slice(&dim.to_le_bytes()));
            head.extend_from_slice(&plan.tensor_type.id().to_le_bytes());
            head.extend_from_slice(&offset.to_le_bytes());
            let end = offset.checked_add(n_bytes).and_then(|end| end.checked_next_multiple_of(alignment));
            offset = end.ok_or_else(|| wrong("the file becomes too long".to_owned()))?;
            plans.push(Planned { plan, n_bytes });
        }
        let mut names: Vec<&str> = plans.iter().map(|planned| planned.plan.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(unwritable(twice[0], "another tensor has the same name".to_owned()));
        }
        sink.write_all(&head)?;
        let mut writer = Writer { sink, alignment, plans, current: 0, n_written: 0 };
        // The data begins aligned also where it is empty, as in files of llama.cpp.
        writer.pad(head.len() as u64)?;
        Ok(writer)
    }

    /// The tensor whose data comes next, or `None` when all are written.
    pub fn next_tensor(&self) -> Option<&TensorPlan> {
        self.plans.get(self.current).map(|planned| &planned.plan)
    }

    /// Writes the next rows of the tensor that is due, in its type. `importance` says how much the columns matter.
    ///
    /// # Errors
    /// More rows than the tensor has, parts of rows, elements that are not numbers or too large for the type, and errors of
    /// the sink.
    pub fn write_rows(&mut self, values: &[f32], importance: Option<&[f32]>) -> Result<()> {
        let plan = self.due()?;
        let tensor_type = plan.tensor_type;
        let row_elems = usize::try_from(plan.row_elems()).unwrap_or(usize::MAX);
        let part = PART_ELEMS.div_ceil(row_elems).saturating_mul(row_elems);
        for (number, values) in values.chunks(part).enumerate() {
            let first_row = number as u64 * (part / row_elems) as u64;
            let bytes =
                quantize(tensor_type, values, row_elems, importance).map_err(|error| match error {
                    Error::Element { row, index, value, tensor_type } => {
                        Error::Element { row: row + first_row, index, value, tensor_type }
                    }
                    other => other,
                })?;
            self.append(&bytes)?;
        }
        Ok(())
    }

    /// Writes the next bytes of the tensor that is due, which are whole blocks of its type already.
    ///
    /// # Errors
    /// More bytes than the tensor has, parts of blocks, numbers and scales that are not finite, and errors of the sink.
    pub fn write_blocks(&mut self, bytes: &[u8]) -> Result<()> {
        let plan = self.due()?;
        let size = plan.tensor_type.block_bytes();
        if !bytes.len().is_multiple_of(size) {
            let problem = format!("{} bytes are not whole blocks of {size} bytes", bytes.len());
            return Err(unwritable(&plan.name, problem));
        }
        if !is_finite(plan.tensor_type, bytes) {
            let problem =
                "it has a number or a scale that is not finite; the weights are damaged or diverged";
            return Err(unwritable(&plan.name, problem.to_owned()));
        }
        self.append(bytes)
    }

    /// Ends the file, which must be whole, and gives back its sink.
    ///
    /// # Errors
    /// A tensor whose data is missing, and errors of the sink.
    pub fn finish(mut self) -> Result<W> {
        if let Some(Planned { plan, n_bytes }) = self.plans.get(self.current) {
            let problem = format!("{} of its {n_bytes} bytes were given", self.n_written);
            return Err(unwritable(&plan.name, problem));
        }
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn due(&self) -> Result<&TensorPlan> {
        self.next_tensor().ok_or_else(|| unwritable("", "all tensors of the file are written".to_owned()))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(Planned { plan, n_bytes }) = self.plans.get(self.current) else { return Ok(()) };
        let (n_bytes, n_given) = (*n_bytes, self.n_written + bytes.len() as u64);
        if n_given > n_bytes {
            let problem = format!("{n_given} bytes were given, and it has {n_bytes}");
            return Err(unwritable(&plan.name, problem));
        }
        self.sink.write_all(bytes)?;
        self.n_written = n_given;
        if n_given == n_bytes {
            self.pad(n_bytes)?;
            self.current += 1;
            self.n_written = 0;
        }
        Ok(())
    }

    /// Writes zeros behind a part whose length is this and whose begin is aligned.
    fn pad(&mut self, n_bytes: u64) -> Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut left = n_bytes.next_multiple_of(self.alignment) - n_bytes;
        while left > 0 {
            let n = left.min(ZEROS.len() as u64);
            // At most the length of the zeros.
            self.sink.write_all(&ZEROS[..n as usize])?;
            left -= n;
        }
        Ok(())
    }
}

fn unwritable(name: &str, problem: String) -> Error {
    Error::Unwritable { name: format!("the tensor {}", shown(name)), problem }
}
