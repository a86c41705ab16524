//! Attention against the f64 reference: shapes, documents, caches, instruction sets, threads, errors.

use oarlock_kernels::attention::{
    AttentionShape, BlockMask, CachedSequence, PAGE_ROWS, attention_backward,
    attention_backward_scratch_bytes, attention_forward, attention_forward_scratch_bytes,
    attention_of_cached, attention_of_each,
};
use oarlock_kernels::{Cpu, DType, Isa, Par, Result, bf16, f16};
use oarlock_reference::attention::{Keeps, Operands, Shape};
use oarlock_reference::compare::assert_near_largest;

use crate::everywhere::{Element, f64s, has_the_promised_bits, scaled};

mod blocks;

/// Numbers in -1 .. 1, the same for the same seed.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    scaled(seed, n, 0.5, 0.0)
}

fn shape(
    batch: usize,
    q_len: usize,
    kv_len: usize,
    heads: (usize, usize),
    head_dim: usize,
) -> AttentionShape {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionShape {
        batch,
        q_len,
        kv_len,
        n_heads: heads.0,
        n_kv_heads: heads.1,
        head_dim,
        kv_capacity: kv_len,
        scale,
        causal: true,
        window: None,
        logit_cap: None,
    }
}

#[derive(Clone)]
struct Case<T> {
    shape: AttentionShape,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    d_o: Vec<T>,
    doc_start: Option<Vec<i32>>,
    blocks: Option<BlockMask>,
}

#[derive(Clone, PartialEq)]
struct Results<T> {
    o: Vec<T>,
    lse: Vec<f32>,
    dq: Vec<T>,
    dk: Vec<T>,
    dv: Vec<T>,
}

impl<T: Element> Case<T> {
    fn new(shape: AttentionShape, doc_start: Option<Vec<i32>>) -> Case<T> {
        let (n_q, n_kv) = (shape.q_elems().unwrap(), shape.kv_elems().unwrap());
        // Larger queries make the softmax uneven.
        let (q, d_o) = (scaled(1, n_q, 2.0, 0.0), scaled(4, n_q, 0.5, 0.0));
        let (k, v) = (scaled(2, n_kv, 0.5, 0.0), scaled(3, n_kv, 0.5, 0.0));
        Case { shape, q, k, v, d_o, doc_start, blocks: None }
    }

    fn run(&self, cpu: &Cpu) -> Results<T> {
        let (shape, one) = (&self.shape, T::from_f32(1.0));
        let (doc_start, blocks) = (self.doc_start.as_deref(), self.blocks.as_ref());
        let mut out = Results {
            o: vec![one; self.q.len()],
            lse: vec![1.0; shape.batch * shape.n_heads * shape.q_len],
            dq: vec![one; self.q.len()],
            dk: vec![one; self.k.len()],
            dv: vec![one; self.v.len()],
        };
        // Scratch full of NaN: whatever is read without having been written shows.
        let mut scratch = vec![0xff; attention_forward_scratch_bytes(cpu, shape, T::DTYPE)];
        let (q, k, v) = (&self.q, &self.k, &self.v);
        let (o, lse) = (&mut out.o, &mut out.lse);
        attention_forward(cpu, shape, q, k, v, doc_start, blocks, o, lse, &mut scratch).unwrap();
        let mut scratch = vec![0xff; attention_backward_scratch_bytes(cpu, shape, T::DTYPE)];
        let Results { o, lse, dq, dk, dv } = &mut out;
        attention_backward(
            cpu,
            shape,
            q,
            k,
            v,
            doc_start,
            blocks,
            o,
            lse,
            &self.d_o,
            dq,
            dk,
            dv,
            &mut scratch,
        )
        .unwrap();
        out
    }

    /// Compares runs on every instruction set with the reference; errors may be `tolerance` of the largest value, or of 0.5.
    fn check(&self, tolerance: f64) {
        let s = &self.shape;
        let shape = Shape {
            batch: s.batch,
            q_len: s.q_len,
            kv_len: s.kv_len,
            kv_capacity: s.kv_capacity,
            heads: s.n_heads,
            kv_heads: s.n_kv_heads,
            head_dim: s.head_dim,
            scale: f64::from(s.scale),
            causal: s.causal,
            window: s.window,
            logit_cap: s.logit_cap.map(f64::from),
        };
        let [q, k, v, d_o] = [&self.q, &self.k, &self.v, &self.d_o].map(|x| f64s(x));
        let keeps = self.blocks.as_ref().map(|mask| {
            move |h: usize, i: usize, j: usize| {
                mask.keeps(h % mask.n_heads(), i / mask.block(), j / mask.block())
            }
        });
        let keeps = keeps.as_ref().map(|keeps| -> &Keeps<'_> { keeps });
        let doc_start = self.doc_start.as_deref();
        let want = shape.attention(&Operands { q: &q, k: &k, v: &v, d_o: &d_o, doc_start, keeps });
        let mut promised: Option<Results<T>> = None;
        for cpu in cpus() {
            let got = self.run(&cpu);
            let what = |what| format!("{what} of {s:?}, {}, {}", T::DTYPE, cpu.isa.path());
            if has_the_promised_bits(cpu.isa.path(), T::DTYPE) {
                let same = *promised.get_or_insert_with(|| got.clone()) == got;
                assert!(same, "{}", what("the bits of this path alone"));
            }
            assert_near_largest(&what("lse"), &got.lse, &want.lse, tolerance, 0.5);
            for (name, got, want) in [
                ("o", got.o, &want.o),
                ("dq", got.dq, &want.dq),
                ("dk", got.dk, &want.dk),
                ("dv", got.dv, &want.dv),
            ] {
                assert_near_largest(&what(name), &got, want, tolerance, 0.5);
            }
        }
    }
}

fn cpus() -> Vec<Cpu> {
    Isa::available().into_iter().map(|isa| Cpu { isa, par: Par::solo() }).collect()
}

fn check_all(shape: AttentionShape, doc_start: Option<Vec<i32>>) {
    check_under(shape, doc_start, None);
}

fn check_under(shape: AttentionShape, doc_start: Option<Vec<i32>>, blocks: Option<BlockMask>) {
    Case::<f32> { blocks: blocks.clone(), ..Case::new(shape, doc_start.clone()) }.check(4e-6);
    Case::<bf16> { blocks: blocks.clone(), ..Case::new(shape, doc_start.clone()) }.check(2e-2);
    Case::<f16> { blocks, ..Case::new(shape, doc_start) }.check(2e-3);
}

/// Documents of the given lengths, repeated, in a sequence of which the queries are the end.
fn documents(shape: &AttentionShape, lengths: &[usize]) -> Option<Vec<i32>> {
    let mut starts = vec![];
    for length in lengths.iter().cycle() {
        let first = starts.len() as i32;
        starts.extend(std::iter::repeat_n(first, *length));
        if starts.len() >= shape.kv_len {
            break;
        }
    }
    let queries = &starts[shape.kv_len - shape.q_len..shape.kv_len];
    Some(queries.iter().copied().cycle().take(shape.batch * shape.q_len).collect())
}

#[test]
fn odd_lengths_and_head_dims() {
    for (len, head_dim) in [(1, 32), (7, 48), (65, 64), (130, 80), (33, 5), (40, 96), (64, 128), (9, 17)] {
        check_all(shape(2, len, len, (2, 1), head_dim), None);
    }
}

#[test]
fn groups_of_heads() {
    for heads in [(1, 1), (4, 4), (4, 2), (4, 1)] {
        check_all(shape(2, 50, 50, heads, 32), None);
    }
}

#[test]
fn blocks_of_keys() {
    check_all(shape(1, 300, 300, (2, 1), 32), None);
    check_all(AttentionShape { causal: false, ..shape(1, 150, 290, (2, 1), 16) }, None);
}

#[test]
fn caches() {
    for (q_len, kv_len, capacity) in
        [(1, 1, 4), (1, 200, 200), (3, 70, 90), (7, 7, 9), (8, 64, 64), (40, 133, 150)]
    {
        let shape = shape(2, q_len, kv_len, (4, 2), 24);
        check_all(AttentionShape { kv_capacity: capacity, ..shape }, None);
        check_all(AttentionShape { kv_capacity: capacity, causal: false, ..shape }, None);
    }
}

#[test]
fn queries_without_keys_get_zeros() {
    check_all(shape(1, 5, 2, (2, 1), 16), None);
    check_all(shape(1, 50, 20, (2, 1), 16), None);
    check_all(shape(2, 20, 0, (2, 1), 16), None);
    check_all(shape(2, 0, 20, (2, 1), 16), None);
    check_all(AttentionShape { causal: false, ..shape(1, 40, 40, (2, 1), 16) }, Some(vec![40; 40]));
}

#[test]
fn packed_documents() {
    for (q_len, kv_len, lengths) in
        [(140, 140, &[20, 3, 50][..]), (90, 90, &[1]), (130, 130, &[64]), (5, 90, &[40]), (50, 210, &[7, 33])]
    {
        let shape = shape(2, q_len, kv_len, (2, 1), 32);
        check_all(shape, documents(&shape, lengths));
    }
}

#[test]
fn any_document_start_is_safe() {
    for q_len in [5, 100] {
        let shape = shape(1, q_len, 100, (2, 1), 16);
        for causal in [true, false] {
            let wild = noise(q_len, 9).iter().map(|x| (x * 160.0) as i32).collect();
            check_all(AttentionShape { causal, ..shape }, Some(wild));
        }
        for extreme in [i32::MIN, i32::MAX] {
            check_all(shape, Some(vec![extreme; q_len]));
        }
    }
}

#[test]
fn windows() {
    for (q_len, kv_len, window) in [
        (140, 140, 1),
        (140, 140, 7),
        (65, 65, 64),
        (100, 100, 1000),
        (200, 200, 33),
        (3, 300, 100),
        (9, 90, 20),
    ] {
        let shape = AttentionShape { window: Some(window), ..shape(2, q_len, kv_len, (4, 2), 24) };
        check_all(shape, None);
        check_all(AttentionShape { kv_capacity: kv_len + 5, ..shape }, documents(&shape, &[5, 50, 23]));
    }
    // A query behind the last key, and one whose window ends before its document begins.
    check_all(AttentionShape { window: Some(2), ..shape(1, 12, 5, (2, 1), 16) }, None);
    check_all(AttentionShape { window: Some(3), ..shape(1, 40, 40, (2, 1), 16) }, Some(vec![30; 40]));
}

#[test]
fn capped_scores() {
    for (q_len, kv_len, cap) in [(1, 1, 0.5), (2, 77, 2.0), (70, 70, 0.5), (133, 133, 2.0), (40, 90, 50.0)] {
        let shape = AttentionShape { logit_cap: Some(cap), ..shape(2, q_len, kv_len, (4, 2), 40) };
        check_all(shape, None);
        let windowed = AttentionShape { window: Some(21), ..shape };
        check_all(windowed, documents(&shape, &[20, 3, 50]));
    }
}

/// A window or documents that exclude nothing, and the plain causal pass, give bitwise identical results.
#[test]
fn a_window_that_excludes_nothing_changes_no_bit() {
    for cpu in cpus() {
        for q_len in [3, 100] {
            let plain = Case::<bf16>::new(shape(2, q_len, 100, (4, 2), 40), None);
            let wide = Case { shape: AttentionShape { window: Some(100), ..plain.shape }, ..plain.clone() };
            assert!(plain.run(&cpu) == wide.run(&cpu));
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    fn same<T: Element>(shape: AttentionShape) {
        for isa in Isa::available() {
            let case = Case::<T>::new(shape, documents(&shape, &[30, 45]));
            let solo = case.run(&Cpu { isa, par: Par::solo() });
            for threads in [2, 7] {
                let many = case.run(&Cpu { isa, par: Par::threads(threads).unwrap() });
                assert!(solo == many, "{shape:?} {threads}");
            }
        }
    }
    for q_len in [1, 100] {
        let plain = shape(3, q_len, 100, (4, 2), 40);
        same::<f32>(plain);
        same::<bf16>(plain);
        same::<bf16>(AttentionShape { window: Some(19), logit_cap: Some(1.5), ..plain });
    }
}

/// The lengths of the sequences that are generated together, around blocks of keys and windows.
const LENGTHS: [usize; 5] = [1, 63, 64, 130, 20];

/// What one query of each of [`LENGTHS`] gives, together and each alone.
fn of_each<T: Element>(cpu: &Cpu, options: AttentionShape, blocks: Option<&BlockMask>) {
    let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = options;
    let caches: Vec<[Vec<T>; 2]> = LENGTHS
        .iter()
        .enumerate()
        .map(|(seed, len)| {
            let n = (len + seed) * n_kv_heads * head_dim;
            [scaled(2 * seed as u64, n, 0.5, 0.0), scaled(2 * seed as u64 + 1, n, 0.5, 0.0)]
        })
        .collect();
    let (n, row) = (LENGTHS.len(), n_heads * head_dim);
    let q: Vec<T> = scaled(99, n * row, 2.0, 0.0);
    let shape = AttentionShape { batch: n, q_len: 1, kv_len: 130, kv_capacity: 133, ..options };
    let whole: Vec<[[&[T]; 1]; 2]> = caches.iter().map(|[k, v]| [[&k[..]], [&v[..]]]).collect();
    let filled: Vec<CachedSequence<T>> =
        whole.iter().zip(LENGTHS).map(|([k, v], len)| CachedSequence { k, v, len }).collect();
    let (mut o, mut lse) = (vec![T::from_f32(1.0); n * row], vec![1.0; n * n_heads]);
    let mut scratch = vec![0xff; attention_forward_scratch_bytes(cpu, &shape, T::DTYPE)];
    attention_of_each(cpu, &shape, &q, &filled, blocks, &mut o, &mut lse, &mut scratch).unwrap();
    for (index, ([k, v], len)) in caches.iter().zip(LENGTHS).enumerate() {
        let shape = AttentionShape { batch: 1, kv_len: len, kv_capacity: len + index, ..shape };
        let (mut own_o, mut own_lse) = (vec![T::from_f32(1.0); row], vec![1.0; n_heads]);
        let q = &q[index * row..][..row];
        attention_forward(cpu, &shape, q, k, v, None, blocks, &mut own_o, &mut own_lse, &mut scratch)
            .unwrap();
        let what = format!("{shape:?}, {}, {}", T::DTYPE, cpu.isa.path());
        assert!(own_o == o[index * row..][..row] && own_lse == lse[index * n_heads..][..n_heads], "{what}");
    }
}

#[test]
fn sequences_of_different_lengths_have_the_bits_of_each_alone() {
    let plain = shape(1, 1, 1, (4, 2), 24);
    let windowed = AttentionShape { window: Some(40), logit_cap: Some(1.5), ..plain };
    let blocks = BlockMask::new(16, 9, 4, |head, row, column| (row + column + head) % 3 != 1).unwrap();
    for isa in Isa::available() {
        for threads in [1, 2, 7] {
            let cpu = Cpu { isa, par: Par::threads(threads).unwrap() };
            for options in [plain, windowed] {
                of_each::<f32>(&cpu, options, None);
                of_each::<bf16>(&cpu, options, None);
                of_each::<f16>(&cpu, options, None);
            }
            of_each::<f32>(&cpu, plain, Some(&blocks));
        }
    }
}

/// The pages of what is `n` rows long, with other numbers behind its last row.
fn pages<T: Element>(data: &[T], row: usize, n: usize) -> Vec<Vec<T>> {
    let page = |page: &[T]| {
        let mut page = page.to_vec();
        page.resize(PAGE_ROWS * row, T::from_f32(7.0));
        page
    };
    data[..n * row].chunks(PAGE_ROWS * row).map(page).collect()
}

/// A pass with outputs, log-sum-exps and scratch.
type Pass<'a, T> = dyn Fn(&AttentionShape, &mut [T], &mut [f32], &mut [u8]) + 'a;

/// What the last `q_len` positions of a sequence see of it, whole and in pages, alone and beside another.
fn in_pages<T: Element>(cpu: &Cpu, options: AttentionShape, blocks: Option<&BlockMask>) {
    let AttentionShape { q_len, kv_len, n_heads, n_kv_heads, head_dim, .. } = options;
    let (row, q_row) = (n_kv_heads * head_dim, n_heads * head_dim);
    let [k, v] = [1, 2].map(|seed| scaled::<T>(seed, kv_len * row, 0.5, 0.0));
    let q: Vec<T> = scaled(3, q_len * q_row, 2.0, 0.0);
    let run = |f: &Pass<'_, T>, batch: usize| {
        let shape = AttentionShape { batch, kv_capacity: kv_len, ..options };
        let n = batch * q_len;
        let (mut o, mut lse) = (vec![T::from_f32(1.0); n * q_row], vec![1.0; n * n_heads]);
        let mut scratch = vec![0xff; attention_forward_scratch_bytes(cpu, &shape, T::DTYPE)];
        f(&shape, &mut o, &mut lse, &mut scratch);
        (o, lse)
    };
    let whole = run(
        &|shape, o, lse, scratch| {
            attention_forward(cpu, shape, &q, &k, &v, None, blocks, o, lse, scratch).unwrap();
        },
        1,
    );
    let paged = [&k, &v].map(|x| pages(x, row, kv_len));
    let [k, v] = paged.each_ref().map(|pages| pages.iter().map(|page| &page[..]).collect::<Vec<&[T]>>());
    let cache = CachedSequence { k: &k, v: &v, len: kv_len };
    let found = run(
        &|shape, o, lse, scratch| {
            attention_of_cached(cpu, shape, &q, &cache, blocks, o, lse, scratch).unwrap();
        },
        1,
    );
    let what = format!("{options:?}, {}, {}", T::DTYPE, cpu.isa.path());
    assert!(found == whole, "{what}");
    if q_len == 1 {
        let both = run(
            &|shape, o, lse, scratch| {
                let q = [&q[..], &q[..]].concat();
                attention_of_each(cpu, shape, &q, &[cache, cache], blocks, o, lse, scratch).unwrap();
            },
            2,
        );
        assert!(both.0[..q_row] == whole.0 && both.0[q_row..] == whole.0, "{what}");
    }
}

#[test]
fn keys_and_values_in_pages_give_the_bits_of_whole_ones() {
    let blocks = BlockMask::new(16, 20, 4, |head, row, column| (row + column + head) % 3 != 1).unwrap();
    for isa in Isa::available() {
        for threads in [1, 2, 7] {
            let cpu = Cpu { isa, par: Par::threads(threads).unwrap() };
            for (q_len, kv_len) in
                [(1, 1), (1, 64), (1, 65), (1, 300), (5, 131), (40, 40), (33, 190), (70, 257)]
            {
                let plain = shape(1, q_len, kv_len, (4, 2), 24);
                let windowed = AttentionShape { window: Some(70), logit_cap: Some(1.5), ..plain };
                for options in [plain, windowed] {
                    in_pages::<f32>(&cpu, options, None);
                    in_pages::<bf16>(&cpu, options, None);
                    in_pages::<f16>(&cpu, options, None);
                }
                in_pages::<f32>(&cpu, plain, Some(&blocks));
            }
        }
    }
}

#[test]
fn pages_of_other_sizes_are_errors() {
    let cpu = cpus().remove(0);
    let plain = shape(1, 1, 65, (2, 1), 8);
    let data = vec![0f32; PAGE_ROWS * 8];
    let run = |pages: &[&[f32]], batch: usize| {
        let shape = AttentionShape { batch, ..plain };
        let cache = CachedSequence { k: pages, v: pages, len: 65 };
        let (mut o, mut lse) = ([0.0; 16], [0.0; 2]);
        let mut scratch = vec![0; attention_forward_scratch_bytes(&cpu, &shape, DType::F32)];
        attention_of_cached(&cpu, &shape, &data[..16], &cache, None, &mut o, &mut lse, &mut scratch)
    };
    run(&[&data, &data], 1).unwrap();
    let message = |result: Result<()>| result.unwrap_err().to_string();
    assert!(message(run(&[&data, &data[..8]], 1)).contains("512 elements of a page of k, got 8"));
    assert!(message(run(&[&data], 1)).contains("kv_capacity"));
    assert!(message(run(&[], 1)).contains("kv_capacity"));
    assert!(message(run(&[&data, &data], 2)).contains("one sequence in a cache"));
}

#[test]
fn sequences_that_do_not_fit_are_errors() {
    let cpu = cpus().remove(0);
    let good = shape(2, 1, 9, (2, 1), 8);
    let (q, k) = (vec![0f32; 32], vec![0f32; 72]);
    let run = |shape: AttentionShape, q: &[f32], lens: &[usize]| {
        let pages = [&k[..]];
        let caches: Vec<_> = lens.iter().map(|&len| CachedSequence { k: &pages, v: &pages, len }).collect();
        let (mut o, mut lse) = (q.to_vec(), vec![0.0; 4]);
        let mut scratch = vec![0; attention_forward_scratch_bytes(&cpu, &shape, DType::F32)];
        attention_of_each(&cpu, &shape, q, &caches, None, &mut o, &mut lse, &mut scratch)
    };
    run(good, &q, &[9, 1]).unwrap();
    let message = |result: Result<()>| result.unwrap_err().to_string();
    assert!(message(run(good, &q, &[9])).contains("one query of each of 1 sequences"));
    assert!(message(run(AttentionShape { q_len: 2, ..good }, &q, &[9, 9])).contains("one query"));
    assert!(message(run(good, &q, &[9, 10])).contains("kv_capacity"));
    assert!(message(run(good, &q[..31], &[9, 9])).contains("32 elements of q, got 31"));
}

#[test]
fn not_a_number_reaches_the_output() {
    for cpu in cpus() {
        for q_len in [2, 40] {
            let mut case = Case::<f32>::new(shape(1, q_len, 40, (1, 1), 16), None);
            case.q[0] = f32::NAN;
            let out = case.run(&cpu);
            assert!(out.o[..16].iter().all(|x| x.is_nan()) && out.o[16..].iter().all(|x| x.is_finite()));
            assert!(out.dq[..16].iter().all(|x| x.is_nan()) && out.dq[16..].iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let cpu = cpus().remove(0);
    let good = shape(1, 9, 9, (2, 1), 8);
    let run = |shape: AttentionShape, scratch: usize, q: usize, doc_start: Option<&[i32]>| {
        let (q, k) = (vec![0f32; q], vec![0f32; 72]);
        let (mut o, mut lse) = (q.clone(), [0.0; 18]);
        let scratch = &mut vec![0; scratch];
        attention_forward(&cpu, &shape, &q, &k, &k, doc_start, None, &mut o, &mut lse, scratch)
    };
    let enough = attention_forward_scratch_bytes(&cpu, &good, DType::F32);
    run(good, enough, 144, Some(&[0; 9])).unwrap();
    let message = |result: Result<()>| result.unwrap_err().to_string();
    assert!(message(run(good, 100, 144, None)).contains("scratch"));
    assert!(message(run(good, enough, 143, None)).contains("144 elements of q, got 143"));
    assert!(message(run(good, enough, 144, Some(&[0; 8]))).contains("9 elements of doc_start"));
    let message = |shape| message(run(shape, enough, 144, None));
    assert!(message(AttentionShape { n_kv_heads: 0, ..good }).contains("multiple of the kv heads"));
    assert!(
        message(AttentionShape { n_heads: 3, n_kv_heads: 2, ..good }).contains("multiple of the kv heads")
    );
    assert!(message(AttentionShape { kv_len: 10, ..good }).contains("kv_capacity"));
    assert!(message(AttentionShape { batch: usize::MAX, ..good }).contains("address space"));
}
