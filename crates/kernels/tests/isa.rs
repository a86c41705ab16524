//! Names of code paths, and detection.

use oarlock_kernels::{Isa, Path};

#[test]
fn names_round_trip_and_portable_is_everywhere() {
    for path in Path::ALL {
        assert_eq!(path.to_string().parse::<Path>(), Ok(path));
    }
    assert_eq!(Isa::available()[0].path(), Path::Portable);
    assert!("sse9".parse::<Path>().is_err());
}
