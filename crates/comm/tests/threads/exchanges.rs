//! Blocks and ranges that go from rank to rank.

use oarlock_comm::{Operation, Ready, Sharing};
use oarlock_tensor::DType;

use super::{ranks, value, worlds};

/// Invariant 6.
#[test]
fn all_to_all_transposes_the_blocks_of_the_ranks() {
    const BLOCK: usize = 1003;
    for n in worlds() {
        let all = ranks(n, move |comm| {
            let size = 4 * (n * BLOCK + 7);
            let from = comm.allocate("sent", size, Sharing::PerRank).unwrap();
            let to = comm.allocate("received", size, Sharing::PerRank).unwrap();
            let mine: Vec<f32> = (0..n * BLOCK + 7).map(|i| value(comm.rank(), i)).collect();
            from.write(0, &mine).unwrap();
            to.write(0, &vec![-1f32; mine.len()]).unwrap();
            comm.all_to_all(&from, &to, DType::F32, 5..5 + n * BLOCK, Ready::now()).unwrap().wait().unwrap();
            // The next call may write what the others have read.
            from.write(0, &vec![-2f32; mine.len()]).unwrap();
            let mut out = mine;
            to.read(0, &mut out).unwrap();
            let traffic = *comm.traffic().iter().find(|t| t.operation == Operation::AllToAll).unwrap();
            assert_eq!((traffic.calls, traffic.bytes), (1, (4 * n * BLOCK) as u64));
            // Its own block stays with the rank.
            assert_eq!(traffic.sent_bytes(n).round(), (4 * (n - 1) * BLOCK) as f64);
            comm.finish();
            out
        });
        for (rank, out) in all.iter().enumerate() {
            for (i, &x) in out.iter().enumerate() {
                let expected = match (5..5 + n * BLOCK).contains(&i) {
                    true => value((i - 5) / BLOCK, 5 + rank * BLOCK + (i - 5) % BLOCK),
                    false => -1.0,
                };
                assert_eq!(x.to_bits(), expected.to_bits(), "{n} ranks, rank {rank}, element {i}");
            }
        }
    }
}

/// Invariant 6.
#[test]
fn a_range_is_sent_from_one_rank_to_another() {
    for n in worlds().skip(1) {
        let all = ranks(n, move |comm| {
            let region = comm.allocate("messages", 4 * 1000, Sharing::PerRank).unwrap();
            let mine: Vec<f32> = (0..1000).map(|i| value(comm.rank(), i)).collect();
            region.write(0, &mine).unwrap();
            comm.send_receive(&region, DType::F32, 7..900, [n - 1, 0], Ready::now()).unwrap().wait().unwrap();
            // The next call may write what the other rank has read.
            let mut out = mine;
            region.read(0, &mut out).unwrap();
            region.write(0, &vec![-2f32; 1000]).unwrap();
            let traffic = *comm.traffic().iter().find(|t| t.operation == Operation::SendReceive).unwrap();
            assert_eq!((traffic.calls, traffic.bytes, traffic.sent_bytes(n)), (1, 4 * 893, 4.0 * 893.0));
            comm.finish();
            out
        });
        for (rank, out) in all.iter().enumerate() {
            let sender = |i: usize| if rank == 0 && (7..900).contains(&i) { n - 1 } else { rank };
            assert!(
                (0..1000).all(|i| out[i].to_bits() == value(sender(i), i).to_bits()),
                "{n} ranks, rank {rank}"
            );
        }
    }
}

/// Some ranks send nothing to some, and rank 1 sends nothing to anybody.
fn count(from: usize, to: usize) -> usize {
    if from == 1 { 0 } else { (from * 7 + to * 3) % 5 * 101 }
}

/// Invariant 6.
#[test]
fn uneven_blocks_arrive_behind_each_other_in_the_order_of_their_senders() {
    for n in worlds() {
        let all = ranks(n, move |comm| {
            let counts: Vec<usize> = (0..n).map(|to| count(comm.rank(), to)).collect();
            let from = comm.allocate("sent", 4 * 404 * n, Sharing::PerRank).unwrap();
            let to = comm.allocate("received", 4 * 404 * n, Sharing::PerRank).unwrap();
            let mine: Vec<f32> = (0..404 * n).map(|i| value(comm.rank(), i)).collect();
            from.write(0, &mine).unwrap();
            to.write(0, &vec![-1f32; mine.len()]).unwrap();
            let (ready, came) = comm.all_to_all_v(&from, &to, DType::F32, &counts, Ready::now()).unwrap();
            ready.wait().unwrap();
            from.write(0, &vec![-2f32; mine.len()]).unwrap();
            let mut out = mine;
            to.read(0, &mut out).unwrap();
            comm.finish();
            (came, out)
        });
        for (rank, (came, out)) in all.iter().enumerate() {
            assert_eq!(
                *came,
                (0..n).map(|peer| count(peer, rank)).collect::<Vec<_>>(),
                "{n} ranks, rank {rank}"
            );
            let of_peer = |peer: usize| {
                let begin: usize = (0..rank).map(|before| count(peer, before)).sum();
                (begin..begin + count(peer, rank)).map(move |i| value(peer, i))
            };
            let mut expected: Vec<f32> = (0..n).flat_map(of_peer).collect();
            expected.resize(404 * n, -1.0);
            assert_eq!(bytemuck::cast_slice::<_, u32>(out), bytemuck::cast_slice::<_, u32>(&expected));
        }
    }
}

/// What one rank may not receive no rank sends.
#[test]
fn uneven_blocks_that_do_not_fit_are_refused_by_all_ranks() {
    let errors = ranks(3, |comm| {
        let from = comm.allocate("sent", 4 * 30, Sharing::PerRank).unwrap();
        let to = comm.allocate("received", 4 * 20, Sharing::PerRank).unwrap();
        let all_to = |counts: &[usize]| comm.all_to_all_v(&from, &to, DType::F32, counts, Ready::now());
        // 21 elements for rank 2.
        let too_many = all_to(&[0, 0, 7]).err().unwrap();
        // Only one rank sends too many.
        let beyond = all_to(&[[10, 10, 11], [0; 3], [0; 3]][comm.rank()]).err().unwrap();
        let uncounted = all_to(&[[usize::MAX, 1, 0], [0; 3], [0; 3]][comm.rank()]).err().unwrap();
        let two = all_to(&[1, 2]).err().unwrap();
        let (ready, came) = all_to(&[6, 6, 6]).unwrap();
        ready.wait().unwrap();
        assert_eq!(came, [6; 3]);
        comm.finish();
        [too_many, beyond, uncounted, two].map(|error| error.to_string())
    });
    for [too_many, beyond, uncounted, two] in errors {
        assert!(
            too_many.contains("the 80 bytes of region \"received\"") && too_many.contains("0..21"),
            "{too_many}"
        );
        assert!(beyond.contains("the 120 bytes of region \"sent\"") && beyond.contains("0..31"), "{beyond}");
        assert!(uncounted.contains("a count of elements for each of 3 ranks"), "{uncounted}");
        assert!(two.contains("2 counts"), "{two}");
    }
}
