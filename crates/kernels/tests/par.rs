//! Every index and every piece runs once, on any number of threads.

use oarlock_kernels::Par;

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
