//! Ops from outside of the crate with several outputs.

use std::sync::Arc;

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, CustomOps};
use oarlock_tensor::{DType, Device, Par, Param, Result, Tape, Tensor};

use crate::common::{Env, Node, array, f64s, formula_case, grad_of, settle, tensor};

/// x · w and x² w of x `[.., n]` and a parameter w `[n]`, and the places of the largest x.
struct Powers(Param);

impl CustomOps for Powers {
    fn name(&self) -> &'static str {
        "powers"
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, w) = (&inputs[0], self.0.weight()?);
        Ok(vec![x.mul(&w)?, x.square()?.mul(&w)?, x.argmax(-1)?])
    }

    fn backward(&self, inputs: &[Tensor], grads: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (x, w) = (&inputs[0], self.0.weight()?);
        assert_eq!((grads.len(), grads[2].dtype()), (3, DType::I32));
        if let Some(mut slot) = self.0.grad()? {
            let terms =
                x.mul(&grads[0])?.cast(DType::F32)?.add(&x.square()?.mul(&grads[1])?.cast(DType::F32)?)?;
            let rows = terms.n_elems() / w.n_elems();
            slot.put(&terms.reshape([rows, w.n_elems()])?.sum(0)?)?;
        }
        Ok(vec![Some(w.mul(&grads[0])?.add(&x.scale(2.0)?.mul(&w)?.mul(&grads[1])?)?)])
    }

    fn params(&self) -> Vec<&Param> {
        vec![&self.0]
    }
}

#[test]
fn outputs_have_gradients_together() {
    let op = |_: &Env, x: &[Tensor], params: &[Param]| {
        let outputs = ops::custom_outputs(Powers(params[0].clone()), &[&x[0]])?;
        // The first is used twice.
        outputs[0].mul(&outputs[1])?.add(&outputs[0])
    };
    let formula = |x: &[Node], p: &[Node]| {
        let first = x[0].mul(&p[0]);
        first.mul(&x[0].mul(&x[0]).mul(&p[0])).plus(&first)
    };
    for sizes in [[5, 7], [1, 1], [70, 61]] {
        let params = [array(2, &sizes[1..])];
        formula_case("several outputs", [array(1, &sizes)], params, op, formula).check();
    }
}

#[test]
fn recomputation_has_the_same_bits() {
    for device in [Device::cpu, Device::strict, Device::staging] {
        let device = device(Isa::detect(), Par::threads(2).unwrap());
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let run = |recompute: bool| {
                let (params, home) = settle(&[array(2, &[9])], dtype, &device, true);
                let param = params[0].clone();
                let forward = move |x: &Tensor| {
                    let outputs = ops::custom_outputs(Powers(param.clone()), &[&x.tanh()?])?;
                    let chosen = x.take_along_dim(&outputs[2].unsqueeze(-1)?, -1)?;
                    outputs[0].mul(&outputs[1])?.add(&chosen)
                };
                let tape = Tape::new();
                let x = tape.leaf(&tensor(&array(1, &[4, 9]), dtype, &device));
                let y = match recompute {
                    true => ops::checkpoint(&x, true, Arc::new(forward)),
                    false => forward(&x),
                };
                let y = y.unwrap();
                let gradients = tape.backward(&y, 0.5).unwrap();
                (f64s(&y), f64s(gradients.of(&x).unwrap()), grad_of(&home, 0))
            };
            assert_eq!(run(true), run(false), "{}, {dtype}", device.describe());
        }
    }
}

/// Halves of x; the backward pass gives what it was told to.
struct Halves(usize);

impl CustomOps for Halves {
    fn name(&self) -> &'static str {
        "halves"
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        inputs[0].chunk(2, 0)
    }

    fn backward(&self, _inputs: &[Tensor], grads: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        match self.0 {
            0 => Ok(vec![Some(ops::concat(grads, 0)?)]),
            1 => Ok(vec![Some(grads[0].clone())]),
            _ => Ok(vec![]),
        }
    }
}

#[test]
fn outputs_that_nobody_uses_have_gradients_of_zeros() {
    let device = Device::default();
    let data = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4], &device).unwrap();
    let halves = |x: &Tensor, how: usize| ops::custom_outputs(Halves(how), &[x]).unwrap();
    let tape = Tape::new();
    let x = tape.leaf(&data);
    let outputs = halves(&x, 0);
    let gradients = tape.backward(&outputs[1].square().unwrap(), 1.0).unwrap();
    assert_eq!(f64s(gradients.of(&x).unwrap()), [0.0, 0.0, 6.0, 8.0]);
    // An op that the loss does not depend on is not run backward.
    let x = tape.leaf(&data);
    halves(&x, 2);
    let gradients = tape.backward(&x.scale(2.0).unwrap(), 1.0).unwrap();
    assert_eq!(f64s(gradients.of(&x).unwrap()), [2.0; 4]);
    // Off the tape, and on it without a gradient to be had.
    assert!(halves(&data, 0)[0].tape().is_none());
    assert!(halves(&tape.input(&data), 0)[1].tape().is_some());
    let text = |how: usize| {
        let x = tape.leaf(&data);
        tape.backward(&halves(&x, how)[0], 1.0).err().unwrap().to_string()
    };
    assert_eq!(text(1), "halves: expected a gradient of input 0 like Tensor([4], f32), got Tensor([2], f32)");
    assert_eq!(text(2), "halves: its backward pass gave 0 gradients for 1 inputs");
}
