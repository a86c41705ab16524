//! The build script: compiles the shim over Gloo, where Gloo can be had.

mod gloo;

fn main() {
    println!("cargo::rerun-if-changed=build");
    gloo::build();
}
