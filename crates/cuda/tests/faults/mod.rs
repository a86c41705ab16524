//! Faults planted in kernels: the tests of their family must find each.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use oarlock_cuda::source::{HEADERS, Unit};
use oarlock_cuda::table;

use crate::emulator::{Changed, Library, Sanitizer, emulated_units};

/// A change of a file.
#[derive(Default)]
struct Fault {
    what: String,
    family: String,
    file: String,
    old: String,
    new: String,
    found: String,
}

fn list() -> Vec<Fault> {
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
fn tests_of(family: &str) -> fn(&Library) {
    match family {
        "attention" => crate::attention::check,
        "cross_entropy" => crate::cross_entropy::check,
        "embed" => crate::embed::check,
        "glu" => crate::glu::check,
        "norm" => crate::norm::check,
        "optim" => crate::optim::check,
        "quantized" => crate::quantized::check,
        "reduce" => crate::reduce::check,
        "rope" => crate::rope::check,
        "softmax" => crate::softmax::check,
        _ => panic!("no family {family}"),
    }
}

/// The units that the tests of a family run.
fn units_of(family: &str) -> Vec<Unit> {
    let of_family = |unit: &Unit| match unit.defines.as_slice() {
        [] => unit.source.file == format!("{family}.cu"),
        [(_, element), (_, head_dim), ..] => family == "attention" && element == "bf16" && head_dim == "64",
        _ => false,
    };
    emulated_units().into_iter().filter(of_family).collect()
}

impl Fault {
    fn planted(&self) -> Changed {
        let sources = table::units().into_iter().map(|unit| unit.source);
        let source = sources.chain(HEADERS.iter().copied()).find(|source| source.file == self.file);
        let text = source.unwrap_or_else(|| panic!("no file {}", self.file)).text;
        // Indentation differs where a text goes over several lines.
        let squeezed = |text: &str| text.split('\n').map(str::trim).collect::<Vec<_>>().join("\n");
        let (text, old) = (squeezed(text), squeezed(&self.old));
        assert!(text.contains(&old), "{}: {:?} is not in {}", self.what, self.old, self.file);
        Changed { file: self.file.clone(), text: text.replacen(&old, &self.new, 1) }
    }
}

fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[test]
fn every_planted_fault_is_found() {
    for (i, fault) in list().iter().enumerate() {
        let (units, changed) = (units_of(&fault.family), [fault.planted()]);
        let Some(built) = Library::build(&format!("fault{i}"), &units, &changed, Sanitizer::None) else {
            return;
        };
        let library = built.unwrap_or_else(|error| panic!("{}: {error}", fault.what));
        let tests = tests_of(&fault.family);
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| tests(&library))) else {
            panic!("nothing finds that {} ({})", fault.what, fault.file);
        };
        let said = message(panic);
        assert!(said.contains(&fault.found), "{}: {said:?} does not say {:?}", fault.what, fault.found);
        eprintln!("{}: {}", fault.what, said.lines().next().unwrap_or_default());
    }
}
