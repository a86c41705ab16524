//! The weights of a folder: safetensors files, mapped into memory and read in slices.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use oarlock_comm::MappedFile;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::block_quantized::BlockLayout;
use oarlock_tensor::{DType, Device, Par, Shape};

use super::elements;
use super::files::CHUNK_ELEMS;
use super::located::{Located, Packed};
use super::mapped::MappedFiles;
use super::matching::{Differences, Matched, Strict};
use super::packed;
use super::quantized::{QuantizedLayers, words_or_values};
use super::stored::StoredForm;
use crate::nn::{Buffer, BufferValues, Module, NamedBuffer, StoredNames};
use crate::shard::{ParamSlice, Unfit, WeightSource};
use crate::{Error, Result};

/// The weights of a Hugging Face folder, checked against a model as a whole when opened.
pub struct SafetensorsSource {
    /// Where they are.
    path: PathBuf,
    files: Vec<MappedFile>,
    /// By the names that the model uses, each with its own part of a tensor that holds several.
    tensors: HashMap<String, Located>,
    /// Buffers of the model that the files hold, with their values there.
    buffers: Vec<(Buffer, BufferValues)>,
    /// What the files say of themselves.
    metadata: HashMap<String, String>,
    /// Warnings about the files.
    notes: Vec<String>,
    /// Whether matrices in blocks are read as the panels of products of integers, instead of as rows.
    in_panels: bool,
    /// The words of the quantized weight that was read last, of which other parts may be asked for next.
    last: Option<(String, Vec<i32>)>,
}

impl SafetensorsSource {
    /// Opens `model.safetensors`, or the files that `model.safetensors.index.json` lists, and checks that they hold the
    /// weights of `model` and nothing else. A weight that the model shows under several names needs only one of them.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a broken file, and for missing, unexpected or misshapen weights (at most five listed).
    pub fn open(dir: &Path, form: &dyn StoredForm, model: &dyn Module) -> Result<SafetensorsSource> {
        let mut files = match form.files(dir)? {
            Some(files) => files,
            None => MappedFiles::of_folder(dir)?,
        };
        if let Some(quantization) = form.quantization() {
            let gathered = packed::gather(quantization, &mut files.tensors, &files.files);
            gathered.map_err(|problem| Error::bad_file(dir, problem))?;
            files.notes.extend(form.contradictions(dir, &files.tensors));
        }
        let found = &files.tensors;
        let title = form.title();
        let matched = Matched::parameters(model, &|name| form.stored(name), title, found);
        let mut problems = matched.problems(&format!("{title} asks for"), Strict::Yes);
        let missing = &matched.differences.missing;
        if let Some(explanation) = (!missing.is_empty()).then(|| form.explain_missing(missing)).flatten() {
            problems[0] = explanation;
        }
        match problems.is_empty() {
            true => Ok(SafetensorsSource::of(dir, files, matched)?.0),
            false => Err(Error::bad_file(dir, problems.join("; it "))),
        }
    }

    /// Opens the weights of any model: a safetensors file, or a folder of them as [`SafetensorsSource::open`] takes it,
    /// under the names that the model shows, or under its [`StoredNames`]. What the files lack keeps the values that
    /// it has; the result says what that is.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a broken file and for misshapen weights; with [`Strict::Yes`] also for missing and
    /// unexpected ones (at most five listed).
    pub fn of_module(
        path: &Path,
        model: &dyn Module,
        strict: Strict,
    ) -> Result<(SafetensorsSource, Differences)> {
        let files = match path.is_dir() {
            true => MappedFiles::of_folder(path)?,
            false => MappedFiles::open(std::iter::once(path.to_path_buf()))?,
        };
        let found = &files.tensors;
        let mut matched = Matched::parameters(model, &str::to_owned, "the model", found);
        if !matched.differences.missing.is_empty()
            && let Some(stored) = StoredNames::of(model)
        {
            let by_stored = Matched::parameters(model, &|name| stored.stored(name), "the model", found);
            if by_stored.differences.missing.len() < matched.differences.missing.len() {
                matched = by_stored;
            }
        }
        matched.and_buffers(model, found);
        let problems = matched.problems_of_module(strict);
        match problems.is_empty() {
            true => SafetensorsSource::of(path, files, matched),
            false => Err(Error::bad_file(path, problems.join("; it "))),
        }
    }

    /// What a model takes of these files, which are at `path`.
    fn of(
        path: &Path,
        MappedFiles { files, tensors: found, metadata, notes }: MappedFiles,
        matched: Matched,
    ) -> Result<(SafetensorsSource, Differences)> {
        let mut buffers = Vec::new();
        for NamedBuffer { name, buffer } in matched.buffers {
            let stored = &found[&name];
            let bytes = &files[stored.file][stored.bytes.clone()];
            let values = elements::like(&name, &buffer.values(), stored.dtype, bytes);
            buffers.push((buffer, values.map_err(|error| Error::bad_file(path, error.to_string()))?));
        }
        are_whole(&files)?;
        let tensors = matched.tensors.into_iter();
        let tensors = tensors.map(|(name, tensor)| (name, found[&tensor].clone())).collect();
        let path = path.to_path_buf();
        let source = SafetensorsSource {
            path,
            files,
            tensors,
            buffers,
            metadata,
            notes,
            in_panels: false,
            last: None,
        };
        Ok((source, matched.differences))
    }

    /// The linear layers whose weights the files hold quantized, in the format of layers that compute with them.
    pub fn quantized_layers(&self) -> QuantizedLayers {
        let layer = |(name, located): (&String, &Located)| {
            let layout = located.packed.as_ref()?.layout()?;
            Some((name.strip_suffix(".weight")?.to_owned(), layout.format))
        };
        QuantizedLayers::At(self.tensors.iter().filter_map(layer).collect())
    }

    /// The linear layers whose weights the files hold in the blocks of GGUF, which layers can dequantize part by part.
    pub fn layers_in_blocks(&self) -> QuantizedLayers {
        let layer = |(name, located): (&String, &Located)| {
            let layout = located.packed.as_ref()?.row_blocks()?;
            Some((name.strip_suffix(".weight")?.to_owned(), layout.format))
        };
        QuantizedLayers::At(self.tensors.iter().filter_map(layer).collect())
    }

    /// Reads matrices in blocks as the panels of [`matrices_in_blocks`](Self::matrices_in_blocks) where a parameter has their
    /// words, instead of as rows of blocks.
    #[must_use]
    pub fn in_panels(self) -> SafetensorsSource {
        SafetensorsSource { in_panels: true, ..self }
    }

    /// The matrices that the files hold in blocks with which layers can compute, by the names of the model.
    pub fn matrices_in_blocks(&self) -> BTreeMap<String, BlockLayout> {
        let in_blocks =
            |(name, located): (&String, &Located)| Some((name.clone(), located.packed.as_ref()?.blocks()?));
        self.tensors.iter().filter_map(in_blocks).collect()
    }

    /// The words of a matrix in blocks, where a parameter has as many.
    fn read_blocks(&mut self, slice: &ParamSlice<'_>, packed: &dyn Packed, out: &mut [f32]) -> Result<()> {
        let known = self.last.take_if(|(last, _)| last == slice.name).map(|(_, words)| words);
        let words = known.or_else(|| packed.block_words(&self.files)).unwrap_or_default();
        are_whole(&self.files)?;
        let bits = words.get(slice.elements.clone()).unwrap_or_default();
        out.iter_mut().zip(bits).for_each(|(out, &word)| *out = f32::from_bits(word.cast_unsigned()));
        self.last = Some((slice.name.to_owned(), words));
        Ok(())
    }

    /// Elements of a quantized matrix, or the words of one that layers compute with.
    fn read_packed(&mut self, slice: &ParamSlice<'_>, packed: &dyn Packed, out: &mut [f32]) -> Result<()> {
        let ParamSlice { name, elements, .. } = slice;
        let is_words = slice.shape.sizes() != packed.shape();
        if self.in_panels && packed.blocks().is_some() && is_words {
            return self.read_blocks(slice, packed, out);
        }
        if let Some(layout) = packed.row_blocks().filter(|_| is_words) {
            let is_finite = packed.row_words(&self.files, elements.clone(), out);
            are_whole(&self.files)?;
            let (shape, whole) = (Shape::new(&[layout.rows, layout.cols])?, 0..layout.n_elems());
            let weight = ParamSlice { name, shape, init: slice.init, elements: whole };
            return if is_finite { Ok(()) } else { Err(self.not_finite(&weight)?) };
        }
        let Some(layout) = packed.layout() else {
            packed.read(&self.files, elements.clone(), out);
            return are_whole(&self.files);
        };
        let known = self.last.take_if(|(last, _)| last == name).map(|(_, words)| words);
        let words = known.or_else(|| packed.words(&self.files)).unwrap_or_default();
        let device = Device::cpu(Isa::detect(), Par::solo());
        are_whole(&self.files)?;
        let read = words_or_values(&device, layout, &words, slice, out);
        self.last = Some(((*name).to_owned(), words));
        read
    }

    /// An entry in the metadata of the files.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Gives the buffers of the model the values that the files have for them.
    ///
    /// # Errors
    /// Never for a model that has kept its buffers.
    pub fn fill_buffers(&self) -> Result<()> {
        for (buffer, values) in &self.buffers {
            buffer.set(values.clone())?;
        }
        Ok(())
    }
}

impl WeightSource for SafetensorsSource {
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        self.read_any(slice, out)?;
        // The bits of words are not numbers.
        let is_words = self.tensors.get(slice.name).is_some_and(|tensor| tensor.shape != slice.shape.sizes());
        match is_words || !Unfit::of(out, DType::F32).any() {
            true => Ok(()),
            false => Err(self.not_finite(slice)?),
        }
    }
}

impl SafetensorsSource {
    fn read_any(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let ParamSlice { name, shape, elements, .. } = slice;
        let fits = |t: &&Located| {
            let words = t.packed.as_ref().and_then(|packed| {
                let panels = packed.blocks().filter(|_| self.in_panels).map(|blocks| blocks.n_words());
                panels.or(packed.layout().or(packed.row_blocks()).map(|layout| layout.n_words()))
            });
            (t.shape == shape.sizes() || words.is_some_and(|n| shape.sizes() == [n]))
                && elements.len() == out.len()
                && elements.end <= shape.n_elems()
        };
        let Some(tensor) = self.tensors.get(*name).filter(fits) else {
            return Err(Error::Usage(format!(
                "elements {elements:?} of \"{name}\" {shape:?} are not among the opened weights"
            )));
        };
        if let Some(packed) = tensor.packed.clone() {
            return self.read_packed(slice, &*packed, out);
        }
        let bytes = &self.files[tensor.file][tensor.bytes.clone()];
        let size = tensor.dtype.bitsize() / 8;
        elements::to_f32(name, tensor.dtype, &bytes[elements.start * size..elements.end * size], out)?;
        are_whole(&self.files[tensor.file..=tensor.file])
    }

    /// What is said of a weight with elements that are not finite; all of it is looked at for that.
    fn not_finite(&mut self, slice: &ParamSlice<'_>) -> Result<Error> {
        let (n_elems, mut n) = (slice.shape.n_elems(), 0);
        let mut values = vec![0.0; CHUNK_ELEMS.min(n_elems)];
        for start in (0..n_elems).step_by(CHUNK_ELEMS) {
            let elements = start..(start + CHUNK_ELEMS).min(n_elems);
            let values = &mut values[..elements.len()];
            self.read_any(&slice.at(elements), values)?;
            n += values.iter().filter(|x| !x.is_finite()).count();
        }
        Ok(Error::bad_file(&self.path, elements::not_finite(slice.name, n, n_elems)))
    }
}

/// What was read of files that others can make shorter counts if they did not.
fn are_whole(files: &[MappedFile]) -> Result<()> {
    files.iter().try_for_each(|file| file.check().map_err(Error::io("read", file.path())))
}
