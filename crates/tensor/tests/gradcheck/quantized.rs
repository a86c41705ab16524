//! A linear layer with a quantized weight is bitwise identical to one with the dequantized weight, forward and backward.

use std::sync::Arc;

use oarlock_tensor::cpu::quantized::{Code, Format, Layout, dequantize};
use oarlock_tensor::cpu::{Cpu, Isa, Par};
use oarlock_tensor::ops::{self, WeightLayout, transfer};
use oarlock_tensor::{
    DType, Device, Error, FlatBuffer, FlatParams, Init, Param, ParamLocation, Shape, Tape, Tensor,
};

use crate::common::{Array, array, f64s, gpu, settle, tensor, values};

/// The words of a weight as a frozen parameter.
pub fn settle_words(words: &[i32], device: &Device) -> Param {
    let place = ParamLocation { first: 64, shape: Shape::new(&[words.len()]).unwrap() };
    let flat = FlatBuffer::pooled(device, (64 + words.len()) * 4, "words").unwrap();
    transfer::write_with(&flat, 64..64 + words.len(), |to: &mut [i32]| to.copy_from_slice(words)).unwrap();
    let param = Param::new(place.shape, Init::Zeros);
    let home = FlatParams::new(vec![place], DType::I32, flat, None, device).unwrap();
    param.settle(Arc::new(home), 0);
    param
}

/// The output, and the gradients of the input after two uses of it.
fn run(x: &Array, dtype: DType, device: &Device, linear: impl Fn(&Tensor) -> Tensor) -> (Vec<f64>, Vec<f64>) {
    let tape = Tape::new();
    let leaf = tape.leaf(&tensor(x, dtype, device));
    let y = linear(&leaf);
    let loss = linear(&leaf).mul(&y).unwrap();
    let grads = tape.backward(&loss.cast(DType::F32).unwrap().sum_all().unwrap(), 0.5).unwrap();
    (f64s(&y), f64s(grads.of(&leaf).unwrap()))
}

#[test]
fn a_quantized_linear_layer_is_one_of_the_dequantized_weight() {
    let cpu = Cpu { isa: Isa::detect(), par: Par::solo() };
    for (rows, cols) in [(24, 40), (130, 67)] {
        let four_bit = [Code::Nf4, Code::Fp4].map(|code| Format::FourBit { code, nested: true });
        let plain = Format::FourBit { code: Code::Nf4, nested: false };
        for format in four_bit.into_iter().chain([plain, Format::Int8]) {
            let layout = Layout { rows, cols, format };
            let full: Vec<f32> = values(3, rows * cols).iter().map(|x| *x as f32).collect();
            let mut words = vec![0; layout.n_words()];
            layout.quantize(&cpu, &full, &mut words);
            let mut weight = vec![0f32; rows * cols];
            dequantize(&cpu, layout.weight(&words), 0..rows, 0..cols, &mut weight);
            let weight = Array { shape: vec![rows, cols], data: weight.into_iter().map(f64::from).collect() };
            let x = array(4, &[2, 9, cols]);
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let devices = [Device::default(), Device::strict(Isa::detect(), Par::solo())];
                for device in devices.into_iter().chain(gpu().cloned()) {
                    let words = settle_words(&words, &device);
                    let ours = run(&x, dtype, &device, |x| ops::linear_quantized(x, &words, layout).unwrap());
                    let (params, _home) = settle(std::slice::from_ref(&weight), dtype, &device, false);
                    let theirs = run(&x, dtype, &device, |x| {
                        ops::linear(x, &params[0], None, WeightLayout::OutIn).unwrap()
                    });
                    assert_eq!(ours, theirs, "{layout:?}, {dtype}");
                    let whole = ops::dequantize(&words, layout, dtype).unwrap();
                    assert_eq!(f64s(&whole), f64s(&params[0].weight().unwrap()));
                    // From the middle of a row to the middle of another, and within one.
                    for elements in [5..rows * cols - 3, 0..cols, cols + 2..cols + 9] {
                        let mut some = vec![0f32; elements.len()];
                        let words = words.weight().unwrap().to_vec::<i32>().unwrap();
                        ops::quantized::dequantize(&device, layout, &words, elements.clone(), &mut some)
                            .unwrap();
                        assert!(some.iter().map(|x| f64::from(*x)).eq(weight.data[elements].iter().copied()));
                    }
                }
            }
        }
    }
}

#[test]
fn misuse_is_named() {
    let device = Device::default();
    let layout = Layout { rows: 8, cols: 16, format: Format::FourBit { code: Code::Nf4, nested: false } };
    let words = settle_words(&vec![0; layout.n_words()], &device);
    let x = |n: usize| Tensor::zeros([3, n], DType::F32, &device).unwrap();
    let text = |result: oarlock_tensor::Result<Tensor>| result.unwrap_err().to_string();
    assert_eq!(
        text(ops::linear_quantized(&x(15), &words, layout)),
        "linear_quantized: expected x of shape [.., 16], got [3, 15]"
    );
    let other = Layout { cols: 32, ..layout };
    assert_eq!(
        text(ops::linear_quantized(&x(32), &words, other)),
        format!("linear_quantized: expected a weight of {} words, got [18]", other.n_words())
    );
    let (trained, _home) = settle(&[array(1, &[layout.n_words()])], DType::F32, &device, true);
    assert!(matches!(ops::linear_quantized(&x(16), &trained[0], layout), Err(Error::Usage(_))));
}
