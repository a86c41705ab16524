//! cuDNN's plans for attention on GPUs that are not there, where cuDNN is installed.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use oarlock_cuda::attention::AttentionShape;
use oarlock_cuda::cudnn::{Cudnn, Pass, is_supported};
use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::{Element, Error};

/// What a device is to cuDNN: its name, its compute capability, its multiprocessors, shared memory of a block and of L2.
struct Model {
    name: &'static str,
    capability: usize,
    multiprocessors: usize,
    shared_bytes: usize,
    l2_bytes: usize,
}

const MODELS: [Model; 3] = [
    Model { name: "A100", capability: 800, multiprocessors: 108, shared_bytes: 166_912, l2_bytes: 40 << 20 },
    Model { name: "H100", capability: 900, multiprocessors: 132, shared_bytes: 232_448, l2_bytes: 50 << 20 },
    Model {
        name: "B200",
        capability: 1000,
        multiprocessors: 148,
        shared_bytes: 232_448,
        l2_bytes: 126 << 20,
    },
];

impl Model {
    /// The properties that cuDNN asks for.
    fn json(&self) -> String {
        let Model { name, capability, multiprocessors, shared_bytes, l2_bytes } = self;
        format!(
            r#"{{"deviceVer":{capability},"driverVer":13000,"cudaDeviceId":0,
"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,
"multiProcessorCount":{multiprocessors},"warpSize":32,"maxSharedMemoryPerBlock":49152,
"maxSharedMemoryPerBlockOptin":{shared_bytes},"oversizedSharedMemoryPerBlock":0,
"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,
"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1755000,
"memClockRateKHz":2619000,"memoryBusWidth":5120,"l2CacheSize":{l2_bytes},"smCountOrigin":0,
"deviceName":"NVIDIA {name}","totalGlobalMem":85000000000}}"#
        )
    }
}

/// cuDNN, with a libcuda that it can link to; says so where there is none.
fn found() -> Option<Cudnn> {
    // SAFETY: its initialization has no conditions.
    if unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_GLOBAL) }.map(std::mem::forget).is_err() {
        stand_in()?;
    }
    match Cudnn::find(&Libraries::System) {
        Ok(cudnn) => Some(cudnn),
        Err(error @ Error::NoLibrary { .. }) => {
            oarlock_must::have("cudnn", false, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A libcuda for this process, which stays loaded.
fn stand_in() -> Option<()> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let file = folder.path().join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cudnn/libcuda.c");
    let compiler = oarlock_fakes::compiler();
    let why = "there is no libcuda, and no C++ compiler to make one";
    let compiler = compiler.or_else(|| {
        oarlock_must::have("cudnn", false, why);
        None
    })?;
    let mut compile = Command::new(compiler);
    compile.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-o"]).arg(&file).arg(source);
    assert!(compile.status().expect("a compiler").success());
    // SAFETY: as above.
    std::mem::forget(unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.expect("a library"));
    Some(())
}

fn shape(q_len: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        batch: 2,
        q_len,
        kv_len: q_len,
        kv_capacity: q_len,
        heads: 16,
        kv_heads,
        head_dim,
        scale: (head_dim as f32).sqrt().recip(),
        causal: true,
        window: None,
        logit_cap: None,
    }
}

/// More than any of the plans below needs.
const ROOM: usize = 320 << 20;

#[test]
#[ignore = "heavy"]
fn attention_has_deterministic_plans_for_gpus_that_are_not_there() {
    let Some(cudnn) = found() else { return };
    let grouped = shape(2048, 4, 128);
    let cases = [
        ("grouped", grouped, Element::BF16),
        ("a window", AttentionShape { window: Some(512), ..grouped }, Element::BF16),
        ("not grouped", shape(1000, 16, 64), Element::F16),
        ("not causal", AttentionShape { causal: false, ..grouped }, Element::BF16),
    ];
    for model in &MODELS {
        // All graphs for one model, and what training runs have for the others.
        let n = if model.name == "H100" { cases.len() } else { 2 };
        for (what, shape, element) in &cases[..n] {
            assert!(is_supported(shape, *element));
            for pass in [Pass::Forward, Pass::Backward] {
                let start = Instant::now();
                let plan = cudnn.plan_without_device(&model.json(), (shape, *element, pass), ROOM);
                let plan = plan.unwrap_or_else(|error| panic!("{} {what} {pass:?}: {error}", model.name));
                let seconds = start.elapsed().as_secs_f64();
                eprintln!("{} {what} {pass:?}: {plan:?} in {seconds:.1} s", model.name);
                // The forward pass has no scores in memory. The deterministic backward pass has them once, in 16 bits.
                let scores = 2 * shape.batch * shape.heads * shape.q_len * shape.kv_len;
                let most = if pass == Pass::Forward { 1 << 20 } else { scores + scores / 4 };
                assert!(plan.workspace_bytes <= most, "{} {what} {pass:?}: {plan:?}", model.name);
            }
        }
    }
    let model = &MODELS[1];
    let scarce = cudnn.plan_without_device(&model.json(), (&grouped, Element::BF16, Pass::Backward), 1 << 20);
    assert!(matches!(scarce, Err(Error::NoPlan { .. })), "{scarce:?}");
    let unknown = cudnn.plan_without_device("{}", (&grouped, Element::BF16, Pass::Forward), ROOM);
    assert!(matches!(unknown, Err(Error::Cudnn { .. } | Error::NoPlan { .. })), "{unknown:?}");
}
