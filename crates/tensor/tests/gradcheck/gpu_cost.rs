//! What ops on a GPU cost the host, printed: the kernels themselves run in an emulator and say nothing about time.
//!
//! `cargo test --release -p oarlock-tensor --test gradcheck -- --ignored --nocapture gpu_cost`

use std::time::Instant;

use oarlock_tensor::{DType, Result, Tensor, ops};

use crate::common::{array, own_gpu, settle, tensor};

#[test]
#[ignore = "a measurement"]
fn cost_of_an_op_by_hand() {
    let Some(gpu) = own_gpu() else { return };
    let x = tensor(&array(1, &[2, 8]), DType::F32, &gpu);
    let (params, _home) = settle(&[array(2, &[8]), array(3, &[8, 8])], DType::F32, &gpu, false);
    let n_ops = 2000;
    let time = |what: &str, op: &dyn Fn() -> Result<Tensor>| {
        // The first one compiles, and fills the pool.
        drop((op().unwrap(), gpu.synchronize()));
        let start = Instant::now();
        (0..n_ops).for_each(|_| drop(op().unwrap()));
        eprintln!("{what}: {} ns", start.elapsed().as_nanos() / n_ops);
        gpu.synchronize().unwrap();
    };
    time("scale", &|| x.scale(1.5));
    time("add", &|| x.add(&x));
    time("rms_norm", &|| ops::rms_norm(&x, &params[0], 1e-5));
    time("linear", &|| ops::linear(&x, &params[1], None, ops::WeightLayout::OutIn));
}
