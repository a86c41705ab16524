//! A rank finds its place: a thread of `distributed::spawn` by its thread, a process by the environment of a launcher,
//! ours or another; who has neither is alone.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::Write;

use oarlock_comm::{Communicator, WeakCommunicator, cores_for_rank, from_env};

use crate::error::Result;

/// What a thread knows of the rank that it is.
#[derive(Clone, Default)]
struct Here {
    /// Its group, as long as somebody keeps it: an accelerator, a process group, whoever started the thread.
    comm: Option<WeakCommunicator>,
    /// What its launcher tells this rank alone, before the environment, which all threads share.
    variables: Vec<(&'static str, String)>,
}

thread_local! {
    static HERE: RefCell<Here> = RefCell::default();
}

/// The communicator of the rank that this thread is, or else the one that the environment describes: ranks in shared
/// memory or over MPI, or a world of one. While anybody in this thread keeps it, it is the same one.
///
/// # Errors
/// When the environment names a group that cannot be joined.
pub fn join() -> Result<Communicator> {
    if let Some(comm) = current() {
        return Ok(comm);
    }
    let comm = from_env(&tell_note)?.unwrap_or_else(Communicator::solo);
    remember(&comm);
    Ok(comm)
}

/// The communicator of this thread's rank, if it has joined its group.
pub fn current() -> Option<Communicator> {
    HERE.with_borrow(|here| here.comm.as_ref()?.upgrade())
}

/// From now on this thread is the rank of `comm`, while anybody keeps that.
pub(crate) fn remember(comm: &Communicator) {
    HERE.with_borrow_mut(|here| here.comm = Some(comm.downgrade()));
}

/// From now on this thread is no rank; the next [`join`] looks again.
pub(crate) fn forget() {
    HERE.with_borrow_mut(|here| here.comm = None);
}

/// Runs `body` in a thread that is the rank of `comm` meanwhile, with variables of its own.
pub(crate) fn within<R>(
    comm: &Communicator,
    variables: &[(&'static str, String)],
    body: impl FnOnce() -> R,
) -> R {
    let here = Here { comm: Some(comm.downgrade()), variables: variables.to_vec() };
    let _outside = Outside(HERE.replace(here));
    body()
}

/// Puts back what a thread was before, also after a panic.
struct Outside(Here);

impl Drop for Outside {
    fn drop(&mut self) {
        HERE.set(std::mem::take(&mut self.0));
    }
}

/// What the launcher of this rank says about `name`: to this thread, else in the environment.
pub(crate) fn variable(name: &str) -> Option<String> {
    let own = HERE.with_borrow(|here| here.variables.iter().find(|(own, _)| *own == name).cloned());
    let value = own.map(|(_, value)| value);
    value.or_else(|| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// Writes to standard error. Where that fails there is nobody to tell.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Tells a person what a rank that waits is waiting for.
pub(crate) fn tell_note(text: &str) {
    tell(&format!("note: {text}\n"));
}

/// The arguments of a program without `--local_rank=N`, which DeepSpeed's launcher and torch's oldest one put before
/// them. The environment says the same.
pub fn without_local_rank(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let is_local_rank = |word: &OsString| {
        let number =
            ["--local_rank=", "--local-rank="].iter().find_map(|flag| word.to_str()?.strip_prefix(flag));
        number.is_some_and(|number| number.parse::<i64>().is_ok())
    };
    arguments.filter(|word| !is_local_rank(word)).collect()
}

/// The threads of a rank: its share of the cores that this process may use.
pub fn default_threads(comm: &Communicator) -> usize {
    let (place, sharing) = comm.sharing_cores();
    cores_for_rank(place, sharing).len().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_the_rank_that_it_was_told_to_be_as_long_as_somebody_keeps_it() {
        let [first, second] = <[Communicator; 2]>::try_from(oarlock_comm::shm::threads(2).unwrap()).unwrap();
        let mine = [("OARLOCK_TEST_OF_RANK", "mine".to_owned())];
        within(&second, &mine, || {
            assert_eq!((join().unwrap().rank(), join().unwrap().world_size()), (1, 2));
            assert_eq!(variable("OARLOCK_TEST_OF_RANK").as_deref(), Some("mine"));
            assert!(variable("PATH").is_some());
            within(&first, &[], || assert_eq!(join().unwrap().rank(), 0));
            assert_eq!(join().unwrap().rank(), 1);
            // Another thread of the rank is no rank.
            std::thread::scope(|scope| scope.spawn(|| assert!(current().is_none())).join()).unwrap();
        });
        assert!(current().is_none() && variable("OARLOCK_TEST_OF_RANK").is_none());
        remember(&first);
        assert_eq!(join().unwrap().rank(), 0);
        drop(first);
        assert!(current().is_none());
    }

    #[test]
    fn the_local_rank_of_a_launcher_is_no_argument() {
        let left = |words: &str| {
            without_local_rank(words.split(' ').map(OsString::from)).join(std::ffi::OsStr::new(" "))
        };
        assert_eq!(left("oarlock --local_rank=1 train t.yaml"), "oarlock train t.yaml");
        assert_eq!(left("oarlock train --local-rank=-1 t.yaml"), "oarlock train t.yaml");
        // What is no number is told to be wrong where arguments are read.
        assert_eq!(left("oarlock train --local_rank=x t.yaml"), "oarlock train --local_rank=x t.yaml");
        assert_eq!(left("oarlock train local_rank=1"), "oarlock train local_rank=1");
    }
}
