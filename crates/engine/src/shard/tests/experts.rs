//! Ranks of an expert axis send each other tokens, as many as a router says, and get them back.

use oarlock_comm::{Communicator, Ready, Region, Sharing};
use oarlock_tensor::DType;

use super::on_ranks;
use crate::shard::{Axis, Mesh, Topology};

const N_TOKENS: usize = 23;
const DIM: usize = 5;

/// The rank of its expert group to which a token of a rank goes: rank 1 of the second group sends nothing to anybody else.
fn expert_of(rank: usize, token: usize, n: usize) -> usize {
    if rank == 3 { 1 } else { (rank * 5 + token * token + token / 3) % n }
}

fn value(rank: usize, token: usize, i: usize) -> f32 {
    (rank * 1000 + token * 10 + i) as f32
}

/// What each rank of a group sends goes to `to` behind each other; returns how many elements came from each.
fn exchange(group: &Communicator, [from, to]: [&Region; 2], sent: &[f32], counts: &[usize]) -> Vec<usize> {
    from.write(0, sent).unwrap();
    let (ready, came) = group.all_to_all_v(from, to, DType::F32, counts, Ready::now()).unwrap();
    ready.wait().unwrap();
    came
}

fn read(region: &Region, n: usize) -> Vec<f32> {
    let mut values = vec![0.0f32; n];
    region.read(0, &mut values).unwrap();
    values
}

#[test]
fn tokens_go_to_their_experts_and_come_back() {
    on_ranks(4, |comm| {
        let mut mesh = Mesh::new(comm);
        mesh.divide(&Topology::new(&[(Axis::Data, 2), (Axis::Expert, 2)]), &[Axis::Expert]).unwrap();
        let group = mesh.get(Axis::Expert).unwrap();
        let (rank, n) = (comm.rank(), group.world_size());
        let region = |name| group.allocate(name, 4 * DIM * N_TOKENS * n, Sharing::PerRank).unwrap();
        let (from, to) = (region("tokens: sent"), region("tokens: received"));
        let mut order: Vec<usize> = (0..N_TOKENS).collect();
        order.sort_by_key(|&token| expert_of(rank, token, n));
        let tokens: Vec<f32> =
            order.iter().flat_map(|&token| (0..DIM).map(move |i| value(rank, token, i))).collect();
        let to_expert = |expert| (0..N_TOKENS).filter(|&token| expert_of(rank, token, n) == expert).count();
        let counts: Vec<usize> = (0..n).map(|expert| DIM * to_expert(expert)).collect();
        let came = exchange(group, [&from, &to], &tokens, &counts);
        // Each expert multiplies by a number of its own.
        let factor = |expert: usize| (expert + 2) as f32;
        let mut computed = read(&to, came.iter().sum());
        computed.iter_mut().for_each(|x| *x *= factor(group.rank()));
        let back = exchange(group, [&from, &to], &computed, &came);
        assert_eq!(back, counts, "what went comes back");
        let got = read(&to, DIM * N_TOKENS);
        for (place, &token) in order.iter().enumerate() {
            for i in 0..DIM {
                let expected = factor(expert_of(rank, token, n)) * value(rank, token, i);
                assert_eq!(got[place * DIM + i], expected, "rank {rank}, token {token}");
            }
        }
        came
    });
}
