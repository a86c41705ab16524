//! Which instruction set the CPU kernels use, and the macro that compiles one body for each of them.

use std::fmt;
use std::str::FromStr;

use crate::multiply_add::IS_FUSED_FAST;

/// The code paths a kernel can take, from the slowest to the fastest where all of them are instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// Plain Rust, any CPU.
    Portable,
    /// Plain Rust with fused multiply-add: the bits of AVX2 and AVX-512 on any CPU, slow on those without the instruction.
    PortableFma,
    /// AVX2 with FMA and F16C (x86-64-v3).
    Avx2,
    /// AVX-512 F, BW, DQ, VL (x86-64-v4).
    Avx512,
    /// AVX-512 and the bf16 dot product `vdpbf16ps`.
    Avx512Bf16,
}

impl Path {
    /// All paths, in this order.
    pub const ALL: [Path; 5] =
        [Path::Portable, Path::PortableFma, Path::Avx2, Path::Avx512, Path::Avx512Bf16];
}

/// Proof that this CPU can run a [`Path`]: a value exists only for paths that detection found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(Path);

impl Isa {
    /// The fastest path of this CPU.
    pub fn detect() -> Isa {
        let is_fast = |isa: &Isa| isa.0 != Path::PortableFma || IS_FUSED_FAST;
        Self::available().into_iter().rfind(is_fast).unwrap_or(Isa(Path::Portable))
    }

    /// Every path that this CPU can run.
    pub fn available() -> Vec<Isa> {
        Path::ALL.into_iter().filter_map(Isa::force).collect()
    }

    /// The given path, or `None` where this CPU lacks it.
    pub fn force(path: Path) -> Option<Isa> {
        supported(path).then_some(Isa(path))
    }

    /// The path that this value proves.
    pub fn path(self) -> Path {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
fn supported(path: Path) -> bool {
    let avx2 = || {
        std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c")
    };
    let avx512 = || {
        avx2()
            && std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl")
    };
    match path {
        Path::Portable | Path::PortableFma => true,
        Path::Avx2 => avx2(),
        Path::Avx512 => avx512(),
        Path::Avx512Bf16 => avx512() && std::arch::is_x86_feature_detected!("avx512bf16"),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn supported(path: Path) -> bool {
    matches!(path, Path::Portable | Path::PortableFma)
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Portable => "portable",
            Path::PortableFma => "portable_fma",
            Path::Avx2 => "avx2",
            Path::Avx512 => "avx512",
            Path::Avx512Bf16 => "avx512bf16",
        })
    }
}

impl FromStr for Path {
    type Err = String;
    fn from_str(s: &str) -> Result<Path, String> {
        Path::ALL.into_iter().find(|p| p.to_string() == s).ok_or_else(|| {
            format!("unknown CPU path \"{s}\"; one of {}", Path::ALL.map(|p| p.to_string()).join(", "))
        })
    }
}

/// Compiles a plain-Rust body once per instruction set; the first argument, an [`Isa`], picks one at run time.
/// The body must be written so that LLVM vectorises it (fixed-size lane arrays, no `mul_add`).
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $([$($g:ident : $b:path),+])? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$($g: $b),+>)? (isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body $(<$($g: $b),+>)? ($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512 $(<$($g: $b),+>)? ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2 $(<$($g: $b),+>)? ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            use $crate::isa::Path;
            match isa.path() {
                // SAFETY: an `Isa` with this path exists only if the CPU was found to have its features.
                #[cfg(target_arch = "x86_64")]
                Path::Avx512 | Path::Avx512Bf16 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Path::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;

/// Methods of a trait of vectors: always inlined, and with bodies that may do what the contract of the trait allows.
macro_rules! vector_methods {
    ($(fn $name:ident $([$t:ident : $bound:path])? ($($arg:ident : $ty:ty),*) $(-> $ret:ty)? $body:block)*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe, reason = "the portable vectors have plain arithmetic")]
        unsafe fn $name $(<$t: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the contract of the trait.
            unsafe { $body }
        }
    )*};
}
pub(crate) use vector_methods;
