//! The weights of a prepared model under their names: as files that other programs read, and as tensors.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::str::FromStr;

use oarlock_comm::Scalar;
use oarlock_tensor::{DType, Tensor};

use crate::accelerator::handle::Accelerator;
use crate::accelerator::models::prepared::Prepared;
use crate::checkpoint::weights::{ModelFiles, Weight, check_weights_dtype};
use crate::checkpoint::{self, Frozen};
use crate::disk::A_PROGRAM;
use crate::nn::{BufferValues, Module, NamedBuffer, NamedParam, buffers, names_of, parameters};
use crate::shard::{MASTER, Slice, Snapshot};
use crate::{Error, Result};

/// How [`Accelerator::save_model`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveModel {
    /// The most bytes of weights in one file: `"10GB"` by default, which is Accelerate's. A weight that is larger has a
    /// file of its own.
    pub max_shard_size: ShardSize,
    /// Write safetensors. The other format of Accelerate, a pickle, is refused: to read one runs code that is in it.
    pub safe_serialization: bool,
    /// The dtype of the weights in the files; by default that of the arithmetic. f32 writes the master weights.
    pub dtype: Option<DType>,
    /// Whether frozen parameters are in the files. By default a model with adapters is written without them, as PEFT does:
    /// [`Strict::No`](crate::checkpoint::weights::Strict::No) reads such files. They have a fingerprint of each parameter that they leave
    /// out, by which [`Differences::other_base`](crate::checkpoint::weights::Differences) knows another base.
    pub frozen: Frozen,
    /// Whether files of these names are replaced that no program wrote with this library, or that were changed since. By default
    /// they are not, which is another choice than Accelerate's.
    pub overwrite: bool,
}

impl Default for SaveModel {
    fn default() -> SaveModel {
        SaveModel {
            max_shard_size: ShardSize(10_000_000_000),
            safe_serialization: true,
            dtype: None,
            frozen: Frozen::default(),
            overwrite: false,
        }
    }
}

/// A size of files, in bytes or as people write it.
///
/// ```
/// use oarlock::ShardSize;
///
/// # fn main() -> oarlock::Result<()> {
/// assert_eq!("500MB".parse::<ShardSize>()?, ShardSize(500_000_000));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardSize(pub u64);

impl FromStr for ShardSize {
    type Err = Error;
    fn from_str(text: &str) -> Result<ShardSize> {
        checkpoint::shard_size(text)
            .map(ShardSize)
            .map_err(|message| Error::Usage(format!("max_shard_size: {message}")))
    }
}

impl Accelerator {
    /// Writes the weights of a prepared model into the folder `dir`, as `model.safetensors`, or as several files with
    /// `model.safetensors.index.json`, which transformers and torch read: each weight once, under its first name, and
    /// persistent buffers as they are. Each rank writes what it owns, from where it lies. Other files of the folder stay; the weights of an earlier save are
    /// replaced when all is on the disk. All ranks call it.
    ///
    /// # Errors
    /// `safe_serialization: false`, a dtype that weights cannot have, or a rank that cannot write
    /// ([`CheckpointError::ModelNotSaved`](checkpoint::CheckpointError::ModelNotSaved), the same on all ranks); the folder
    /// is then as it was.
    #[track_caller]
    pub fn save_model<M: Module>(
        &self,
        model: &Prepared<M>,
        dir: impl AsRef<Path>,
        options: &SaveModel,
    ) -> Result<()> {
        let dir = dir.as_ref();
        if !options.safe_serialization {
            return Err(Error::Usage(
                "save_model: safe_serialization: false asks for a pickle, which runs code when it is read; only \
                 safetensors are written"
                    .to_owned(),
            ));
        }
        let dtype = options.dtype.unwrap_or(self.dtype());
        check_weights_dtype(dtype)?;
        model.state.check_together("save_model")?;
        let optimizer = model.state.optimizer()?;
        let left_out = options.frozen.left_out(optimizer.engine());
        let weight = |named: NamedParam| Weight {
            stored: named.name.clone(),
            shape: named.param.shape().sizes().to_vec(),
            name: named.name,
            dtype: dtype.into(),
        };
        let mut params = parameters(model.module());
        params.retain(|named| !left_out.contains(&named.name));
        let mut weights: Vec<Weight> = params.into_iter().map(weight).collect();
        let mut kept = buffers(model.module());
        kept.retain(|named| named.buffer.is_persistent());
        weights.extend(kept.iter().map(|NamedBuffer { name, buffer }| Weight {
            stored: name.clone(),
            shape: buffer.shape().sizes().to_vec(),
            name: name.clone(),
            dtype: match buffer.values() {
                BufferValues::Floats(_) => DType::F32.into(),
                BufferValues::Ints(_) => DType::I32.into(),
            },
        }));
        let base = checkpoint::describe_base(self.communicator(), optimizer.engine(), &left_out)?;
        let metadata = base.map(|base| (checkpoint::BASE_KEY.to_owned(), base)).into_iter().collect();
        let files = ModelFiles::with_metadata(&weights, options.max_shard_size.0, metadata)?;
        let files = files.written_by(A_PROGRAM, options.overwrite);
        checkpoint::save_model_in(
            dir,
            self.communicator(),
            &self.stores(),
            optimizer.engine(),
            files,
            &left_out,
            |writer| {
                kept.iter().try_for_each(|NamedBuffer { name, buffer }| match buffer.values() {
                    BufferValues::Floats(values) => writer.write_buffer(name, 0, &values),
                    BufferValues::Ints(values) => writer.write_buffer(name, 0, bytemuck::cast_slice(&values)),
                })
            },
        )
    }

    /// Writes a prepared model into the folder `dir` in Hugging Face form, `files` saying how: transformers'
    /// `save_pretrained`. Each rank writes what it owns. Frozen parameters are written as well where `files` have a place for
    /// them, which those of an adapter do not. All ranks call it.
    ///
    /// # Errors
    /// As [`Accelerator::save_model`].
    #[track_caller]
    pub fn save_pretrained<M: Module>(
        &self,
        model: &Prepared<M>,
        dir: impl AsRef<Path>,
        files: ModelFiles,
    ) -> Result<()> {
        let dir = dir.as_ref();
        model.state.check_together("save_pretrained")?;
        let optimizer = model.state.optimizer()?;
        let without_place = |(name, is_trained): &(&str, bool)| !is_trained && !files.holds(name);
        let left_out = optimizer.engine().parameters().filter(without_place);
        let left_out: BTreeSet<String> = left_out.map(|(name, _)| name.to_owned()).collect();
        checkpoint::save_model_in(
            dir,
            self.communicator(),
            &self.stores(),
            optimizer.engine(),
            files,
            &left_out,
            |_| Ok(()),
        )
    }

    /// The weights of a prepared model by name, in f32, whole on every rank whatever the placement, and its persistent
    /// buffers. Shared weights are there under each of their names, as in torch. [`Accelerator::load_state_dict`] is the
    /// inverse. All ranks call it. (Accelerate has them on rank 0 only where
    /// parameters are sharded, and rounded to 16 bits in DeepSpeed's stage 3.)
    ///
    /// # Errors
    /// When a rank failed, or there is no memory.
    #[track_caller]
    pub fn get_state_dict<M: Module>(&self, model: &Prepared<M>) -> Result<BTreeMap<String, Tensor>> {
        self.gather_state_dict(model, true)
    }

    /// As [`Accelerator::get_state_dict`], on process 0 only: the others need no memory for it and get `None`. All ranks
    /// call it.
    ///
    /// # Errors
    /// As [`Accelerator::get_state_dict`].
    #[track_caller]
    pub fn get_state_dict_on_main_process<M: Module>(
        &self,
        model: &Prepared<M>,
    ) -> Result<Option<BTreeMap<String, Tensor>>> {
        let state = self.gather_state_dict(model, self.is_main_process())?;
        Ok(self.is_main_process().then_some(state))
    }

    /// The weights and persistent buffers by name; none where this rank does not keep them.
    #[track_caller]
    fn gather_state_dict<M: Module>(
        &self,
        model: &Prepared<M>,
        keeps: bool,
    ) -> Result<BTreeMap<String, Tensor>> {
        model.state.check_together("get_state_dict")?;
        let mut values: HashMap<String, Vec<f32>> = HashMap::new();
        let module = &**model.module();
        for named in parameters(module).into_iter().filter(|_| keeps) {
            values.insert(named.name, vec![0.0; named.param.shape().n_elems()]);
        }
        {
            // A unit at a time, so that beside the result there is never more than a unit.
            let mut snapshot = model.state.optimizer()?.engine().snapshot();
            // Stages of a pipeline hold different numbers of them.
            let mut n_units = [snapshot.units() as f64];
            self.communicator().all_reduce_f64(&mut n_units, Scalar::Max)?;
            for unit in 0..n_units[0] as usize {
                let parcel = if unit < snapshot.units() { pack(&snapshot, unit)? } else { Vec::new() };
                let parcels = self.communicator().all_gather_bytes(&parcel)?;
                for parcel in parcels.into_iter().filter(|parcel| keeps && !parcel.is_empty()) {
                    unpack(&parcel, &mut values).ok_or_else(|| {
                        Error::Usage("get_state_dict: the ranks hold different models".to_owned())
                    })?;
                }
                if unit < snapshot.units() {
                    snapshot.release(unit);
                }
            }
        }
        if !keeps {
            return Ok(BTreeMap::new());
        }
        let mut first_names = HashMap::new();
        let mut state = BTreeMap::new();
        for named in names_of(module) {
            let first: &String = first_names.entry(named.param.id()).or_insert_with(|| named.name.clone());
            if let Some(values) = values.remove(first) {
                let tensor = Tensor::from_slice(&values, named.param.shape().sizes(), self.device())?;
                state.insert(named.name, tensor);
            } else if let Some(tensor) = state.get(first).cloned() {
                state.insert(named.name, tensor);
            }
        }
        for named in buffers(module).into_iter().filter(|named| named.buffer.is_persistent()) {
            state.insert(named.name, named.buffer.on(self.device())?);
        }
        Ok(state)
    }
}

/// The name of a parameter, the first of some elements of it, and how many.
type Location = (String, usize, usize);

/// The weights of a unit that this rank saves: their places as JSON behind its length, then the weights.
fn pack(snapshot: &Snapshot, unit: usize) -> Result<Vec<u8>> {
    let slices = snapshot.slices(unit).into_iter().filter(|slice| slice.kind == MASTER);
    let slices: Vec<Slice> = slices.filter(|slice| !slice.elements.is_empty()).collect();
    let places: Vec<Location> =
        slices.iter().map(|slice| (slice.name.clone(), slice.elements.start, slice.elements.len())).collect();
    let header = serde_json::to_vec(&places)
        .map_err(|error| Error::Usage(format!("the names of parameters do not travel: {error}")))?;
    let mut parcel = (header.len() as u64).to_le_bytes().to_vec();
    parcel.extend(header);
    for slice in &slices {
        snapshot.with_bytes(slice, &mut |bytes| {
            parcel.extend_from_slice(bytes);
            Ok(())
        })?;
    }
    Ok(parcel)
}

/// Puts the weights of a parcel in their places; nothing where one of them does not exist.
fn unpack(parcel: &[u8], values: &mut HashMap<String, Vec<f32>>) -> Option<()> {
    let (len, rest) = parcel.split_first_chunk::<8>()?;
    let (header, mut rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    for (name, first, n_elems) in serde_json::from_slice::<Vec<Location>>(header).ok()? {
        let part = values.get_mut(&name)?.get_mut(first..first.checked_add(n_elems)?)?;
        let bytes = rest.split_off(..n_elems.checked_mul(4)?)?;
        for (value, bytes) in part.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
    Some(())
}
