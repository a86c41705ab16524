//! What launches may ask of a GPU: the fake driver refuses what a driver refuses, and every kernel is planned for each model.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use oarlock_cuda::attention::{AttentionShape, TiledKernel, Tuned, WGMMA_ARCH};
use oarlock_cuda::cudnn::Pass;
use oarlock_cuda::driver::{Arg, DeviceLimits, KernelNeeds};
use oarlock_cuda::gemm::{GemmShape, MOST_BATCH};
use oarlock_cuda::geometry::{self, Geometry, RowSums};
use oarlock_cuda::{Access, Element, Error, Instance, order, table};

use super::{Machine, arg, download, fresh, upload};
use crate::numbers::{assert_close, values};
use crate::nvrtc::static_bytes;

/// A model of each architecture that kernels are compiled for, with shared memory of 99, 163 or 227 KiB.
const MODELS: [&str; 8] = ["A100", "RTX 3090", "L4", "H100", "B200", "B300", "RTX 5090", "GB10"];
const FLOATS: [Element; 3] = [Element::F32, Element::BF16, Element::F16];
/// Hidden sizes up to this one.
const WIDEST: usize = 16_384;

type Handle = *mut c_void;
type Launch = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
type Load = unsafe extern "C" fn(*mut Handle, *const c_char) -> c_int;
type Find = unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> c_int;
type Set = unsafe extern "C" fn(Handle, c_int, c_int) -> c_int;
type Get = unsafe extern "C" fn(*mut c_int, c_int, Handle) -> c_int;
type Ask = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type Make = unsafe extern "C" fn(*mut Handle, c_uint) -> c_int;
type End = unsafe extern "C" fn(Handle) -> c_int;
type Fill = unsafe extern "C" fn(u64, u8, usize, Handle) -> c_int;
type Init = unsafe extern "C" fn(c_uint) -> c_int;

/// The worst that a compiler may make of a kernel.
fn needs(instance: &Instance, own: &BTreeMap<String, usize>) -> KernelNeeds {
    let (threads, static_shared_bytes) = (instance.threads(), own.get(&instance.name()).copied());
    KernelNeeds {
        threads,
        registers: (65536 / threads).min(255),
        static_shared_bytes: static_shared_bytes.unwrap_or_default(),
    }
}

/// The limits of each model.
fn all_limits(machine: &Machine) -> Vec<(&'static str, DeviceLimits)> {
    let limits = |name| {
        machine.model(0, name);
        machine.driver().device(0).and_then(|device| device.limits()).expect("numbers")
    };
    MODELS.map(|name| (name, limits(name))).into()
}

fn instances(op: &str) -> Vec<Instance> {
    table::find(op).unwrap_or_else(|| panic!("no {op}")).instances().collect()
}

fn attention(head_dim: usize) -> AttentionShape {
    AttentionShape {
        batch: 1024,
        q_len: 4096,
        kv_len: 4096,
        kv_capacity: 4096,
        heads: 128,
        kv_heads: 8,
        head_dim,
        scale: 1.0,
        causal: true,
        window: None,
        logit_cap: None,
    }
}

#[test]
fn the_driver_refuses_what_a_gpu_refuses() {
    let Some(machine) = Machine::new() else { return };
    let (init, ask) = (machine.function::<Init>("cuInit"), machine.function::<Ask>("cuDeviceGetAttribute"));
    let mut number = 0;
    // SAFETY: the types are those of cuda.h, pointers are valid, and the fake driver checks all handles.
    unsafe {
        let device = machine.function::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>("cuDeviceGet");
        assert_eq!((device(&mut number, 0), init(1), init(0)), (3, 1, 0));
        // What this driver does not know.
        assert_eq!((ask(&mut number, 97, 40), number, ask(&mut number, 9999, 40)), (0, 227 << 10, 1));
    }
    let context = machine.context(0);
    context.synchronize().expect("the current context");
    machine.tell(0, "fake_dry", 1);
    let (launch, set, get) = (
        machine.function::<Launch>("cuLaunchKernel"),
        machine.function::<Set>("cuFuncSetAttribute"),
        machine.function::<Get>("cuFuncGetAttribute"),
    );
    let (mut module, mut kernel, mut stream) = (null_mut(), null_mut(), null_mut());
    let image = CString::new("fake cubin 13\nsm_90a\nnorm.cu\n").expect("a text");
    let values = [0u64; 16];
    let mut params = values.each_ref().map(|value| std::ptr::from_ref(value).cast_mut().cast::<c_void>());
    // SAFETY: as above; the driver only checks launches.
    unsafe {
        assert_eq!(machine.function::<Load>("cuModuleLoadData")(&mut module, image.as_ptr()), 0);
        let name = c"layer_norm_backward_f32";
        assert_eq!(machine.function::<Find>("cuModuleGetFunction")(&mut kernel, module, name.as_ptr()), 0);
        assert_eq!(machine.function::<Make>("cuStreamCreate")(&mut stream, 1), 0);
        let mut run = |kernel, grid: [u32; 3], threads, shared, stream| {
            let [x, y, z] = grid;
            launch(kernel, x, y, z, threads, 1, 1, shared, stream, params.as_mut_ptr(), null_mut())
        };
        let one = [1, 1, 1];
        assert_eq!(get(&mut number, 1, kernel), 0);
        let own = number;
        assert!(own > 0, "it has arrays in shared memory");
        let usual = (48 << 10) - own as u32;
        assert_eq!(run(kernel, one, 256, usual, stream), 0);
        assert_eq!(run(kernel, one, 256, usual + 1, stream), 1, "it has not asked for more");
        assert_eq!((get(&mut number, 8, kernel), number, get(&mut number, 77, kernel)), (0, usual as i32, 1));
        let most = (227 << 10) - own;
        assert_eq!((set(kernel, 8, most + 1), set(kernel, 77, 0), set(kernel, 8, most)), (1, 1, 0));
        assert_eq!(run(kernel, one, 256, most as u32, stream), 0);
        for (grid, threads, code) in [
            (one, 512, 701),
            (one, 2048, 1),
            (one, 128, 1),
            ([0, 1, 1], 256, 1),
            ([1 << 31, 1, 1], 256, 1),
            ([1, 65536, 1], 256, 1),
            ([1, 1, 65536], 256, 1),
            ([(1 << 31) - 1, 65535, 65535], 256, 0),
        ] {
            assert_eq!(run(kernel, grid, threads, 0, stream), code, "{grid:?} {threads}");
        }
        assert_eq!((run(null_mut(), one, 256, 0, stream), run(kernel, one, 256, 0, null_mut())), (400, 400));
        assert_eq!(launch(kernel, 1, 1, 1, 256, 1, 1, 0, stream, null_mut(), null_mut()), 1);
        // With another context than that of the kernel and of the stream.
        let other = machine.context(1);
        let memory = other.alloc(16).expect("memory");
        assert_eq!((run(kernel, one, 256, 0, stream), set(kernel, 8, 0)), (400, 201));
        assert_eq!(get(&mut number, 1, kernel), 201);
        assert_eq!(machine.function::<Fill>("cuMemsetD8Async")(memory.address(), 0, 16, stream), 400);
        drop((memory, other));
        context.synchronize().expect("the current context");
        assert_eq!(machine.function::<End>("cuStreamDestroy_v2")(stream), 0);
        assert_eq!(machine.function::<End>("cuModuleUnload")(module), 0);
    }
}

#[test]
fn a_norm_whose_sums_take_all_that_blocks_have_without_asking_runs() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let (stream, modules) = (context.stream().expect("a stream"), machine.modules(&context));
    let find = || modules.find("layer_norm_backward", &[Element::F32], None, None);
    let norm = find().expect("a module").expect("a kernel");
    // Two sums of eight warps: 48 KiB, of which the code of the kernel has some already.
    let (rows, dim) = (3, 768);
    let grid = geometry::norm_backward(rows, dim, 2);
    assert_eq!(grid.shared_bytes, 48 << 10);
    let (x, dy) = (values::<f32>(1, rows * dim), values::<f32>(2, rows * dim));
    let (on_x, on_dy) = (upload(&stream, &x), upload(&stream, &dy));
    let (weight, dx) = (upload(&stream, &vec![1f32; dim]), fresh::<f32>(&stream, rows * dim));
    let (mean, rstd) = (upload(&stream, &[0f32; 3]), upload(&stream, &[1f32; 3]));
    let (d_weight, d_bias) = (fresh::<f32>(&stream, dim), fresh::<f32>(&stream, dim));
    let [x_arg, weight, dy_arg, dx] = [&on_x, &weight, &on_dy, &dx].map(arg::<f32>);
    let [mean, rstd, of_weight, of_bias] = [&mean, &rstd, &d_weight, &d_bias].map(arg::<f32>);
    let sizes = [rows, dim].map(|n| Arg::u32(n as u32));
    let args =
        [&[x_arg, weight, mean, rstd, dy_arg, dx, Arg::u32(0), of_weight, of_bias][..], &sizes].concat();
    // SAFETY: all have the elements of the shape.
    unsafe { stream.launch(&norm, grid, &args) }.expect("a launch");
    let sum =
        |of: &dyn Fn(usize) -> f32, j: usize| (0..rows).map(|i| f64::from(of(i * dim + j))).sum::<f64>();
    let want: Vec<f64> = (0..dim).map(|j| sum(&|i| x[i] * dy[i], j)).collect();
    assert_close("the gradient of the weight", &download::<f32>(&stream, &d_weight), &want, 1e-5);
    let want: Vec<f64> = (0..dim).map(|j| sum(&|i| dy[i], j)).collect();
    assert_close("the gradient of the bias", &download::<f32>(&stream, &d_bias), &want, 1e-5);
}

#[test]
fn norms_of_every_size_launch_or_say_what_they_lack() {
    let Some(machine) = Machine::new() else { return };
    machine.tell(0, "fake_dry", 1);
    machine.model(1, "L4");
    for (device, most) in [(0, 227 << 10), (1, 99 << 10)] {
        let context = machine.context(device);
        let (stream, modules) = (context.stream().expect("a stream"), machine.modules(&context));
        for (op, n_sums) in [("layer_norm_backward", 2), ("rms_norm_backward", 1)] {
            let dtypes = [Element::F32; 3];
            let dtypes = if n_sums == 2 { &dtypes[..1] } else { &dtypes };
            let norm = modules.find(op, dtypes, None, None).expect("a module").expect("a kernel");
            let own = norm.needs().static_shared_bytes;
            let nothing = |param: &oarlock_cuda::Param| match param.access {
                Access::Value if norm.instance().element(param) == Element::F32 => Arg::f32(0.0),
                Access::Value => Arg::u32(0),
                _ => Arg::null(norm.instance().element(param)),
            };
            let args: Vec<Arg<'_>> = norm.instance().kernel.params.iter().map(nothing).collect();
            // From the widest on, so that what a kernel has asked for before does not help; and the other way round.
            for dim in (1..=WIDEST).rev().chain(1..=WIDEST) {
                let grid = geometry::norm_backward(100, dim, n_sums);
                // SAFETY: nothing runs.
                let launched = unsafe { stream.launch(&norm, grid, &args) };
                match launched {
                    Ok(()) => assert!(grid.shared_bytes + own <= most, "{op} {dim}"),
                    Err(Error::TooLarge { reason, .. }) => {
                        assert!(
                            reason.contains("bytes of shared memory, of which this GPU has 101376"),
                            "{reason}"
                        );
                        assert!(n_sums == 2 && dim > 12_600 && device == 1, "{op} {dim}");
                    }
                    Err(error) => panic!("{op} {dim}: {error}"),
                }
            }
        }
    }
}

#[test]
fn every_kernel_is_planned_for_every_model() {
    let Some(machine) = Machine::new() else { return };
    let own = static_bytes();
    assert!(own.len() > 20, "{own:?}");
    for (model, limits) in all_limits(&machine) {
        let fits = |instance: &Instance, geometry: Geometry| {
            let excess = needs(instance, &own).excess(&geometry, &limits);
            assert_eq!(excess, None, "{} on an {model}", instance.name());
        };
        // Of most kernels a launch depends on the number of elements, rows or columns alone.
        let sizes = [1, 2, 31, 767, 768, 1025, 16_383, 16_384, 151_936, 262_144, (1 << 31) - 1, 1 << 40];
        let n_rows = |n: usize| geometry::rows(n, 1).grid.max(geometry::rows(n, 4096).grid);
        for instance in table::all().flat_map(|kernel| kernel.instances()) {
            let threads = instance.threads();
            for n in sizes {
                let flat = [geometry::elements(n), geometry::losses(n), geometry::squared_norm(n)];
                let grids = flat.map(|flat| flat.grid).into_iter().chain([n_rows(n)]);
                let sums = [[1, 768, n], [n, 8, 33], [1, n, 33]].map(RowSums::new);
                let grids = grids.chain(sums.map(|cut| cut.geometry().grid));
                for grid in grids.chain((n < 1 << 31).then(|| order::tiles(n).grid)) {
                    fits(&instance, Geometry { grid, threads, shared_bytes: 0 });
                }
            }
        }
        for instance in instances("rms_norm_backward") {
            (1..=WIDEST).for_each(|dim| fits(&instance, geometry::norm_backward(1 << 20, dim, 1)));
        }
        for instance in instances("layer_norm_backward") {
            let widest = if limits.shared_bytes < 100 << 10 { 12_600 } else { WIDEST };
            (1..=widest).for_each(|dim| fits(&instance, geometry::norm_backward(1 << 20, dim, 2)));
        }
        for (head_dim, element) in (32..=256).step_by(8).flat_map(|dim| FLOATS.map(|of| (dim, of))) {
            let shape = attention(head_dim);
            let find = |op: &str| {
                let kernel = table::find(op).expect("a kernel");
                kernel.instance(&[element], shape.unit_head_dim()).expect("an instance")
            };
            for kernel in TiledKernel::ALL {
                let arch = if model.contains("H100") { WGMMA_ARCH } else { "sm_80" };
                let tile = Tuned::empty(arch).tile((&shape, element), kernel, limits.shared_bytes);
                let tile = tile.unwrap_or_else(|| panic!("{element} {head_dim} on an {model}"));
                fits(&find(kernel.op()).with_tile(tile), shape.tiled(kernel, element, tile));
            }
            fits(&find("attention_delta"), shape.delta());
            fits(&find("attention_decode"), AttentionShape { q_len: 1, ..shape }.decode(element, 33));
            fits(&find("attention_decode_join"), shape.decode_join());
        }
        let ops = ["gemm_nn", "gemm_nt", "gemm_tn", "gemm_tt"];
        for (op, instance) in ops.iter().flat_map(|op| instances(op).into_iter().map(move |i| (*op, i))) {
            let [a_transposed, b_transposed] = [op.ends_with("tn") || op.ends_with("tt"), op.ends_with('t')];
            for [m, n, k] in [[1, 1, 1], [16_383, 262_144, 16_384], [65_536, 151_936, 127]] {
                let batch = if m == 1 { MOST_BATCH } else { 1 };
                let shape = GemmShape { batch, m, n, k, a_transposed, b_transposed };
                fits(&instance, shape.geometry(instance.dtypes[0]));
            }
        }
        let quantized = table::all().filter(|kernel| kernel.source.file == "gemm_quantized.cu");
        for instance in quantized.flat_map(|kernel| kernel.instances()) {
            for forward in [true, false] {
                let shape = GemmShape::quantized(4096, [151_936, 16_384], forward);
                FLOATS.into_iter().for_each(|of| fits(&instance, shape.geometry(of)));
            }
        }
    }
}

#[test]
fn a_grid_beyond_32_bits_is_refused_and_not_cut_off() {
    let limits = DeviceLimits {
        grid: [i32::MAX as u32, 65535, 65535],
        threads: 1024,
        registers: 65536,
        usual_shared_bytes: 48 << 10,
        shared_bytes: 99 << 10,
    };
    let needs = KernelNeeds { threads: 256, registers: 255, static_shared_bytes: 0 };
    let shape = AttentionShape { batch: (1 << 32) + 1, ..attention(64) };
    for geometry in [
        shape.tiled(TiledKernel::Forward, Element::BF16, shape.usual_tile(Pass::Forward, Element::BF16)),
        shape.delta(),
        geometry::norm_backward((1 << 37) + 1, 64, 1),
        order::tiles((1 << 43) + 1),
        GemmShape { batch: 1, m: 1 << 40, n: 1 << 20, k: 1, a_transposed: false, b_transposed: false }
            .geometry(Element::F32),
    ] {
        let excess = needs.excess(&geometry, &limits).unwrap_or_else(|| panic!("{geometry:?}"));
        assert!(excess.starts_with("a grid of"), "{excess}");
    }
}
