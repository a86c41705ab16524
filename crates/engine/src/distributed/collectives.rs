//! The bare collectives on tensors. What they do is checked on all ranks before anything is sent, so that ranks that
//! differ are told, all of them.
//!
//! Every rank reads what the others hold; a run's gradients take the engine's way, which sums without copies.

use bytemuck::{cast_slice, pod_collect_to_vec, pod_read_unaligned};
use oarlock_comm::{Ready, Sharing, tree_fold};
use oarlock_tensor::{DType, Element, Float, Tensor, bf16, f16};

use super::group::ProcessGroup;
use super::reduce_op::ReduceOp;
use crate::{Error, Result};

/// Elements that are reduced at a time, so that memory for the other ranks' does not grow with a tensor.
const PIECE: usize = 1 << 20;

/// An element type with the op over ranks.
trait Reduce: Element {
    fn reduce(n_ranks: usize, of_rank: &impl Fn(usize) -> Self, op: ReduceOp) -> Self;
}

fn reduce_f32(n_ranks: usize, of_rank: &impl Fn(usize) -> f32, op: ReduceOp) -> f32 {
    match op {
        ReduceOp::Sum => tree_fold(0..n_ranks, of_rank, &|a, b| a + b),
        ReduceOp::Avg => tree_fold(0..n_ranks, of_rank, &|a, b| a + b) / n_ranks as f32,
        ReduceOp::Product => tree_fold(0..n_ranks, of_rank, &|a, b| a * b),
        // A value that is not a number makes the result one that is not.
        ReduceOp::Min => tree_fold(0..n_ranks, of_rank, &|a, b| if a < b || a.is_nan() { a } else { b }),
        ReduceOp::Max => tree_fold(0..n_ranks, of_rank, &|a, b| if a > b || a.is_nan() { a } else { b }),
    }
}

macro_rules! reduce_floats {
    ($($type:ty),*) => {
        $(impl Reduce for $type {
            fn reduce(n_ranks: usize, of_rank: &impl Fn(usize) -> Self, op: ReduceOp) -> Self {
                <$type as Float>::from_f32(reduce_f32(n_ranks, &|rank| Float::to_f32(of_rank(rank)), op))
            }
        })*
    };
}

reduce_floats!(f32, bf16, f16);

impl Reduce for i32 {
    fn reduce(n_ranks: usize, of_rank: &impl Fn(usize) -> i32, op: ReduceOp) -> i32 {
        match op {
            // A mean of integers is refused before.
            ReduceOp::Sum | ReduceOp::Avg => tree_fold(0..n_ranks, of_rank, &i32::wrapping_add),
            ReduceOp::Product => tree_fold(0..n_ranks, of_rank, &i32::wrapping_mul),
            ReduceOp::Min => tree_fold(0..n_ranks, of_rank, &i32::min),
            ReduceOp::Max => tree_fold(0..n_ranks, of_rank, &i32::max),
        }
    }
}

/// Runs `$body` with `$type` as the Rust type of a dtype.
macro_rules! with_type {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $type = f32;
                $body
            }
            DType::BF16 => {
                type $type = bf16;
                $body
            }
            DType::F16 => {
                type $type = f16;
                $body
            }
            DType::I32 => {
                type $type = i32;
                $body
            }
        }
    };
}

/// A tensor with these elements, in the shape of another.
fn tensor_of(bytes: &[u8], like: &Tensor) -> Result<Tensor> {
    with_type!(like.dtype(), T => {
        Ok(Tensor::from_slice(&pod_collect_to_vec::<u8, T>(bytes), *like.shape(), like.device())?)
    })
}

fn shown(tensor: &Tensor) -> String {
    format!("{} {:?}", tensor.dtype(), tensor.sizes())
}

impl ProcessGroup {
    /// Waits for all ranks of the group.
    ///
    /// # Errors
    /// As every collective: when a rank failed, called something else or did not come in time.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        Ok(self.comm.barrier()?)
    }

    /// Combines the tensors of all ranks, element by element; each rank then holds the result. Floats are combined in f32, in
    /// the fixed tree over ranks in which gradients are summed; integers wrap around, as in torch.
    ///
    /// # Errors
    /// As every collective, on all ranks; tensors of different shapes or dtypes; the mean of integers.
    #[track_caller]
    pub fn all_reduce(&self, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
        check(op, tensor)?;
        self.agree(&format!("all_reduce({op}) of {}", shown(tensor)))?;
        if let Some(reduced) = self.reduced(tensor, op, true)? {
            *tensor = reduced;
        }
        Ok(())
    }

    /// As [`ProcessGroup::all_reduce`], but only the rank `dst` receives the result; the others keep their tensors.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; a rank that is not in the group.
    #[track_caller]
    pub fn reduce(&self, tensor: &mut Tensor, dst: usize, op: ReduceOp) -> Result<()> {
        check(op, tensor)?;
        let place = self.place_of(dst)?;
        self.agree(&format!("reduce({op}) to rank {dst} of {}", shown(tensor)))?;
        if let Some(reduced) = self.reduced(tensor, op, place == self.rank())? {
            *tensor = reduced;
        }
        Ok(())
    }

    /// Combines lists of tensors, one for each rank of the group: rank `i` receives what is made of the `i`-th of all.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; a list that has not one tensor a rank.
    #[track_caller]
    pub fn reduce_scatter(&self, tensors: &[Tensor], op: ReduceOp) -> Result<Tensor> {
        let n_ranks = self.world_size();
        if tensors.len() != n_ranks {
            return Err(Error::Usage(format!(
                "reduce_scatter: {} tensors for {n_ranks} ranks; give one for each rank",
                tensors.len()
            )));
        }
        tensors.iter().try_for_each(|tensor| check(op, tensor))?;
        let list = tensors.iter().map(shown).collect::<Vec<_>>().join(", ");
        self.agree(&format!("reduce_scatter({op}) of {list}"))?;
        let mut mine = None;
        for (place, tensor) in tensors.iter().enumerate() {
            let reduced = self.reduced(tensor, op, place == self.rank())?;
            mine = mine.or(reduced);
        }
        mine.ok_or_else(|| Error::Usage("reduce_scatter: this rank is not in its group".to_owned()))
    }

    /// The tensor of each rank, in the order of ranks.
    ///
    /// # Errors
    /// As every collective, on all ranks; tensors of different shapes or dtypes.
    #[track_caller]
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        self.agree(&format!("all_gather of {}", shown(tensor)))?;
        let all = self.comm.all_gather_bytes(&tensor.to_bytes()?)?;
        all.iter().map(|bytes| tensor_of(bytes, tensor)).collect()
    }

    /// As [`ProcessGroup::all_gather`], but only the rank `dst` receives them; `None` on the others.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather`]; a rank that is not in the group.
    #[track_caller]
    pub fn gather(&self, tensor: &Tensor, dst: usize) -> Result<Option<Vec<Tensor>>> {
        let place = self.place_of(dst)?;
        self.agree(&format!("gather to rank {dst} of {}", shown(tensor)))?;
        let all = self.comm.all_gather_bytes(&tensor.to_bytes()?)?;
        if place != self.rank() {
            return Ok(None);
        }
        all.iter().map(|bytes| tensor_of(bytes, tensor)).collect::<Result<_>>().map(Some)
    }

    /// Brings the tensor of the rank `src` to all ranks.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather`]; a rank that is not in the group.
    #[track_caller]
    pub fn broadcast(&self, tensor: &mut Tensor, src: usize) -> Result<()> {
        let place = self.place_of(src)?;
        self.agree(&format!("broadcast from rank {src} of {}", shown(tensor)))?;
        let bytes = if place == self.rank() { tensor.to_bytes()? } else { Vec::new() };
        *tensor = tensor_of(&self.comm.broadcast_bytes(place, &bytes)?, tensor)?;
        Ok(())
    }

    /// Gives each rank the tensor of its place in the list of the rank `src`, which alone has one. `tensor` becomes it,
    /// and says its shape and dtype before.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather`]; on all ranks, a list that has not one such tensor a rank.
    #[track_caller]
    pub fn scatter(&self, tensor: &mut Tensor, tensors: Option<&[Tensor]>, src: usize) -> Result<()> {
        let place = self.place_of(src)?;
        self.agree(&format!("scatter from rank {src} of {}", shown(tensor)))?;
        let n_ranks = self.world_size();
        let fits = |list: &&[Tensor]| {
            let alike = |each: &Tensor| each.dtype() == tensor.dtype() && each.sizes() == tensor.sizes();
            list.len() == n_ranks && list.iter().all(alike)
        };
        let mut bytes = vec![0];
        if place == self.rank()
            && let Some(list) = tensors.filter(fits)
        {
            bytes[0] = 1;
            for each in list {
                bytes.extend(each.to_bytes()?);
            }
        }
        let bytes = self.comm.broadcast_bytes(place, &bytes)?;
        match bytes.split_first() {
            Some((1, parts)) => {
                let size = parts.len() / n_ranks;
                *tensor = tensor_of(&parts[self.rank() * size..][..size], tensor)?;
                Ok(())
            }
            _ => Err(Error::Usage(format!(
                "scatter: rank {src} has no list of {n_ranks} tensors {}; there it is `Some` with one for each rank",
                shown(tensor)
            ))),
        }
    }

    /// Gives each rank of the group one tensor of a list, all of the same shape and dtype, and returns what this rank
    /// received, in the order of senders: tensor `j` of rank `i` becomes tensor `i` of rank `j`.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather`]; a list that has not one such tensor a rank.
    #[track_caller]
    pub fn all_to_all(&self, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
        let n_ranks = self.world_size();
        let [first, rest @ ..] = tensors else {
            return Err(Error::Usage(format!(
                "all_to_all: no tensors for {n_ranks} ranks; give one for each rank"
            )));
        };
        let fits = |each: &Tensor| each.dtype() == first.dtype() && each.sizes() == first.sizes();
        if tensors.len() != n_ranks || !rest.iter().all(fits) {
            let list = tensors.iter().map(shown).collect::<Vec<_>>().join(", ");
            return Err(Error::Usage(format!(
                "all_to_all: the tensors {list} for {n_ranks} ranks; give one for each rank, all of one shape and dtype"
            )));
        }
        self.agree(&format!("all_to_all of {}", shown(first)))?;
        let block = first.n_elems() * first.dtype().size();
        let region = |name| self.comm.allocate(name, n_ranks * block, Sharing::PerRank);
        let (from, to) = (region("all_to_all: sent")?, region("all_to_all: received")?);
        for (place, tensor) in tensors.iter().enumerate() {
            from.write(place * block, &tensor.to_bytes()?)?;
        }
        let elements = 0..n_ranks * first.n_elems();
        self.comm.all_to_all(&from, &to, first.dtype(), elements, Ready::now())?.wait()?;
        let mut received = vec![0; n_ranks * block];
        to.read(0, &mut received)?;
        (0..n_ranks).map(|place| tensor_of(&received[place * block..][..block], first)).collect()
    }

    /// Makes sure that all ranks are at the same collective.
    #[track_caller]
    pub(super) fn agree(&self, what: &str) -> Result<()> {
        let all = self.comm.all_gather_bytes(what.as_bytes())?;
        let Some(other) = (1..all.len()).find(|&place| all[place] != all[0]) else { return Ok(()) };
        let side =
            |place: usize| format!("rank {}: {}", self.ranks()[place], String::from_utf8_lossy(&all[place]));
        Err(Error::Usage(format!(
            "ranks called different collectives: {}, but {}; all ranks of a group must call the same ones in the same order, \
             with tensors of one shape and dtype",
            side(0),
            side(other)
        )))
    }

    /// What is made of the tensors of all ranks, where it is wanted.
    #[track_caller]
    fn reduced(&self, tensor: &Tensor, op: ReduceOp, wanted: bool) -> Result<Option<Tensor>> {
        with_type!(tensor.dtype(), T => {
            let values = tensor.to_vec::<T>()?;
            let mut reduced = Vec::new();
            for piece in values.chunks(PIECE) {
                let all = self.comm.all_gather_bytes(cast_slice(piece))?;
                let of_rank = |rank: usize, i: usize| {
                    pod_read_unaligned::<T>(&all[rank][i * size_of::<T>()..][..size_of::<T>()])
                };
                if wanted {
                    let element = |i| T::reduce(all.len(), &|rank| of_rank(rank, i), op);
                    reduced.extend((0..piece.len()).map(element));
                }
            }
            match wanted {
                true => Ok(Some(Tensor::from_slice(&reduced, *tensor.shape(), tensor.device())?)),
                false => Ok(None),
            }
        })
    }
}

fn check(op: ReduceOp, tensor: &Tensor) -> Result<()> {
    if op == ReduceOp::Avg && !tensor.dtype().is_float() {
        return Err(Error::Usage(format!(
            "the mean of {} is not an integer; take the sum (`ReduceOp::Sum`) and divide it",
            shown(tensor)
        )));
    }
    Ok(())
}
