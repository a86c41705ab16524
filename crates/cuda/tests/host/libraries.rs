//! How libraries are chosen.

use std::fs;
use std::sync::Arc;

use oarlock_cuda::blas::Blas;
use oarlock_cuda::cudnn::Cudnn;
use oarlock_cuda::driver::{Context, Driver};
use oarlock_cuda::libraries::{Libraries, Library, VARIABLE};
use oarlock_cuda::nccl::Nccl;
use oarlock_cuda::nvrtc::Nvrtc;
use oarlock_cuda::survey::{Automatic, Survey, automatic};
use oarlock_cuda::{Error, Instance, table};

use super::{Machine, again};

#[test]
fn a_folder_without_libraries_is_an_error_that_says_what_to_do() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let libraries = Libraries::Folder(folder.path().into());
    let errors =
        [Driver::find(&libraries).err(), Nvrtc::find(&libraries).err(), Nccl::find(&libraries).err()];
    for (error, (library, says)) in errors.into_iter().zip([
        (Library::Driver, "nvidia-smi"),
        (Library::Nvrtc, "nvidia-cuda-nvrtc"),
        (Library::Nccl, "pip install nvidia-nccl-cu13"),
    ]) {
        let error = error.expect("an error");
        let said = error.to_string();
        assert!(matches!(error, Error::NoLibrary { library: other, .. } if other == library), "{said}");
        assert!(said.contains(says) && said.contains(&folder.path().display().to_string()), "{said}");
    }
    fs::write(folder.path().join("libcuda.so.1"), "no library").expect("a file");
    let error = Driver::find(&libraries).err().expect("an error");
    assert!(matches!(error, Error::Unusable { library: Library::Driver, .. }), "{error}");
}

#[test]
fn a_library_without_a_function_is_not_used() {
    let Some(machine) = Machine::new() else { return };
    let wrong = machine.folder().join("libnvrtc.so.13");
    let error = Driver::load(&wrong).err().expect("an error");
    assert!(error.to_string().contains("cuGetErrorName"), "{error}");
    let error = Nccl::load(&wrong).err().expect("an error");
    assert!(error.to_string().contains("ncclGetVersion"), "{error}");
    let context = machine.context(0);
    let stream = std::sync::Arc::new(context.stream().expect("a stream"));
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    fs::copy(&wrong, folder.path().join("libcublasLt.so.12")).expect("a copy");
    let said =
        Blas::new(&stream, &Libraries::Folder(folder.path().into()), 0).expect("own kernels").describe();
    assert!(said.starts_with("own kernels: ") && said.contains("cublasLtCreate"), "{said}");
    let nowhere = Libraries::Folder(folder.path().join("nowhere"));
    let blas = Blas::new(&stream, &nowhere, 0).expect("own kernels");
    let says = "own kernels: libcublasLt was not found; pip install nvidia-cublas";
    assert_eq!((blas.describe().as_str(), blas.version()), (says, None));
}

#[test]
fn a_real_nccl_has_all_functions() {
    match Nccl::find(&Libraries::System) {
        Ok(nccl) => {
            let version = nccl.version().expect("a version");
            assert!(version.starts_with("2."), "{version}");
        }
        Err(Error::NoLibrary { library: Library::Nccl, .. }) => {
            oarlock_must::have(
                "nccl",
                false,
                "so nobody knows whether a real one has the functions that are used",
            );
        }
        Err(error) => panic!("{error}"),
    }
}

/// The machine with a compiler and products of CUDA 12 beside those of CUDA 13.
fn with_cuda_12(machine: &Machine, minor: i32) {
    super::tell(&machine.copy(1, "libnvrtc.so.12"), "fake_nvrtc_version", 1200 + minor);
    super::tell(&machine.copy(2, "libcublasLt.so.12"), "fake_blas_version", 120_000 + 100 * minor);
}

fn soft_cap() -> Instance {
    table::find("soft_cap").and_then(|kernel| kernel.instance(&[], None)).expect("an instance")
}

fn products(machine: &Machine, context: &Context) -> String {
    let stream = Arc::new(context.stream().expect("a stream"));
    Blas::new(&stream, &machine.libraries(), 256).expect("products").describe()
}

#[test]
fn an_older_driver_gets_libraries_that_it_can_use_or_the_names_of_their_packages() {
    let Some(machine) = Machine::new() else { return };
    machine.tell(0, "fake_version", 12040);
    let (context, libraries) = (machine.context(0), machine.libraries());
    // All that is there is of CUDA 13.
    let error = machine.modules(&context).function(&soft_cap()).err().expect("an error");
    assert!(matches!(error, Error::TooNew { library: Library::Nvrtc, cuda: (12, 4), .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("libnvrtc.so.13 is of CUDA 13") && said.contains("up to 12.4"), "{said}");
    assert!(said.contains("`pip install nvidia-cuda-nvrtc-cu12`"), "{said}");
    let Automatic::Lacks(why) = automatic(&libraries) else { panic!("it takes the GPUs") };
    assert!(why.starts_with("this machine has 3 GPUs, but ") && why.ends_with(&said), "{why}");
    let own = products(&machine, &context);
    assert!(own.starts_with("own kernels: ") && own.contains("pip install nvidia-cublas-cu12"), "{own}");
    let error = Cudnn::find_for(&libraries, (12, 4)).err().expect("an error").to_string();
    assert!(error.contains("CUDA 13.0") && error.contains("pip install nvidia-cudnn-cu12"), "{error}");
    let survey = Survey::of(&libraries);
    assert_eq!(survey.cuda, Some((12, 4)));
    for (library, found) in &survey.libraries[..2] {
        assert!(matches!(found, Err(Error::TooNew { .. })), "{library}: {found:?}");
    }
    // A file whose name has no version says its own.
    machine.copy(1, "libnvrtc.so");
    let error = machine.modules(&context).function(&soft_cap()).err().expect("an error").to_string();
    assert!(error.contains("libnvrtc.so is of CUDA 13.0"), "{error}");
    // With those of CUDA 12 beside them.
    with_cuda_12(&machine, 4);
    let modules = machine.modules(&context);
    modules.function(&soft_cap()).expect("a function");
    assert_eq!(modules.compiler_version().as_deref(), Some("12.4"));
    assert_eq!(products(&machine, &context), "cuBLASLt 12.4.0");
    assert_eq!(automatic(&libraries), Automatic::Gpus(vec![0, 1]));
    let survey = Survey::of(&libraries);
    let versions = survey.libraries.map(|(_, found)| found.map(|found| found.version).unwrap_or_default());
    assert_eq!(versions[..2], ["12.4", "12.4.0"]);
}

#[test]
fn a_library_that_fails_makes_way_for_the_next_one() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    // The driver refuses what the only compiler makes.
    for code in [200, 209, 218, 221, 222, 223] {
        machine.fail("cuModuleLoadData", 0, code);
        let error = machine.modules(&context).function(&soft_cap()).err().expect("an error");
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("CUDA up to 13.1") && said.contains("of NVRTC 13.0"), "{said}");
    }
    machine.fail("cublasLtCreate", 0, 1);
    let own = products(&machine, &context);
    assert!(own.starts_with("own kernels: cublasLtCreate of cuBLASLt 13.1.0 failed"), "{own}");
    assert!(own.contains("CUBLAS_STATUS_NOT_INITIALIZED"), "{own}");
    with_cuda_12(&machine, 9);
    machine.fail("cuModuleLoadData", 0, 222);
    let modules = machine.modules(&context);
    modules.function(&soft_cap()).expect("a function");
    assert_eq!(modules.compiler_version().as_deref(), Some("12.9"));
    machine.fail("cublasLtCreate", 0, 1);
    assert_eq!(products(&machine, &context), "cuBLASLt 12.9.0");
    // An error of the driver is none of a library.
    machine.fail("cuMemAlloc_v2", 0, 2);
    let stream = Arc::new(context.stream().expect("a stream"));
    let error = Blas::new(&stream, &machine.libraries(), 256).err().expect("an error");
    assert!(matches!(error, Error::Driver(_)), "{error}");
}

#[test]
fn a_compiler_that_is_older_than_the_gpu_makes_code_of_its_family_or_says_what_is_needed() {
    let Some(machine) = Machine::new() else { return };
    // The architecture sm_103, which came with NVRTC 12.9; sm_100 is of the same family.
    machine.model(0, "B300");
    let context = machine.context(0);
    for (version, known) in [(1300, true), (1209, true), (1208, true), (1204, false)] {
        machine.tell(1, "fake_nvrtc_version", version);
        let modules = machine.modules(&context);
        let function = modules.function(&soft_cap());
        assert_eq!(function.is_ok(), known, "{version}: {:?}", function.err());
        let Err(error) = function else { continue };
        assert!(matches!(error, Error::UnknownArch { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("NVRTC 12.4") && said.contains("does not know sm_103"), "{said}");
        assert!(said.contains("install NVRTC 12.9 or newer (`pip install nvidia-cuda-nvrtc`)"), "{said}");
        // The A100 beside it can be used.
        assert_eq!(automatic(&machine.libraries()), Automatic::Gpus(vec![1]));
        machine.model(1, "GB10");
        let Automatic::Lacks(why) = automatic(&machine.libraries()) else { panic!("it takes the GPUs") };
        assert!(why.starts_with("this machine has 3 GPUs, but NVRTC 12.4"), "{why}");
    }
    // What the compiler has to say about an architecture comes out.
    let nvrtc = Nvrtc::find(&machine.libraries()).expect("a compiler");
    let error = nvrtc.compile(&soft_cap().unit(), "sm_100").expect_err("an unknown architecture").to_string();
    assert!(error.contains("NVRTC_ERROR_INVALID_OPTION: nvrtc: error: invalid value"), "{error}");
}

/// The name of the test that follows, for the process that it starts.
const CHOSEN: &str = "host::libraries::the_environment_chooses_the_folder";

#[test]
fn the_environment_chooses_the_folder() {
    if std::env::var_os(VARIABLE).is_some() {
        let driver = Driver::find(&Libraries::from_environment()).expect("a driver");
        assert_eq!(driver.device_count().expect("a count"), 3);
        return;
    }
    assert_eq!(Libraries::from_environment(), Libraries::System);
    let Some(machine) = Machine::new() else { return };
    let output = again(CHOSEN, VARIABLE, machine.folder());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
