//! Parallelism as an argument: how many threads a kernel may use. Results never depend on the number.

use std::sync::Arc;

use crate::crew::Crew;
use crate::error::{Error, Result};
use crate::pieces::{Cut, cut};

/// More threads than any machine has cores: a number beyond is a mistake, and to start them would take minutes.
const MOST_THREADS: usize = 1 << 12;

/// The threads a kernel may use: the caller's alone, or helpers beside it. Clones share the helpers, who are with one of
/// them at a time.
#[derive(Clone, Debug)]
pub struct Par {
    crew: Option<Arc<Crew>>,
}

impl Par {
    /// One thread: the caller.
    pub fn solo() -> Par {
        Par { crew: None }
    }

    /// `n` threads; one means the caller alone.
    ///
    /// # Errors
    /// When the operating system refuses the threads, or there are more than 4,096.
    pub fn threads(n: usize) -> Result<Par> {
        if n <= 1 {
            return Ok(Par::solo());
        }
        if n > MOST_THREADS {
            let cause = format!("supported are at most {MOST_THREADS}; give as many as there are cores");
            return Err(Error::Threads { n, cause });
        }
        let crew = Crew::start(n - 1).map_err(|e| Error::Threads { n, cause: e.to_string() })?;
        Ok(Par { crew: Some(Arc::new(crew)) })
    }

    /// The number of threads.
    pub fn n_threads(&self) -> usize {
        self.crew.as_ref().map_or(1, |crew| crew.n_helpers() + 1)
    }

    /// Runs `f(0), …, f(n - 1)`, in any order and at the same time.
    pub fn for_each(&self, n: usize, f: impl Fn(usize) + Sync + Send) {
        self.run(n, &f);
    }

    /// Cuts `out` into pieces of `chunk` elements (the last may be shorter) and runs `f(index, piece)` on each.
    pub fn chunks_mut<T: Send>(
        &self,
        out: &mut [T],
        chunk: usize,
        f: impl Fn(usize, &mut [T]) + Sync + Send,
    ) {
        let chunk = chunk.max(1);
        let (n, pieces) = (out.len().div_ceil(chunk), cut(out, chunk));
        // SAFETY: each index is run once.
        self.run(n, &|i| f(i, unsafe { pieces.piece(i) }));
    }

    fn run(&self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        match &self.crew {
            Some(crew) if n > 1 => crew.run(n, f),
            _ => (0..n).for_each(f),
        }
    }
}
