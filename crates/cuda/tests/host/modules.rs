//! Modules are compiled once, kept on disk, and loaded once.

use std::fs;
use std::path::{Path, PathBuf};

use oarlock_cuda::cache::Cache;
use oarlock_cuda::compile::TRAINING;
use oarlock_cuda::driver::Context;
use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::modules::{Counts, Modules};
use oarlock_cuda::{Element, Error, Instance, table};

use super::Machine;

fn cast() -> Instance {
    let kernel = table::find("cast").expect("a kernel");
    kernel.instance(&[Element::F32, Element::BF16], None).expect("an instance")
}

fn in_folder(machine: &Machine, context: &Context, folder: &Path) -> Modules {
    Modules::new(context, &machine.libraries(), Cache::in_folder(folder)).expect("modules")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path()).collect()
}

fn load(machine: &Machine, context: &Context, folder: &Path) -> Counts {
    let modules = in_folder(machine, context, folder);
    modules.function(&cast()).expect("a function");
    assert_eq!(modules.cache_problem(), None);
    modules.counts()
}

const COMPILED: Counts = Counts { compiled: 1, from_disk: 0 };
const FROM_DISK: Counts = Counts { compiled: 0, from_disk: 1 };

#[test]
fn a_unit_is_compiled_and_loaded_once() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let modules = machine.modules(&context);
    let function = modules.function(&cast()).expect("a function");
    assert!(std::sync::Arc::ptr_eq(&function, &modules.function(&cast()).expect("a function")));
    let other = table::find("soft_cap").and_then(|kernel| kernel.instance(&[], None)).expect("an instance");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| modules.function(&other).expect("a function"));
        }
    });
    assert_eq!((modules.counts(), machine.count(1, "fake_compiled")), (COMPILED, 1));
    assert!(machine.alive().contains("1 modules"), "{}", machine.alive());
    assert_eq!((function.needs().registers, function.local_bytes().expect("a number")), (255, 0));
    // A kernel keeps its module.
    drop(modules);
    assert_eq!(function.local_bytes().expect("a number"), 0);
}

#[test]
fn machine_code_is_kept_for_each_architecture() {
    let Some(machine) = Machine::new() else { return };
    let folder = machine.folder().join("cache/in/a/new/folder");
    let context = machine.context(0);
    assert_eq!(load(&machine, &context, &folder), COMPILED);
    assert_eq!(load(&machine, &context, &folder), FROM_DISK);
    assert_eq!(files(&folder).len(), 1);
    assert_eq!(load(&machine, &machine.context(1), &folder), COMPILED);
    assert_eq!(files(&folder).len(), 2);
}

#[test]
fn the_first_unit_of_a_training_brings_the_others_and_is_compiled_once_for_all_ranks() {
    let Some(machine) = Machine::new() else { return };
    let folder = machine.folder().join("cache");
    let context = machine.context(0);
    let ahead = || in_folder(&machine, &context, &folder).compiling_ahead();
    // Ranks of a machine begin at the same time.
    let counts: Vec<Counts> = std::thread::scope(|scope| {
        let rank = || {
            let modules = ahead();
            modules.function(&cast()).expect("a function");
            modules.counts()
        };
        let ranks: Vec<_> = (0..3).map(|_| scope.spawn(rank)).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    assert_eq!(counts.iter().map(|counts| counts.compiled).sum::<usize>(), TRAINING.len(), "{counts:?}");
    assert_eq!(counts.iter().map(|counts| counts.from_disk).sum::<usize>(), 2, "{counts:?}");
    let norm = table::find("rms_norm_forward").and_then(|kernel| kernel.instance(&[Element::F32; 3], None));
    let modules = ahead();
    modules.function(&norm.expect("an instance")).expect("a function");
    assert_eq!(modules.counts(), FROM_DISK);
    // Without a folder each unit is compiled when it is needed, and what cannot be compiled is told by whoever needs it.
    let modules =
        Modules::new(&context, &machine.libraries(), Cache::none()).expect("modules").compiling_ahead();
    machine.fail_nvrtc("compile");
    assert!(matches!(modules.function(&cast()), Err(Error::Call { .. })));
    let nowhere = machine.folder().join("other");
    let modules = in_folder(&machine, &context, &nowhere).compiling_ahead();
    assert!(matches!(modules.function(&cast()), Err(Error::Call { .. })));
    machine.fail_nvrtc("");
    modules.function(&cast()).expect("a function");
}

#[test]
fn damaged_files_are_compiled_again() {
    let Some(machine) = Machine::new() else { return };
    let folder = machine.folder().join("cache");
    let context = machine.context(0);
    load(&machine, &context, &folder);
    let file = files(&folder).remove(0);
    let whole = fs::read(&file).expect("a file");
    let mut flipped = whole.clone();
    *flipped.last_mut().expect("a byte") ^= 1;
    for damaged in [&[][..], &whole[..10], &whole[..whole.len() - 1], &flipped, b"something else entirely"] {
        fs::write(&file, damaged).expect("a file");
        assert_eq!(load(&machine, &context, &folder), COMPILED);
        assert_eq!(fs::read(&file).expect("a file"), whole);
        assert_eq!(load(&machine, &context, &folder), FROM_DISK);
    }
    // A whole file whose code the driver refuses.
    machine.fail("cuModuleLoadData", 0, 209);
    assert_eq!(load(&machine, &context, &folder), COMPILED);
    machine.fail("cuModuleLoadData", 0, 719);
    let error = in_folder(&machine, &context, &folder).function(&cast()).err().expect("an error");
    assert!(matches!(error, Error::Driver(_)), "{error}");
}

#[test]
fn a_cache_that_cannot_be_written_costs_only_time() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let file = machine.folder().join("file");
    fs::write(&file, "").expect("a file");
    let modules = in_folder(&machine, &context, &file);
    modules.function(&cast()).expect("a function");
    let problem = modules.cache_problem().expect("a reason");
    assert!(problem.contains("file"), "{problem}");
}

#[test]
fn errors_of_the_compiler_come_out() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let modules = machine.modules(&context);
    // The last one says that all is well, and gives nothing.
    for (step, call) in [
        ("create", "nvrtcCreateProgram"),
        ("compile", "nvrtcCompileProgram"),
        ("cubin", "nvrtcGetCUBINSize"),
        ("no code", "nvrtcGetCUBINSize"),
    ] {
        machine.fail_nvrtc(step);
        let error = modules.function(&cast()).err().expect("an error");
        assert!(matches!(error, Error::Call { call: named, .. } if named == call), "{error}");
    }
    machine.fail_nvrtc("");
    let mut wrong = table::units().remove(0);
    wrong.source.text = "nothing";
    let nvrtc = oarlock_cuda::nvrtc::Nvrtc::find(&machine.libraries()).expect("a compiler");
    let error = nvrtc.compile(&wrong, "sm_90a").expect_err("no kernel");
    assert!(matches!(error, Error::Compile { .. }), "{error}");
    // What failed is tried again.
    modules.function(&cast()).expect("a function");
    let nowhere = Libraries::Folder(machine.folder().join("nowhere"));
    let without = Modules::new(&context, &nowhere, Cache::none()).expect("modules");
    assert!(matches!(without.function(&cast()), Err(Error::NoLibrary { .. })));
}

#[test]
fn a_device_that_is_too_old_is_an_error() {
    let Some(machine) = Machine::new() else { return };
    let made = Modules::new(&machine.context(2), &machine.libraries(), Cache::none());
    let error = made.err().expect("an error");
    assert!(matches!(error, Error::OldDevice { capability: (7, 0), .. }), "{error}");
    assert!(error.to_string().starts_with("Emulated V100 has compute capability 7.0"), "{error}");
}
