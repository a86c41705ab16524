//! Parallelism as an argument: how many threads a kernel may use. Results never depend on the number.

use std::sync::Arc;

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::pieces::{Cut, cut};

/// More threads than any machine has cores: a number beyond is a mistake, and to start them would take minutes.
const MOST_THREADS: usize = 1 << 12;

/// The threads a kernel may use: one (a plain loop) or a pool of its own.
#[derive(Clone, Debug)]
pub struct Par {
    pool: Option<Arc<rayon::ThreadPool>>,
}

impl Par {
    /// One thread: the caller.
    pub fn solo() -> Par {
        Par { pool: None }
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
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(n)
            .thread_name(|i| format!("oarlock-{i}"))
            .build()
            .map_err(|e| Error::Threads { n, cause: e.to_string() })?;
        Ok(Par { pool: Some(Arc::new(pool)) })
    }

    /// The number of threads.
    pub fn n_threads(&self) -> usize {
        self.pool.as_ref().map_or(1, |p| p.current_num_threads())
    }

    /// Runs `f(0), …, f(n - 1)`, in any order and at the same time.
    pub fn for_each(&self, n: usize, f: impl Fn(usize) + Sync + Send) {
        self.run(n, 1, &f);
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
        self.run(n, usize::MAX, &|i| f(i, unsafe { pieces.piece(i) }));
    }

    /// Runs all indices, at most so many of them one after the other. What spreads them over threads is large, and since
    /// this is not generic it is compiled once.
    fn run(&self, n: usize, most_in_turn: usize, f: &(dyn Fn(usize) + Sync)) {
        match &self.pool {
            Some(pool) if n > 1 => {
                pool.install(|| (0..n).into_par_iter().with_max_len(most_in_turn).for_each(f));
            }
            _ => (0..n).for_each(f),
        }
    }
}
