//! How libraries are chosen.

use std::fs;

use oarlock_cuda::Error;
use oarlock_cuda::blas::Blas;
use oarlock_cuda::driver::Driver;
use oarlock_cuda::libraries::{Libraries, Library, VARIABLE};
use oarlock_cuda::nccl::Nccl;
use oarlock_cuda::nvrtc::Nvrtc;

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
    let error = Blas::new(&stream, &Libraries::Folder(folder.path().into()), 0).err().expect("an error");
    assert!(error.to_string().contains("cublasLtCreate"), "{error}");
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
