//! Parallelism as an argument: how many threads a kernel may use. Results never depend on the number.

use std::sync::Arc;

use rayon::prelude::*;

use crate::error::{Error, Result};

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
        match &self.pool {
            Some(pool) if n > 1 => pool.install(|| (0..n).into_par_iter().with_max_len(1).for_each(f)),
            _ => (0..n).for_each(f),
        }
    }

    /// Cuts `out` into pieces of `chunk` elements (the last may be shorter) and runs `f(index, piece)` on each.
    pub fn chunks_mut<T: Send>(
        &self,
        out: &mut [T],
        chunk: usize,
        f: impl Fn(usize, &mut [T]) + Sync + Send,
    ) {
        let chunk = chunk.max(1);
        match &self.pool {
            Some(pool) if out.len() > chunk => {
                pool.install(|| out.par_chunks_mut(chunk).enumerate().for_each(|(i, piece)| f(i, piece)));
            }
            _ => out.chunks_mut(chunk).enumerate().for_each(|(i, piece)| f(i, piece)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_cores_anywhere_are_refused() {
        let error = Par::threads(1_000_000).unwrap_err().to_string();
        assert!(error.starts_with("cannot start 1000000 threads: supported are at most 4096"), "{error}");
    }

    #[test]
    fn every_index_and_every_piece_once() {
        for par in [Par::solo(), Par::threads(3).unwrap()] {
            let mut out = vec![0u32; 1000];
            par.chunks_mut(&mut out, 7, |i, piece| piece.iter_mut().for_each(|x| *x += i as u32 + 1));
            assert!(out.iter().enumerate().all(|(j, &x)| x == (j / 7) as u32 + 1));
            let sum = std::sync::atomic::AtomicUsize::new(0);
            par.for_each(100, |i| {
                sum.fetch_add(i, std::sync::atomic::Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 4950);
        }
    }
}
