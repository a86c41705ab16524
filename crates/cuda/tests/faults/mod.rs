//! Faults planted in kernels: the tests of their family must find each.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use oarlock_cuda::source::{HEADERS, Unit};
use oarlock_cuda::table;

use crate::emulator::{Changed, Library, emulated_units, with_one_order};

/// A change of a file.
#[derive(Default)]
pub struct Fault {
    pub what: String,
    pub family: String,
    file: String,
    old: String,
    new: String,
    found: String,
}

pub fn list() -> Vec<Fault> {
    let mut faults: Vec<Fault> = vec![];
    for line in include_str!("list.txt").lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("no key in {line:?}"));
        let value = value.trim().replace("\\n", "\n");
        if key == "fault" {
            faults.push(Fault { what: value, ..Fault::default() });
            continue;
        }
        let fault = faults.last_mut().expect("a fault begins with what is wrong");
        *match key {
            "family" => &mut fault.family,
            "file" => &mut fault.file,
            "old" => &mut fault.old,
            "new" => &mut fault.new,
            "found" => &mut fault.found,
            _ => panic!("unknown key in {line:?}"),
        } = value;
    }
    faults
}

/// The tests of a family.
pub fn tests_of(family: &str) -> fn(&Library) {
    match family {
        "adafactor" => crate::adafactor::check,
        "attention" => crate::attention::check,
        "binary" => crate::binary::check,
        "compare" => crate::compare::check,
        "copy" => crate::copy::check,
        "cross_entropy" => crate::cross_entropy::check,
        "cumsum" => crate::cumsum::check,
        "elementwise" => crate::elementwise::check,
        "embed" => crate::embed::check,
        "gemm" => crate::gemm::check,
        "gemm_quantized" => crate::gemm_quantized::check,
        "glu" => crate::glu::check,
        "indexed" => crate::indexed::check,
        "lamb" => crate::lamb::check,
        "norm" => crate::norm::check,
        "optim" => crate::optim::check,
        "order" => crate::order::check,
        "pair_loss" => crate::pair_loss::check,
        "probe" => crate::probe::check,
        "quantized" => crate::quantized::check,
        "random" => crate::random::check,
        "reduce" => crate::reduce::check,
        "rope" => crate::rope::check,
        "row_loss" => crate::row_loss::check,
        "sort" => crate::sort::check,
        "softmax" => crate::softmax::check,
        "top_k" => crate::top_k::check,
        "unary" => crate::unary::check,
        "warpgroups" => crate::attention::check_warpgroups,
        _ => panic!("no family {family}"),
    }
}

/// The units that the tests of a family run.
pub fn units_of(family: &str) -> Vec<Unit> {
    let of_family = |unit: &Unit| match unit.defines.as_slice() {
        // Elements are sorted by the kernels of orders.
        [] if family == "sort" => ["sort.cu", "order.cu"].contains(&unit.source.file),
        [] => unit.source.file == format!("{family}.cu"),
        [(_, element), (_, head_dim)] => {
            ["attention", "warpgroups"].contains(&family) && element == "bf16" && head_dim == "64"
        }
        [(_, element), (_, head_dim), _, _, ("WGMMA", _)] => {
            family == "warpgroups" && element == "bf16" && head_dim == "64"
        }
        _ => false,
    };
    emulated_units().into_iter().filter(of_family).collect()
}

impl Fault {
    pub fn planted(&self) -> Changed {
        let sources = table::units().into_iter().map(|unit| unit.source);
        let source = sources.chain(HEADERS.iter().copied()).find(|source| source.file == self.file);
        let text = source.unwrap_or_else(|| panic!("no file {}", self.file)).text;
        // Indentation differs where a text goes over several lines.
        let squeezed = |text: &str| text.split('\n').map(str::trim).collect::<Vec<_>>().join("\n");
        let (text, old) = (squeezed(text), squeezed(&self.old));
        assert!(text.contains(&old), "{}: {:?} is not in {}", self.what, self.old, self.file);
        Changed { file: self.file.clone(), text: text.replacen(&old, &self.new, 1) }
    }

    /// The file of this family with its instances for f32 alone, which are enough and compile sooner, but where tensor cores
    /// multiply other types.
    fn short(&self, mut changed: Vec<Changed>, unit: &Unit) -> Vec<Changed> {
        if !unit.defines.is_empty() || ["gemm", "gemm_quantized", "probe"].contains(&self.family.as_str()) {
            return changed;
        }
        let file = unit.source.file.to_string();
        if !changed.iter().any(|change| change.file == file) {
            changed.push(Changed { file: file.clone(), text: unit.source.text.to_string() });
        }
        for change in changed.iter_mut().filter(|change| change.file == file) {
            let is_kept = |line: &&str| !line.contains('(') || !is_instance(line) || line.contains("(f32");
            change.text = change.text.lines().filter(is_kept).collect::<Vec<_>>().join("\n");
        }
        changed
    }
}

/// Whether a line is one such as `RMS_NORM(bf16, f32, bf16)`.
fn is_instance(line: &str) -> bool {
    let (name, rest) = line.split_once('(').unwrap_or((line, ""));
    let types = rest.strip_suffix(')').map(|types| types.split(", ").collect::<Vec<_>>()).unwrap_or_default();
    let is_type = |name: &&str| ["f32", "bf16", "f16", "i32"].contains(name);
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        && types.iter().all(is_type)
        && !types.is_empty()
}

/// What a launch says where the library has not this kernel: the tests came to the end of those that it has.
const NO_KERNEL: &str = "there is no kernel";

/// What a panic said.
fn text(panic: &(dyn Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or_default()
}

/// How the tests found it; an error where they did not.
fn found(label: &str, fault: &Fault) -> Result<String, String> {
    let units = units_of(&fault.family);
    let changed = units.iter().fold(vec![fault.planted()], |changed, unit| fault.short(changed, unit));
    let built = Library::of_changed(label, &units, &changed);
    let library = built.ok_or_else(|| format!("{}: not planted", fault.what))?;
    let library = library.map_err(|error| format!("{}: {error}", fault.what))?;
    let tests = tests_of(&fault.family);
    let finds = || catch_unwind(AssertUnwindSafe(|| tests(&library))).err();
    // Most are found in any order. Where one order of threads finds nothing, or something else, all of them look.
    let is_found = |said: &str| said.contains(&fault.found) && !said.contains(NO_KERNEL);
    let first = with_one_order(finds).filter(|panic| is_found(text(&**panic)));
    let Some(panic) = first.or_else(finds) else {
        return Err(format!("nothing finds that {} ({})", fault.what, fault.file));
    };
    let said = text(&*panic).to_owned();
    if said.contains(NO_KERNEL) {
        return Err(format!("nothing finds that {} ({}) for f32", fault.what, fault.file));
    }
    if !said.contains(&fault.found) {
        return Err(format!("{}: {said:?} does not say {:?}", fault.what, fault.found));
    }
    Ok(said)
}

#[test]
#[ignore = "heavy"]
fn every_planted_fault_is_found() {
    if Library::of_all_kernels().is_none() {
        // It has said so: nothing was planted, and nothing found.
        return;
    }
    let faults = list();
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(vec![]);
    let worker = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(fault) = faults.get(i) else { return };
            match found(&format!("fault{i}"), fault) {
                Ok(said) => eprintln!("FOUND that {}: {}", fault.what, said),
                Err(error) => missed.lock().expect("a list").push(error),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(worker);
        scope.spawn(worker);
    });
    let missed = missed.into_inner().expect("a list");
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
