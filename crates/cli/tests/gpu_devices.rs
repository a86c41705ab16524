//! Which device a training run takes by itself, and by the commands of other programs: over fake libraries of CUDA, whose
//! driver shows an H100, an A100 and a V100, and without any.

use std::os::unix::fs::symlink;

use crate::common::{CommandOutput, Site, run};
use crate::gpu::fakes;

const TRAIN: [&str; 6] = ["--max_steps", "1", "--num_train_epochs", "1", "--output_dir", "out"];

/// A configuration that says nothing about ranks and devices.
const CONFIG: &str = "\
stage: pt
finetuning_type: full
model_name_or_path: model
dataset: text.jsonl
cutoff_len: 16
per_device_train_batch_size: 2
save_strategy: no
overwrite_output_dir: true
num_threads_per_process: 1
";

fn site() -> Site {
    let site = Site::new();
    site.write("train.yaml", CONFIG);
    site
}

/// A command over the fake libraries, with these variables and without those that say something of devices.
fn said(site: &Site, line: &str, variables: &[(&str, &str)]) -> CommandOutput {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = site.oarlock(&words);
    for name in ["FORCE_TORCHRUN", "DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES", "ACCELERATE_USE_CPU"] {
        command.env_remove(name);
    }
    if let Some(folder) = fakes() {
        command.env("OARLOCK_CUDA_LIBRARIES", folder);
    }
    command.env("XDG_CACHE_HOME", site.path("cache")).env("HF_HOME", site.path("hf"));
    command.envs(variables.iter().copied());
    run(command)
}

/// The line that says on how many ranks of which device a training runs.
fn ranks(said: &CommandOutput) -> &str {
    assert_eq!(said.code, Some(0), "{said:?}");
    let line = said.stdout.lines().find(|line| line.contains(" rank(s) of "));
    let line = line.unwrap_or_else(|| panic!("{said:?}"));
    line.split("; ").find(|part| part.contains("rank(s)")).unwrap()
}

/// Trains a step with these words; on how many ranks, and the device of the first one.
fn trained(site: &Site, line: &str, variables: &[(&str, &str)]) -> (usize, &'static str) {
    let said = said(site, line, variables);
    let ranks = ranks(&said);
    let device = ["H100", "A100", "cpu"].into_iter().find(|name| ranks.contains(name)).unwrap();
    let on_gpu = device != "cpu";
    let experimental =
        said.stdout.contains("experimental: checked on one NVIDIA H200, several GPUs only in emulation");
    assert_eq!(on_gpu, experimental, "{said:?}");
    assert_eq!(on_gpu, said.stdout.contains("device=cpu trains on the CPU"), "{said:?}");
    (ranks.split(' ').next().unwrap().parse().unwrap(), device)
}

#[test]
fn a_training_takes_the_gpus_that_it_sees_unless_it_is_told_otherwise() {
    if fakes().is_none() {
        return;
    }
    let site = site();
    let train = "train train.yaml max_steps=1 output_dir=out";
    // The V100 is too old, so the other two have a rank each.
    for (words, variables, expected) in [
        ("", &[][..], (2, "H100")),
        ("", &[("CUDA_VISIBLE_DEVICES", "1")], (1, "A100")),
        ("", &[("CUDA_VISIBLE_DEVICES", "0,7,1")], (1, "H100")),
        ("", &[("CUDA_VISIBLE_DEVICES", "")], (1, "cpu")),
        ("", &[("CUDA_VISIBLE_DEVICES", "-1")], (1, "cpu")),
        (" device=cpu", &[], (1, "cpu")),
        (" use_cpu=true", &[], (1, "cpu")),
        ("", &[("DS_ACCELERATOR", "cpu")], (1, "cpu")),
        ("", &[("ACCELERATE_USE_CPU", "true")], (1, "cpu")),
    ] {
        assert_eq!(trained(&site, &format!("{train}{words}"), variables), expected, "{words} {variables:?}");
    }
    let shared = said(&site, &format!("{train} num_processes=3"), &[]);
    assert!(ranks(&shared).starts_with("3 rank(s) of Emulated H100"), "{shared:?}");
    assert!(shared.stdout.contains("3 ranks of this machine share 2 GPU(s)"), "{shared:?}");
    let both = said(&site, &format!("{train} use_cpu=true device=cuda"), &[]);
    assert!(both.code != Some(0) && both.stderr.contains("are mutually exclusive"), "{both:?}");
}

#[test]
fn what_is_missing_to_use_a_gpu_is_said_in_a_line_and_the_cpu_trains() {
    let Some(libraries) = fakes() else { return };
    let site = site();
    let train = "train train.yaml max_steps=1 output_dir=out";
    for (kept, why) in [
        (&[][..], None),
        (
            &["libcuda.so.1"],
            Some(
                "this machine has 3 GPUs, but libnvrtc, the compiler of CUDA kernels, was not found; `pip install \
                  nvidia-cuda-nvrtc` gets it; the CPU is used until then",
            ),
        ),
    ] {
        let folder = site.path(&format!("libraries {}", kept.len()));
        std::fs::create_dir(&folder).unwrap();
        kept.iter().for_each(|name| symlink(libraries.join(name), folder.join(name)).unwrap());
        let said = said(&site, train, &[("OARLOCK_CUDA_LIBRARIES", folder.to_str().unwrap())]);
        assert!(ranks(&said).starts_with("1 rank(s) of cpu"), "{said:?}");
        let notes: Vec<&str> = said.stderr.lines().filter(|line| line.contains("GPU")).collect();
        assert_eq!(notes, why.map(|why| format!("note: {why}")).iter().collect::<Vec<_>>(), "{said:?}");
        assert!(!said.stdout.contains("GPU"), "{said:?}");
    }
    // Without cuBLASLt the own kernels compute.
    let folder = site.path("no cublas");
    std::fs::create_dir(&folder).unwrap();
    for name in ["libcuda.so.1", "libnvrtc.so.13"] {
        symlink(libraries.join(name), folder.join(name)).unwrap();
    }
    let said = said(
        &site,
        &format!("{train} num_processes=1"),
        &[("OARLOCK_CUDA_LIBRARIES", folder.to_str().unwrap())],
    );
    assert!(ranks(&said).contains("Emulated H100"), "{said:?}");
    assert!(
        said.stdout.contains("own kernels: libcublasLt was not found; pip install nvidia-cublas"),
        "{said:?}"
    );
}

#[test]
fn text_is_generated_on_a_gpu_by_itself_and_plans_are_those_of_the_cpu() {
    let Some(libraries) = fakes() else { return };
    let site = site();
    let words = ["generate", "--model", "model", "--prompt", "The", "--max-new-tokens", "1"];
    let driver_only = site.path("driver only");
    std::fs::create_dir(&driver_only).unwrap();
    symlink(libraries.join("libcuda.so.1"), driver_only.join("libcuda.so.1")).unwrap();
    for (device, folder, says) in [
        ("", libraries.as_path(), Some("note: Emulated H100")),
        ("--device cpu", libraries, None),
        ("--device auto", &site.path("model"), None),
        (
            "",
            &driver_only,
            Some("was not found; `pip install nvidia-cuda-nvrtc` gets it; the CPU is used until then"),
        ),
    ] {
        let words: Vec<&str> = words.into_iter().chain(device.split_whitespace()).collect();
        let mut command = site.oarlock(&words);
        command.env_remove("CUDA_VISIBLE_DEVICES").env("OARLOCK_CUDA_LIBRARIES", folder);
        command.env("XDG_CACHE_HOME", site.path("cache"));
        let said = run(command);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(says.is_some(), said.stderr.contains("GPU") || said.stderr.contains("H100"), "{said:?}");
        assert!(says.is_none_or(|says| said.stderr.contains(says)), "{said:?}");
    }
    // What GPUs do is not predicted; where nobody asked for one, the CPU's plan is made.
    let asked = said(&site, "plan train.yaml device=cuda output_dir=out", &[]);
    assert!(
        asked.code == Some(1) && asked.stderr.contains("a training run on GPUs (`device: cuda`)"),
        "{asked:?}"
    );
}

#[test]
fn the_launchers_of_other_programs_do_what_they_say() {
    if fakes().is_none() {
        return;
    }
    let site = site();
    site.write("ds.json", "{\"train_micro_batch_size_per_gpu\": \"auto\"}");
    let gpus = "distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: '0,1'\n";
    site.write("gpus.yaml", gpus);
    site.write("cpu.yaml", "distributed_type: NO\nuse_cpu: true\nnum_processes: 1\n");
    let (visible, force) = (("CUDA_VISIBLE_DEVICES", "0,1"), ("FORCE_TORCHRUN", "1"));
    let train = format!("src/train.py train.yaml {}", TRAIN.join(" "));
    let deepspeed = format!("{train} --deepspeed ds.json");
    for (line, variables, expected) in [
        (format!("accelerate launch --multi_gpu --num_processes 2 {train}"), &[][..], (2, "H100")),
        (format!("accelerate launch --num_processes 1 --gpu_ids 1 {train}"), &[], (1, "A100")),
        (format!("accelerate launch --config_file gpus.yaml {train}"), &[], (2, "H100")),
        (format!("accelerate launch --config_file cpu.yaml {train}"), &[], (1, "cpu")),
        (format!("accelerate launch --multi_gpu --cpu --num_processes 2 {train}"), &[], (2, "cpu")),
        (format!("deepspeed --num_gpus 2 {deepspeed}"), &[], (2, "H100")),
        (format!("deepspeed --include localhost:1 {deepspeed}"), &[], (1, "A100")),
        (format!("deepspeed --exclude localhost:2 {deepspeed}"), &[], (2, "H100")),
        (format!("deepspeed {deepspeed}"), &[visible], (2, "H100")),
        (format!("deepspeed --num_gpus 2 --cpu {deepspeed}"), &[], (2, "cpu")),
        (format!("torchrun --nproc_per_node gpu {train}"), &[visible], (2, "H100")),
        (format!("torchrun --nproc_per_node auto {train}"), &[visible], (2, "H100")),
        (format!("torchrun --nproc_per_node 1 {train}"), &[], (1, "H100")),
        (format!("llamafactory-cli train train.yaml {}", TRAIN.join(" ")), &[visible], (2, "H100")),
        (format!("llamafactory-cli train train.yaml {}", TRAIN.join(" ")), &[visible, force], (2, "H100")),
    ] {
        assert_eq!(trained(&site, &line, variables), expected, "{line} {variables:?}");
    }
    let many = said(&site, &format!("deepspeed --num_gpus 4 {deepspeed}"), &[]);
    assert!(many.code == Some(2) && many.stderr.contains("this machine has 3"), "{many:?}");
}

#[test]
fn the_reports_name_gpus_driver_and_libraries() {
    if fakes().is_none() {
        return;
    }
    let site = site();
    for report in ["env", "ds_report", "accelerate env", "llamafactory-cli env"] {
        let said = said(&site, report, &[("CUDA_VISIBLE_DEVICES", "1,0")]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let all = said.stdout;
        let line = |name: &str| {
            let found = all.lines().find(|line| line.trim_start_matches("- ").starts_with(name));
            found.unwrap_or_else(|| panic!("{report}: no {name}: {all}"))
        };
        let first = line("GPU 0");
        for words in ["Emulated A100, 134 MB", "compute capability 8.0", "GPU-00295"] {
            assert!(first.contains(words), "{report}: {first}");
        }
        assert!(line("GPU 1").contains("Emulated H100"), "{report}: {all}");
        assert!(line("GPU driver").contains("for CUDA up to 13.1"), "{report}: {all}");
        for (library, file) in [
            ("libnvrtc", "libnvrtc.so.13"),
            ("libcublasLt", "libcublasLt.so.13"),
            ("libnccl", "libnccl.so.2"),
        ] {
            assert!(line(library).contains(file), "{report}: {all}");
        }
        let place = line("Training runs on");
        assert!(
            place.contains("2 GPUs, a rank on each (experimental: checked on one NVIDIA H200"),
            "{place}"
        );
    }
    let libraries = fakes().unwrap();
    let folder = site.path("driver");
    std::fs::create_dir(&folder).unwrap();
    symlink(libraries.join("libcuda.so.1"), folder.join("libcuda.so.1")).unwrap();
    let bare = said(&site, "env", &[("OARLOCK_CUDA_LIBRARIES", folder.to_str().unwrap())]).stdout;
    for words in [
        "`pip install nvidia-cuda-nvrtc` gets it",
        "`pip install nvidia-cublas` gets it",
        "Training runs on: the CPU: ",
    ] {
        assert!(bare.contains(words), "{words}: {bare}");
    }
}

#[test]
#[ignore = "heavy"]
fn the_memory_of_the_gpu_is_predicted_and_compared() {
    if fakes().is_none() {
        return;
    }
    let site = site();
    // 32 MiB for cuBLASLt, and those for kernels that a GPU loads later and the emulator does not count.
    let (workspace, later) = (33.6, 8.4);
    let megabytes = |line: &str, words: &str| -> f64 {
        let (_, rest) = line.split_once(words).unwrap_or_else(|| panic!("{words}: {line}"));
        rest.trim_start().split(' ').next().unwrap().parse().unwrap()
    };
    let offload = ",\"offload_optimizer\":{\"device\":\"cpu\"}";
    let runs = [
        (1, 0, 16384, "", ""),
        (2, 0, 6144, "", ""),
        (2, 1, 4096, "", ""),
        (2, 2, 4096, "", ""),
        (2, 3, 4096, "", ""),
        // GPUs that nobody asked for offload as well.
        (1, 2, 16384, offload, ""),
        (1, 0, 16384, "", "gradient_checkpointing=true"),
        // Dropout copies its inputs, and products of many rows take a quantized weight dequantized.
        (1, 0, 16384, "", "finetuning_type=lora lora_target=all lora_dropout=0.1"),
        (1, 0, 2048, "", "finetuning_type=lora quantization_bit=4 per_device_train_batch_size=17"),
    ];
    // Each tensor has memory of its own, and at last a pool with segments, of which one of each kind is not full.
    let all = runs.map(|run| (run, false)).into_iter().chain([(runs[0], true)]);
    for ((ranks, zero, width, more, words), in_segments) in all {
        // States and activations that are more than the constants.
        let config = std::fs::read_to_string(site.path("model/config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config["intermediate_size"] = width.into();
        site.write("model/config.json", &config.to_string());
        let line = format!(
            "train train.yaml train_from_scratch=true max_steps=2 memory_steps=1 output_dir=out num_processes={ranks} \
             deepspeed={{\"zero_optimization\":{{\"stage\":{zero}{more}}}}} {words}"
        );
        let line = line.trim_end();
        let said =
            said(&site, line, &[("OARLOCK_NO_CUDA_MEMORY_CACHING", if in_segments { "0" } else { "1" })]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let lines: Vec<&str> =
            said.stdout.lines().filter(|line| line.contains("GPU memory: predicted")).collect();
        let [before, after] = lines[..] else { panic!("{said:?}") };
        assert!(before.contains("working weights") && before.contains("of 268 MB in use"), "{before}");
        let (rank, all) = (megabytes(before, "predicted"), megabytes(after, "predicted"));
        assert!((all - rank - workspace - later).abs() < 2.0, "{before}\n{after}");
        let measured = megabytes(after, "measured peak") - workspace;
        // NCCL, which takes nothing of a fake GPU, gets a sixteenth of it.
        let nccl = if ranks > 1 { megabytes(before, ", NCCL") } else { 0.0 };
        assert!(ranks == 1 || (nccl - 268.4 / 16.0).abs() <= 0.5, "{before}");
        // Megabytes are printed whole, so each of them may be half of one more or less.
        let (least, most) = ((measured - 0.5) / (rank - nccl + 0.5), (measured + 0.5) / (rank - nccl - 0.5));
        assert_eq!(before.contains("rests of the pool's segments"), in_segments, "{before}");
        assert_eq!(before.contains("optimizer state"), more.is_empty(), "{before}");
        if in_segments {
            assert!((rank - 24.0..rank + 2.0).contains(&measured), "{before}\n{after}");
            let of_pool =
                [megabytes(after, "the pool reserved at most"), megabytes(after, "buffers used at most")];
            assert!(of_pool[1] <= of_pool[0] && (of_pool[0] - measured).abs() < 2.0, "{before}\n{after}");
            continue;
        }
        assert!(
            most >= 0.9 && least < 1.02,
            "{ranks} ranks, ZeRO-{zero}{more} {words}: {least} to {most}: {before}\n{after}"
        );
    }
}

#[test]
#[ignore = "heavy"]
fn what_a_gpu_has_no_memory_for_is_done_by_the_cpu_unless_the_gpu_was_asked_for() {
    if fakes().is_none() {
        return;
    }
    let site = site();
    // Before anything is loaded; all ranks turn to the CPU, also those that NCCL has connected.
    let much =
        "train train.yaml max_steps=1 output_dir=much num_processes=2 per_device_train_batch_size=4096";
    let on_cpu = said(&site, much, &[]);
    assert!(ranks(&on_cpu).starts_with("2 rank(s) of cpu"), "{on_cpu:?}");
    let notes: Vec<&str> = on_cpu.stderr.lines().filter(|line| line.contains("memory of the GPU")).collect();
    let [note] = notes[..] else { panic!("{on_cpu:?}") };
    for words in [
        "note: ",
        // The H100 of rank 0 has twice as much.
        "needed, but the memory of the GPU of rank 1 is 134 MB, so the CPU trains",
        "there would fit: per_device_train",
    ] {
        assert!(note.contains(words), "{words}: {note}");
    }
    let refused = said(&site, &format!("{much} device=cuda"), &[]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for words in [
        "not enough memory to train",
        "the memory of the GPU of rank 1 is 134 MB",
        "of 134 MB in use",
        "per_device_train_batch_size: ",
        "device: cpu",
    ] {
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
}
