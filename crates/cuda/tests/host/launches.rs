//! Launches are compared with the table before the driver sees them, and errors of the GPU come out later.

use std::sync::Arc;
use std::time::Instant;

use half::bf16;
use oarlock_cuda::attention::{AttentionShape, TiledKernel};
use oarlock_cuda::cudnn::Pass;
use oarlock_cuda::driver::{Arg, Context, Function, Stream};
use oarlock_cuda::geometry::{self, Geometry};
use oarlock_cuda::{Element, Error, Walk, table};

use super::{Machine, arg, download, fresh, upload};
use crate::numbers::{f64s, values};

fn function(machine: &Machine, context: &Context, op: &str, dtypes: &[Element]) -> Arc<Function> {
    let kernel = table::find(op).expect("a kernel");
    let instance = kernel.instance(dtypes, None).expect("an instance");
    machine.modules(context).function(&instance).expect("a function")
}

#[test]
fn wrong_arguments_are_errors_and_launch_nothing() {
    let Some(machine) = Machine::new() else { return };
    let (context, peer) = (machine.context(0), machine.context(1));
    let stream = context.stream().expect("a stream");
    let cast = function(&machine, &context, "cast", &[Element::F32, Element::BF16]);
    let (x, y) = (upload(&stream, &[1f32; 8]), upload(&stream, &[0u8; 16]));
    let on_peer = peer.alloc(16).expect("memory");
    let (good, n) = (geometry::elements(8), Arg::u64(8));
    let (read, write) = (arg::<f32>(&x), arg::<bf16>(&y));
    let odd = Arg::memory(Element::F32, x.slice(2..30).expect("a part"));
    let short = Arg::memory(Element::F32, x.slice(0..30).expect("a part"));
    let cases: [(&[Arg<'_>], Geometry, &str); 12] = [
        (&[read, write], good, "takes 3 arguments, not 2"),
        (&[read, write, n, n], good, "takes 3 arguments, not 4"),
        (&[write, write, n], good, "x is a pointer to f32, not a pointer to bf16"),
        (&[Arg::f32(1.0), write, n], good, "x is a pointer to f32, not a value f32"),
        (&[read, write, Arg::i32(8)], good, "n is a value u64, not a value i32"),
        (&[read, write, Arg::null(Element::U64)], good, "n is a value u64, not a pointer to u64"),
        (&[odd, write, n], good, "x is 28 bytes from byte 2"),
        (&[short, write, n], good, "x is 30 bytes from byte 0"),
        (&[read, write, n], Geometry { threads: 128, ..good }, "blocks have 256 threads, not 128"),
        (&[read, write, n], Geometry { grid: [1, 0, 1], ..good }, "no GPU takes a grid"),
        (&[read, write, n], Geometry { grid: [1, 1, 65536], ..good }, "of which this GPU takes up to"),
        (
            &[read, write, n],
            Geometry { shared_bytes: 228 << 10, ..good },
            "of shared memory, of which this GPU has 232448",
        ),
    ];
    for (args, geometry, says) in cases {
        // SAFETY: nothing is launched.
        let error = unsafe { stream.launch(&cast, geometry, args) }.expect_err(says);
        let said = error.to_string();
        let is_too_large = said.contains("of which this GPU");
        assert!(matches!(error, Error::TooLarge { .. }) == is_too_large, "{said}");
        assert!(matches!(error, Error::Launch { .. }) != is_too_large, "{said}");
        assert!(said.starts_with("cast_f32_bf16: ") && said.contains(says), "{said}, not {says}");
    }
    let elsewhere = [read, Arg::memory(Element::BF16, on_peer.all()), n];
    // SAFETY: nothing is launched.
    let error = unsafe { stream.launch(&cast, good, &elsewhere) }.expect_err("another GPU's memory");
    assert!(matches!(error, Error::OtherContext { what: "the memory" }), "{error}");
    let other = peer.stream().expect("a stream");
    // SAFETY: nothing is launched.
    let error = unsafe { other.launch(&cast, good, &[read, write, n]) }.expect_err("another GPU's kernel");
    assert!(matches!(error, Error::OtherContext { what: "the kernel" }), "{error}");
    assert_eq!(download::<u8>(&stream, &y), [0; 16]);
    // SAFETY: both have 8 elements.
    unsafe { stream.launch(&cast, good, &[read, write, n]) }.expect("a launch");
    assert_eq!(download::<bf16>(&stream, &y), [bf16::ONE; 8]);
}

#[test]
fn all_kinds_of_values_arrive() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let fills: [(Element, Arg<'_>, &[u8]); 4] = [
        (Element::F32, Arg::f32(1.5), &1.5f32.to_ne_bytes()),
        (Element::BF16, Arg::bf16(0x1234), &0x1234u16.to_ne_bytes()),
        (Element::F16, Arg::f16(0x4321), &0x4321u16.to_ne_bytes()),
        (Element::I32, Arg::i32(-7), &(-7i32).to_ne_bytes()),
    ];
    for (element, value, bytes) in fills {
        let fill = function(&machine, &context, "fill", &[element]);
        let memory = fresh::<u8>(&stream, 3 * element.size());
        let args = [Arg::memory(element, memory.all()), value, Arg::u64(3)];
        // SAFETY: there are 3 elements.
        unsafe { stream.launch(&fill, geometry::elements(3), &args) }.expect("a launch");
        assert_eq!(download::<u8>(&stream, &memory), bytes.repeat(3));
    }
    // A transposition.
    let strided = function(&machine, &context, "strided", &[Element::I32]);
    let (x, y) = (upload(&stream, &[1i32, 2, 3, 4, 5, 6]), fresh::<i32>(&stream, 6));
    let walk = Walk::of_one(&[3, 2], &[1, 3]).expect("an order");
    let args = [Arg::walk(&walk), arg::<i32>(&x), arg::<i32>(&y), Arg::u64(6)];
    // SAFETY: both have 6 elements, and the order stays inside of them.
    unsafe { stream.launch(&strided, geometry::elements(6), &args) }.expect("a launch");
    assert_eq!(download::<i32>(&stream, &y), [1, 4, 2, 5, 3, 6]);
}

#[test]
fn a_kernel_gets_the_shared_memory_that_it_asks_for() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let shape = AttentionShape {
        batch: 1,
        q_len: 1,
        kv_len: 2,
        kv_capacity: 2,
        heads: 1,
        kv_heads: 1,
        head_dim: 128,
        scale: 1.0,
        causal: false,
        window: None,
        logit_cap: None,
    };
    let grid =
        shape.tiled(TiledKernel::Forward, Element::BF16, shape.usual_tile(Pass::Forward, Element::BF16));
    assert!(grid.shared_bytes > 48 << 10);
    let kernel = table::find("attention_forward").expect("a kernel");
    let instance = kernel.instance(&[Element::BF16], Some(128)).expect("an instance");
    let forward = machine.modules(&context).function(&instance).expect("a function");
    // Both keys are alike, so the output is the mean of the values.
    let (q, k) = (values::<bf16>(1, 128), values::<bf16>(2, 128).repeat(2));
    let v: Vec<bf16> = [[1f32; 128], [3f32; 128]].concat().into_iter().map(bf16::from_f32).collect();
    let (q, k, v) = (upload(&stream, &q), upload(&stream, &k), upload(&stream, &v));
    let (o, lse) = (fresh::<bf16>(&stream, 128), fresh::<f32>(&stream, 1));
    let (factor, cap) = shape.score_scale();
    let sizes = [1, 2, 2, 1, 1, 128, 0, 0].map(Arg::i32);
    let memory =
        [arg::<bf16>(&q), arg::<bf16>(&k), arg::<bf16>(&v), Arg::null(Element::I32), arg::<bf16>(&o)];
    let args = [&memory[..], &[arg::<f32>(&lse)], &sizes, &[Arg::f32(factor), Arg::f32(cap)]].concat();
    // SAFETY: all have the elements of the shape.
    unsafe { stream.launch(&forward, grid, &args) }.expect("a launch");
    assert_eq!(f64s(&download::<bf16>(&stream, &o)), [2.0; 128]);
}

/// A stream on which a kernel touches what it may not.
fn after_a_fault(machine: &Machine, beyond: bool) -> (Stream, Error) {
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let cap = function(machine, &context, "soft_cap", &[]);
    let memory = upload(&stream, &[1f32; 64]);
    let n = if beyond { 2000 } else { 64 };
    let args = [arg::<f32>(&memory), Arg::f32(1.0), Arg::u64(n)];
    // SAFETY: the fake GPU finds each access outside of memory.
    unsafe { stream.launch(&cap, geometry::elements(64), &args) }.expect("a launch");
    if !beyond {
        let null = [Arg::null(Element::F32), Arg::f32(1.0), Arg::u64(64)];
        // SAFETY: as above.
        unsafe { stream.launch(&cap, geometry::elements(64), &null) }.expect("a launch");
    }
    let error = stream.synchronize().expect_err("a fault");
    (stream, error)
}

#[test]
fn errors_of_the_gpu_are_late_and_stay() {
    for beyond in [true, false] {
        let Some(machine) = Machine::new() else { return };
        let (stream, error) = after_a_fault(&machine, beyond);
        let Error::Driver(error) = error else { panic!("{error}") };
        assert!(error.is_sticky(), "{error}");
        assert_eq!((error.call, error.name.as_str()), ("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS"));
        let said = error.to_string();
        assert!(said.contains("An earlier launch") && said.contains("compute-sanitizer"), "{said}");
        let seen = if beyond { "device memory, which has 256 bytes" } else { "no memory of the device" };
        assert!(machine.message().contains(seen), "{}", machine.message());
        let later = stream.context().alloc(10).err().expect("the same error").to_string();
        assert!(later.starts_with("cuMemAlloc_v2 failed: CUDA_ERROR_ILLEGAL_ADDRESS"), "{later}");
        // The other GPU works on.
        machine.context(1).alloc(10).expect("memory");
        // Nothing of the lost context can be ended, which is quiet.
        drop(stream);
    }
}

#[test]
fn work_runs_before_the_end_of_its_memory() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = context.stream().expect("a stream");
    let cap = function(&machine, &context, "soft_cap", &[]);
    let memory = upload(&stream, &[1f32; 64]);
    let args = [arg::<f32>(&memory), Arg::f32(1.0), Arg::u64(64)];
    // SAFETY: there are 64 elements.
    unsafe { stream.launch(&cap, geometry::elements(64), &args) }.expect("a launch");
    drop(memory);
    stream.synchronize().expect("no error");
}

#[test]
fn an_unknown_name_is_an_error_of_the_driver() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let of = |op: &str, dtypes: &[Element]| table::find(op).and_then(|kernel| kernel.instance(dtypes, None));
    let (cast, adam) = (of("cast", &[Element::F32, Element::F16]), of("adam", &[Element::F32]));
    let module = context.load(b"fake cubin 13\nsm_90a\nelementwise.cu\n").expect("a module");
    assert!(module.function(&cast.expect("an instance")).is_ok());
    let error = module.function(&adam.expect("an instance")).err().expect("another file's kernel");
    assert!(error.to_string().starts_with("cuModuleGetFunction failed: CUDA_ERROR_NOT_FOUND"), "{error}");
    let refused = [&b"no image"[..], b"", b"fake cubin 13\nsm_80\nelementwise.cu\n"]
        .map(|image| context.load(image).err());
    for (error, name) in refused.into_iter().zip(["INVALID_IMAGE", "INVALID_IMAGE", "NO_BINARY_FOR_GPU"]) {
        let said = error.expect("an error").to_string();
        assert!(said.contains(name) && said.contains("for another GPU"), "{said}");
    }
}

/// Prints what a launch costs the host, without the kernel: `cargo test --release -p oarlock-cuda --test suite -- --ignored
/// --nocapture cost_of_a_launch`. The fake driver's own part is in it.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_launch_by_hand() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let (stream, modules) = (context.stream().expect("a stream"), machine.modules(&context));
    let memory = fresh::<f32>(&stream, 1);
    let n_launches = 5000;
    let nanos = |start: Instant| start.elapsed().as_nanos() as usize / n_launches;
    for (op, n_args) in [("fill", 3), ("adam", 16)] {
        let find =
            || modules.find(op, &[Element::F32], None, None).expect("a function").expect("an instance");
        let function = find();
        let start = Instant::now();
        (0..n_launches).for_each(|_| drop(std::hint::black_box(find())));
        let looked_up = nanos(start);
        let start = Instant::now();
        for _ in 0..n_launches {
            let x = arg::<f32>(&memory);
            let args = match n_args {
                3 => vec![x, Arg::f32(1.0), Arg::u64(1)],
                _ => {
                    let numbers = [Arg::f32(0.5); 9];
                    [&[x, x, x, x, x, Arg::u32(1)][..], &numbers, &[Arg::u64(1)]].concat()
                }
            };
            // SAFETY: each has one element.
            unsafe { stream.launch(&function, geometry::elements(1), &args) }.expect("a launch");
        }
        eprintln!("{op}, {n_args} arguments: {looked_up} ns to look it up, {} ns to launch it", nanos(start));
        stream.synchronize().expect("the end of all launches");
    }
}
