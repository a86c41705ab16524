//! Sums and extremes against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry::{self, RowSums};
use oarlock_cuda::{Element, Pieces};
use oarlock_reference::compare::tolerance;
use oarlock_reference::reduce as reference;

use crate::emulator::{Buffer, Gpu, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, Plain, assert_close, f64s, values};

/// The sums over the middle dim, in as many launches as it takes.
fn sum_rows<T: Plain, U: Plain>(
    gpu: Gpu,
    scale: f32,
    x: &Buffer<T>,
    sizes: [usize; 3],
    out: (&Buffer<U>, u32),
) {
    let cut = RowSums::new(sizes);
    let [o, k, i, width, run] = [sizes[0], sizes[1], sizes[2], cut.width, cut.run].map(|n| n as u32);
    if cut.n_chunks() == 1 {
        let args = args![scale, x, out.0, out.1, o, k, i, width, run];
        return gpu.run("sum_rows", &[T::ELEMENT, U::ELEMENT], cut.geometry(), args);
    }
    let partials = gpu.fresh::<f32>(cut.partials().iter().product());
    let args = args![1f32, x, partials, 0u32, o, k, i, width, run];
    gpu.run("sum_rows", &[T::ELEMENT, Element::F32], cut.geometry(), args);
    sum_rows(gpu, scale, &partials, cut.partials(), out);
}

fn sums<T: Float, U: Float>(library: &Library, [outer, n, inner]: [usize; 3]) {
    let (x, start) = (values::<T>(1, outer * n * inner), values::<U>(2, outer * inner));
    let dtypes = [T::ELEMENT, U::ELEMENT];
    let (rows, last) = in_every_order(library, |gpu| {
        let (x, out, last) = (gpu.buffer(&x), gpu.buffer(&start), gpu.fresh::<U>(outer * n));
        let (o, k, i) = (outer as u32, n as u32, inner as u32);
        sum_rows(gpu, 0.5, &x, [outer, n, inner], (&out, 1));
        gpu.run("sum_last", &dtypes, geometry::rows(outer * n, inner), args![2f32, x, last, 0u32, o * k, i]);
        (out.read(), last.read())
    });
    let x = f64s(&x);
    let want: Vec<f64> = reference::sums(&x, [outer, n, inner])
        .iter()
        .zip(f64s(&start))
        .map(|(sum, start)| start + 0.5 * sum)
        .collect();
    assert_close("sum of rows", &rows, &want, tolerance::<U>(1e-5, 1.0));
    let want: Vec<f64> = x.chunks(inner).map(|x| 2.0 * x.iter().sum::<f64>()).collect();
    assert_close("sum of the last dim", &last, &want, tolerance::<U>(1e-5, 1.0));
}

/// The sum of rows is the pairwise tree of the CPU's kernels, bitwise identical, in one launch and in several.
fn tree(library: &Library, n: usize, columns: usize, launches: usize) {
    let x: Vec<f32> = values::<f32>(n as u64, n * columns)
        .iter()
        .enumerate()
        .map(|(i, x)| x * 10f32.powi(i as i32 % 7))
        .collect();
    let cuts = std::iter::successors(Some(RowSums::new([1, n, columns])), |cut| {
        (cut.n_chunks() > 1).then(|| RowSums::new(cut.partials()))
    });
    assert_eq!(cuts.count(), launches, "{n} rows of {columns}");
    let got = in_every_order(library, |gpu| {
        let (x, out) = (gpu.buffer(&x), gpu.fresh::<f32>(columns));
        sum_rows(gpu, 1.0, &x, [1, n, columns], (&out, 0));
        out.read()
    });
    for (column, got) in got.iter().enumerate() {
        let mut level: Vec<f32> = x[column..].iter().step_by(columns).copied().collect();
        while level.len() > 1 {
            level = level.chunks(2).map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap()).collect();
        }
        assert_eq!(got.to_bits(), level[0].to_bits(), "{n} rows of {columns}, column {column}");
    }
}

/// Sums over a long batch have enough blocks for a large GPU and take two launches; a sum of zeros keeps their sign, and one
/// of nothing is 0.
#[test]
fn rows_are_cut_so_that_every_multiprocessor_has_work() {
    for (n, columns) in [(16_384, 896), (16_384, 128), (8192, 1536), (32_768, 4096), (1 << 20, 64)] {
        let cut = RowSums::new([1, n, columns]);
        assert!(cut.geometry().grid[0] >= 128, "{n} rows of {columns}: {cut:?}");
        assert_eq!(RowSums::new(cut.partials()).n_chunks(), 1, "{n} rows of {columns}");
    }
    // The weight gradients of norms, of which 32 rows each are one.
    assert_eq!(RowSums::new([1, 512, 896]).n_chunks(), 1);
    on_emulator(|library| {
        let sum_of = |x: &[f32]| {
            in_every_order(library, |gpu| {
                let (from, out) = (gpu.buffer(x), gpu.fresh::<f32>(1));
                sum_rows(gpu, 1.0, &from, [1, x.len(), 1], (&out, 0));
                out.read()[0].to_bits()
            })
        };
        assert_eq!(sum_of(&[-0.0; 11]), (-0f32).to_bits());
        assert_eq!(sum_of(&[]), 0f32.to_bits());
    });
}

fn norms<T: Float>(library: &Library, n: usize) {
    let x = values::<T>(1, n);
    let (blocks, total, mean) = in_every_order(library, |gpu| {
        let n_blocks = n.div_ceil(geometry::NORM_BLOCK);
        let (x, blocks, total) = (gpu.buffer(&x), gpu.fresh::<f64>(n_blocks), gpu.fresh::<f64>(1));
        gpu.run("squared_norm", &[T::ELEMENT], geometry::squared_norm(n), args![x, blocks, n as u64]);
        gpu.run("sum_f64", &[], geometry::squared_norm(n_blocks), args![blocks, total, n_blocks as u64]);
        let mean = gpu.fresh::<f32>(1);
        gpu.run("mean_f64", &[], geometry::one_block(), args![blocks, mean, 7u64, n_blocks as u64]);
        (blocks.read(), total.read(), mean.read())
    });
    let want = reference::block_squares(&f64s(&x), geometry::NORM_BLOCK);
    let near = |got: f64, want: f64| assert!((got - want).abs() <= 1e-12 * want, "got {got}, want {want}");
    blocks.iter().zip(&want).for_each(|(got, want)| near(*got, *want));
    near(total[0], want.iter().sum());
    assert_eq!(mean[0], (total[0] / 7.0) as f32);
}

/// The sums of blocks of many numbers, whatever the grid.
fn sums_of_blocks(library: &Library, n: usize) {
    let x: Vec<f64> = (0..n).map(|i| (i % 1009) as f64 - 300.0).collect();
    let sums = in_every_order(library, |gpu| {
        let n_sums = n.div_ceil(geometry::NORM_BLOCK);
        let (x, all, some) = (gpu.buffer(&x), gpu.fresh::<f64>(n_sums), gpu.fresh::<f64>(n_sums));
        gpu.run("sum_f64", &[], geometry::squared_norm(n), args![x, all, n as u64]);
        gpu.run("sum_f64", &[], geometry::one_block(), args![x, some, n as u64]);
        assert_eq!(all.read(), some.read());
        all.read()
    });
    let want: Vec<f64> = x.chunks(geometry::NORM_BLOCK).map(|x| x.iter().sum()).collect();
    assert_eq!(sums, want);
}

/// The norms of many pieces are those of each.
fn norms_of_pieces(library: &Library) {
    let x = values::<f32>(1, 20_000);
    let parts = [(0, 9000), (9001, 5), (9100, 8192)];
    let (all, each) = in_every_order(library, |gpu| {
        let (x, sums) = (gpu.buffer(&x), gpu.fresh::<f64>(6));
        let (mut pieces, mut block) = (Pieces::new(), 0);
        let mut each = vec![];
        for (first, n) in parts {
            let addresses = [x.address() + 4 * first, sums.address() + 8 * block, 0, 0, 0];
            assert!(pieces.push_addresses(n, addresses));
            block += n.div_ceil(Pieces::TILE) as u64;
            let part = gpu.buffer(&x.read()[first as usize..][..n]);
            let own = gpu.fresh::<f64>(n.div_ceil(geometry::NORM_BLOCK));
            gpu.run("squared_norm", &[Element::F32], geometry::squared_norm(n), args![part, own, n as u64]);
            each.extend(own.read());
        }
        gpu.run("squared_norms", &[], geometry::pieces(&pieces), args![pieces]);
        (sums.read(), each)
    });
    assert_eq!(all, each);
}

fn extremes<T: Float>(library: &Library, least: bool) {
    let (outer, n, inner) = (3, 7, 5);
    let mut x = values::<T>(1, outer * n * inner);
    x[2 * inner] = x[inner];
    x[3 * inner + 1] = T::of(f64::NAN);
    let (values, places) = in_every_order(library, |gpu| {
        let (x, v, p) = (gpu.buffer(&x), gpu.fresh::<T>(outer * inner), gpu.fresh::<i32>(outer * inner));
        let args = args![u32::from(least), x, v, p, outer as u32, n as u32, inner as u32];
        gpu.run("extreme", &[T::ELEMENT], geometry::elements(outer * inner), args);
        (f64s(&v.read()).iter().map(|x| x.to_bits()).collect::<Vec<_>>(), p.read())
    });
    let sizes = [outer, n, inner];
    let want = reference::extremes(&f64s(&x), sizes, least);
    let elements = reference::rows(sizes).zip(&want).map(|(row, place)| x[row[*place]].f64().to_bits());
    assert_eq!(values, elements.collect::<Vec<_>>());
    assert_eq!(places, want.into_iter().map(|place| place as i32).collect::<Vec<_>>());
}

/// Integers that f32 does not tell apart.
fn extremes_of_ints(library: &Library) {
    let x = [1 << 24, (1 << 24) + 1, (1 << 24) + 1, i32::MIN, -7, i32::MAX];
    let of = |least: bool| {
        in_every_order(library, |gpu| {
            let (x, v, p) = (gpu.buffer(&x), gpu.fresh::<i32>(2), gpu.fresh::<i32>(2));
            let args = args![u32::from(least), x, v, p, 2u32, 3u32, 1u32];
            gpu.run("extreme", &[Element::I32], geometry::elements(2), args);
            (v.read(), p.read())
        })
    };
    assert_eq!(of(false), (vec![(1 << 24) + 1, i32::MAX], vec![1, 2]));
    assert_eq!(of(true), (vec![1 << 24, i32::MIN], vec![0, 0]));
}

/// Sums of integers, and which of them is the first beyond their range.
fn sums_of_ints(library: &Library, [outer, n, inner]: [usize; 3], size: i32, want: Option<usize>) {
    let x: Vec<i32> = (0..outer * n * inner).map(|i| (i as i32 * 37 % 101 - 40) * size).collect();
    let (got, positions) = in_every_order(library, |gpu| {
        let grid = if inner == 1 { geometry::losses(outer) } else { geometry::elements(outer * inner) };
        // Sums that are not written stay.
        let (x, out) = (gpu.buffer(&x), gpu.buffer(&vec![0; outer * inner]));
        let positions = gpu.fresh::<u32>(grid.grid[0] as usize);
        let args = args![x, out, positions, outer as u32, n as u32, inner as u32];
        gpu.run("sum_ints", &[], grid, args);
        (out.read(), positions.read())
    });
    let sum =
        |at: usize| (0..n).map(|k| i64::from(x[(at / inner * n + k) * inner + at % inner])).sum::<i64>();
    let sums: Vec<i64> = (0..outer * inner).map(sum).collect();
    assert_eq!(sums.iter().position(|&sum| i32::try_from(sum).is_err()), want, "the case");
    assert_eq!(positions.into_iter().min(), Some(want.unwrap_or(outer * inner) as u32));
    assert!(want.is_some() || got.iter().map(|&sum| i64::from(sum)).eq(sums), "{got:?}");
}

/// Every kernel of the family, those for f32 first.
pub fn check(library: &Library) {
    [1, 2, 3, 5, 8, 9, 31, 64, 77, 257].iter().for_each(|&n| tree(library, n, 1, 1));
    tree(library, 700, 60, 1);
    tree(library, 1100, 71, 2);
    tree(library, 20_000, 9, 2);
    norms::<f32>(library, 10_001);
    norms_of_pieces(library);
    sums_of_blocks(library, 2049);
    sums_of_blocks(library, 3 * 4096 + 5);
    extremes::<f32>(library, true);
    reference::SIZES.iter().for_each(|sizes| sums::<f32, f32>(library, *sizes));
    sums_of_ints(library, [3, 700, 1], 1, None);
    sums_of_ints(library, [2, 9, 300], 1 << 20, None);
    sums_of_ints(library, [2, 40, 3], 1 << 24, Some(0));
    sums_of_ints(library, [5, 20, 1], 10_000_000, Some(1));
    extremes_of_ints(library);
    sums::<bf16, f32>(library, [1, 300, 40]);
    sums::<f16, f32>(library, [3, 1, 8]);
    sums::<bf16, bf16>(library, [2, 9, 33]);
    sums::<bf16, bf16>(library, [1, 1030, 64]);
    sums::<f16, f16>(library, [2, 5, 9]);
    norms::<bf16>(library, 4096);
    norms::<f16>(library, 1);
    extremes::<bf16>(library, false);
    extremes::<f16>(library, true);
}

#[test]
fn sums_match_the_reference() {
    on_emulator(check);
}
