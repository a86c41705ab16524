//! NVRTC compiles the kernels, and none spills registers but those that a list names; what those of `sass` are made of.

use std::collections::BTreeMap;

use oarlock_cuda::attention::{WGMMA_ARCH, tiled_instances};
use oarlock_cuda::libraries::{Libraries, Library};
use oarlock_cuda::nvrtc::Nvrtc;
use oarlock_cuda::source::Unit;
use oarlock_cuda::{Error, compile, table};

use oarlock_fakes::tiled_units;

use crate::emulator::emulated_units;

/// The version of NVRTC that the list of spills is for.
const LISTED: &str = "13.0";

/// Kernels that spill, and how many bytes of a thread at most on any of the architectures.
const SPILLS: &[(&str, u32)] = &[
    ("attention_backward_q_f32_192", 16),
    ("attention_decode_bf16_128", 4),
    ("attention_decode_f16_192", 8),
    ("attention_decode_f32_32", 4),
    ("attention_decode_f32_64", 4),
    ("attention_decode_f32_128", 4),
    ("attention_decode_f32_192", 8),
    ("attention_decode_f32_256", 4),
];

/// Bytes of shared memory that the code of a kernel takes itself, as the fake driver tells it.
pub fn static_bytes() -> BTreeMap<String, usize> {
    let lines = include_str!("../fakes/static_shared.h").lines();
    let entry = |line: &str| {
        let (name, bytes) = line.trim_matches(['{', '}', ',']).split_once(", ")?;
        Some((name.trim_matches('"').to_owned(), bytes.parse().ok()?))
    };
    lines.filter_map(entry).collect()
}

/// NVRTC; says so where there is none.
fn found() -> Option<Nvrtc> {
    match Nvrtc::find(&Libraries::System) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error @ Error::NoLibrary { .. }) => {
            oarlock_must::have("nvrtc", false, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The units for an architecture: OARLOCK_NVRTC_ALL=1 compiles all for both, which takes long. Otherwise it is what the emulator
/// runs and the usual heads of 64 and 128 in 16 bits, the latter for both; what else takes long is for one: quantized products
/// for sm_80, other products for sm_90a, and of the other heads those of 128 and 256 for sm_90a, the rest for sm_80.
fn units(arch: &str) -> Vec<Unit> {
    let of_warpgroups = |unit: &Unit| unit.defines.iter().any(|define| define.0 == "WGMMA");
    let has_instructions = |unit: &Unit| arch == WGMMA_ARCH || !of_warpgroups(unit);
    if std::env::var_os("OARLOCK_NVRTC_ALL").is_some() {
        return table::units().into_iter().chain(tiled_units()).filter(has_instructions).collect();
    }
    let is_usual = |unit: &Unit| match unit.defines.as_slice() {
        [(_, element), (_, head_dim), ..] => {
            ["bf16", "f16"].contains(&element.as_str()) && ["64", "128"].contains(&head_dim.as_str())
        }
        _ => false,
    };
    let is_for_arch = |unit: &Unit| match unit.defines.as_slice() {
        _ if of_warpgroups(unit) => has_instructions(unit),
        [_, (_, head_dim), ..] => {
            is_usual(unit) || (arch == "sm_90a") == ["128", "256"].contains(&head_dim.as_str())
        }
        _ => match unit.source.file {
            "gemm.cu" => arch == "sm_90a",
            "gemm_quantized.cu" => arch == "sm_80",
            _ => true,
        },
    };
    let run = emulated_units();
    let usual = compile::units(arch, None, None).into_iter();
    let usual = usual.filter(|unit| is_usual(unit) && !run.contains(unit));
    run.iter().cloned().chain(usual).filter(is_for_arch).collect()
}

fn compiles(arch: &str) {
    let Some(nvrtc) = found() else { return };
    let (mut wrong, mut listed) = (vec![], vec![]);
    let shared = static_bytes();
    for unit in units(arch) {
        let start = std::time::Instant::now();
        let compiled = nvrtc.compile(&unit, arch).unwrap_or_else(|error| panic!("{error}"));
        if arch == "sm_90a" && nvrtc.version() == LISTED {
            wrong.extend(crate::sass::faults(&nvrtc, &compiled));
        }
        let most = compiled.usage.iter().map(|kernel| kernel.registers).max().unwrap_or_default();
        eprintln!("{unit} for {arch}: {:.1} s, up to {most} registers", start.elapsed().as_secs_f64());
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{unit}: no machine code");
        let mut expected: Vec<String> = table::all()
            .flat_map(|kernel| kernel.instances())
            .chain(tiled_instances())
            .filter(|i| i.unit() == unit)
            .map(|i| i.name())
            .collect();
        let mut compiled_names: Vec<String> =
            compiled.usage.iter().map(|usage| usage.kernel.clone()).collect();
        expected.sort();
        compiled_names.sort();
        assert_eq!(compiled_names, expected, "{unit}: the kernels of the table");
        let threads = |name: &str| {
            let all = table::all().flat_map(|kernel| kernel.instances()).chain(tiled_instances());
            all.into_iter().find(|instance| instance.name() == name).map_or(0, |instance| instance.threads())
        };
        for kernel in &compiled.usage {
            // What the bound of its threads promises to a launch.
            let registers =
                (kernel.registers * 32).next_multiple_of(256) * threads(&kernel.kernel).div_ceil(32);
            assert!(registers <= 65536, "{}: {registers} registers of a block", kernel.kernel);
            if kernel.shared_bytes as usize != shared.get(&kernel.kernel).copied().unwrap_or_default() {
                listed.push(format!("{{\"{}\", {}}},", kernel.kernel, kernel.shared_bytes));
            }
            let allowed =
                SPILLS.iter().find(|(name, _)| *name == kernel.kernel).map_or(0, |(_, bytes)| *bytes);
            if kernel.spill_bytes > allowed {
                wrong.push(format!(
                    "{} spills {} bytes, {allowed} are allowed",
                    kernel.kernel, kernel.spill_bytes
                ));
            }
        }
    }
    assert!(listed.is_empty(), "fakes/static_shared.h has no such lines, for {arch}:\n{}", listed.join("\n"));
    let said = format!("{arch}, NVRTC {}:\n{}", nvrtc.version(), wrong.join("\n"));
    match nvrtc.version() {
        LISTED => assert!(wrong.is_empty(), "{said}"),
        _ if !wrong.is_empty() => {
            oarlock_must::have("nvrtc", false, &format!("the list of spills is that of {LISTED}; {said}"));
        }
        _ => {}
    }
}

#[test]
#[ignore = "heavy"]
fn what_is_run_and_the_usual_heads_compile_for_sm_80() {
    compiles("sm_80");
}

#[test]
#[ignore = "heavy"]
fn what_is_run_and_the_usual_heads_compile_for_sm_90a() {
    compiles("sm_90a");
}

#[test]
fn a_wrong_source_is_an_error_with_the_log() {
    let Some(nvrtc) = found() else { return };
    let mut unit = table::units().remove(0);
    unit.source.text = "this is not a kernel";
    match nvrtc.compile(&unit, "sm_80") {
        Err(Error::Compile { log, .. }) => assert!(log.contains("error"), "{log}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_no_library_is_an_error() {
    let error = Nvrtc::load(std::path::Path::new("/no/such/libnvrtc.so")).err().expect("an error");
    assert!(matches!(error, Error::Unusable { .. }), "{error}");
    for (cuda, package) in [
        (None, "nvidia-cuda-nvrtc`"),
        (Some((13, 0)), "nvidia-cuda-nvrtc`"),
        (Some((12, 4)), "nvidia-cuda-nvrtc-cu12`"),
    ] {
        let looked_in = vec!["here".into(), "there".into()];
        let said = Error::NoLibrary { library: Library::Nvrtc, looked_in, cuda }.to_string();
        assert!(said.contains("here, there") && said.contains(&format!("pip install {package}")), "{said}");
    }
}
