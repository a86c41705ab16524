//! Who does what: one process first, only some processes, triggers, a share of a list.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use oarlock_comm::Scalar;
use oarlock_tensor::{Tensor, ops};

use crate::accelerator::handle::Accelerator;
use crate::accelerator::models::prepared::Prepared;
use crate::nn::nested::Nested;
use crate::{Error, Result};

/// What [`Accelerator::split_between_processes`] does where a list cannot be divided evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ApplyPadding {
    /// The first processes get one more; with fewer values than processes the last get none.
    #[default]
    No,
    /// As that, and the others repeat the last value of the list, so that all have as many.
    RepeatLast,
}

impl Accelerator {
    /// The number of this process on its machine, from 0.
    pub fn local_process_index(&self) -> usize {
        let machines = self.communicator().machines();
        let here = machines[self.process_index()];
        machines[..self.process_index()].iter().filter(|&&machine| machine == here).count()
    }

    /// Whether this is the first process of its machine.
    pub fn is_local_main_process(&self) -> bool {
        self.local_process_index() == 0
    }

    /// Whether this is the last process.
    pub fn is_last_process(&self) -> bool {
        self.process_index() + 1 == self.num_processes()
    }

    /// Runs `body` on process 0 only; the others go on with `None`.
    ///
    /// # Errors
    /// What `body` reports, on the process that ran it.
    pub fn on_main_process<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<Option<R>> {
        self.on_process(0, body)
    }

    /// Runs `body` on the first process of each machine only.
    ///
    /// # Errors
    /// What `body` reports, on the process that ran it.
    pub fn on_local_main_process<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<Option<R>> {
        if self.is_local_main_process() { body().map(Some) } else { Ok(None) }
    }

    /// Runs `body` on the last process only.
    ///
    /// # Errors
    /// What `body` reports, on the process that ran it.
    pub fn on_last_process<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<Option<R>> {
        self.on_process(self.num_processes() - 1, body)
    }

    /// Runs `body` on one process only.
    ///
    /// # Errors
    /// When there is no such process; what `body` reports, on the process that ran it.
    pub fn on_process<R>(&self, process: usize, body: impl FnOnce() -> Result<R>) -> Result<Option<R>> {
        self.check_process("on_process", process)?;
        if self.process_index() == process { body().map(Some) } else { Ok(None) }
    }

    /// Runs `body` on process 0, and then on all others: the first one writes a cache that the others read.
    ///
    /// In Accelerate the others wait for ever when the first one fails.
    ///
    /// # Errors
    /// What `body` reports. When it fails on process 0 the others do not run it, and report that process.
    #[track_caller]
    pub fn main_process_first<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        self.first_of_each(&vec![0; self.num_processes()], body)
    }

    /// Runs `body` on the first process of each machine, and then on all others: each machine has a cache of its own.
    ///
    /// # Errors
    /// What `body` reports. When it fails on the first process of a machine, the others of that machine do not run it, and
    /// report that process.
    #[track_caller]
    pub fn local_main_process_first<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        self.first_of_each(&self.communicator().machines(), body)
    }

    /// Runs `body` on the first process of each machine, and then on the others.
    #[track_caller]
    fn first_of_each<R>(&self, machines: &[usize], body: impl FnOnce() -> Result<R>) -> Result<R> {
        let here = machines[self.process_index()];
        let first = machines.iter().position(|&machine| machine == here).unwrap_or(0);
        if first == self.process_index() {
            let result = body();
            let failed = result.as_ref().err().map(ToString::to_string);
            let message = self.gather_object(&[failed]);
            return result.and_then(|value| message.map(|_| value));
        }
        match self.gather_object::<Option<String>>(&[None])?.swap_remove(first) {
            None => body(),
            Some(cause) => Err(Error::Comm(oarlock_comm::Error::PeerFailed { rank: first, cause })),
        }
    }

    /// This process's share of a list that all have: neighbors stay together, and the first processes get one more
    /// where it cannot be divided evenly.
    pub fn split_between_processes<T: Clone>(&self, values: &[T], padding: ApplyPadding) -> Vec<T> {
        let (share, repeats) = self.share(values.len(), padding);
        let last = values.last().into_iter().cycle().take(repeats);
        values[share].iter().chain(last).cloned().collect()
    }

    /// As [`Accelerator::split_between_processes`], for a value that holds tensors: each is divided along dim 0, which
    /// is equally long in all of them.
    ///
    /// # Errors
    /// Numbers, which have no dim, and tensors whose dim 0 differs.
    pub fn split_tensors_between_processes<T: Nested>(&self, value: &T, padding: ApplyPadding) -> Result<T> {
        let tensors = value.tensors();
        let rows = tensors.first().and_then(|tensor| tensor.sizes().first().copied());
        if let Some(other) =
            tensors.iter().find(|tensor| tensor.sizes().first().copied() != rows || rows.is_none())
        {
            return Err(Error::Usage(format!(
                "split_tensors_between_processes: every tensor has the same number of rows, and the first is {:?}, \
                 another {other:?}",
                tensors[0]
            )));
        }
        let n_rows = rows.unwrap_or(0);
        let (share, repeats) = self.share(n_rows, padding);
        value.map_tensors(&mut |tensor: &Tensor| {
            let own = ops::narrow(tensor, 0, share.clone())?;
            if repeats == 0 {
                return Ok(own);
            }
            let last = ops::narrow(tensor, 0, n_rows - 1..n_rows)?;
            let parts: Vec<&Tensor> =
                std::iter::once(&own).chain(std::iter::repeat_n(&last, repeats)).collect();
            Ok(ops::concat(&parts, 0)?)
        })
    }

    /// Which of `len` values are this process's, and how often the last is repeated after them.
    fn share(&self, len: usize, padding: ApplyPadding) -> (Range<usize>, usize) {
        let (rank, world) = (self.process_index(), self.num_processes());
        let (each, extras) = (len / world, len % world);
        let first = rank * each + rank.min(extras);
        let share = first..first + each + usize::from(rank < extras);
        let most = each + usize::from(extras > 0);
        let repeats = if padding == ApplyPadding::RepeatLast { most - share.len() } else { 0 };
        (share, repeats)
    }

    /// Raises a flag on this process, such as "stop early", that [`Accelerator::check_trigger`] shows to all.
    pub fn set_trigger(&self) {
        self.inner.ranks.trigger.store(true, Relaxed);
    }

    /// Whether any process has raised its flag since the last check; the flags are lowered then. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed, or called something else.
    #[track_caller]
    pub fn check_trigger(&self) -> Result<bool> {
        let mut raised = [f64::from(u8::from(self.inner.ranks.trigger.load(Relaxed)))];
        self.communicator().all_reduce_f64(&mut raised, Scalar::Max)?;
        self.inner.ranks.trigger.store(false, Relaxed);
        Ok(raised[0] > 0.0)
    }

    /// Runs `body` as it is. Layers compute in the dtype of their weights, which is [`Accelerator::dtype`] wherever they
    /// are used, and what must not be rounded (losses, norms' sums, gradients' sums) is in f32 in their kernels; there
    /// is not a mode to switch. It is here so that a loop written for Accelerate keeps its shape.
    ///
    /// # Errors
    /// What `body` reports.
    pub fn autocast<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        body()
    }

    /// The model inside of a prepared one. Its parameters are the same, wherever they are kept.
    pub fn unwrap_model<M>(&self, model: &Prepared<M>) -> Arc<M>
    where
        M: crate::nn::Module,
    {
        model.module().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::AcceleratorConfig;

    /// Four ranks as if they were on two machines; what each did, in order, and what it got.
    fn on_two_machines(fails: usize) -> (Vec<usize>, Vec<Result<usize>>) {
        let order = Mutex::new(Vec::new());
        let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
        let results = oarlock_comm::shm::on_threads(4, |comm| {
            let accelerator = Accelerator::over(comm, &config).unwrap();
            let rank = accelerator.process_index();
            accelerator.first_of_each(&[0, 1, 1, 0], || {
                order.lock().unwrap().push(rank);
                if rank == fails { Err(Error::Usage("no disk".to_owned())) } else { Ok(rank) }
            })
        });
        (order.into_inner().unwrap(), results.unwrap())
    }

    #[test]
    fn the_first_of_each_machine_runs_before_the_others() {
        let (order, results) = on_two_machines(usize::MAX);
        let (mut firsts, mut others) = (order[..2].to_vec(), order[2..].to_vec());
        firsts.sort_unstable();
        others.sort_unstable();
        assert_eq!((firsts, others), (vec![0, 1], vec![2, 3]));
        assert_eq!(results.into_iter().collect::<Result<Vec<_>>>().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn where_the_first_of_a_machine_fails_its_others_say_so() {
        let (order, results) = on_two_machines(1);
        assert!(!order.contains(&2) && order.len() == 3, "{order:?}");
        assert!(results[0].is_ok() && results[3].is_ok());
        assert_eq!(results[1].as_ref().unwrap_err().to_string(), "no disk");
        let message = results[2].as_ref().unwrap_err().to_string();
        assert!(message.contains("rank 1") && message.contains("no disk"), "{message}");
    }
}
