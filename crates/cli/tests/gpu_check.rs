//! `oarlock gpu-check` over fake libraries of CUDA, whose GPU runs kernels in an emulator, and without any.

use std::path::Path;

use serde_json::Value;

use crate::common::{Said, Site, run};
use crate::gpu::fakes;

/// The command with libraries from a folder, and the JSON that it writes.
fn check(site: &Site, libraries: &Path) -> (Said, Value) {
    check_with(site, libraries, &[])
}

/// With more words.
fn check_with(site: &Site, libraries: &Path, words: &[&str]) -> (Said, Value) {
    let mut command = site.oarlock(&[&["gpu-check", "--quick", "--json", "found.json"], words].concat());
    command.env("OARLOCK_CUDA_LIBRARIES", libraries).env("XDG_CACHE_HOME", site.path("cache"));
    let said = run(command);
    (said, serde_json::from_slice(&site.read("found.json")).unwrap())
}

#[test]
fn all_is_well_on_an_emulated_gpu() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    let (said, found) = check(&site, libraries);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.ends_with("Nothing failed.\n") && !said.stdout.contains("FAILED"), "{said:?}");

    assert_eq!(found["quick"], true);
    let facts = &found["facts"];
    assert_eq!(facts["gpu"]["name"], "Emulated H100");
    assert_eq!(facts["gpu"]["compute_capability"], "9.0");
    let files: Vec<&str> =
        facts["libraries"].as_array().unwrap().iter().map(|x| x.as_str().unwrap()).collect();
    let folder = libraries.canonicalize().unwrap();
    assert!(files.len() == 3 && files.iter().all(|file| Path::new(file).starts_with(&folder)), "{files:?}");
    assert!(facts["kernels"]["compiled"].as_u64().unwrap() > 10, "{facts}");
    assert!(facts["nvrtc"].is_string() && facts["cublas_lt"].is_string(), "{facts}");
    assert!(facts["staged"].is_array(), "{facts}");

    let checks = found["checks"].as_array().unwrap();
    for section in ["device", "words", "ops", "training", "ranks", "speed"] {
        assert!(checks.iter().any(|check| check["section"] == section), "no check of {section}");
    }
    for check in checks {
        let wanted = if check["section"] == "speed" { "skipped" } else { "ok" };
        assert_eq!(check["result"], wanted, "{check}");
        assert!(check["detail"].is_string() && check["seconds"].as_f64().unwrap() >= 0.0, "{check}");
    }
    let named =
        |name: &str| checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}"));
    for dtype in ["f32", "bf16", "f16"] {
        for op in ["attention of documents", "linear with a bias", "head loss", "adamw"] {
            let numbers = &named(&format!("{op} {dtype}"))["numbers"];
            assert!(numbers["error"].as_f64().unwrap() <= numbers["allowed"].as_f64().unwrap(), "{numbers}");
            assert_eq!(numbers["same_bits"], true);
        }
    }
    for word in ["mma bf16", "ldmatrix_trans f16", "cp_async of zeros bf16", "team_sum"] {
        assert_eq!(named(word)["detail"], "every bit is right, twice");
    }
    // Rounding leaves its mark: what has no error at all was not compared with anything.
    assert!(named("linear bf16")["numbers"]["error"].as_f64().unwrap() > 1e-4);
    for name in ["5 steps f32", "5 steps bf16"] {
        assert_eq!(named(name)["numbers"]["losses"].as_array().unwrap().len(), 6);
    }
    assert_eq!(found["summary"]["failed"], 0);
    assert_eq!(found["summary"]["skipped"], 1);
}

#[test]
fn without_a_driver_it_says_what_is_missing() {
    let site = Site::new();
    std::fs::create_dir(site.path("empty")).unwrap();
    let (said, found) = check(&site, &site.path("empty"));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!(said.stdout, "");
    for part in ["error: libcuda, the library of the GPU's driver, was not found", "install that (nvidia-smi"]
    {
        assert!(said.stderr.contains(part), "{said:?}");
    }
    assert!(found["error"].as_str().unwrap().contains("libcuda"), "{found}");
}

#[test]
fn without_a_compiler_of_kernels_it_says_so_once_and_stops() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    std::fs::create_dir(site.path("two")).unwrap();
    for name in ["libcuda.so.1", "libcublasLt.so.13"] {
        std::os::unix::fs::symlink(libraries.join(name), site.path("two").join(name)).unwrap();
    }
    let (said, found) = check(&site, &site.path("two"));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stdout.contains("FAILED: device: first kernel: libnvrtc, the compiler"), "{said:?}");
    assert!(said.stdout.contains("pip install nvidia-cuda-nvrtc"), "{said:?}");
    let summary = &found["summary"];
    assert_eq!([&summary["ok"], &summary["failed"], &summary["skipped"]], [0, 1, 5], "{found}");
}

#[test]
fn what_has_no_time_left_is_named() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    let (said, found) = check_with(&site, libraries, &["--seconds", "0"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let checks = found["checks"].as_array().unwrap();
    assert!(checks.len() > 150, "{}", checks.len());
    for check in checks.iter().filter(|check| check["section"] != "speed") {
        assert_eq!(check["detail"], "the time of this section was over", "{check}");
    }
    assert!(said.stdout.contains("skipped mma bf16"), "{said:?}");
}
