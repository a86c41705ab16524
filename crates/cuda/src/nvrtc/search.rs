//! Where libnvrtc can be: in the folders of the system's loader, in a toolkit, in the packages of a Python.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The names of the versions that compile the kernels, newest first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// The files to try, in this order, and where they were looked for.
pub(super) fn candidates() -> (Vec<PathBuf>, Vec<String>) {
    let (mut found, mut looked_in) = (vec![], vec!["the system's libraries".to_string()]);
    // The loader knows its folders itself.
    found.extend(NAMES.iter().map(PathBuf::from).filter(|name| is_loadable(name)));
    for (said, folder) in toolkits().into_iter().chain(python_packages()) {
        if !looked_in.contains(&said) {
            looked_in.push(said);
        }
        found.extend(NAMES.iter().map(|name| folder.join(name)).find(|file| file.exists()));
    }
    (found, looked_in)
}

fn is_loadable(name: &Path) -> bool {
    // SAFETY: libnvrtc's initialization has no conditions, nor has its end.
    unsafe { libloading::Library::new(name) }.is_ok()
}

/// The library folders of toolkits, with what an error says about them.
fn toolkits() -> Vec<(String, PathBuf)> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| {
        let home = PathBuf::from(std::env::var_os(name)?);
        Some((format!("{name} ({})", home.display()), home))
    });
    let usual = PathBuf::from("/usr/local/cuda");
    let homes = homes.chain([(usual.display().to_string(), usual)]);
    homes.flat_map(|(said, home)| ["lib64", "lib"].map(|lib| (said.clone(), home.join(lib)))).collect()
}

/// The folders `nvidia/*/lib` in the packages of the active Python.
fn python_packages() -> Vec<(String, PathBuf)> {
    let mut folders = vec![];
    for path in python_path() {
        let Ok(packages) = std::fs::read_dir(path.join("nvidia")) else { continue };
        let mut packages: Vec<PathBuf> = packages.flatten().map(|entry| entry.path().join("lib")).collect();
        // Newer versions have the later names: cu13 before cuda_nvrtc is decided by what is there.
        packages.sort();
        folders.extend(packages.into_iter().map(|lib| (lib.display().to_string(), lib)));
    }
    if folders.is_empty() {
        folders.push(("nvidia/*/lib in the packages of python3".to_string(), PathBuf::new()));
    }
    folders
}

/// Where the active Python imports from: what it says itself, or, if it does not run, its environment's folder.
fn python_path() -> Vec<PathBuf> {
    let program = "import sys; print('\\n'.join(sys.path))";
    let said = Command::new("python3").args(["-c", program]).output();
    if let Ok(output) = said
        && output.status.success()
    {
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        return lines.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect();
    }
    let homes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os);
    let libs = homes
        .flat_map(|home| std::fs::read_dir(Path::new(&home).join("lib")).into_iter().flatten().flatten());
    libs.map(|entry| entry.path().join("site-packages")).filter(|folder| folder.exists()).collect()
}
