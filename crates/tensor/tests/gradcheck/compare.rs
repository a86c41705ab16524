//! Comparisons, what masks are used for, and where no gradient flows.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par, Tape, Tensor, ops};

use crate::common::{array, case};

#[test]
fn masks_of_tensors_and_numbers_on_every_device() {
    for device in [Device::cpu, Device::strict, Device::staging] {
        let device = device(Isa::detect(), Par::threads(2).unwrap());
        let x = Tensor::from_slice(&[1.0f32, 2.0, f32::NAN, -1.0, 0.0, 0.5], [2, 3], &device).unwrap();
        let y = Tensor::from_slice(&[1.0f32, 3.0, 0.0], [3], &device).unwrap();
        let check = |mask: oarlock_tensor::Result<Tensor>, want: [i32; 6]| {
            let mask = mask.unwrap();
            assert_eq!((mask.dtype(), mask.to_vec::<i32>().unwrap()), (DType::I32, want.to_vec()));
        };
        check(x.eq(&y), [1, 0, 0, 0, 0, 0]);
        check(x.ne(&y), [0, 1, 1, 1, 1, 1]);
        check(x.lt(&y), [0, 1, 0, 1, 1, 0]);
        check(x.le(&y), [1, 1, 0, 1, 1, 0]);
        check(x.gt(0.25), [1, 1, 0, 0, 0, 1]);
        check(x.ge(1), [1, 1, 0, 0, 0, 0]);
        check(x.cast(DType::BF16).unwrap().eq(&y), [1, 0, 0, 0, 0, 0]);
        let (a, b) = (x.gt(0).unwrap(), x.lt(1).unwrap());
        check(a.logical_and(&b), [0, 0, 0, 0, 0, 1]);
        check(a.logical_or(&b), [1, 1, 0, 1, 1, 1]);
        check(a.logical_xor(&b), [1, 1, 0, 1, 1, 0]);
        check(a.logical_not(), [0, 0, 1, 1, 1, 0]);
        check(x.isnan(), [0, 0, 1, 0, 0, 0]);
        check(x.div(0.0).unwrap().isinf(), [1, 1, 0, 1, 0, 1]);
        check(x.isfinite(), [1, 1, 0, 1, 1, 1]);
        let bools = |mask: oarlock_tensor::Result<Tensor>| mask.unwrap().to_vec::<i32>().unwrap();
        assert_eq!((bools(a.any(1)), bools(a.all(1))), (vec![1, 1], vec![0, 0]));
        assert_eq!(
            (bools(x.any(..)), bools(b.any([0, -1])), bools(a.all(0))),
            (vec![1], vec![1], vec![0, 0, 0])
        );
        let empty = Tensor::zeros([0, 2], DType::F32, &device).unwrap();
        assert_eq!((bools(empty.any(0)), bools(empty.all(0))), (vec![0, 0], vec![1, 1]));
        assert_eq!(a.sum(..).unwrap().item::<i32>().unwrap(), 3);
        assert_eq!(a.sum_keepdim(1).unwrap().sizes(), [2, 1]);
        assert_eq!(x.eq(&a).unwrap_err().to_string(), "eq: expected f32, as the other input, got i32");
    }
}

#[test]
fn choices_broadcast_and_take_numbers() {
    let op = |x: &[Tensor]| ops::where_cond(&x[0].gt(0)?, &x[1], &x[2]);
    let reference = |x: &[&[f64]]| {
        (0..24).map(|i| if x[0][i / 4 % 3 * 4 + i % 4] > 0.0 { x[1][i % 4] } else { x[2][i / 4] }).collect()
    };
    // The mask is of the values at hand: no slope crosses its edge.
    let inputs = [array(1, &[3, 4]), array(2, &[4]), array(3, &[2, 3, 1])];
    let op = move |x: &[Tensor]| op(x)? + (&x[0] * 0.0)?;
    case("where_cond", inputs, op, reference).check();
    let op = |x: &[Tensor]| ops::where_cond(&x[0].gt(0)?, &x[0], 0.25);
    let reference = |x: &[&[f64]]| x[0].iter().map(|x| if *x > 0.0 { *x } else { 0.25 }).collect();
    case("where_cond with a number", [array(1, &[3, 4])], op, reference).check();
    let op = |x: &[Tensor]| ops::where_cond(&x[0].gt(0)?, -1, &x[0]);
    let reference = |x: &[&[f64]]| x[0].iter().map(|x| if *x > 0.0 { -1.0 } else { *x }).collect();
    case("where_cond with a number first", [array(1, &[3, 4])], op, reference).check();

    let device = Device::default();
    let labels = Tensor::arange(0, 5, 1, DType::I32, &device).unwrap();
    let masked = labels.masked_fill(&labels.lt(2).unwrap(), -100).unwrap();
    assert_eq!(masked.to_vec::<i32>().unwrap(), [-100, -100, 2, 3, 4]);
    assert!(labels.masked_fill(&labels, 0.5).is_err());
    let text = ops::where_cond(&labels, 1.0, 2.0).unwrap_err().to_string();
    assert_eq!(text, "where_cond: expected at least one tensor, got two numbers");
}

#[test]
fn no_gradient_flows_through_a_mask_but_it_is_on_the_tape() {
    let device = Device::default();
    let tape = Tape::new();
    let x = tape.leaf(&Tensor::from_slice(&[1.0f32, -2.0], [2], &device).unwrap());
    let mask = x.gt(0).unwrap().cast(DType::F32).unwrap();
    assert!(mask.tape().is_some() && x.zeros_like().unwrap().tape().is_some());
    let y = (&x * &mask).unwrap().sum_all().unwrap();
    let gradients = tape.backward(&y, 1.0).unwrap();
    assert_eq!(gradients.of(&x).unwrap().to_vec::<f32>().unwrap(), [1.0, 0.0]);
}
