//! Names of code paths, and detection.

use oarlock_kernels::{Isa, Path};

#[test]
fn names_round_trip_and_portable_is_everywhere() {
    for path in Path::ALL {
        assert_eq!(path.to_string().parse::<Path>(), Ok(path));
    }
    assert_eq!(Isa::available()[0].path(), Path::Portable);
    assert_eq!(Isa::available()[1].path(), Path::PortableFma);
    // In software it is slower than the other one.
    let has_instruction = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
    assert!(Isa::detect().path() != Path::PortableFma || has_instruction);
    assert!("sse9".parse::<Path>().is_err());
}

/// Kernels are tested on the paths of this CPU: those that it lacks are said.
#[test]
fn paths_that_this_cpu_lacks_are_not_tested() {
    let why = "this CPU lacks it, so no kernel was tested on this path";
    for (path, name) in [(Path::Avx512, "avx512"), (Path::Avx512Bf16, "avx512_bf16")] {
        oarlock_must::have(name, Isa::force(path).is_some(), why);
    }
}
