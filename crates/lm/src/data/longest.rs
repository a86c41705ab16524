//! The largest micro-batches of a run whose rows have lengths of their own: what its memory is predicted by.

use std::ops::Range;

use super::deal::shares;
use super::rows::Rows;
use super::sampler::Sampler;

/// Samples of which each is looked at; of more, the longest rows are taken to meet.
const MOST_SAMPLES: u64 = 1 << 22;

/// The most tokens that a micro-batch of any rank has in the steps that consume `samples`, counted from the beginning of
/// the run over all epochs and ranks. With unpaired preferences, the prompts with the answers of others count as well.
pub fn longest_batch(rows: &Rows, sampler: &Sampler, samples: Range<u64>) -> usize {
    let (world, most) = (sampler.world as usize, sampler.micro_batch as usize);
    if samples.end.saturating_sub(samples.start) > MOST_SAMPLES {
        return longest_together(rows, most);
    }
    let (mut position, mut longest) = (samples.start, 0);
    while position < samples.end {
        let all: Vec<u64> = sampler.all_rows(position).collect();
        for dealt in all.chunks(world * most) {
            let lens: Vec<usize> = dealt.iter().map(|&row| rows.tokens_in(row)).collect();
            for share in shares(&lens, world, most) {
                let own = share.iter().map(|&index| lens[index]).sum();
                let judged = share.iter().map(|&index| rows.mismatched_len(dealt[index])).sum();
                longest = longest.max(own).max(judged);
            }
        }
        position += all.len() as u64;
    }
    longest
}

/// The tokens of so many rows, the longest of all.
fn longest_together(rows: &Rows, n_rows: usize) -> usize {
    let len = |row| rows.tokens_in(row).max(rows.mismatched_len(row));
    let mut lens: Vec<usize> = (0..rows.n_rows()).map(len).collect();
    lens.sort_unstable_by(|a, b| b.cmp(a));
    lens.iter().take(n_rows).sum()
}
