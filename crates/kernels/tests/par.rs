//! Every index and every piece runs once, on any number of threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

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

/// Jobs that follow at once, and after the helpers have gone to sleep.
#[test]
fn every_index_once_in_many_jobs() {
    let par = Par::threads(3).unwrap();
    for job in 0..2000 {
        let counts: Vec<AtomicUsize> = (0..7).map(|_| AtomicUsize::new(0)).collect();
        par.for_each(counts.len(), |i| {
            counts[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "job {job}");
        if job % 500 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn helpers_come_to_a_job_that_needs_them() {
    let par = Par::threads(2).unwrap();
    for pause in [0, 3] {
        thread::sleep(Duration::from_millis(pause));
        // Each of the two waits for the other.
        let here = AtomicUsize::new(0);
        par.for_each(2, |_| {
            here.fetch_add(1, Ordering::SeqCst);
            while here.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
        });
    }
}

#[test]
fn calls_inside_a_call_and_beside_it_end() {
    let par = Par::threads(3).unwrap();
    let sum = AtomicUsize::new(0);
    let add = |i| {
        sum.fetch_add(i, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| par.for_each(8, |_| par.for_each(4, add))));
        }
    });
    assert_eq!(sum.into_inner(), 4 * 50 * 8 * 6);
}

#[test]
fn a_panic_reaches_the_caller_and_the_threads_go_on() {
    let par = Par::threads(3).unwrap();
    for round in 0..20 {
        let job = || par.for_each(64, |i| assert!(i != 40, "number 40"));
        let payload = catch_unwind(AssertUnwindSafe(job)).unwrap_err();
        let said = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref().copied());
        assert!(said.is_some_and(|said| said.contains("number 40")), "round {round}");
        let sum = AtomicUsize::new(0);
        par.for_each(100, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 4950);
    }
}
