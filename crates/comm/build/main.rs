//! The build script: with the cargo feature `gloo` there is C++ to compile.

#[cfg(feature = "gloo")]
mod gloo;

fn main() {
    println!("cargo::rerun-if-changed=build");
    #[cfg(feature = "gloo")]
    gloo::build();
}
