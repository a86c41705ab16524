//! Compiles the C++ shim over Gloo, and says what to link.

use std::env;
use std::path::{Path, PathBuf};

/// A folder with Gloo's sources: the files that are used are compiled into this program, which then needs nothing installed.
const SOURCE: &str = "GLOO_SOURCE";
/// A folder that Gloo was installed in.
const ROOT: &str = "GLOO_ROOT";

pub fn build() {
    println!("cargo::rerun-if-changed=src/gloo/shim");
    for name in [SOURCE, ROOT] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let folder = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").warnings(false).flag_if_supported("-Wno-deprecated-declarations");
    build.file("src/gloo/shim/shim.cc");
    match (folder(SOURCE), folder(ROOT)) {
        (Some(source), _) => from_source(&mut build, &source),
        (None, Some(root)) => installed(&mut build, &root.join("include"), &[root.join("lib")]),
        (None, None) => installed(&mut build, Path::new("/usr/include"), &[]),
    }
    build.compile("oarlock_gloo");
}

/// Links the library that is installed: a static one if it is there.
fn installed(build: &mut cc::Build, headers: &Path, folders: &[PathBuf]) {
    if !headers.join("gloo/transport/tcp/pair.h").exists() {
        println!(
            "cargo::error=the headers of Gloo are not in {}: apt-get install libgloo-dev, or set {ROOT} to a folder that \
             Gloo is installed in, or {SOURCE} to its sources (https://github.com/facebookincubator/gloo)",
            headers.display()
        );
        return;
    }
    if headers != Path::new("/usr/include") {
        build.include(headers);
    }
    if !headers.join("gloo/common/memory.h").exists() {
        build.include("src/gloo/shim/missing");
    }
    for folder in folders {
        println!("cargo::rustc-link-search=native={}", folder.display());
    }
    let is_static = folders.iter().any(|folder| folder.join("libgloo.a").exists());
    println!("cargo::rustc-link-lib={}gloo", if is_static { "static=" } else { "dylib=" });
}

/// Compiles Gloo's TCP transport together with the shim.
fn from_source(build: &mut cc::Build, source: &Path) {
    println!("cargo::rerun-if-changed={}", source.display());
    for folder in ["gloo/common", "gloo/transport", "gloo/transport/tcp"] {
        let Ok(entries) = std::fs::read_dir(source.join(folder)) else {
            println!("cargo::error={SOURCE}={}: the folder {folder} is missing", source.display());
            return;
        };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        let is_code = |path: &&PathBuf| {
            path.extension().is_some_and(|end| end == "cc")
                && path.file_stem().is_some_and(|name| name != "win")
        };
        build.files(files.iter().filter(is_code));
    }
    // What its CMake writes: the TCP transport and nothing else.
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let unused = ["CUDA", "NCCL", "ROCM", "RCCL", "REDIS", "IBVERBS", "MPI", "AVX", "LIBUV", "TORCH_DTYPES"];
    let unused: String = unused.iter().map(|name| format!("#define GLOO_USE_{name} 0\n")).collect();
    let text = format!(
        "#pragma once\n#define GLOO_VERSION_MAJOR 0\n#define GLOO_VERSION_MINOR 5\n#define GLOO_VERSION_PATCH 0\n\
         #define GLOO_VERSION 500\n{unused}#define GLOO_HAVE_TRANSPORT_TCP 1\n#define GLOO_HAVE_TRANSPORT_TCP_TLS 0\n\
         #define GLOO_HAVE_TRANSPORT_IBVERBS 0\n#define GLOO_HAVE_TRANSPORT_UV 0\n"
    );
    let folder = out.join("gloo");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("config.h"), text))
        .expect("OUT_DIR");
    build.include(&out).include(source).cpp_link_stdlib_static(true);
}
