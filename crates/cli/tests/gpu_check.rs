//! `oarlock gpu-check` over fake libraries of CUDA, whose GPU runs kernels in an emulator, and without any.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use oarlock_cuda::attention::{WGMMA_ARCH, usual_instances};
use oarlock_cuda::{Element, Instance, table};
use serde_json::Value;

use crate::common::{CommandOutput, Site, run};
use crate::gpu::fakes;

/// Stands for compute-sanitizer: runs the checks of words, by a helper that ends before they do, and those of ops without time
/// for any.
const SANITIZER: &str = r#"#!/bin/sh
while [ "$1" != gpu-check ]; do program=$1; shift; [ -x "$program" ] && break; done
case "$*" in
*"--part words"*) ( "$program" "$@" & sleep 0.3 ) ;;
*) echo '{"begin": "an op"}'; echo '{"end": {"result": "ok", "detail": "", "numbers": {}}, "seconds": 0}' ;;
esac
"#;

/// One that finds something.
const STRICT: &str = r#"#!/bin/sh
echo "========= COMPUTE-SANITIZER"
echo "========= Invalid __global__ read of size 4 bytes"
exit 99
"#;

/// Makes a script that is found first; the PATH with it.
fn tool(site: &Site, name: &str, script: &str) -> String {
    let folder = site.path("bin");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), script).unwrap();
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

/// The command with libraries from a folder, and the JSON that it writes.
fn check(site: &Site, libraries: &Path) -> (CommandOutput, Value) {
    check_with(site, libraries, &[], &[])
}

/// With more words, and variables.
fn check_with(
    site: &Site,
    libraries: &Path,
    words: &[&str],
    variables: &[(&str, &str)],
) -> (CommandOutput, Value) {
    let mut command = site.oarlock(&[&["gpu-check", "--quick", "--json", "found.json"], words].concat());
    command.env("OARLOCK_CUDA_LIBRARIES", libraries).env("XDG_CACHE_HOME", site.path("cache"));
    command.envs(variables.iter().copied());
    let said = run(command);
    (said, serde_json::from_slice(&site.read("found.json")).unwrap())
}

/// What these sections find, none of which fails.
fn well(site: &Site, libraries: &Path, sections: &str) -> Value {
    let runs = site.path("runs");
    let variables = [("OARLOCK_FAKE_RUNS", runs.to_str().unwrap())];
    let (said, found) = check_with(site, libraries, &["--only", sections], &variables);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.ends_with("Nothing failed.\n") && !said.stdout.contains("FAILED"), "{said:?}");
    let checks = found["checks"].as_array().unwrap();
    let mut left: Vec<&str> = sections.split(',').collect();
    left.retain(|section| !checks.iter().any(|check| check["section"] == *section));
    assert!(left.is_empty(), "no checks of {left:?}");
    for check in checks {
        assert_eq!(check["result"], if check["section"] == "peers" { "skipped" } else { "ok" }, "{check}");
        assert!(check["detail"].is_string() && check["seconds"].as_f64().unwrap() >= 0.0, "{check}");
    }
    found
}

/// A check by its name.
fn named<'a>(found: &'a Value, name: &str) -> &'a Value {
    let mut checks = found["checks"].as_array().unwrap().iter();
    checks.find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn ranks_and_trainings_are_well_on_an_emulated_gpu() {
    let Some(libraries) = fakes() else { return };
    let found = well(&Site::new(), libraries, "device,ranks,throughput,peers");
    for stage in 0..4 {
        let check = named(&found, &format!("2 ranks ZeRO-{stage}"));
        assert_eq!(check["numbers"]["losses"].as_array().unwrap().len(), 3);
    }
    let training = &named(&found, "tiny, 2x8")["numbers"];
    for key in
        ["tokens_per_second", "mfu", "bytes", "predicted_bytes", "parameters", "peak_flops", "peak_bytes"]
    {
        assert!(training[key].as_f64().unwrap() > 0.0, "{key}: {training}");
    }
    // The dearest ops have a line each, beside what the GPU can.
    let table = found["facts"]["dearest ops of tiny, 2x8"].as_array().unwrap();
    assert!(table.len() == 11 && table[1].as_str().unwrap().contains(" of "), "{table:?}");
    let op = &training["ops"]["linear forward"];
    for key in ["calls", "milliseconds", "tflops", "share_of_ceiling"] {
        assert!(op[key].as_f64().unwrap() > 0.0, "{key}: {training}");
    }
    assert!(
        found["next"][0].as_str().unwrap().starts_with("tiny, 2x8: most time is lost in "),
        "{}",
        found["next"]
    );
}

#[test]
#[ignore = "heavy"]
fn nccl_speed_offloading_cudnn_and_large_operands_are_well_on_an_emulated_gpu() {
    let Some(libraries) = fakes() else { return };
    let found = well(&Site::new(), libraries, "device,nccl,speed,offload,cudnn,large");
    let count = |section: &str| {
        found["checks"].as_array().unwrap().iter().filter(|check| check["section"] == section).count()
    };
    assert_eq!([count("nccl"), count("offload"), count("large")], [41, 4, 8], "{found}");
    let norm = &named(&found, "rms_norm 32x64")["numbers"];
    assert!(norm["gb_per_second"].as_f64().unwrap() > 0.0, "{norm}");
    assert!(named(&found, "product 64^3")["detail"].as_str().unwrap().contains("TFLOP/s"));
    // Attention is in the sections of both who can compute it.
    for section in ["speed", "cudnn"] {
        let mut checks = found["checks"].as_array().unwrap().iter();
        assert!(checks.any(|c| c["section"] == section && c["name"] == "attention 1x16x2x32"), "{section}");
    }
}

#[test]
#[ignore = "heavy"]
fn ops_are_well_on_an_emulated_gpu() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    let found = well(&site, libraries, "device,words,ops,training");
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
    assert_eq!(facts["staged"], Value::Array(vec![]), "{facts}");

    let named = |name: &str| named(&found, name);
    for dtype in ["f32", "bf16", "f16"] {
        for op in ["attention of documents", "linear with a bias", "head loss", "adamw"] {
            let numbers = &named(&format!("{op} {dtype}"))["numbers"];
            assert!(numbers["error"].as_f64().unwrap() <= numbers["allowed"].as_f64().unwrap(), "{numbers}");
            assert_eq!(numbers["same_bits"], true);
        }
    }
    for word in
        ["mma bf16", "ldmatrix_trans f16", "cp_async of zeros bf16", "team_sum f32", "own product a' b f16"]
    {
        assert_eq!(named(word)["detail"], "every bit is right, twice");
    }
    // Rounding leaves its mark: what has no error at all was not compared with anything.
    assert!(named("linear bf16")["numbers"]["error"].as_f64().unwrap() > 1e-4);
    for name in ["3 steps f32", "3 steps bf16"] {
        assert_eq!(named(name)["numbers"]["losses"].as_array().unwrap().len(), 4);
    }
    assert_eq!(found["summary"]["failed"], 0);
    every_kernel_ran(&String::from_utf8(site.read("runs")).unwrap());
}

/// Kernels that no check runs, and why.
const NOT_RUN: [(&str, &[&str]); 10] = [
    (
        "no op launches them",
        &[
            "bias_add_f32",
            "bias_add_bf16",
            "bias_add_f16",
            "random_bits",
            "add_normal_f32",
            "add_normal_bf16",
            "add_normal_f16",
            "label_log_probs_f32",
            "label_log_probs_bf16",
            "label_log_probs_f16",
        ],
    ),
    ("uniform noise is f32", &["fill_uniform_bf16", "fill_uniform_f16"]),
    ("integers have no gradients, and are written row by row", &["write_places_i32", "take_rows_i32"]),
    (
        "logits are f32 inside of all losses",
        &["token_loss_bf16", "token_loss_f16", "token_loss_grad_bf16_bf16", "token_loss_grad_f16_f16"],
    ),
    ("gradients and weights of optimizers are f32", &["squared_norm_bf16", "squared_norm_f16"]),
    (
        "own products that round their result replace cuBLASLt where it is absent; those into f32 are checked",
        &[
            "gemm_nn_bf16_bf16",
            "gemm_nn_f16_f16",
            "gemm_nt_bf16_bf16",
            "gemm_nt_f16_f16",
            "gemm_tn_bf16_bf16",
            "gemm_tn_f16_f16",
            "gemm_tt_bf16_bf16",
            "gemm_tt_f16_f16",
        ],
    ),
    (
        "no check norms 16 bits by f32 weights, or f32 to 16 bits again for a backward pass, but in the types of the run",
        &[
            "rms_norm_forward_f32_f32_f16",
            "add_rms_norm_forward_f32_f32_f16",
            "rms_norm_forward_bf16_f32_bf16",
            "rms_norm_forward_f16_f32_f16",
            "rms_norm_apply_f32_f32_bf16",
            "rms_norm_apply_f32_f32_f16",
            "rms_norm_apply_bf16_f32_bf16",
            "rms_norm_apply_f16_f32_f16",
            "rms_norm_backward_f32_f32_f16",
            "rms_norm_backward_bf16_f32_bf16",
            "rms_norm_backward_f16_f32_f16",
        ],
    ),
    (
        "the emulated GPU is an H100, on which attention of 16 bits is that of warpgroups; the tests of the kernels run these",
        &[
            "attention_forward_bf16_32",
            "attention_forward_bf16_64",
            "attention_forward_f16_32",
            "attention_forward_f16_64",
            "attention_backward_kv_bf16_32",
            "attention_backward_kv_bf16_64",
            "attention_backward_kv_f16_32",
            "attention_backward_kv_f16_64",
            "attention_backward_q_bf16_32",
            "attention_backward_q_bf16_64",
            "attention_backward_q_f16_32",
            "attention_backward_q_f16_64",
        ],
    ),
    ("of one buffer alone only the 1-bit optimizers take the norm", &["squared_norm_f32"]),
    ("no check sums 16 bits along the last dim into f32", &["sum_last_bf16_f32", "sum_last_f16_f32"]),
];

/// The kernels of attention that an H100 takes where nothing was measured.
fn of_warpgroups() -> impl Iterator<Item = Instance> {
    let heads = [Element::BF16, Element::F16].into_iter().flat_map(|of| [32, 64].map(|dim| (of, dim)));
    let all = heads.flat_map(|(of, dim)| usual_instances(WGMMA_ARCH, of, dim));
    all.filter(|instance| instance.tile.is_some())
}

/// The kernels of the table are those that ran, by the list that the fake driver writes, or have a reason.
fn every_kernel_ran(runs: &str) {
    let ran: BTreeSet<&str> = runs.lines().filter_map(|line| line.split(' ').next()).collect();
    // Of attention, the fake libraries have kernels for these heads only.
    let is_there = |instance: &Instance| instance.head_dim.is_none_or(|dim| dim == 32 || dim == 64);
    let instances =
        table::all().flat_map(|kernel| kernel.instances()).chain(of_warpgroups()).filter(is_there);
    let missing: BTreeSet<String> =
        instances.map(|instance| instance.name()).filter(|name| !ran.contains(name.as_str())).collect();
    let listed = NOT_RUN.iter().flat_map(|(_, names)| names.iter().map(|name| name.to_string())).collect();
    let without_reason: Vec<_> = missing.difference(&listed).collect();
    let not_missing: Vec<_> = listed.difference(&missing).collect();
    assert!(
        without_reason.is_empty() && not_missing.is_empty(),
        "neither run nor listed: {without_reason:?}; listed, and run: {not_missing:?}"
    );
}

#[test]
fn tuned_products_are_written_and_used_and_a_sanitizer_runs_the_checks() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    let path = tool(&site, "compute-sanitizer", SANITIZER);
    let words = ["--tune", "--only", "device,sanitizer,tune,throughput"];
    let (said, found) = check_with(&site, libraries, &words, &[("PATH", &path)]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let (facts, checks) = (&found["facts"], found["checks"].as_array().unwrap());
    let named = |name: &str| named(&found, name);
    assert!(checks.iter().all(|check| check["section"] != "ops" && check["result"] == "ok"), "{found}");
    // The table has a line for each product, and what it says is used afterward.
    assert_eq!(facts["table"], "emulated-h100-sm_90.txt");
    let table = String::from_utf8(site.read("emulated-h100-sm_90.txt")).unwrap();
    assert!(table.starts_with("arch sm_90\ndevice Emulated H100\n"), "{table}");
    let n_tuned = checks.iter().filter(|check| check["numbers"]["entry"].is_string()).count();
    assert!(n_tuned > 10 && table.lines().count() == n_tuned + 2, "{table}");
    assert!(table.contains("bf16 f32 1 64 64 16 tn - : 1"), "{table}");
    let products = named("tiny, 2x8")["numbers"]["products_by"].as_str().unwrap();
    assert!(products.contains("shapes by measured algorithms"), "{products}");
    // Under the sanitizer the small checks are those of this program.
    for tool in ["memcheck", "racecheck", "synccheck"] {
        assert_eq!(named(&format!("{tool} of words"))["detail"], "32 checks, 0 left out");
    }
}

/// Milliseconds that kernels take by the clock of the fake driver, and work of other libraries.
const SLOW: &str = "attention_forward_bf16_32=500 attention_forward_bf16_32_64_64_wgmma=400 \
                    attention_backward_kv_bf16_32=500 attention_backward_kv_bf16_32_128_32=900 \
                    attention_backward_kv_bf16_32_64_128_wgmma=400 attention_backward_kv_bf16_32_64_64_wgmma=900 \
                    attention_backward_q_bf16_32=500 attention_backward_q_bf16_32_128_32=900 \
                    attention_backward_q_bf16_32_64_128_wgmma=900 attention_backward_q_bf16_32_64_64_wgmma=400 \
                    library=200";

#[test]
fn the_fastest_tile_and_cudnn_are_written_and_obeyed() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    let (said, found) =
        check_with(&site, libraries, &["--tune", "--only", "device,tune"], &[("OARLOCK_FAKE_SLOW", SLOW)]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let forward = named(&found, "attention forward bf16 2 1 32 causal 8");
    assert!(forward["detail"].as_str().unwrap().contains("in tiles of 128x32"), "{forward}");
    let table = String::from_utf8(site.read("emulated-h100-sm_90.txt")).unwrap();
    let attention: Vec<&str> = table.lines().filter(|line| line.starts_with("attention ")).collect();
    assert_eq!(
        attention,
        [
            "attention forward bf16 2 1 32 causal 8 : own 128x32",
            "attention backward bf16 2 1 32 causal 8 : cudnn 64x128-wgmma 64x64-wgmma"
        ]
    );

    // What has run in a training run with a table, or without one.
    let ran = |table: &str| {
        let runs = site.path("runs");
        fs::write(&runs, "").unwrap();
        // Anew, instead of going on.
        fs::remove_file(site.path("found.json")).unwrap();
        let variables = [("OARLOCK_CUDA_TUNED", table), ("OARLOCK_FAKE_RUNS", runs.to_str().unwrap())];
        let with = if table.is_empty() { &variables[1..] } else { &variables[..] };
        let (said, found) = check_with(&site, libraries, &["--only", "throughput"], with);
        assert_eq!(said.code, Some(0), "{said:?}");
        let names = fs::read_to_string(&runs).unwrap();
        let kernels = names.lines().filter(|line| line.starts_with("attention_"));
        let by = named(&found, "tiny, 2x8")["numbers"]["attention_by"].as_str().unwrap().to_owned();
        (by, kernels.map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>())
    };
    let (by, kernels) = ran("emulated-h100-sm_90.txt");
    assert_eq!(by, "own kernels or cuDNN and tiles by 2 measured entries");
    assert_eq!(kernels, ["attention_forward_bf16_32_128_32"]);
    let (by, kernels) = ran("");
    assert_eq!(by, "own kernels");
    assert_eq!(
        kernels,
        [
            "attention_backward_kv_bf16_32_64_128_wgmma",
            "attention_backward_q_bf16_32_64_64_wgmma",
            "attention_delta_bf16_32",
            "attention_forward_bf16_32_64_64_wgmma",
            "attention_join_kv_bf16_32",
        ]
    );

    // A line that is none, and a table that is not there.
    fs::write(site.path("bad.txt"), "arch sm_90\nattention forward bf16 2 1 32 causal 8 : own 64x48\n")
        .unwrap();
    for (file, says) in
        [("bad.txt", "bad.txt, line 2: there is no such tile"), ("none.txt", "cannot be read")]
    {
        let mut command = site.oarlock(&["gpu-check", "--quick", "--only", "throughput"]);
        command.env("OARLOCK_CUDA_LIBRARIES", libraries).env("OARLOCK_CUDA_TUNED", file);
        let said = run(command);
        assert!(said.code == Some(1) && said.stderr.contains(says), "{said:?}");
    }
}

#[test]
fn without_a_driver_it_says_what_is_missing() {
    let site = Site::new();
    fs::create_dir(site.path("empty")).unwrap();
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
    fs::create_dir(site.path("two")).unwrap();
    for name in ["libcuda.so.1", "libcublasLt.so.13"] {
        std::os::unix::fs::symlink(libraries.join(name), site.path("two").join(name)).unwrap();
    }
    let (said, found) = check(&site, &site.path("two"));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stdout.contains("FAILED: device: first kernel: libnvrtc, the compiler"), "{said:?}");
    assert!(said.stdout.contains("pip install nvidia-cuda-nvrtc"), "{said:?}");
    let summary = &found["summary"];
    assert_eq!([&summary["ok"], &summary["failed"], &summary["skipped"]], [0, 1, 12], "{found}");
    assert!(
        said.stdout.contains("NEXT: device: 1 failed, the first is first kernel: no kernel runs"),
        "{said:?}"
    );
}

#[test]
fn what_has_no_time_left_is_named() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    let (said, found) = check_with(&site, libraries, &["--seconds", "0"], &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let checks = found["checks"].as_array().unwrap();
    assert!(checks.len() > 150, "{}", checks.len());
    for check in checks {
        assert_eq!(check["detail"], "the time was over", "{check}");
    }
    assert!(said.stdout.contains("skipped mma bf16"), "{said:?}");
    assert_eq!(found["summary"]["left"].as_u64(), Some(checks.len() as u64));

    // Another call goes on, one section after the other, and does nothing twice.
    let words = checks.iter().filter(|check| check["section"] == "words").count();
    let (said, found) = check_with(&site, libraries, &["--only", "words"], &[]);
    assert_eq!(found["summary"]["ok"].as_u64(), Some(1 + words as u64), "{said:?}");
    assert_eq!(found["finished"], serde_json::json!(["device", "words"]));
    let (said, found) = check_with(&site, libraries, &["--only", "words,large"], &[]);
    assert!(!said.stdout.contains("Words:") && said.stdout.contains("Large:"), "{said:?}");
    assert_eq!(found["finished"], serde_json::json!(["words", "device", "large"]));
    // What is left of a section begins behind what is done.
    let mut changed = found.clone();
    changed["finished"] = serde_json::json!(["words"]);
    changed["checks"].as_array_mut().unwrap().retain(|check| check["name"] != "rows by their index");
    site.write("found.json", &changed.to_string());
    let (said, found) = check_with(&site, libraries, &["--only", "large"], &[]);
    assert!(said.stdout.contains("(7 checks were done before)"), "{said:?}");
    let large: Vec<_> =
        found["checks"].as_array().unwrap().iter().filter(|c| c["section"] == "large").collect();
    assert_eq!((large.len(), &large[7]["name"]), (8, &"rows by their index".into()));
    // What somebody else has written is not touched.
    for (text, says) in [
        ("{}", "it is not a report of gpu-check"),
        ("no JSON", "it is not a report"),
        (r#"{"version": "0.0.1"}"#, "of version 0.0.1"),
    ] {
        site.write("found.json", text);
        let mut command = site.oarlock(&["gpu-check", "--quick", "--json", "found.json"]);
        command.env("OARLOCK_CUDA_LIBRARIES", libraries);
        let said = run(command);
        assert!(said.code == Some(1) && said.stderr.contains(says), "{said:?}");
        assert_eq!(site.read("found.json"), text.as_bytes());
    }
}

#[test]
fn what_a_sanitizer_finds_is_a_failure() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    let path = tool(&site, "compute-sanitizer", STRICT);
    let mut command = site.oarlock(&["gpu-check", "--quick", "--part", "sanitizer"]);
    command.env("OARLOCK_CUDA_LIBRARIES", libraries).env("PATH", &path);
    let said = run(command);
    assert_eq!(said.code, Some(0), "{said:?}");
    let wrong = r#""detail":"Invalid __global__ read of size 4 bytes; 0 checks, 0 left out""#;
    assert_eq!(said.stdout.matches(wrong).count(), 6, "{said:?}");
    assert_eq!(said.stdout.matches(r#""result":"failed""#).count(), 6, "{said:?}");
}

#[test]
fn a_peer_is_a_python_with_everything_and_its_numbers_are_taken() {
    let Some(libraries) = fakes() else { return };
    let site = Site::new();
    let peers = |script: &str, words: &[&str]| {
        let path = tool(&site, "python3", script);
        let mut command = site.oarlock(&[&["gpu-check", "--part", "peers"], words].concat());
        command.env("OARLOCK_CUDA_LIBRARIES", libraries).env("PATH", &path);
        run(command)
    };
    let said = peers("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1\n", &[]);
    let why = "the active Python cannot: ModuleNotFoundError: No module named 'torch'";
    assert_eq!(said.stdout.matches(why).count(), 8, "{said:?}");
    let script = r#"#!/bin/sh
case "$3" in
"") echo '{"torch": "2.9", "gpu": "a GPU"}' ;;
*'"head_dim":96'*'"seq":1024'*) echo '{"tokens_per_second": 1000.0, "bytes": 5e9, "milliseconds": 2, "parameters": 1e6}' ;;
*) echo "torch.OutOfMemoryError: no memory" >&2; exit 1 ;;
esac
"#;
    let said = peers(script, &[]);
    assert!(said.stdout.contains("1000 tokens/s, 2.00 ms, 5.00 GB, 1.0M parameters"), "{said:?}");
    assert_eq!(said.stdout.matches("torch.OutOfMemoryError: no memory").count(), 7, "{said:?}");
}
