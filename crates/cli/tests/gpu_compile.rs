//! `oarlock gpu-compile` over the fake compiler of the tests: what it fills, for whom, and what a run finds there.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use oarlock_cuda::{compile, table};

use crate::common::{CommandOutput, Site, run};
use crate::gpu::fakes;

fn compiled(site: &Site, libraries: &Path, words: &[&str]) -> CommandOutput {
    let mut command = site.oarlock(&[&["gpu-compile"], words].concat());
    command.env("OARLOCK_CUDA_LIBRARIES", libraries).env("XDG_CACHE_HOME", site.path("cache"));
    command.env_remove("CUDA_VISIBLE_DEVICES");
    run(command)
}

/// How many units were compiled, and how many were there.
fn counts(said: &CommandOutput) -> [usize; 2] {
    assert_eq!(said.code, Some(0), "{said:?}");
    let line = said.stdout.lines().find(|line| line.contains(" units compiled by NVRTC ")).unwrap();
    let were = line.split(" were there").next().unwrap();
    [line.split(' ').next().unwrap(), were.rsplit(' ').next().unwrap()].map(|n| n.parse().unwrap())
}

#[test]
fn a_cache_is_filled_without_a_gpu_and_a_training_compiles_nothing() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    let all = compile::units("sm_90a", None, None).len();
    // No driver.
    let bare = site.path("bare");
    std::fs::create_dir(&bare).unwrap();
    std::os::unix::fs::symlink(libraries.join("libnvrtc.so.13"), bare.join("libnvrtc.so.13")).unwrap();
    let said = compiled(&site, &bare, &["--arch", "sm_90", "--out", "carried"]);
    assert_eq!(counts(&said), [all, 0]);
    let carried = site.path("carried");
    assert!(
        said.stdout.contains(&format!("copy the folder {} there, set XDG_CACHE_HOME", carried.display()))
            || said.stdout.contains("copy the folder carried there"),
        "{said:?}"
    );
    assert_eq!(std::fs::metadata(carried.join("oarlock/cuda")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(counts(&compiled(&site, &bare, &["--arch", "sm_90a", "--out", "carried"])), [0, all]);

    let runs = site.path("runs");
    let mut command = site.oarlock(&[
        "train",
        "train.yaml",
        "device=cuda",
        "num_processes=1",
        "max_steps=1",
        "output_dir=out",
        "bf16=true",
    ]);
    command
        .env("OARLOCK_CUDA_LIBRARIES", libraries)
        .env("XDG_CACHE_HOME", &carried)
        .env("OARLOCK_FAKE_RUNS", &runs);
    let said = run(command);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("GPU: kernels from the cache on disk"), "{said:?}");
    // What it ran is what its first unit would have brought with it.
    let runs = std::fs::read_to_string(&runs).unwrap();
    for name in runs.lines().filter_map(|line| line.split(' ').next()) {
        let instances = table::all().flat_map(|kernel| kernel.instances());
        let Some(instance) = instances.into_iter().find(|instance| instance.name() == name) else { continue };
        let unit = instance.unit();
        assert!(!unit.defines.is_empty() || compile::TRAINING.contains(&unit.source), "{name} is in {unit}");
    }
}

#[test]
fn a_configuration_selects_attention_and_wrong_words_are_refused() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    // The model's heads of 8 elements take the units of 32.
    let some = |arch| compile::units(arch, Some(&[32]), Some(&[oarlock_cuda::Element::BF16])).len();
    let said = compiled(&site, libraries, &["train.yaml", "bf16=true", "output_dir=out"]);
    // The emulated machine has GPUs of two architectures that are new enough.
    assert_eq!(counts(&said), [some("sm_80") + some("sm_90a"), 0], "{said:?}");
    for (words, code, says) in [
        (&["--arch", "sm_75"][..], 2, "the kernels need sm_80 or newer"),
        (&["--arch", "hopper"], 2, "an architecture is called such as sm_80"),
        (&["none.yaml"], 2, "none.yaml"),
    ] {
        let said = compiled(&site, libraries, words);
        assert!(said.code == Some(code) && said.stderr.contains(says), "{said:?}");
    }
    let said = compiled(&site, &site.path("model"), &["--arch", "sm_80"]);
    assert!(
        said.code == Some(1) && said.stderr.contains("libnvrtc, the compiler of CUDA kernels, was not found"),
        "{said:?}"
    );
}
