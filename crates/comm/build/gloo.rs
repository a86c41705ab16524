//! Compiles the C++ shim over Gloo into a shared library, which the program carries inside itself and loads when ranks of several
//! machines meet. So a program with Gloo starts as fast as one without, and also runs where Gloo is not installed.
//!
//! Where Gloo cannot be had the build goes on without it, and the program says why when it is needed. The cargo feature `gloo`,
//! and a folder that is named and does not serve, make that an error of the build.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with Gloo's sources: the files that are used become part of the shim, which then needs nothing installed.
const SOURCE: &str = "GLOO_SOURCE";
/// A folder that Gloo was installed in.
const ROOT: &str = "GLOO_ROOT";
/// `off` leaves Gloo out.
const SWITCH: &str = "OARLOCK_GLOO";
/// The cargo feature of this crate, as cargo tells it.
const FEATURE: &str = "CARGO_FEATURE_GLOO";
/// What package managers write whenever something is installed: where Gloo is missing, the next build looks again after that.
const INSTALLED: [&str; 3] = ["/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/lib/apk/db/installed"];
/// A header of Gloo that the shim includes.
const HEADER: &str = "gloo/transport/tcp/pair.h";

/// Writes `shim.rs`: the bytes of the shim, or why there are none.
pub fn build() {
    println!("cargo::rerun-if-changed=src/gloo/shim");
    for name in [SOURCE, ROOT, SWITCH] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let is_required = [SOURCE, ROOT, FEATURE].iter().any(|name| variable(name).is_some());
    let built = match variable(SWITCH) {
        None if is_static() => {
            Err("a static program opens no libraries: take a target with glibc".to_owned())
        }
        None => shim().map_err(|why| format!("{why}: `apt-get install g++ libgloo-dev`")),
        Some(value) if value == "off" => Err(format!("{SWITCH}=off left it out: unset {SWITCH}")),
        Some(value) => {
            println!("cargo::error={SWITCH} is {}; expected off, or nothing", value.display());
            return;
        }
    };
    let text = match built {
        Ok(library) => format!("Ok(include_bytes!({library:?}))"),
        Err(why) if is_required => {
            println!(
                "cargo::error=Gloo is asked for and cannot be had, as {why}; or set {ROOT} to a folder that Gloo is installed in, or \
                 {SOURCE} to its sources (https://github.com/facebookincubator/gloo)"
            );
            return;
        }
        Err(why) => {
            for file in INSTALLED.iter().filter(|file| Path::new(file).exists()) {
                println!("cargo::rerun-if-changed={file}");
            }
            format!("Err({why:?})")
        }
    };
    std::fs::write(out().join("shim.rs"), text).expect("OUT_DIR can be written");
}

/// Whether the program has its C library inside, and with it no loader of libraries, as one for musl that is built elsewhere:
/// not every cargo says so of its features.
fn is_static() -> bool {
    let said = |name: &str| env::var(name).unwrap_or_default();
    let is_for_musl = said("CARGO_CFG_TARGET_ENV") == "musl" && !said("HOST").ends_with("musl");
    is_for_musl || said("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static")
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn out() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

/// The shim as a library; why it cannot be built.
fn shim() -> Result<PathBuf, String> {
    let folder = |name: &str| variable(name).map(PathBuf::from);
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gloo/shim");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").pic(true).warnings(false).cargo_warnings(false);
    let mut code = vec![own.join("shim.cc")];
    match (folder(SOURCE), folder(ROOT)) {
        (Some(source), _) => {
            code.extend(of_source(&mut build, &source)?);
            link(&build, &own, &code, &STATIC.map(OsString::from))
        }
        (None, root) => {
            let folders: Vec<PathBuf> =
                root.iter().flat_map(|root| ["lib", "lib64"].map(|name| root.join(name))).collect();
            if let Some(root) = &root {
                build.include(root.join("include"));
            }
            let headers = root.map_or(vec!["/usr".into(), "/usr/local".into()], |root| vec![root]);
            for header in headers.iter().map(|root| root.join("include").join(HEADER)) {
                if header.exists() {
                    println!("cargo::rerun-if-changed={}", header.display());
                }
            }
            // A static library makes the program independent of what is installed, where it was compiled for that (-fPIC).
            let archive = folders.iter().map(|folder| folder.join("libgloo.a")).find(|file| file.exists());
            let whole = archive.map(|archive| {
                let words = std::iter::once(archive.into_os_string()).chain(STATIC.map(OsString::from));
                link(&build, &own, &code, &words.collect::<Vec<_>>())
            });
            if let Some(Ok(library)) = whole {
                return Ok(library);
            }
            let mut words: Vec<OsString> = Vec::new();
            for folder in &folders {
                words.extend(
                    [format!("-L{}", folder.display()), format!("-Wl,-rpath,{}", folder.display())]
                        .map(Into::into),
                );
            }
            words.push("-lgloo".into());
            link(&build, &own, &code, &words)
        }
    }
}

/// What makes the standard library of C++ a part of the shim, invisible to everybody else.
const STATIC: [&str; 3] = ["-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL"];

/// Compiles and links in one call of the compiler, whose first complaint is the reason where it fails.
fn link(build: &cc::Build, own: &Path, code: &[PathBuf], libraries: &[OsString]) -> Result<PathBuf, String> {
    let library = out().join("oarlock_gloo.so");
    let compiler =
        build.try_get_compiler().map_err(|error| format!("no C++ compiler was found ({error})"))?;
    let mut command: Command = compiler.to_command();
    command
        .args(["-shared", "-pthread", "-w", "-Wl,--no-undefined", "-Wl,-s", "-idirafter"])
        .arg(own.join("missing"));
    command.arg("-o").arg(&library).args(code).args(libraries);
    let output = command.output().map_err(|error| {
        format!("the C++ compiler {} cannot be started ({error})", compiler.path().display())
    })?;
    if output.status.success() {
        return Ok(library);
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_missing =
        |what: &str| said.lines().any(|line| line.contains(what) && line.contains("No such file"));
    Err(match () {
        () if is_missing("gloo/") => "the headers of Gloo were not found".into(),
        () if said.contains("-lgloo") => "the library of Gloo was not found".into(),
        () => {
            let first = said.lines().find(|line| line.contains("error")).or_else(|| said.lines().next());
            format!("it was not compiled: {}", first.unwrap_or("the compiler failed and said nothing"))
        }
    })
}

/// The files of Gloo's TCP transport.
fn of_source(build: &mut cc::Build, source: &Path) -> Result<Vec<PathBuf>, String> {
    println!("cargo::rerun-if-changed={}", source.display());
    let mut code = Vec::new();
    for folder in ["gloo/common", "gloo/transport", "gloo/transport/tcp"] {
        let Ok(entries) = std::fs::read_dir(source.join(folder)) else {
            return Err(format!("{SOURCE}={}: the folder {folder} is missing", source.display()));
        };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        code.extend(files.into_iter().filter(|path| {
            path.extension().is_some_and(|end| end == "cc")
                && path.file_stem().is_some_and(|name| name != "win")
        }));
    }
    // What its CMake writes: the TCP transport and nothing else.
    let unused = ["CUDA", "NCCL", "ROCM", "RCCL", "REDIS", "IBVERBS", "MPI", "AVX", "LIBUV", "TORCH_DTYPES"];
    let unused: String = unused.iter().map(|name| format!("#define GLOO_USE_{name} 0\n")).collect();
    let text = format!(
        "#pragma once\n#define GLOO_VERSION_MAJOR 0\n#define GLOO_VERSION_MINOR 5\n#define GLOO_VERSION_PATCH 0\n\
         #define GLOO_VERSION 500\n{unused}#define GLOO_HAVE_TRANSPORT_TCP 1\n#define GLOO_HAVE_TRANSPORT_TCP_TLS 0\n\
         #define GLOO_HAVE_TRANSPORT_IBVERBS 0\n#define GLOO_HAVE_TRANSPORT_UV 0\n"
    );
    let folder = out().join("gloo");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("config.h"), text))
        .expect("OUT_DIR can be written");
    build.include(out()).include(source);
    Ok(code)
}
