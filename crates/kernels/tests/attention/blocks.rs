//! Block masks: against the f64 reference, with what composes with them, and what they save.

use super::*;

/// A mask of some blocks, the same for the same seed; blocks on the diagonal are kept.
fn mask(block: usize, len: usize, n_heads: usize, seed: u64) -> BlockMask {
    let n = len.div_ceil(block);
    let kept = noise(n_heads * n * n, seed);
    BlockMask::new(block, n, n_heads, |h, row, column| {
        row == column || kept[(h * n + row) * n + column] > 0.4
    })
    .unwrap()
}

fn check(shape: AttentionShape, doc_start: Option<Vec<i32>>, blocks: &BlockMask) {
    check_under(shape, doc_start, Some(blocks.clone()));
}

#[test]
fn masked_blocks_are_not_seen() {
    for (len, block, head_dim) in
        [(1, 16, 8), (70, 16, 24), (200, 16, 40), (200, 32, 64), (190, 48, 5), (210, 64, 16)]
    {
        for n_heads in [1, 4] {
            let blocks = mask(block, len, n_heads, 7);
            let shape = shape(2, len, len, (4, 2), head_dim);
            check(shape, None, &blocks);
            check(AttentionShape { causal: false, ..shape }, None, &blocks);
        }
    }
}

#[test]
fn masks_compose_with_documents_windows_caps_and_caches() {
    for (q_len, kv_len) in [(150, 150), (37, 150), (3, 150), (1, 97)] {
        let shape = AttentionShape { kv_capacity: kv_len + 5, ..shape(2, q_len, kv_len, (4, 2), 24) };
        for n_heads in [1, 4] {
            // A mask that is larger than the sequence: its upper left part counts.
            let blocks = mask(16, kv_len + 64, n_heads, 3);
            check(shape, documents(&shape, &[5, 50, 23]), &blocks);
            check(AttentionShape { window: Some(41), ..shape }, None, &blocks);
            check(AttentionShape { logit_cap: Some(1.5), ..shape }, documents(&shape, &[70]), &blocks);
        }
    }
}

/// Rows that keep nothing, behind 64 blocks and more.
#[test]
fn queries_without_keys_give_zeros() {
    let n = 80;
    let blocks = BlockMask::new(16, n, 1, |_, row, column| row % 3 != 1 && (column + row) % 27 == 0).unwrap();
    for q_len in [16 * n, 5] {
        check(shape(1, q_len, 16 * n, (2, 1), 16), None, &blocks);
    }
    let none = BlockMask::new(16, 4, 1, |_, _, _| false).unwrap();
    for q_len in [64, 2] {
        let case =
            Case::<f32> { blocks: Some(none.clone()), ..Case::new(shape(1, q_len, 64, (2, 1), 16), None) };
        let out = case.run(&cpus()[0]);
        assert!(out.o.iter().chain(&out.dq).chain(&out.dk).all(|x| *x == 0.0));
        assert!(out.lse.iter().all(|x| *x == f32::NEG_INFINITY));
    }
}

#[test]
fn a_mask_that_keeps_everything_changes_no_bit() {
    for cpu in cpus() {
        for (q_len, causal) in [(3, true), (150, true), (150, false)] {
            let shape = AttentionShape { causal, ..shape(2, q_len, 150, (4, 2), 40) };
            // The pass for few queries begins its blocks of keys elsewhere where documents begin inside one.
            let starts = if q_len > 8 { documents(&shape, &[30, 45]) } else { None };
            let plain = Case::<bf16>::new(shape, starts);
            let all = BlockMask::new(32, 5, 4, |_, _, _| true).unwrap();
            let masked = Case { blocks: Some(all), ..plain.clone() };
            assert!(plain.run(&cpu) == masked.run(&cpu), "{q_len} {causal}");
        }
    }
}

#[test]
fn bits_under_a_mask_do_not_depend_on_threads() {
    for isa in Isa::available() {
        for q_len in [2, 150] {
            let case = Case::<bf16> {
                blocks: Some(mask(16, 150, 4, 11)),
                ..Case::new(shape(3, q_len, 150, (4, 2), 40), None)
            };
            let solo = case.run(&Cpu { isa, par: Par::solo() });
            assert!(solo == case.run(&Cpu { isa, par: Par::threads(3).unwrap() }));
        }
    }
}

/// Keys that no query keeps are not even read: a NaN in them stays where it is.
#[test]
fn skipped_blocks_are_not_read() {
    let blocks = BlockMask::new(16, 12, 1, |_, row, column| column != 3 || row == 3).unwrap();
    for cpu in cpus() {
        for q_len in [64, 4] {
            let mut case = Case::<f32> {
                blocks: Some(blocks.clone()),
                ..Case::new(shape(1, q_len, 192, (1, 1), 16), None)
            };
            for x in [&mut case.k, &mut case.v] {
                x[3 * 16 * 16..4 * 16 * 16].fill(f32::NAN);
            }
            let out = case.run(&cpu);
            assert!(out.o.iter().chain(&out.dq).all(|x| x.is_finite()), "{q_len} {}", cpu.isa.path());
        }
    }
}

#[test]
fn pairs_and_density_are_counted() {
    for (q_len, kv_len, causal) in [(70, 70, true), (70, 70, false), (9, 70, true)] {
        for n_heads in [1, 4] {
            let blocks = mask(16, 96, n_heads, 5);
            let shape = AttentionShape { causal, ..shape(1, q_len, kv_len, (4, 2), 8) };
            let mut pairs = 0;
            for head in 0..4 {
                for i in kv_len - q_len..kv_len {
                    let seen = (0..kv_len).filter(|j| !causal || *j <= i);
                    pairs += seen.filter(|j| blocks.keeps(head % n_heads, i / 16, j / 16)).count() as u64;
                }
            }
            assert_eq!(blocks.pairs(&shape), pairs);
        }
    }
    let blocks = BlockMask::new(16, 4, 1, |_, row, column| row == column || (row, column) == (0, 3)).unwrap();
    assert_eq!((blocks.density(false), blocks.density(true)), (5.0 / 16.0, 4.0 / 10.0));
    assert_eq!((blocks.positions(), blocks.block(), blocks.n_blocks()), (64, 16, 4));
    assert!(!blocks.keeps(1, 0, 0) && !blocks.keeps(0, 4, 0) && !blocks.keeps(0, 0, 4));
}

#[test]
fn masks_that_do_not_fit_are_errors() {
    let message = |result: Result<BlockMask>| result.unwrap_err().to_string();
    for (block, n_blocks, n_heads) in
        [(0, 1, 1), (8, 1, 1), (24, 1, 1), (16, 0, 1), (16, 1, 0), (16, usize::MAX, 1)]
    {
        let got = message(BlockMask::new(block, n_blocks, n_heads, |_, _, _| true));
        assert!(got.contains("multiple of 16"), "{got}");
    }
    let cpu = cpus().remove(0);
    let blocks = BlockMask::new(16, 2, 3, |_, _, _| true).unwrap();
    let run = |shape: AttentionShape, blocks: &BlockMask| {
        let (q, k) = (vec![0f32; shape.q_elems().unwrap()], vec![0f32; shape.kv_elems().unwrap()]);
        let (mut o, mut lse) = (q.clone(), vec![0.0; shape.n_heads * shape.q_len]);
        let mut scratch = vec![0; attention_forward_scratch_bytes(&cpu, &shape, DType::F32)];
        attention_forward(&cpu, &shape, &q, &k, &k, None, Some(blocks), &mut o, &mut lse, &mut scratch)
            .unwrap_err()
            .to_string()
    };
    assert!(run(shape(1, 9, 9, (2, 1), 8), &blocks).contains("3 heads"));
    assert!(run(shape(1, 33, 33, (3, 1), 8), &blocks).contains("at most 32 keys"));
    let cross = AttentionShape { causal: false, ..shape(1, 20, 9, (3, 1), 8) };
    assert!(run(cross, &blocks).contains("queries among them"));
}
