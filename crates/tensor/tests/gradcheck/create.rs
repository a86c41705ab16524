//! New tensors.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par, Tensor};

use crate::common::{f64s, gpu};

const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

#[test]
fn numbers_steps_and_identities_on_every_device() {
    let cpus = [Device::cpu, Device::strict, Device::staging].map(|device| {
        let par = Par::threads(2).unwrap();
        device(Isa::detect(), par)
    });
    for device in cpus.into_iter().chain(gpu().cloned()) {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::I32] {
            assert_eq!(f64s(&Tensor::full([2, 1], -3, dtype, &device).unwrap()), [-3.0; 2]);
            assert_eq!(f64s(&Tensor::ones([3], dtype, &device).unwrap()), [1.0; 3]);
            assert_eq!(f64s(&Tensor::arange(2, 11, 3, dtype, &device).unwrap()), [2.0, 5.0, 8.0]);
            assert_eq!(f64s(&Tensor::arange(3, 0, -2, dtype, &device).unwrap()), [3.0, 1.0]);
            assert_eq!(f64s(&Tensor::linspace(-1, 1, 3, dtype, &device).unwrap()), [-1.0, 0.0, 1.0]);
            assert_eq!(f64s(&Tensor::eye(2, dtype, &device).unwrap()), [1.0, 0.0, 0.0, 1.0]);
        }
        // As exact as the dtype, not as an f32.
        let large = Tensor::full([2], i32::MAX - 4, DType::I32, &device).unwrap();
        assert_eq!(large.to_vec::<i32>().unwrap(), [i32::MAX - 4; 2]);
        assert!(Tensor::arange(5, 5, 1, DType::F32, &device).unwrap().n_elems() == 0);
        let tenths = Tensor::arange(0.0, 1.0, 0.1, DType::F32, &device).unwrap();
        assert_eq!((tenths.n_elems(), tenths.to_vec::<f32>().unwrap()[3]), (10, 0.3));
        let n = 100_003;
        let long = Tensor::arange(0, n, 1, DType::I32, &device).unwrap();
        assert!(long.to_vec::<i32>().unwrap().into_iter().eq(0..n));
        assert_eq!(f64s(&Tensor::linspace(2, 3, 1, DType::F32, &device).unwrap()), [2.0]);
    }
    let device = Device::default();
    let text = Tensor::arange(0, 4, -1, DType::F32, &device).unwrap_err().to_string();
    assert!(text.starts_with("arange: expected finite numbers, and a step that leads"), "{text}");
    assert!(Tensor::arange(0, 4, 0, DType::F32, &device).is_err());
    assert!(Tensor::full([1], 0.5, DType::I32, &device).is_err());
}

#[test]
fn random_numbers_are_those_of_the_seed() {
    let n = 50_021;
    for dtype in FLOATS {
        let make = |device: &Device, seed| {
            let uniform = Tensor::rand([n], seed, dtype, device).unwrap();
            (f64s(&uniform), f64s(&Tensor::randn([n], seed, dtype, device).unwrap()))
        };
        let device = Device::cpu(Isa::detect(), Par::solo());
        let (uniform, normal) = make(&device, 5);
        for other in [Device::cpu, Device::strict] {
            let other = other(Isa::detect(), Par::threads(3).unwrap());
            assert_eq!(make(&other, 5), (uniform.clone(), normal.clone()));
        }
        assert_ne!(make(&device, 6), (uniform.clone(), normal.clone()));
        assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = |x: &[f64], f: fn(f64) -> f64| x.iter().map(|x| f(*x)).sum::<f64>() / n as f64;
        // Halves are rounded down, by half a step on average.
        assert!((mean(&uniform, |x| x) - 0.5).abs() < 0.008 && mean(&normal, |x| x).abs() < 0.02);
        assert!((mean(&normal, |x| x * x) - 1.0).abs() < 0.03);
        let x = Tensor::randn([n], 5, dtype, &device).unwrap();
        assert_eq!(f64s(&x.randn_like(5).unwrap()), normal);
        assert_eq!(f64s(&x.rand_like(5).unwrap()), uniform);
        assert_eq!(f64s(&x.ones_like().unwrap())[..2], [1.0, 1.0]);
        assert_eq!((x.zeros_like().unwrap().dtype(), f64s(&x.full_like(2).unwrap())[n - 1]), (dtype, 2.0));
    }
    assert!(Tensor::rand([3], 1, DType::I32, &Device::default()).is_err());
}
