//! Names of dtypes, and rounding.

use oarlock_kernels::{DType, Float, bf16};

#[test]
fn names_are_read_and_unknown_ones_refused() {
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::I32] {
        assert_eq!(dtype.to_string().parse::<DType>().unwrap(), dtype);
    }
    for (name, dtype) in
        [("torch.bfloat16", DType::BF16), ("half", DType::F16), ("fp16", DType::F16), ("float", DType::F32)]
    {
        assert_eq!(name.parse::<DType>().unwrap(), dtype);
    }
    let text = "float64".parse::<DType>().unwrap_err().to_string();
    assert!(text.starts_with("unknown dtype \"float64\": expected f32, bf16, f16 or i32"), "{text}");
}

#[test]
fn bf16_rounds_as_half_does() {
    for bits in
        (0..u32::MAX).step_by(65_521).chain([0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0x7f7f_ffff, 0, 1 << 31])
    {
        let x = f32::from_bits(bits);
        let (ours, half) = (<bf16 as Float>::from_f32(x), bf16::from_f32(x));
        assert!(ours.to_bits() == half.to_bits() || (x.is_nan() && ours.is_nan()), "{bits:#x}");
    }
}
