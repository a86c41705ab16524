//! What the tape promises: whose gradients come back, the order of unit hooks, and errors for misuse.

use std::sync::{Arc, Mutex};

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, CustomOp};
use oarlock_tensor::{DType, Device, Error, Par, Param, Result, Tape, Tensor, UnitHook};

use crate::common::{array, f64s, grad_of, settle};

fn device() -> Device {
    Device::cpu(Isa::detect(), Par::solo())
}

fn vector(device: &Device, data: &[f32]) -> Tensor {
    Tensor::from_slice(data, [data.len()], device).unwrap()
}

#[test]
fn only_leaves_have_gradients() {
    let (device, tape) = (device(), Tape::new());
    let x = vector(&device, &[1.0, 2.0]);
    let (leaf, input, unused) = (tape.leaf(&x), tape.input(&x), tape.leaf(&x));
    let y = leaf.mul(&input).unwrap().mul(&leaf.detach()).unwrap();
    let gradients = tape.backward(&y, 3.0).unwrap();
    assert_eq!(f64s(gradients.of(&leaf).unwrap()), [3.0, 12.0]);
    let other = Tape::new();
    for t in [&input, &unused, &leaf.detach(), &y, &other.leaf(&x)] {
        assert!(gradients.of(t).is_none());
    }
    // A leaf may be the root.
    let root = tape.leaf(&x);
    assert_eq!(f64s(tape.backward(&root, 2.0).unwrap().of(&root).unwrap()), [2.0, 2.0]);
}

/// A gradient that somebody holds is not added to in place.
#[test]
fn gradients_are_not_shared() {
    let (device, tape) = (device(), Tape::new());
    let x = tape.leaf(&vector(&device, &[1.0, -2.0]));
    let sum = x.add(&x.relu().unwrap()).unwrap().add(&x).unwrap();
    let z = tape.leaf(&vector(&device, &[0.0, 0.0]));
    let gradients = tape.backward(&sum.add(&z).unwrap().reshape([2, 1]).unwrap(), 1.0).unwrap();
    assert_eq!(f64s(gradients.of(&x).unwrap()), [3.0, 2.0]);
    assert_eq!(f64s(gradients.of(&z).unwrap()), [1.0, 1.0]);
}

/// Between the passes the tape holds x alone, of a chain of five cheap ops and the product after it.
#[test]
fn cheap_outputs_are_not_kept() {
    let device = device();
    let (params, _home) = settle(&[array(1, &[3, 64])], DType::F32, &device, true);
    let held =
        || device.arena().usage().iter().filter(|u| u.0 == "activation").map(|u| u.1.bytes).sum::<usize>();
    let tape = Tape::new();
    let x = tape.leaf(&Tensor::zeros([1024, 64], DType::F32, &device).unwrap());
    let chain = |x: &Tensor| {
        x.gelu()?.scale(2.0)?.dropout(0.1, 1, 2)?.reshape([512, 128])?.reshape([1024, 64])?.square()
    };
    let y = ops::linear(&chain(&x).unwrap(), &params[0], None, ops::WeightLayout::OutIn).unwrap();
    let output = (1024 * 3 * 4usize).next_power_of_two();
    assert!(held() <= output, "{} bytes for an output of {output}", held());
    tape.backward(&y, 1.0).unwrap();
}

/// Between the passes no lease on weights is kept, whether they are trained or frozen.
#[test]
fn weights_are_borrowed_again_in_the_backward_pass() {
    let device = device();
    let arrays = [array(1, &[6]), array(2, &[4, 6])];
    let of = |trained: bool, copied: bool| {
        let (params, home) = settle(&arrays, DType::F32, &device, trained);
        let tape = Tape::new();
        let x = tape.leaf(&vector(&device, &[1.0, 2.0, -3.0, 0.5, 4.0, -1.0]));
        let weight = |index: usize| {
            let weight = ops::parameter(&params[index], &x).unwrap();
            // Not a view of the parameter, which is what is kept instead.
            if copied { Tensor::cat(&[weight], 0).unwrap() } else { weight }
        };
        let y = x.reshape([2, 3]).unwrap().mul(&weight(0).reshape([2, 3]).unwrap()).unwrap();
        let rows = weight(1).narrow(0, 1..3).unwrap();
        let y = y.reshape([1, 6]).unwrap().matmul(&rows.t().unwrap()).unwrap().square().unwrap();
        let y = y.mul(&weight(0).narrow(0, 0..1).unwrap()).unwrap();
        let is_free = home.weights().unwrap().write().is_ok();
        let gradients = tape.backward(&y, 0.5).unwrap();
        let of_params = trained.then(|| [0, 1].map(|index| grad_of(&home, index)));
        (is_free, f64s(gradients.of(&x).unwrap()), of_params)
    };
    for trained in [false, true] {
        let (is_free, dx, d_params) = of(trained, false);
        let (_, want, want_params) = of(trained, true);
        assert!(is_free, "trained: {trained}");
        assert_eq!((dx, d_params), (want, want_params));
    }
}

struct Log(&'static str, Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, what: &str) -> Result<()> {
        self.1.lock().unwrap().push(format!("{what} {}", self.0));
        if self.0 == "refuses" { Err(Error::Usage("the unit cannot be had".to_string())) } else { Ok(()) }
    }
}

impl UnitHook for Log {
    fn before_forward(&self, _trains: bool) -> Result<()> {
        Ok(())
    }
    fn after_forward(&self, _trains: bool) -> Result<()> {
        Ok(())
    }
    fn before_backward(&self) -> Result<()> {
        self.note("before")
    }

    fn after_backward(&self) -> Result<()> {
        self.note("after")
    }
}

/// Notes when its gradient is asked for.
struct Noted(Log);

impl CustomOp for Noted {
    fn name(&self) -> &'static str {
        "noted"
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        Ok(inputs[0].clone())
    }

    fn backward(&self, _: &[Tensor], grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        self.0.note("op")?;
        Ok(vec![Some(grad.clone())])
    }
}

#[test]
fn hooks_surround_the_backward_pass_of_their_units() {
    let (device, tape, notes) = (device(), Tape::new(), Arc::new(Mutex::new(Vec::new())));
    let log = |name| Log(name, notes.clone());
    let mut x = tape.leaf(&vector(&device, &[1.0]));
    let outer = Arc::new(log("outer"));
    tape.enter_unit(outer.clone());
    for name in ["a", "b"] {
        let hook = Arc::new(log(name));
        tape.enter_unit(hook.clone());
        x = ops::custom(Noted(log(name)), &[&x]).unwrap();
        tape.leave_unit(hook);
    }
    tape.leave_unit(outer);
    tape.backward(&x, 1.0).unwrap();
    let want = ["before outer", "before b", "op b", "after b", "before a", "op a", "after a", "after outer"];
    assert_eq!(*notes.lock().unwrap(), want);
    let x = tape.leaf(&vector(&device, &[1.0]));
    tape.leave_unit(Arc::new(log("refuses")));
    assert_eq!(tape.backward(&x, 1.0).err().unwrap().to_string(), "the unit cannot be had");
}

#[test]
fn tapes_become_one_where_an_op_takes_tensors_of_both() {
    let device = device();
    let of = |tape: &Tape, values: &[f32]| tape.leaf(&vector(&device, values));
    // Norms and activations are kept as recipes, whose places must be found again on the other tape.
    let (first, second, third) = (Tape::new(), Tape::new(), Tape::new());
    let (a, b, c) = (of(&first, &[0.5, -1.0]), of(&second, &[2.0, 0.25]), of(&third, &[-0.5, 3.0]));
    let branch = |x: &Tensor| x.square()?.silu()?.tanh()?.mul(x);
    let (ya, yb, yc) = (branch(&a).unwrap(), branch(&b).unwrap(), branch(&c).unwrap());
    first.tag(Arc::new("first"));
    second.tag(Arc::new("second"));
    let bc = yb.mul(&yc).unwrap();
    drop((yb, yc));
    let all = ya.add(&bc.silu().unwrap()).unwrap().sum_all().unwrap();
    assert_eq!(first.tags().len(), 2);
    let joined = third.backward(&all, 1.0).unwrap();
    assert!(first.tags().is_empty() && second.tags().is_empty());

    let tape = Tape::new();
    let (x, y, z) = (of(&tape, &[0.5, -1.0]), of(&tape, &[2.0, 0.25]), of(&tape, &[-0.5, 3.0]));
    let product = branch(&y).unwrap().mul(&branch(&z).unwrap()).unwrap().silu().unwrap();
    let all = branch(&x).unwrap().add(&product).unwrap().sum_all().unwrap();
    let alone = tape.backward(&all, 1.0).unwrap();
    for (on_many, on_one) in [(&a, &x), (&b, &y), (&c, &z)] {
        let values = |gradient: Option<&Tensor>| gradient.unwrap().to_vec::<f32>().unwrap();
        assert_eq!(values(joined.of(on_many)), values(alone.of(on_one)));
    }
    // What was on them before is of an earlier run for all.
    assert!(a.add(&of(&second, &[1.0, 1.0])).is_err() && b.square().is_err());
    let fresh = of(&second, &[3.0, 1.0]);
    let gradients = first.backward(&fresh.square().unwrap().sum_all().unwrap(), 1.0).unwrap();
    assert_eq!(gradients.of(&fresh).unwrap().to_vec::<f32>().unwrap(), [6.0, 2.0]);
}

#[test]
fn misuse_of_the_tape_is_named() {
    let device = device();
    let x = vector(&device, &[1.0, 2.0]);
    let (tape, other) = (Tape::new(), Tape::new());
    let text = |e: Option<Error>| e.unwrap().to_string();
    let leaf = tape.leaf(&x);
    let mixed = leaf.add(&Tape::with_seed(0.5).leaf(&x));
    assert_eq!(
        text(mixed.err()),
        "a loss that makes its gradient in the forward pass cannot be joined with another pass; compute it on a tape \
         without a promised seed"
    );
    assert_eq!(text(other.backward(&leaf, 1.0).err()), "backward: the loss was recorded on another tape");
    let nothing = "backward: nothing that the loss depends on is trained";
    assert_eq!(text(tape.backward(&x, 1.0).err()), nothing);
    assert_eq!(text(tape.backward(&tape.input(&x).relu().unwrap(), 1.0).err()), nothing);

    let y = leaf.square().unwrap();
    tape.backward(&y, 1.0).unwrap();
    assert_eq!(text(tape.backward(&y, 1.0).err()), "backward: the tape has already been run backward");
    // The next run of the same tape knows nothing of the places of this one.
    let again = tape.leaf(&x);
    let stale = "an op's input comes from a forward pass that has been run backward already; `detach` it before it is used again";
    assert_eq!(text(leaf.add(&again).err()), stale);
    assert_eq!(text(y.relu().err()), stale);
    let gradients = tape.backward(&again.square().unwrap(), 1.0).unwrap();
    assert!(gradients.of(&leaf).is_none() && gradients.of(&again).is_some());

    let promised = Tape::with_seed(0.5);
    let leaf = promised.leaf(&x);
    let wrong = promised.backward(&leaf, 1.0).err();
    assert_eq!(text(wrong), "backward: the tape was promised the seed 0.5, but is seeded with 1");
    let leaf = promised.leaf(&x);
    assert_eq!(promised.seed(), Some(0.5));
    assert!(promised.backward(&leaf, 0.5).is_ok());
}

/// A custom op with a parameter: y = w · x, element by element.
struct Gain(Param);

impl CustomOp for Gain {
    fn name(&self) -> &'static str {
        "gain"
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        inputs[0].mul(&self.0.weight()?)
    }

    fn backward(&self, inputs: &[Tensor], grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        if let Some(mut slot) = self.0.grad()? {
            slot.put(&grad.mul(&inputs[0])?)?;
        }
        Ok(vec![Some(grad.mul(&self.0.weight()?)?)])
    }

    fn params(&self) -> Vec<&Param> {
        vec![&self.0]
    }
}

#[test]
fn custom_ops_may_hold_parameters() {
    let device = device();
    let w = array(1, &[3]);
    for trained in [true, false] {
        let (params, home) = settle(std::slice::from_ref(&w), DType::F32, &device, trained);
        let tape = Tape::new();
        let x = tape.leaf(&vector(&device, &[1.0, -2.0, 3.0]));
        let y = ops::custom(Gain(params[0].clone()), &[&x]).unwrap();
        let y = ops::custom(Gain(params[0].clone()), &[&y]).unwrap();
        let gradients = tape.backward(&y, 1.0).unwrap();
        let want = |f: fn(f64, f64) -> f64| {
            w.data.iter().zip([1.0, -2.0, 3.0]).map(|(w, x)| f(*w, x)).collect::<Vec<_>>()
        };
        assert_eq!(f64s(gradients.of(&x).unwrap()), want(|w, _| w * w));
        if trained {
            assert_eq!(grad_of(&home, 0), want(|w, x| 2.0 * w * x));
        }
    }
}

/// Gives back whatever it was told to.
struct Wrong(Vec<Option<Tensor>>);

impl CustomOp for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        inputs[0].square()
    }

    fn backward(&self, _: &[Tensor], _: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(self.0.clone())
    }
}

#[test]
fn misuse_of_custom_ops_is_named() {
    let device = device();
    let x = vector(&device, &[1.0, 2.0]);
    let text = |gradients: Vec<Option<Tensor>>| {
        let tape = Tape::new();
        let y = ops::custom(Wrong(gradients), &[&tape.leaf(&x)]).unwrap();
        tape.backward(&y, 1.0).err().map(|e| e.to_string())
    };
    assert_eq!(text(vec![]).unwrap(), "wrong: its backward pass gave 0 gradients for 1 inputs");
    let wrong = text(vec![Some(vector(&device, &[1.0]))]).unwrap();
    assert_eq!(wrong, "wrong: expected a gradient of input 0 like Tensor([2], f32), got Tensor([1], f32)");
    assert_eq!(text(vec![None]), None);
    let (params, _home) = settle(&[array(1, &[2])], DType::F32, &device, true);
    let refused = params[0].grad().unwrap().unwrap().put(&vector(&device, &[1.0])).unwrap_err().to_string();
    assert_eq!(refused, "gradient of a parameter: expected 2 elements, got 1 elements");
}

#[test]
fn gradients_of_inputs_need_no_tape() {
    let device = device();
    let x = vector(&device, &[1.0, -2.0]).with_grad();
    let y = vector(&device, &[3.0, 5.0]).with_grad();
    let loss = x.mul(&y).unwrap().square().unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    assert_eq!(f64s(gradients.of(&x).unwrap()), [18.0, -100.0]);
    assert_eq!(f64s(gradients.of(&y).unwrap()), [6.0, 40.0]);
    let text = |result: Result<oarlock_tensor::Gradients>| result.err().unwrap().to_string();
    assert_eq!(text(loss.backward()), "backward: the tape has already been run backward");
    let x = x.detach().with_grad();
    assert_eq!(
        text(x.square().unwrap().backward()),
        "backward: expected one element, such as a mean or a sum, got [2]"
    );
    let plain = x.detach().sum_all().unwrap();
    assert_eq!(
        text(plain.backward()),
        "backward: nothing that the loss depends on wants a gradient; begin with `with_grad`"
    );
    let tape = Tape::new();
    tape.tag(Arc::new(1));
    let loss = tape.leaf(&vector(&device, &[1.0])).square().unwrap();
    assert!(text(loss.backward()).starts_with("backward: the loss comes from a prepared model"));
}

#[test]
fn the_gradient_of_a_parameter_is_read() {
    for device in [device(), Device::strict(Isa::detect(), Par::solo())] {
        let (params, home) = settle(&[array(1, &[2]), array(2, &[3])], DType::BF16, &device, true);
        assert!(params[1].gradient().unwrap().is_none());
        let tape = Tape::new();
        for _ in 0..2 {
            let x = tape.input(&Tensor::from_slice(&[1f32, 2.0, 3.0], [3], &device).unwrap());
            let weight = ops::parameter(&params[1], &x).unwrap();
            tape.backward(&x.mul(&weight).unwrap().sum_all().unwrap(), 1.0).unwrap();
        }
        let gradient = params[1].gradient().unwrap().unwrap();
        assert_eq!((gradient.dtype(), f64s(&gradient)), (DType::F32, vec![2.0, 4.0, 6.0]));
        assert!(params[0].gradient().unwrap().is_none());
        // It was copied: the buffer is free for the next pass.
        home.clear_grads();
        assert!(params[1].gradient().unwrap().is_none());
        home.detach_grads();
    }
    let (frozen, _home) = settle(&[array(1, &[2])], DType::F32, &device(), false);
    assert!(frozen[0].gradient().unwrap().is_none());
}
