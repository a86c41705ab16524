//! Weights of 4 and 8 bits: products by their codes, and their elements.

use std::sync::Arc;

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::quantized::{Code, Format, Layout};
use oarlock_tensor::ops::{self, transfer};
use oarlock_tensor::{
    DType, Device, FlatBuffer, FlatParams, Init, Par, Param, ParamLocation, Result, Shape, Tensor,
};

use super::shapes::Sizes;
use crate::commands::gpu_check::case::Case;
use crate::commands::gpu_check::place::normal;

/// Rows of x: so few that a GPU multiplies by the codes.
const ROWS: usize = 9;

pub(super) fn cases(n: &Sizes) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    // More than 256 blocks of 64 elements have two scales of scales.
    let (rows, cols) = (2 * n.i + 56, 2 * n.i + 72);
    for (name, format) in [
        ("nf4 with nested scales", Format::FourBit { code: Code::Nf4, nested: true }),
        ("fp4", Format::FourBit { code: Code::Fp4, nested: false }),
        ("int8", Format::Int8),
    ] {
        let layout = Layout { rows, cols, format };
        let cpu = Device::cpu(Isa::detect(), Par::threads(1)?);
        let words = ops::quantized::quantize(&cpu, layout, &normal(77, rows * cols))?;
        let elements = whole(&words, layout, DType::F32, &cpu)?.to_f32_vec()?;
        let weight: Vec<f64> = elements.into_iter().map(f64::from).collect();
        let (on_gpu, for_all) = (words.clone(), words);
        cases.push(Case::new(
            format!("linear, {name}"),
            [&[ROWS, cols]],
            [],
            move |call| ops::linear_quantized(&call.inputs[0], &settled(&on_gpu, call.place.device)?, layout),
            move |x| x.inputs[0].product(&x.inputs[0].beside(&[rows, cols], weight.clone()).permute([1, 0])),
        ));
        cases.push(Case::as_on_cpu(format!("dequantize {name}"), [&[]], move |call| {
            whole(&for_all, layout, call.place.dtype, call.place.device)
        }));
    }
    Ok(cases)
}

/// The elements of a weight.
fn whole(words: &[i32], layout: Layout, dtype: DType, device: &Device) -> Result<Tensor> {
    ops::dequantize(&settled(words, device)?, layout, dtype)
}

/// A frozen parameter of these words.
fn settled(words: &[i32], device: &Device) -> Result<Param> {
    let place = ParamLocation { first: 0, shape: Shape::new(&[words.len()])? };
    let flat = FlatBuffer::pooled(device, 4 * words.len(), "words")?;
    transfer::write_with(&flat, 0..words.len(), |to: &mut [i32]| to.copy_from_slice(words))?;
    let param = Param::new(place.shape, Init::Zeros);
    param.settle(Arc::new(FlatParams::new(vec![place], DType::I32, flat, None, device)?), 0);
    Ok(param)
}
