//! Attention and rotary positions.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use oarlock_reference::attention::{Keeps, Shape};
use oarlock_reference::formula::value;
use oarlock_reference::rope::{Pairs, angle, rotated};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::{self, AttentionOptions, BlockMask, CachedKv, Mask, Rope};
use oarlock_tensor::{CudaLibraries, DType, Device, Par, Param, RopeScaling, Tensor};

use crate::common::{Array, Case, Env, Node, array, assert_close, f64s, fakes, formula_case, tensor};

/// Batch, queries, keys, heads, kv heads, head size.
#[derive(Clone, Copy)]
struct Dims {
    b: usize,
    q: usize,
    k: usize,
    h: usize,
    g: usize,
    d: usize,
}

/// Which keys a query sees.
#[derive(Clone, Copy, PartialEq)]
enum Sight {
    Full,
    Causal,
    Documents,
}

impl Dims {
    /// The first positions of the documents of queries: documents of three, shifted in each batch row.
    fn doc_starts(&self) -> Vec<i32> {
        let start = |b: usize, i: usize| ((i + b) / 3 * 3).saturating_sub(b) as i32;
        (0..self.b * self.q).map(|at| start(at / self.q, at % self.q)).collect()
    }
}

fn formula(x: [&Node; 3], n: Dims, sight: Sight, options: &AttentionOptions) -> Node {
    let &AttentionOptions { scale, window, logit_cap, ref blocks } = options;
    let shape = Shape {
        q_len: n.q,
        scale: f64::from(scale),
        causal: sight != Sight::Full,
        window,
        logit_cap: logit_cap.map(f64::from),
        ..Shape::causal(n.b, n.k, n.h, n.g, n.d)
    };
    let keeps = blocks.clone().map(|mask| -> Box<Keeps<'static>> {
        Box::new(move |h, i, j| mask.keeps(h % mask.n_heads(), i / 16, j / 16))
    });
    shape.of_arrays(x, (sight == Sight::Documents).then(|| n.doc_starts()), keeps)
}

fn check(n: Dims, sight: Sight) {
    check_with(n, sight, AttentionOptions::new(0.4));
}

fn check_with(n: Dims, sight: Sight, options: AttentionOptions) {
    attention_case(n, sight, options).check();
}

fn attention_case(n: Dims, sight: Sight, options: AttentionOptions) -> Case {
    let inputs =
        [array(1, &[n.b, n.q, n.h, n.d]), array(2, &[n.b, n.k, n.g, n.d]), array(3, &[n.b, n.k, n.g, n.d])];
    let of_op = options.clone();
    let op = move |_: &Env, x: &[Tensor], _: &[Param]| {
        let mask = match sight {
            Sight::Full => Mask::Full,
            Sight::Causal => Mask::Causal,
            Sight::Documents => {
                Mask::Documents(Tensor::from_slice(&n.doc_starts(), [n.b, n.q], x[0].device())?)
            }
        };
        ops::attention(&x[0], &x[1], &x[2], &mask, &of_op)
    };
    let formula = move |x: &[Node], _: &[Node]| formula([&x[0], &x[1], &x[2]], n, sight, &options);
    Case { slack: 2.0, ..formula_case("attention", inputs, [], op, formula) }
}

#[test]
fn full_causal_and_documents_with_grouped_heads() {
    for (h, g) in [(2, 2), (4, 2), (3, 1)] {
        for sight in [Sight::Full, Sight::Causal, Sight::Documents] {
            check(Dims { b: 2, q: 5, k: 5, h, g, d: 6 }, sight);
        }
    }
    check(Dims { b: 1, q: 3, k: 7, h: 2, g: 1, d: 8 }, Sight::Full);
    check(Dims { b: 1, q: 3, k: 7, h: 2, g: 1, d: 8 }, Sight::Causal);
    check(Dims { b: 1, q: 1, k: 1, h: 1, g: 1, d: 1 }, Sight::Causal);
}

#[test]
fn windows_and_capped_scores() {
    let plain = AttentionOptions::new(0.4);
    let windowed = AttentionOptions { window: Some(2), ..plain.clone() };
    let capped = AttentionOptions { logit_cap: Some(1.5), ..plain };
    let both = AttentionOptions { window: Some(3), ..capped.clone() };
    for options in [windowed, capped.clone(), both] {
        for sight in [Sight::Causal, Sight::Documents] {
            check_with(Dims { b: 2, q: 9, k: 9, h: 4, g: 2, d: 6 }, sight, options.clone());
        }
        check_with(Dims { b: 1, q: 3, k: 7, h: 2, g: 1, d: 8 }, Sight::Causal, options);
    }
    check_with(Dims { b: 1, q: 3, k: 7, h: 2, g: 1, d: 8 }, Sight::Full, capped);
}

/// Blocks of 16 positions, so sequences of a few blocks, with and without what composes with their mask.
#[test]
fn block_masks() {
    // Heads differ where the mask has one for each.
    let keeps = |h: usize, row: usize, column: usize| row == column || (row + column + h).is_multiple_of(3);
    for n_heads in [1, 2] {
        let plain = AttentionOptions {
            blocks: Some(BlockMask::new(16, 4, n_heads, keeps).unwrap()),
            ..AttentionOptions::new(0.4)
        };
        let n = Dims { b: 1, q: 37, k: 37, h: 2, g: 1, d: 3 };
        for sight in [Sight::Full, Sight::Causal, Sight::Documents] {
            check_with(n, sight, plain.clone());
        }
        let both = AttentionOptions { window: Some(20), logit_cap: Some(1.5), ..plain.clone() };
        check_with(n, Sight::Causal, both);
        check_with(Dims { q: 3, k: 50, ..n }, Sight::Causal, plain);
    }
}

/// A device reads the variable when it is opened, so this runs in a process of its own. The fake libraries have no own kernels
/// for heads of 96 elements: what comes out is cuDNN's.
#[test]
fn attention_by_cudnn() {
    const VARIABLE: &str = "OARLOCK_ATTENTION";
    if std::env::var_os(VARIABLE).is_none_or(|value| value != "cudnn") {
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        again.args(["--exact", "attention::attention_by_cudnn"]).env(VARIABLE, "cudnn");
        let output = again.output().expect("a process");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let n = Dims { b: 2, q: 4, k: 4, h: 2, g: 1, d: 96 };
    let plain = AttentionOptions::new(0.1);
    for (sight, options) in [
        (Sight::Causal, plain.clone()),
        (Sight::Full, plain.clone()),
        (Sight::Causal, AttentionOptions { window: Some(2), ..plain.clone() }),
    ] {
        attention_case(n, sight, options).check_dtypes(&[DType::BF16, DType::F16]);
    }
    // Documents have no graph, so the own kernels take them, which have heads of 64.
    let documents = Dims { d: 64, ..n };
    attention_case(documents, Sight::Documents, plain).check_dtypes(&[DType::BF16, DType::F16]);
}

/// As above. The first pass that cuDNN computes fails, of heads for which the fake libraries have own kernels.
#[test]
fn attention_that_cudnn_fails_at_is_computed_by_own_kernels() {
    const NAME: &str = "attention::attention_that_cudnn_fails_at_is_computed_by_own_kernels";
    const FAILS: (&str, &str) = ("OARLOCK_FAKE_FAILS", "cudnnBackendExecute=5000");
    if std::env::var_os(FAILS.0).is_none() {
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        again.args(["--exact", NAME]).env("OARLOCK_ATTENTION", "cudnn").env(FAILS.0, FAILS.1);
        let output = again.output().expect("a process");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let n = Dims { b: 2, q: 4, k: 4, h: 2, g: 1, d: 64 };
    attention_case(n, Sight::Causal, AttentionOptions::new(0.1)).check_dtypes(&[DType::BF16]);
    let Some(gpu) = crate::common::gpu() else { return };
    let said = gpu.gpu_info().unwrap().unwrap().without_plan.unwrap();
    assert!(said.starts_with("1 shapes by own kernels: cudnnBackendExecute of cuDNN"), "{said}");
}

/// What was asked for and is not there is an error before anything is computed by something else.
#[test]
fn cudnn_that_was_asked_for_and_is_missing_is_an_error() {
    const VARIABLE: &str = "OARLOCK_ATTENTION";
    const NAME: &str = "attention::cudnn_that_was_asked_for_and_is_missing_is_an_error";
    let Some(fakes) = fakes() else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("without-cudnn-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    for name in ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"] {
        symlink(fakes.join(name), folder.join(name)).unwrap();
    }
    let opened = Device::cuda_of(&CudaLibraries::Folder(folder.clone()), 0, Isa::detect(), Par::solo());
    fs::remove_dir_all(folder).unwrap();
    match std::env::var(VARIABLE).as_deref() {
        Ok("cudnn") => {
            let said = opened.unwrap_err().to_string();
            assert!(said.contains("libcudnn") && said.contains("pip install nvidia-cudnn-cu13"), "{said}");
        }
        Ok(other) => {
            let said = opened.unwrap_err().to_string();
            assert!(
                said.contains(&format!("OARLOCK_ATTENTION is `{other}`, not `own` or `cudnn`")),
                "{said}"
            );
        }
        Err(_) => {
            opened.unwrap();
            for value in ["cudnn", "torch"] {
                let mut again = Command::new(std::env::current_exe().expect("this program"));
                let output = again.args(["--exact", NAME]).env(VARIABLE, value).output().expect("a process");
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success() && said.contains("1 passed"), "{said}");
            }
        }
    }
}

/// Decoding: the last rows of a cache that has room for more.
#[test]
fn cached_attention_is_attention_over_the_filled_part() {
    let n = Dims { b: 2, q: 2, k: 5, h: 4, g: 2, d: 6 };
    let capacity = 9;
    for isa in Isa::available() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let device = Device::cpu(isa, Par::solo());
            let (q, k, v) = (
                array(1, &[n.b, n.q, n.h, n.d]),
                array(2, &[n.b, capacity, n.g, n.d]),
                array(3, &[n.b, capacity, n.g, n.d]),
            );
            let [tq, tk, tv] = [&q, &k, &v].map(|a| tensor(a, dtype, &device));
            let plain = AttentionOptions::new(0.5);
            let options = AttentionOptions { window: Some(3), logit_cap: Some(2.0), ..plain.clone() };
            let cached = |options: &AttentionOptions| {
                f64s(&ops::attention_cached(&tq, &tk, &tv, n.k, options).unwrap())
            };
            let row = n.g * n.d;
            let filled =
                |a: &Array| a.data.chunks(capacity * row).flat_map(|b| b[..n.k * row].to_vec()).collect();
            let (k, v): (Vec<f64>, Vec<f64>) = (filled(&k), filled(&v));
            for options in [plain.clone(), options] {
                let sizes = [[n.b, n.q, n.h, n.d], [n.b, n.k, n.g, n.d], [n.b, n.k, n.g, n.d]];
                let given = [(&sizes[0][..], q.data.clone()), (&sizes[1], k.clone()), (&sizes[2], v.clone())];
                let want = value(given, |[q, k, v]| formula([q, k, v], n, Sight::Causal, &options));
                assert_close(&cached(&options), &want, dtype, 1.0, &device.describe());
            }
            let text = ops::attention_cached(&tq, &tk, &tv, capacity + 1, &plain).unwrap_err().to_string();
            assert!(text.starts_with("attention: expected k and v of shape [2, K, G, 6]"), "{text}");
        }
    }
}

/// A query of each of several sequences, over caches of their own.
#[test]
fn cached_attention_of_each_sequence_is_that_of_it_alone() {
    for device in [Device::cpu(Isa::detect(), Par::solo()), Device::strict(Isa::detect(), Par::solo())] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let of = |seed, sizes: &[usize]| tensor(&array(seed, sizes), dtype, &device);
            let q = of(1, &[3, 1, 4, 6]);
            let caches = [4, 9, 5].map(|n| (of(n as u64, &[1, n, 2, 6]), of(n as u64 + 20, &[1, n, 2, 6])));
            let held = |k, v, len| CachedKv { keys: vec![k], values: vec![v], len };
            let filled: Vec<(CachedKv<'_>, usize)> =
                caches.iter().zip([4, 7, 1]).map(|((k, v), len)| (held(k, v, len), 1)).collect();
            let plain = AttentionOptions::new(0.5);
            let options = AttentionOptions { window: Some(3), logit_cap: Some(2.0), ..plain.clone() };
            for options in [plain.clone(), options] {
                let together = f64s(&ops::attention_cached_each(&q, &filled, &options).unwrap());
                let alone = filled.iter().enumerate().flat_map(|(index, (cache, _))| {
                    let q = ops::narrow(&q, 0, index..index + 1).unwrap();
                    f64s(
                        &ops::attention_cached(&q, cache.keys[0], cache.values[0], cache.len, &options)
                            .unwrap(),
                    )
                });
                assert_eq!(together, alone.collect::<Vec<_>>(), "{dtype}");
            }
            let error = |filled: &[(CachedKv<'_>, usize)]| {
                ops::attention_cached_each(&q, filled, &plain).unwrap_err().to_string()
            };
            assert!(error(&filled[..2]).contains("q of 2 positions"), "{}", error(&filled[..2]));
            let mut too_long = filled.clone();
            too_long[2].0.len = 6;
            assert!(error(&too_long).contains("k and v of shape [1, K, G, 6]"), "{}", error(&too_long));
        }
    }
}

/// The last positions of a sequence in pages: together as a prompt, and each as a single query, beside another sequence.
#[test]
fn attention_reads_pages_where_they_lie() {
    for device in [Device::cpu(Isa::detect(), Par::solo()), Device::strict(Isa::detect(), Par::solo())] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let of = |seed, sizes: &[usize]| tensor(&array(seed, sizes), dtype, &device);
            let (len, options) = (150, AttentionOptions { window: Some(100), ..AttentionOptions::new(0.5) });
            let (k, v) = (of(1, &[1, 192, 2, 6]), of(2, &[1, 192, 2, 6]));
            let pages = |x: &Tensor| ops::split(x, 64usize, 1).unwrap();
            let (keys, values) = (pages(&k), pages(&v));
            let cache = CachedKv { keys: keys.iter().collect(), values: values.iter().collect(), len };
            for n in [1, 3, 40] {
                let q = of(3, &[1, n, 4, 6]);
                let whole = ops::attention_cached(&q, &k, &v, len, &options).unwrap();
                assert_eq!(f64s(&ops::attention_in_pages(&q, &cache, &options).unwrap()), f64s(&whole));
            }
            let q = of(4, &[4, 1, 4, 6]);
            let both = [(CachedKv { len: 70, ..cache.clone() }, 1), (cache.clone(), 3)];
            let together = f64s(&ops::attention_cached_each(&q, &both, &options).unwrap());
            let alone = [70, 148, 149, 150].into_iter().enumerate().flat_map(|(row, len)| {
                let q = ops::narrow(&q, 0, row..row + 1).unwrap();
                f64s(&ops::attention_cached(&q, &k, &v, len, &options).unwrap())
            });
            assert_eq!(together, alone.collect::<Vec<_>>());
            let error = |cache: &CachedKv<'_>| {
                ops::attention_in_pages(&of(3, &[1, 2, 4, 6]), cache, &options).unwrap_err().to_string()
            };
            let fewer = CachedKv { values: values[..2].iter().collect(), ..cache.clone() };
            assert!(error(&fewer).contains("as many pages of values"), "{}", error(&fewer));
            let halves = ops::split(&k, 96usize, 1).unwrap();
            let other = CachedKv { keys: halves.iter().collect(), values: halves.iter().collect(), len };
            assert!(error(&other).contains("pages of 64 rows"), "{}", error(&other));
            let longer = CachedKv { len: 193, ..cache.clone() };
            assert!(error(&longer).contains("k and v of shape"), "{}", error(&longer));
            assert!(error(&CachedKv { keys: vec![], values: vec![], len: 2 }).contains("pages of keys"));
        }
    }
}

/// Rows at positions of their own.
#[test]
fn each_row_turns_to_its_position() {
    for device in [Device::cpu(Isa::detect(), Par::solo()), Device::strict(Isa::detect(), Par::solo())] {
        let table = Arc::new(Rope::new(100.0, 6, RopeStyle::Half, RopeScaling::None, 300).unwrap());
        let x = tensor(&array(1, &[3, 1, 2, 8]), DType::F32, &device);
        let places = [7, 299, 0];
        let each = ops::rope_each(&x, &table, &places).unwrap();
        let alone = places.into_iter().enumerate().flat_map(|(row, place)| {
            f64s(&ops::rope(&ops::narrow(&x, 0, row..row + 1).unwrap(), &table, place).unwrap())
        });
        assert_eq!(f64s(&each), alone.collect::<Vec<_>>());
        assert!(ops::rope_each(&x, &table, &[1, 2]).unwrap_err().to_string().contains("2 rows"));
        let beyond = ops::rope_each(&x, &table, &[1, 2, 300]).and_then(|y| y.to_f32_vec());
        assert!(beyond.is_err());
    }
}

#[test]
fn rotary_positions_in_both_styles() {
    let (b, s, h, d) = (2, 5, 2, 8);
    let (half, interleaved) = (RopeStyle::Half, RopeStyle::Interleaved);
    for (style, rot) in [(half, 8), (interleaved, 8), (half, 6), (interleaved, 4)] {
        let table = Arc::new(Rope::new(100.0, rot, style, RopeScaling::None, 9).unwrap());
        let first = 3;
        let pairs = if style == half { Pairs::Halves } else { Pairs::Neighbors };
        let formula = move |x: &[Node], _: &[Node]| {
            let half = rot / 2;
            rotated(&x[0], pairs, half, |row, pair| angle(row / h % s + first, pair, half, 100.0))
        };
        let op = move |_: &Env, x: &[Tensor], _: &[Param]| ops::rope(&x[0], &table, first);
        formula_case("rope", [array(1, &[b, s, h, d])], [], op, formula).check();
    }
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let t =
        |shape: &[usize]| Tensor::from_slice(&vec![1f32; shape.iter().product()], shape, &device).unwrap();
    let attend = |q: &[usize], k: &[usize], mask: &Mask| {
        ops::attention(&t(q), &t(k), &t(k), mask, &AttentionOptions::new(1.0))
    };
    let text = |result: oarlock_tensor::Result<Tensor>| result.unwrap_err().to_string();
    let wanted =
        "attention: expected k and v of shape [1, K, G, 4] with K of at least 3 and G a divisor of 2";
    assert_eq!(
        text(attend(&[1, 3, 2, 4], &[1, 2, 2, 4], &Mask::Causal)),
        format!("{wanted}, got [1, 2, 2, 4]")
    );
    assert_eq!(
        text(attend(&[1, 3, 2, 4], &[1, 3, 3, 4], &Mask::Full)),
        format!("{wanted}, got [1, 3, 3, 4]")
    );
    assert!(text(attend(&[3, 2, 4], &[1, 3, 2, 4], &Mask::Full)).contains("q of shape [B, S, H, D]"));
    let options = |window, logit_cap| {
        let options = AttentionOptions { window, logit_cap, ..AttentionOptions::new(1.0) };
        text(ops::attention(&t(&[1, 3, 2, 4]), &t(&[1, 3, 2, 4]), &t(&[1, 3, 2, 4]), &Mask::Full, &options))
    };
    assert!(options(Some(2), None).contains("attention: a window needs a causal mask"));
    assert!(options(Some(0), None).contains("expected a window of at least one position, got 0"));
    let blocks = Some(BlockMask::new(16, 1, 3, |_, _, _| true).unwrap());
    let three = AttentionOptions { blocks, ..AttentionOptions::new(1.0) };
    let q = t(&[1, 3, 2, 4]);
    let said = text(ops::attention(&q, &q, &q, &Mask::Causal, &three));
    assert!(said.starts_with("attention: expected what a mask of 3 heads covers"), "{said}");
    assert!(options(None, Some(-1.0)).contains("expected a positive logit cap, got -1"));
    let starts =
        |starts: &[i32]| Mask::Documents(Tensor::from_slice(starts, [1, starts.len()], &device).unwrap());
    assert!(
        text(attend(&[1, 3, 2, 4], &[1, 3, 2, 4], &starts(&[0, 0]))).contains("document starts i32 [1, 3]")
    );
    for (bad, named) in
        [([0, 0, 3], "3 at position 2 is outside 0..3"), ([0, -1, 0], "-1 at position 1 is outside 0..2")]
    {
        let text = text(attend(&[1, 3, 2, 4], &[1, 3, 2, 4], &starts(&bad)));
        assert_eq!(text, format!("attention, document starts: index {named}"));
    }
    // Nothing to attend to, or nothing that attends.
    for (q, k) in [([1, 0, 2, 4], [1, 0, 2, 4]), ([0, 3, 2, 4], [0, 3, 2, 4]), ([1, 3, 2, 0], [1, 3, 2, 0])] {
        let result = attend(&q, &k, &Mask::Causal);
        assert!(result.is_err() || result.unwrap().sizes() == q);
    }
    let table = Arc::new(Rope::new(100.0, 4, RopeStyle::Half, RopeScaling::None, 4).unwrap());
    assert!(text(ops::rope(&t(&[1, 3, 2, 4]), &table, 2)).contains("outside 0..4"));
    assert!(text(ops::rope(&t(&[1, 3, 2, 2]), &table, 0)).contains("[B, S, H, D] with D of at least 4"));
}
