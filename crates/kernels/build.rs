//! Passes on how far the kernels are optimized, which a program can only learn while it is built.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=OARLOCK_OPT_LEVEL={level}");
}
