//! Which rank the calling code is: a thread of `distributed::spawn` by its thread, a process by the environment that its
//! launcher set; code that has neither is a world of one.
//!
//! This module holds the only thread-local of the library that has a meaning (ARCHITECTURE.md, "Decisions that differ").

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use oarlock_comm::{Communicator, WeakCommunicator, cores_for_rank, from_env};

use crate::Result;

/// The variable by which launchers say in which dtype a rank computes.
pub(crate) const MIXED_PRECISION: &str = "ACCELERATE_MIXED_PRECISION";

/// The rank that a thread is.
#[derive(Default)]
struct ThreadRank {
    /// Its communicator, as long as an accelerator, a process group or the starter of the thread keeps it.
    comm: Option<WeakCommunicator>,
    /// The variables of this rank alone; they come before the environment, which all threads share.
    variables: Vec<(&'static str, String)>,
    /// The default process group of `distributed`.
    group: Option<DefaultGroup>,
}

/// A default process group: all ranks.
#[derive(Clone)]
pub(crate) struct DefaultGroup {
    pub(crate) comm: Communicator,
    /// The group ends with it: no accelerator or starter of the thread had joined before.
    pub(crate) is_own: bool,
}

thread_local! {
    static THIS: RefCell<ThreadRank> = RefCell::default();
}

/// The communicator of this thread's rank, or else the one that the environment describes: ranks in shared memory or over
/// MPI, or a world of one. As long as it is kept anywhere in this thread, further calls return the same one.
///
/// # Errors
/// When the environment names a group that cannot be joined.
pub fn join() -> Result<Communicator> {
    if let Some(comm) = current() {
        return Ok(comm);
    }
    let comm = from_env(&print_note)?.unwrap_or_else(Communicator::solo);
    remember(&comm);
    Ok(comm)
}

/// The communicator of this thread's rank, if it has joined its group.
pub fn current() -> Option<Communicator> {
    THIS.with_borrow(|this| this.comm.as_ref()?.upgrade())
}

/// Makes this thread the rank of `comm`, as long as `comm` is kept.
fn remember(comm: &Communicator) {
    THIS.with_borrow_mut(|this| this.comm = Some(comm.downgrade()));
}

/// The default process group of this thread's rank.
pub(crate) fn default_group() -> Option<DefaultGroup> {
    THIS.with_borrow(|this| this.group.clone())
}

/// Sets the default process group of this thread, which becomes its rank.
pub(crate) fn set_default_group(group: DefaultGroup) {
    remember(&group.comm);
    THIS.with_borrow_mut(|this| this.group = Some(group));
}

/// Takes the default process group away. If it is its own, this thread is not a rank any more, and the next [`join`]
/// reads the environment again.
pub(crate) fn take_default_group() -> Option<DefaultGroup> {
    THIS.with_borrow_mut(|this| {
        let group = this.group.take()?;
        this.comm = this.comm.take().filter(|_| !group.is_own);
        Some(group)
    })
}

/// Runs `body` while this thread is the rank of `comm`, with variables of its own.
pub(crate) fn within<R>(
    comm: &Communicator,
    variables: &[(&'static str, String)],
    body: impl FnOnce() -> R,
) -> R {
    let this = ThreadRank { comm: Some(comm.downgrade()), variables: variables.to_vec(), group: None };
    let _before = Before(THIS.replace(this));
    body()
}

/// Restores the rank that a thread was before, also after a panic.
struct Before(ThreadRank);

impl Drop for Before {
    fn drop(&mut self) {
        THIS.set(std::mem::take(&mut self.0));
    }
}

/// A variable of this rank: that of this thread, else that of the environment.
pub(crate) fn variable(name: &str) -> Option<String> {
    let own = THIS.with_borrow(|this| this.variables.iter().find(|(own, _)| *own == name).cloned());
    let value = own.map(|(_, value)| value);
    value.or_else(|| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// Prints what the user should know.
pub(crate) fn print_note(text: &str) {
    crate::report::terminal::eprint(&format!("note: {text}\n"));
}

/// The same, once in a process.
pub(crate) fn warn_once(text: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
        print_note(text);
    }
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
    fn a_thread_is_the_rank_of_its_communicator_as_long_as_that_is_kept() {
        let [first, second] = <[Communicator; 2]>::try_from(oarlock_comm::shm::threads(2).unwrap()).unwrap();
        let mine = [("OARLOCK_TEST_OF_RANK", "mine".to_owned())];
        within(&second, &mine, || {
            assert_eq!((join().unwrap().rank(), join().unwrap().world_size()), (1, 2));
            assert_eq!(variable("OARLOCK_TEST_OF_RANK").as_deref(), Some("mine"));
            assert!(variable("PATH").is_some());
            within(&first, &[], || assert_eq!(join().unwrap().rank(), 0));
            assert_eq!(join().unwrap().rank(), 1);
            // Another thread of the rank is not a rank.
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
        // What is not a number is reported as wrong where arguments are read.
        assert_eq!(left("oarlock train --local_rank=x t.yaml"), "oarlock train --local_rank=x t.yaml");
        assert_eq!(left("oarlock train local_rank=1"), "oarlock train local_rank=1");
    }
}
