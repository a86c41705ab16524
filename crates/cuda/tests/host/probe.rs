//! What a new GPU is asked first.

use oarlock_cuda::cache::Cache;
use oarlock_cuda::probe::{Probe, WORDS};

use super::Machine;

#[test]
fn every_word_is_right_on_an_emulated_gpu() {
    let Some(machine) = Machine::new() else { return };
    let probe = Probe::open(&machine.libraries(), 0, Cache::none()).expect("a probe");
    for word in WORDS {
        let answer = probe.ask(word).expect("an answer");
        assert!(answer.is_right, "{}: {}", word.name(), answer.detail);
    }
    let names: Vec<String> = WORDS.iter().map(|word| word.name()).collect();
    assert!(
        names.contains(&"mma bf16".to_owned()) && names.contains(&"own product a' b f32".to_owned()),
        "{names:?}"
    );
}

#[test]
fn what_a_word_meets_is_an_error() {
    let Some(machine) = Machine::new() else { return };
    let probe = Probe::open(&machine.libraries(), 0, Cache::none()).expect("a probe");
    machine.fail("cuLaunchKernel", 0, 700);
    let error = probe.ask(&WORDS[0]).expect_err("a refused launch").to_string();
    assert!(error.contains("cuLaunchKernel"), "{error}");
}
