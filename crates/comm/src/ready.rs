//! Order as a value: the promise that data may be touched.
//!
//! Shared memory works on the calling thread and returns [`Ready::now`] when a collective is over. Collectives over a network
//! run on a thread (`progress/`), and NCCL's on a stream of its own; they return [`Ready::after`]. Launches of the GPU come after
//! those of NCCL without the host.

use std::any::Any;

use oarlock_tensor::PendingLaunches;

use crate::error::{Error, Result};

/// Work that has been started on a device stream or another thread.
pub trait Pending: Any + Send {
    /// Returns when the work is over.
    ///
    /// # Errors
    /// When the work failed.
    fn wait(self: Box<Self>) -> Result<()>;

    /// Has the launches that are called from now on come after the work: without this thread where work and launches are
    /// those of one GPU, else by waiting here.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    fn precede_launches(self: Box<Self>) -> Result<()> {
        self.wait()
    }
}

/// Launches that a collective comes after.
impl Pending for PendingLaunches {
    fn wait(self: Box<Self>) -> Result<()> {
        let failed = |error| Error::system("run a launch that a collective waits for", error);
        PendingLaunches::wait(&self).map_err(failed)
    }

    fn precede_launches(self: Box<Self>) -> Result<()> {
        if self.are_in_order() { Ok(()) } else { Pending::wait(self) }
    }
}

/// Two that are both to be over.
struct Both(Ready, Ready);

impl Pending for Both {
    fn wait(self: Box<Self>) -> Result<()> {
        // Whatever the first met, the second may still be under way.
        let (first, second) = (self.0.wait(), self.1.wait());
        first.and(second)
    }

    fn precede_launches(self: Box<Self>) -> Result<()> {
        let (first, second) = (self.0.precede_launches(), self.1.precede_launches());
        first.and(second)
    }
}

/// A promise that data may be touched: returned by the producer of the data, taken by their next user.
#[must_use = "the data may not be touched before this is waited for or passed on"]
pub struct Ready {
    pending: Option<Box<dyn Pending>>,
}

impl Ready {
    /// The data are ready: everything was computed by the calling thread.
    pub fn now() -> Ready {
        Ready { pending: None }
    }

    /// The data are ready when `pending` is over.
    pub fn after(pending: impl Pending) -> Ready {
        Ready { pending: Some(Box::new(pending)) }
    }

    /// The data are ready when both are.
    pub(crate) fn and(self, other: Ready) -> Ready {
        Ready::after(Both(self, other))
    }

    /// Waits on this thread.
    ///
    /// # Errors
    /// When the work failed.
    pub fn wait(self) -> Result<()> {
        self.pending.map_or(Ok(()), Pending::wait)
    }

    /// Has the launches that are called from now on come after it, as [`Pending::precede_launches`].
    ///
    /// # Errors
    /// When the work failed.
    pub fn precede_launches(self) -> Result<()> {
        self.pending.map_or(Ok(()), Pending::precede_launches)
    }

    /// The pending work if it is of type `P`, so that a transport can order it without blocking this thread.
    ///
    /// # Errors
    /// Returns itself when the work is of another type, or there is none.
    pub fn into_pending<P: Pending>(self) -> std::result::Result<Box<P>, Ready> {
        match self.pending {
            Some(pending) if (&*pending as &dyn Any).is::<P>() => {
                let any: Box<dyn Any> = pending;
                any.downcast::<P>().map_err(|_| Ready::now())
            }
            pending => Err(Ready { pending }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    struct Fails;
    impl Pending for Fails {
        fn wait(self: Box<Self>) -> Result<()> {
            Err(Error::system("copy", "the stream failed"))
        }
    }
    struct Stream(u32);
    impl Pending for Stream {
        fn wait(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_transport_takes_its_own_kind_and_waits_for_others() {
        assert_eq!(Ready::after(Stream(7)).into_pending::<Stream>().map(|s| s.0).ok(), Some(7));
        let other = Ready::after(Fails).into_pending::<Stream>().err().unwrap();
        assert_eq!(other.wait().unwrap_err().to_string(), "cannot copy: the stream failed");
        assert!(Ready::now().into_pending::<Stream>().is_err_and(|now| now.wait().is_ok()));
    }
}
