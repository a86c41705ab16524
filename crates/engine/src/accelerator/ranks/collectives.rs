//! Values of all ranks: gather, pad, broadcast, over any value that holds tensors.
//!
//! Before tensors move, the ranks tell one another what they bring (the call, its place, shapes and dtypes) in one small
//! collective. All see the same and come to the same verdict, so that a misuse is one error on all ranks.

use std::panic::Location;

use oarlock_tensor::{DType, Element, Tensor, bf16, f16, ops};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::accelerator::handle::Accelerator;
use crate::nn::nested::Nested;
use crate::{Error, Result};

/// How [`Accelerator::pad_across_processes`] pads. The fields are those of Accelerate.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Pad {
    /// The dim that grows; tensors without it stay as they are.
    pub dim: usize,
    /// What stands in the new places: -100 for labels that no loss counts.
    pub pad_index: f64,
    /// The new places come first.
    pub pad_first: bool,
}

/// What a rank says of a tensor that it brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leaf {
    dtype: String,
    pub sizes: Vec<usize>,
}

impl Leaf {
    /// Whether it may be joined with another along dim 0.
    pub fn has_rows_like(&self, other: &Leaf) -> bool {
        self.dtype == other.dtype && self.sizes.get(1..) == other.sizes.get(1..)
    }
}

/// What a rank says when it comes to a call.
#[derive(Serialize, Deserialize)]
struct Said {
    call: String,
    site: String,
    /// Why it cannot give its part. Else the part comes behind this.
    failed: Option<String>,
}

impl Accelerator {
    /// The values of all ranks, joined along dim 0 in the order of ranks; a number becomes a vector of one for each
    /// rank. Shapes and dtypes are the same on all ranks ([`Accelerator::pad_across_processes`] sees to that). What comes
    /// out is on this rank's device and on no tape.
    ///
    /// Accelerate compares the shapes only in its debug mode, and hangs or mixes up values otherwise.
    ///
    /// # Errors
    /// On all ranks: other shapes, another number of tensors, another call somewhere, a failed rank.
    #[track_caller]
    pub fn gather<T: Nested>(&self, value: &T) -> Result<T> {
        self.gather_for("gather", value)
    }

    /// Gathers for the method `call`.
    #[track_caller]
    pub(crate) fn gather_for<T: Nested>(&self, call: &str, value: &T) -> Result<T> {
        let tensors = value.tensors();
        let brought = self.meet(call, &tensors)?;
        check_equal(call, &brought)?;
        let parts = self.exchange_tensors(&tensors, &brought)?;
        rebuild(value, join(&tensors, &parts, self)?)
    }

    /// Each tensor as large along a dim as the largest of all ranks; the other dims stay as they are.
    ///
    /// # Errors
    /// As [`Accelerator::gather`], where only the number of dims must be the same; a `pad_index` that is not an i32 for
    /// integers.
    #[track_caller]
    pub fn pad_across_processes<T: Nested>(&self, value: &T, pad: Pad) -> Result<T> {
        let tensors = value.tensors();
        let brought = self.meet(&format!("pad_across_processes ({pad:?})"), &tensors)?;
        check("pad_across_processes", &brought, "one dtype and number of dims", |_, a, b| {
            a.dtype == b.dtype && a.sizes.len() == b.sizes.len()
        })?;
        let padded = tensors.iter().enumerate().map(|(index, tensor)| {
            let sizes = brought.iter().filter_map(|leaves| leaves[index].sizes.get(pad.dim));
            match sizes.max() {
                Some(&most) if most > tensor.sizes()[pad.dim] => padded(tensor, pad, most, self),
                _ => Ok(tensor.detach()),
            }
        });
        rebuild(value, padded.collect::<Result<_>>()?)
    }

    /// The value of one process, on all. Shapes and dtypes are the same on all ranks, and so is the rest of the value,
    /// which does not travel.
    ///
    /// # Errors
    /// As [`Accelerator::gather`], and when there is no such process.
    #[track_caller]
    pub fn broadcast<T: Nested>(&self, value: &T, from_process: usize) -> Result<T> {
        self.check_process("broadcast", from_process)?;
        let tensors = value.tensors();
        let brought = self.meet(&format!("broadcast from process {from_process}"), &tensors)?;
        check_equal("broadcast", &brought)?;
        let mine = if self.process_index() == from_process { to_bytes(&tensors)? } else { Vec::new() };
        let bytes = self.communicator().broadcast_bytes(from_process, &mine)?;
        let parts = cut(&bytes, &tensors, &brought[from_process]);
        let received = tensors
            .iter()
            .zip(parts)
            .map(|(tensor, part)| from_bytes(tensor.dtype(), part, tensor.sizes(), self));
        rebuild(value, received.collect::<Result<_>>()?)
    }

    /// The value of one process, on all: any value that serde knows. What the others give is ignored.
    ///
    /// # Errors
    /// A value that cannot be written or read, no such process, another call somewhere, a failed rank.
    #[track_caller]
    pub fn broadcast_object<T: Serialize + DeserializeOwned>(
        &self,
        value: &T,
        from_process: usize,
    ) -> Result<T> {
        self.check_process("broadcast_object", from_process)?;
        let mine = if self.process_index() == from_process { encode(value) } else { Ok(Vec::new()) };
        let said = self.exchange(&format!("broadcast_object from process {from_process}"), mine)?;
        decode("broadcast_object", from_process, &said[from_process])
    }

    /// The values of one process, in the place of those of all others, which have as many.
    ///
    /// # Errors
    /// As [`Accelerator::broadcast_object`]; another number of values, on the rank that has it.
    #[track_caller]
    pub fn broadcast_object_list<T: Serialize + DeserializeOwned>(
        &self,
        values: &mut [T],
        from_process: usize,
    ) -> Result<()> {
        self.check_process("broadcast_object_list", from_process)?;
        let mine = if self.process_index() == from_process { encode(&values) } else { Ok(Vec::new()) };
        let call = format!("broadcast_object_list of {} from process {from_process}", values.len());
        let said = self.exchange(&call, mine)?;
        let received: Vec<T> = decode("broadcast_object_list", from_process, &said[from_process])?;
        values.iter_mut().zip(received).for_each(|(value, received)| *value = received);
        Ok(())
    }

    /// The values of all ranks, one list after the other; lists may differ in length.
    ///
    /// # Errors
    /// As [`Accelerator::broadcast_object`].
    #[track_caller]
    pub fn gather_object<T: Serialize + DeserializeOwned>(&self, values: &[T]) -> Result<Vec<T>> {
        let said = self.exchange("gather_object", encode(&values))?;
        Ok(decode_all::<Vec<T>>("gather_object", &said)?.into_iter().flatten().collect())
    }

    /// What each rank brings to a call. All ranks see the same, so they fail alike.
    #[track_caller]
    pub(crate) fn exchange(
        &self,
        call: &str,
        body: std::result::Result<Vec<u8>, String>,
    ) -> Result<Vec<Vec<u8>>> {
        let site = Location::caller();
        let site = format!("{}:{}", site.file(), site.line());
        let (body, failed) = match body {
            Ok(body) => (body, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let mut mine = encode(&Said { call: call.to_owned(), site, failed }).map_err(Error::Usage)?;
        mine.extend_from_slice(&body);
        let all = self.communicator().all_gather_bytes(&mine)?;
        let said = all.iter().map(|bytes| {
            let mut rest = &bytes[..];
            let said = Said::deserialize(&mut rmp_serde::Deserializer::new(&mut rest)).ok()?;
            Some((said, rest))
        });
        let said: Vec<Option<(Said, &[u8])>> = said.collect();
        if said.iter().any(|said| said.as_ref().is_none_or(|(said, _)| said.call != call)) {
            let calls = said.iter().enumerate().map(|(rank, said)| match said {
                Some((said, _)) => format!("\n  - Process {rank}: {} at {}", said.call, said.site),
                None => format!("\n  - Process {rank}: a collective of its communicator"),
            });
            return Err(Error::Usage(format!(
                "ranks called different methods; all must call the same ones, with the same arguments, in the same \
                 order:{}",
                calls.collect::<String>()
            )));
        }
        let bodies = said.into_iter().flatten().enumerate().map(|(rank, (said, body))| match said.failed {
            None => Ok(body.to_vec()),
            Some(why) => Err(Error::Usage(format!("{call}: process {rank} cannot give its part: {why}"))),
        });
        bodies.collect()
    }

    /// Tells the other ranks which tensors this one brings to a call, and hears it from them.
    #[track_caller]
    pub(crate) fn meet(&self, call: &str, tensors: &[Tensor]) -> Result<Vec<Vec<Leaf>>> {
        let said = self.exchange(call, encode(&leaves(tensors)))?;
        let brought: Vec<Vec<Leaf>> = decode_all(call, &said)?;
        check_number(call, brought.iter().map(Vec::len))?;
        Ok(brought)
    }

    /// The bytes of each tensor (outer) on each rank (inner), whose shapes are known.
    #[track_caller]
    pub(crate) fn exchange_tensors(
        &self,
        tensors: &[Tensor],
        brought: &[Vec<Leaf>],
    ) -> Result<Vec<Vec<Vec<u8>>>> {
        let all = self.communicator().all_gather_bytes(&to_bytes(tensors)?)?;
        let mut parts: Vec<Vec<Vec<u8>>> = tensors.iter().map(|_| Vec::with_capacity(all.len())).collect();
        for (bytes, leaves) in all.iter().zip(brought) {
            let cut = cut(bytes, tensors, leaves);
            parts.iter_mut().zip(cut).for_each(|(parts, part)| parts.push(part.to_vec()));
        }
        Ok(parts)
    }

    pub(crate) fn check_process(&self, call: &str, process: usize) -> Result<()> {
        if process < self.num_processes() {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "{call}: there is no process {process}; there are {}, counted from 0",
            self.num_processes()
        )))
    }
}

/// MessagePack: numbers of any kind as they are, NaN and infinities too, which JSON has no word for.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> std::result::Result<Vec<u8>, String> {
    rmp_serde::to_vec_named(value).map_err(|error| error.to_string())
}

fn decode<T: DeserializeOwned>(call: &str, rank: usize, bytes: &[u8]) -> Result<T> {
    rmp_serde::from_slice(bytes).map_err(|error| {
        Error::Usage(format!("{call}: what process {rank} gave is of another type than here: {error}"))
    })
}

/// What each rank gave.
pub(crate) fn decode_all<T: DeserializeOwned>(call: &str, said: &[Vec<u8>]) -> Result<Vec<T>> {
    said.iter().enumerate().map(|(rank, bytes)| decode(call, rank, bytes)).collect()
}

pub(crate) fn leaves(tensors: &[Tensor]) -> Vec<Leaf> {
    let leaf = |tensor: &Tensor| Leaf { dtype: tensor.dtype().to_string(), sizes: tensor.sizes().to_vec() };
    tensors.iter().map(leaf).collect()
}

/// Whether all ranks bring as many tensors.
pub(crate) fn check_number(call: &str, mut numbers: impl Iterator<Item = usize> + Clone) -> Result<()> {
    let lines = numbers.clone().enumerate().map(|(rank, n)| format!("\n  - Process {rank}: {n}"));
    let first = numbers.next();
    if numbers.all(|n| Some(n) == first) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{call}: the ranks bring different numbers of tensors, and all must bring as many:{}",
        lines.collect::<String>()
    )))
}

pub(crate) fn check_equal(call: &str, brought: &[Vec<Leaf>]) -> Result<()> {
    check(call, brought, "one shape and dtype (`pad_across_processes` makes shapes equal)", |_, a, b| a == b)
}

/// Whether each tensor fits on all ranks to that of rank 0.
pub(crate) fn check(
    call: &str,
    brought: &[Vec<Leaf>],
    expected: &str,
    fits: impl Fn(usize, &Leaf, &Leaf) -> bool,
) -> Result<()> {
    let n = brought[0].len();
    let Some(index) = (0..n).find(|&i| brought.iter().any(|leaves| !fits(i, &leaves[i], &brought[0][i])))
    else {
        return Ok(());
    };
    let lines = brought.iter().enumerate().map(|(rank, leaves)| {
        format!("\n  - Process {rank}: {:?} {}", leaves[index].sizes, leaves[index].dtype)
    });
    Err(Error::Usage(format!(
        "{call}: tensor {} of {n} differs among the ranks, and all must bring {expected}:{}",
        index + 1,
        lines.collect::<String>()
    )))
}

/// The value with these tensors in place of its own.
pub(crate) fn rebuild<T: Nested>(value: &T, tensors: Vec<Tensor>) -> Result<T> {
    let mut tensors = tensors.into_iter();
    value.map_tensors(&mut |_| {
        let more =
            "a value showed more tensors the second time; `Nested::map_tensors` must show the same each time";
        tensors.next().ok_or_else(|| Error::Usage(more.to_owned()))
    })
}

/// One tensor of the parts of all ranks, joined along dim 0.
pub(crate) fn join(tensors: &[Tensor], parts: &[Vec<Vec<u8>>], to: &Accelerator) -> Result<Vec<Tensor>> {
    let joined = tensors.iter().zip(parts).map(|(tensor, parts)| {
        let bytes = parts.concat();
        let row_sizes = tensor.sizes().get(1..).unwrap_or_default();
        let row_bytes = row_sizes.iter().product::<usize>() * tensor.dtype().size();
        // Rows of nothing: their number is not in the bytes, and equal on all ranks.
        let rows = match bytes.len().checked_div(row_bytes) {
            Some(rows) => rows,
            None => tensor.sizes().first().copied().unwrap_or(1) * parts.len(),
        };
        let sizes: Vec<usize> = std::iter::once(rows).chain(row_sizes.iter().copied()).collect();
        from_bytes(tensor.dtype(), &bytes, &sizes, to)
    });
    joined.collect()
}

/// The bytes of one rank, cut into those of its tensors.
fn cut<'a>(bytes: &'a [u8], tensors: &[Tensor], leaves: &[Leaf]) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let parts = tensors.iter().zip(leaves).map(|(tensor, leaf)| {
        let len = leaf.sizes.iter().product::<usize>() * tensor.dtype().size();
        let (part, left) = rest.split_at(len.min(rest.len()));
        rest = left;
        part
    });
    parts.collect()
}

fn to_bytes(tensors: &[Tensor]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for tensor in tensors {
        bytes.extend(tensor.to_bytes()?);
    }
    Ok(bytes)
}

pub(crate) fn from_bytes(dtype: DType, bytes: &[u8], sizes: &[usize], to: &Accelerator) -> Result<Tensor> {
    fn of<T: Element>(bytes: &[u8], sizes: &[usize], to: &Accelerator) -> Result<Tensor> {
        Ok(Tensor::from_slice(&bytemuck::pod_collect_to_vec::<u8, T>(bytes), sizes, to.device())?)
    }
    match dtype {
        DType::F32 => of::<f32>(bytes, sizes, to),
        DType::BF16 => of::<bf16>(bytes, sizes, to),
        DType::F16 => of::<f16>(bytes, sizes, to),
        DType::I32 => of::<i32>(bytes, sizes, to),
    }
}

/// The tensor with `most` places along the dim of `pad`, which it has.
fn padded(tensor: &Tensor, pad: Pad, most: usize, to: &Accelerator) -> Result<Tensor> {
    let (sizes, dtype) = (tensor.sizes(), tensor.dtype());
    let fill: Vec<u8> = match dtype {
        DType::F32 => bytemuck::bytes_of(&(pad.pad_index as f32)).to_vec(),
        DType::BF16 => bytemuck::bytes_of(&bf16::from_f64(pad.pad_index)).to_vec(),
        DType::F16 => bytemuck::bytes_of(&f16::from_f64(pad.pad_index)).to_vec(),
        DType::I32 if f64::from(pad.pad_index as i32) == pad.pad_index => {
            bytemuck::bytes_of(&(pad.pad_index as i32)).to_vec()
        }
        DType::I32 => {
            return Err(Error::Usage(format!(
                "pad_across_processes: pad_index is {}, and the tensor {} holds integers",
                pad.pad_index,
                tensor.describe()
            )));
        }
    };
    let mut missing = sizes.to_vec();
    missing[pad.dim] = most - sizes[pad.dim];
    let fill = fill.repeat(missing.iter().product());
    let (own, fill) = (tensor.detach().to_device(to.device())?, from_bytes(dtype, &fill, &missing, to)?);
    let both = if pad.pad_first { [&fill, &own] } else { [&own, &fill] };
    Ok(ops::concat(&both, pad.dim)?)
}
