//! What the machine code of the hot kernels is made of: branches between products, stores, spilled registers.
//!
//! A branch for each score, or a store for each element, is right to every other test and costs more than all else that a
//! kernel does. The numbers are those of NVRTC 13.0 for sm_90a, rounded up a little; a change that needs more has to say why.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use oarlock_cuda::nvrtc::{Compiled, Nvrtc, Usage};

/// The most that a kernel may have.
struct Most {
    kernel: &'static str,
    instructions: usize,
    /// Instructions that branch between the first and the last product of a tile: one for each score would be hundreds.
    branches: usize,
    /// Stores of 16 bits: those of the elements that are left at the end of a row.
    narrow_stores: usize,
}

const fn most(kernel: &'static str, instructions: usize, branches: usize, narrow_stores: usize) -> Most {
    Most { kernel, instructions, branches, narrow_stores }
}

const MOST: &[Most] = &[
    most("attention_forward_bf16_64", 2400, 8, 0),
    most("attention_forward_bf16_128", 2800, 8, 0),
    most("attention_backward_kv_bf16_64", 3200, 10, 0),
    most("attention_backward_kv_bf16_128", 3200, 10, 0),
    most("attention_backward_q_bf16_64", 2400, 8, 0),
    most("attention_backward_q_bf16_128", 2100, 8, 0),
    most("attention_forward_bf16_64_64_64_wgmma", 3300, 20, 0),
    most("attention_forward_bf16_128_64_64_wgmma", 3700, 20, 0),
    most("attention_backward_kv_bf16_64_64_128_wgmma", 4600, 12, 0),
    most("attention_backward_kv_bf16_128_64_64_wgmma", 4000, 12, 0),
    most("attention_backward_q_bf16_64_64_64_wgmma", 3400, 18, 0),
    most("attention_backward_q_bf16_128_128_64_wgmma", 4300, 18, 0),
    most("attention_delta_bf16_64", 200, 0, 0),
    most("rope_bf16", 450, 0, 3),
    most("rope_split_bf16", 480, 0, 3),
    most("rope_join_bf16", 480, 0, 3),
    most("rms_norm_forward_f32_f32_bf16", 1800, 0, 16),
    most("add_rms_norm_forward_f32_f32_bf16", 2100, 0, 16),
    most("rms_norm_backward_f32_f32_bf16", 4700, 0, 16),
    most("rms_norm_apply_f32_f32_bf16", 250, 0, 8),
    most("cast_f32_bf16", 160, 0, 8),
    most("gated_forward_bf16", 2900, 0, 48),
    most("gated_backward_bf16", 4400, 0, 144),
];

/// What a kernel has.
#[derive(Debug, Default, PartialEq)]
struct Mix {
    instructions: usize,
    branches: usize,
    narrow_stores: usize,
    /// Accesses of registers that were spilled.
    spills: usize,
    /// Products of warpgroups, and waits for them: one for each where the compiler cannot tell that they may overlap.
    wgmma: [usize; 2],
}

/// The program that lists machine code, which is in the toolkit, and for Python beside NVRTC and in Triton; none, said aloud,
/// where there is none.
fn nvdisasm(nvrtc: &Nvrtc) -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        // A library that is loaded already is found by its name alone, so its file is looked up among those that are mapped.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mapped = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
        let mut files = mapped.filter(|file| file.to_string_lossy().contains("/libnvrtc.so"));
        let packages =
            files.find_map(|file| file.ancestors().find(|folder| folder.ends_with("site-packages")));
        let of_packages = packages.into_iter().flat_map(|packages| {
            ["nvidia/cu13/bin", "triton/backends/nvidia/bin"].map(|folder| packages.join(folder))
        });
        let path = std::env::var_os("PATH").unwrap_or_default();
        let toolkit = ["/usr/local/cuda/bin".into()];
        let mut folders = std::env::split_paths(&path).chain(of_packages).chain(toolkit);
        folders.find_map(|folder| Some(folder.join("nvdisasm")).filter(|file| file.exists()))
    });
    let file = nvrtc.file().display();
    let why = format!("install it with `pip install nvidia-cuda-nvdisasm` into the Python of {file}");
    oarlock_must::have("nvdisasm", found.is_some(), &why);
    found.as_deref()
}

/// The opcodes of each kernel in a listing.
fn opcodes(listing: &str) -> Vec<(&str, Vec<&str>)> {
    let mut kernels: Vec<(&str, Vec<&str>)> = vec![];
    for line in listing.lines() {
        if let Some(name) = line.strip_prefix(".text.").and_then(|name| name.strip_suffix(':')) {
            kernels.push((name, vec![]));
        }
        // Such as `/*0a10*/  @!P0 BRA `(.L_x_1) ;`, with the bits in a comment behind.
        let Some((address, rest)) =
            line.trim_start().strip_prefix("/*").and_then(|line| line.split_once("*/"))
        else {
            continue;
        };
        let mut words = rest.split_whitespace().skip_while(|word| word.starts_with('@'));
        let opcode = words.next().filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()));
        let is_address = address.chars().all(|c| c.is_ascii_hexdigit());
        if let (Some((_, of)), Some(opcode), true) = (kernels.last_mut(), opcode, is_address) {
            of.push(opcode);
        }
    }
    kernels
}

impl Mix {
    fn of(opcodes: &[&str]) -> Mix {
        let kind = |opcode: &str| opcode.split('.').next().unwrap_or_default().to_owned();
        let count =
            |names: &[&str], of: &[&str]| of.iter().filter(|op| names.contains(&&kind(op)[..])).count();
        let product = |opcode: &&str| opcode.starts_with("HMMA") || opcode.starts_with("HGMMA");
        let first = opcodes.iter().position(product).unwrap_or_default();
        let last = opcodes.iter().rposition(product).unwrap_or_default();
        Mix {
            instructions: opcodes.len(),
            branches: count(&["BRA", "BRX", "BSSY", "CALL"], &opcodes[first..last]),
            narrow_stores: opcodes.iter().filter(|opcode| opcode.starts_with("STG.E.U16")).count(),
            spills: count(&["LDL", "STL"], opcodes),
            wgmma: ["HGMMA", "WARPGROUP.DEPBAR"]
                .map(|name| opcodes.iter().filter(|opcode| opcode.starts_with(name)).count()),
        }
    }
}

/// What is wrong with the machine code of a unit for sm_90a.
pub fn faults(nvrtc: &Nvrtc, compiled: &Compiled) -> Vec<String> {
    let is_listed = |usage: &Usage| MOST.iter().any(|most| most.kernel == usage.kernel);
    if !compiled.usage.iter().any(is_listed) {
        return vec![];
    }
    let Some(program) = nvdisasm(nvrtc) else { return vec![] };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cubin");
    std::fs::write(&file, &compiled.cubin).expect("a file");
    let output = Command::new(program).arg("-c").arg(&file).output().expect("nvdisasm");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = opcodes(&listing);
    assert!(!found.is_empty(), "nvdisasm lists no kernel");
    let wrong = found.iter().flat_map(|(name, opcodes)| {
        let mix = Mix::of(opcodes);
        let most = MOST.iter().find(|most| most.kernel == *name)?;
        eprintln!("{name}: {mix:?}");
        let is_fine = mix.instructions <= most.instructions
            && mix.branches <= most.branches
            && mix.narrow_stores <= most.narrow_stores
            && mix.spills == 0
            && mix.wgmma[1] <= mix.wgmma[0] / 2;
        (!is_fine).then(|| format!("{name} is made of {mix:?}"))
    });
    wrong.collect()
}

#[test]
fn a_listing_is_counted() {
    let listing = "\
.text.first:
.L_x_0:
        /*0000*/                   LDC R1, c[0x0][0x28] ;      /* 0x00000a00ff017b82 */
                                                               /* 0x000fe20000000800 */
        /*0010*/              @P1  BRA `(.L_x_0) ;             /* 0x0000000000001947 */
        /*0020*/                   HMMA.16816.F32.BF16 R4, R4, R6, RZ ;
        /*0030*/                   BSSY B0, `(.L_x_1) ;
        /*0040*/              @!UP0 UBRA `(.L_x_1) ;
        /*0050*/              @!P0 BRA `(.L_x_1) ;
        /*0060*/                   STG.E.U16 desc[UR4][R2.64], R5 ;
        /*0070*/                   STL.64 [R1], R2 ;
        /*0080*/                   HMMA.16816.F32.BF16 R4, R4, R6, RZ ;
        /*0090*/                   BRA `(.L_x_2) ;
        /*00a0*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT, gsb0 ;
        /*00b0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
.text.second:
        /*0000*/                   EXIT ;
";
    let kernels = opcodes(listing);
    assert_eq!(kernels.len(), 2);
    let first = Mix { instructions: 12, branches: 3, narrow_stores: 1, spills: 1, wgmma: [1, 1] };
    assert_eq!((kernels[0].0, Mix::of(&kernels[0].1)), ("first", first));
    assert_eq!(Mix::of(&kernels[1].1), Mix { instructions: 1, ..Mix::default() });
}
