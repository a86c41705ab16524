//! Algorithms from a table: that of a shape is really used, and what a library refuses is replaced.

use std::sync::Arc;

use oarlock_cuda::Element;
use oarlock_cuda::blas::{Algorithm, Blas, Form, Precision, Product, Shape, Tuned};
use oarlock_cuda::driver::{DeviceMemory, Stream};

use super::{Machine, download, upload};

const WORKSPACE: usize = 1 << 16;
/// The second of the fake library, which is not the one that it would choose.
const SECOND: Algorithm = Algorithm::new([11, 101, 1, 0, 0, 0, 1, 1, 1]);
/// The product of a matrix with itself transposed.
const SHAPE: Shape = Shape {
    precision: Precision::F32,
    out: Element::F32,
    batch: 1,
    dims: [4, 4, 4],
    forms: [Form::AsStored, Form::Transposed],
    has_bias: false,
};

fn blas(machine: &Machine) -> (Arc<Stream>, Blas) {
    let stream = Arc::new(machine.context(0).stream().expect("a stream"));
    let blas = Blas::new(&stream, &machine.libraries(), WORKSPACE).expect("a library");
    (stream, blas)
}

/// Memory for A, B and D, and what D must be.
fn memory(stream: &Arc<Stream>) -> (DeviceMemory, [f32; 16]) {
    let x: [f32; 16] = std::array::from_fn(|i| i as f32 - 5.0);
    let mut held = [0f32; 192];
    held[..16].copy_from_slice(&x);
    held[64..80].copy_from_slice(&x);
    let sum = |i: usize, j: usize| (0..4).map(|k| x[4 * i + k] * x[4 * j + k]).sum();
    (upload(stream, &held), std::array::from_fn(|at| sum(at / 4, at % 4)))
}

fn product(memory: &DeviceMemory) -> Product<'_> {
    let part = |i: usize| memory.slice(256 * i..256 * i + 64).expect("a part");
    SHAPE.product([part(0), part(1), part(2), part(0)])
}

fn table(shape: Shape, algorithm: Algorithm) -> Tuned {
    let mut tuned = Tuned::default();
    tuned.insert(shape, algorithm);
    tuned
}

#[test]
fn the_algorithm_of_the_table_runs() {
    let Some(machine) = Machine::new() else { return };
    let (stream, blas) = blas(&machine);
    let (memory, want) = memory(&stream);
    let run = || {
        blas.multiply(&product(&memory)).expect("a product");
        assert_eq!(download::<f32>(&stream, &memory)[128..144], want);
        machine.count(2, "fake_algorithm")
    };
    assert_eq!(run(), 10);
    assert_eq!(blas.describe(), "cuBLASLt 13.1.0");
    assert_eq!(blas.shapes(), [SHAPE]);
    blas.tune(table(SHAPE, SECOND));
    assert_eq!(run(), 11);
    assert_eq!(blas.describe(), "cuBLASLt 13.1.0, 1 shapes by measured algorithms");
    // That of another shape says nothing.
    for other in [Shape { dims: [4, 4, 5], ..SHAPE }, Shape { has_bias: true, ..SHAPE }] {
        blas.tune(table(other, SECOND));
        assert_eq!(run(), 10);
    }
}

#[test]
fn every_attribute_of_an_algorithm_counts() {
    let Some(machine) = Machine::new() else { return };
    let (stream, blas) = blas(&machine);
    let (memory, _) = memory(&stream);
    let said = "cuBLASLt 13.1.0, 0 shapes by measured algorithms and 1 by others, since it refuses those";
    for attribute in [0, 1, 6, 7, 8] {
        let mut attributes = [11, 101, 1, 0, 0, 0, 1, 1, 1];
        attributes[attribute] += 20;
        blas.tune(table(SHAPE, Algorithm::new(attributes)));
        blas.multiply(&product(&memory)).expect("a product");
        assert_eq!((machine.count(2, "fake_algorithm"), blas.describe().as_str()), (10, said));
    }
}

#[test]
fn what_a_version_of_the_library_lacks_is_replaced() {
    let Some(machine) = Machine::new() else { return };
    let (stream, blas) = blas(&machine);
    let (memory, want) = memory(&stream);
    machine.count(2, "fake_new_version");
    blas.tune(table(SHAPE, SECOND));
    blas.multiply(&product(&memory)).expect("a product");
    assert_eq!(download::<f32>(&stream, &memory)[128..144], want);
    assert_eq!(machine.count(2, "fake_algorithm"), 10);
    assert!(blas.describe().contains("1 by others"), "{}", blas.describe());
    assert_eq!(blas.time(SHAPE, &product(&memory), SECOND, 1).expect("an answer"), None);
}

#[test]
fn what_a_check_refuses_in_its_answer_alone_is_not_used() {
    let Some(machine) = Machine::new() else { return };
    let (stream, blas) = blas(&machine);
    let (memory, want) = memory(&stream);
    machine.tell(2, "fake_proposals", 2);
    blas.tune(table(SHAPE, SECOND));
    blas.multiply(&product(&memory)).expect("own kernels");
    assert_eq!(download::<f32>(&stream, &memory)[128..144], want);
    assert_eq!(machine.count(2, "fake_algorithm"), 0);
    assert!(blas.lacks().is_some_and(|said| said.starts_with("1 shapes by own kernels")));
}

#[test]
fn what_is_refused_when_it_runs_is_replaced_as_well() {
    let Some(machine) = Machine::new() else { return };
    let (stream, blas) = blas(&machine);
    let (memory, want) = memory(&stream);
    blas.tune(table(SHAPE, SECOND));
    machine.fail("cublasLtMatmul", 0, 15);
    blas.multiply(&product(&memory)).expect("a product");
    assert_eq!(download::<f32>(&stream, &memory)[128..144], want);
    assert_eq!(machine.count(2, "fake_algorithm"), 10);
}

#[test]
fn candidates_sum_in_f32_and_are_timed() {
    let Some(machine) = Machine::new() else { return };
    let (stream, blas) = blas(&machine);
    let (memory, _) = memory(&stream);
    let candidates = blas.candidates(&product(&memory), 8).expect("candidates");
    assert_eq!(candidates.len(), 2);
    assert_eq!(candidates[1], SECOND);
    for candidate in candidates {
        let time = blas.time(SHAPE, &product(&memory), candidate, 4).expect("a time");
        assert!(time.is_some_and(|time| time >= 0.0), "{time:?}");
    }
    assert_eq!(machine.count(2, "fake_algorithm"), 11);
}
