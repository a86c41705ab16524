//! The checker: one case is an op as a model would write it, and the same in f64.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use oarlock_reference::compare::is_within;
pub use oarlock_reference::formula::Array as Node;
use oarlock_reference::formula::Formula;
use oarlock_tensor::cpu::difference::largest_magnitude;
use oarlock_tensor::cpu::{Isa, Path};
use oarlock_tensor::ops::{self, CustomOp, transfer};
use oarlock_tensor::{
    CudaLibraries, DType, Device, FlatBuffer, FlatParams, Float, Init, Par, Param, ParamLocation, Result,
    Shape, Tape, Tensor, bf16, f16,
};

/// An array in f64.
#[derive(Clone, Debug)]
pub struct Array {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

/// `n` multiples of 1/64 in -2..=2, none nearer to 0 than 1/16: exact in every dtype, and away from kinks at 0.
pub fn values(seed: u64, n: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let value = 4 + (state >> 40) as i64 % 125;
        (if state >> 20 & 1 == 0 { value } else { -value }) as f64 / 64.0
    };
    (0..n).map(|_| next()).collect()
}

/// Values of [`values`] in this shape.
pub fn array(seed: u64, shape: &[usize]) -> Array {
    Array { shape: shape.to_vec(), data: values(seed, shape.iter().product()) }
}

/// Positive ones.
pub fn positive(seed: u64, shape: &[usize]) -> Array {
    let Array { shape, data } = array(seed, shape);
    Array { shape, data: data.into_iter().map(f64::abs).collect() }
}

/// What a case may need besides its inputs.
pub struct Env {
    pub tape: Tape,
    pub device: Device,
}

impl Env {
    /// Integers on the tape.
    pub fn ints(&self, data: &[i32], shape: &[usize]) -> Tensor {
        self.tape.input(&Tensor::from_slice(data, shape, &self.device).unwrap())
    }
}

/// A GPU over fake libraries; none where there is no C++ compiler, as each test says that finds none.
pub fn gpu() -> Option<&'static Device> {
    static GPU: OnceLock<Device> = OnceLock::new();
    match GPU.get() {
        Some(gpu) => Some(gpu),
        None => own_gpu().map(|made| GPU.get_or_init(|| made)),
    }
}

/// The folder of the fake libraries; none, said aloud, where there is no C++ compiler.
pub fn fakes() -> Option<PathBuf> {
    oarlock_fakes::shared_fakes(env!("CARGO_TARGET_TMPDIR").as_ref(), &["32", "64"]).unwrap()
}

/// As [`gpu`], a device of its own: with a pool and a profile that no other test uses. Each tensor has memory of its own, so
/// that the fake driver sees whatever a kernel touches beyond.
pub fn own_gpu() -> Option<Device> {
    let gpu = gpu_in_segments()?;
    gpu.arena().keep_blocks_apart();
    Some(gpu)
}

/// As [`own_gpu`], with the pool that training runs have.
pub fn gpu_in_segments() -> Option<Device> {
    gpu_number(0)
}

/// As [`gpu_in_segments`], one of the GPUs of the fake driver, each of which has memory of its own.
pub fn gpu_number(ordinal: usize) -> Option<Device> {
    let libraries = CudaLibraries::Folder(fakes()?);
    Some(Device::cuda_of(&libraries, ordinal, Isa::detect(), Par::solo()).unwrap())
}

type Op = dyn Fn(&Env, &[Tensor], &[Param]) -> Result<Tensor>;
type Numbers = dyn Fn(&[&[f64]], &[&[f64]]) -> Vec<f64>;
type OfNodes = dyn Fn(&[Node], &[Node]) -> Node;

/// What a case should give, of its inputs and parameters.
pub enum Reference {
    /// A formula, which has its gradients.
    Formula(Box<OfNodes>),
    /// Numbers, whose gradients are central differences.
    Numbers(Box<Numbers>),
}

/// An op with inputs and parameters, and its reference.
pub struct Case {
    pub name: &'static str,
    pub inputs: Vec<Array>,
    pub params: Vec<Array>,
    pub op: Box<Op>,
    pub reference: Reference,
    /// Allowed errors, as a multiple of the table's.
    pub slack: f64,
}

/// A case without parameters.
pub fn case(
    name: &'static str,
    inputs: impl IntoIterator<Item = Array>,
    op: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    reference: impl Fn(&[&[f64]]) -> Vec<f64> + 'static,
) -> Case {
    Case {
        name,
        inputs: inputs.into_iter().collect(),
        params: Vec::new(),
        op: Box::new(move |_, x, _| op(x)),
        reference: Reference::Numbers(Box::new(move |x, _| reference(x))),
        slack: 1.0,
    }
}

/// A case whose reference is a formula.
pub fn formula_case(
    name: &'static str,
    inputs: impl IntoIterator<Item = Array>,
    params: impl IntoIterator<Item = Array>,
    op: impl Fn(&Env, &[Tensor], &[Param]) -> Result<Tensor> + 'static,
    formula: impl Fn(&[Node], &[Node]) -> Node + 'static,
) -> Case {
    Case {
        name,
        inputs: inputs.into_iter().collect(),
        params: params.into_iter().collect(),
        op: Box::new(op),
        reference: Reference::Formula(Box::new(formula)),
        slack: 1.0,
    }
}

/// The largest error that a dtype may cause, relative to the largest value of the tensor. The unit roundoff (2^-24,
/// 2^-9, 2^-12) times a number of roundings: in f32 sums of up to some hundred terms and the polynomials of the
/// kernels, in the short dtypes the few values that are stored on the way (statistics and sums are f32 there).
fn tolerance(dtype: DType) -> f64 {
    let (bits, roundings) = match dtype {
        DType::BF16 => (9, 8.0),
        DType::F16 => (12, 8.0),
        _ => (24, 256.0),
    };
    roundings * 0.5f64.powi(bits)
}

#[track_caller]
pub fn assert_close(got: &[f64], want: &[f64], dtype: DType, slack: f64, what: &str) {
    assert_within(got, want, &largest(want), dtype, slack, what);
}

/// For each element the largest of all.
fn largest(want: &[f64]) -> Vec<f64> {
    vec![largest_magnitude(want.iter().copied()).unwrap(); want.len()]
}

/// With errors relative to `sizes`.
#[track_caller]
fn assert_within(got: &[f64], want: &[f64], sizes: &[f64], dtype: DType, slack: f64, what: &str) {
    assert_eq!((got.len(), sizes.len()), (want.len(), want.len()), "{what}");
    for (i, ((got, want), size)) in got.iter().zip(want).zip(sizes).enumerate() {
        let allowed = tolerance(dtype) * slack * size.max(1e-3);
        assert!(
            is_within(*got, *want, allowed),
            "{what} [{i}]: got {got}, want {want}, allowed error {allowed:e}"
        );
    }
}

pub fn f64s(t: &Tensor) -> Vec<f64> {
    match t.dtype() {
        DType::I32 => t.to_vec::<i32>().unwrap().into_iter().map(f64::from).collect(),
        _ => t.to_f32_vec().unwrap().into_iter().map(f64::from).collect(),
    }
}

pub fn tensor(array: &Array, dtype: DType, device: &Device) -> Tensor {
    fn of<T: Float>(array: &Array, device: &Device) -> Tensor {
        let data: Vec<T> = array.data.iter().map(|x| T::from_f32(*x as f32)).collect();
        Tensor::from_slice(&data, &array.shape[..], device).unwrap()
    }
    match dtype {
        DType::BF16 => of::<bf16>(array, device),
        DType::F16 => of::<f16>(array, device),
        _ => of::<f32>(array, device),
    }
}

/// Parameters in one flat buffer, with gaps between them and garbage in the gradients.
pub fn settle(
    arrays: &[Array],
    dtype: DType,
    device: &Device,
    trained: bool,
) -> (Vec<Param>, Arc<FlatParams>) {
    let mut end = 0;
    let mut places = Vec::new();
    for array in arrays {
        let shape = Shape::new(&array.shape).unwrap();
        places.push(ParamLocation { first: end, shape });
        end = (end + shape.n_elems()).next_multiple_of(64) + 64;
    }
    let weights = FlatBuffer::pooled(device, end * dtype.size(), "weights").unwrap();
    for (place, array) in places.iter().zip(arrays) {
        let values: Vec<f32> = array.data.iter().map(|x| *x as f32).collect();
        transfer::store(device, &values, &weights, place.first, dtype).unwrap();
    }
    let grads = trained.then(|| FlatBuffer::pooled(device, end * 4, "gradients").unwrap());
    if let Some(grads) = &grads {
        transfer::write_with(grads, 0..end, |grads| grads.fill(f32::NAN)).unwrap();
    }
    let params = places.iter().map(|place| Param::new(place.shape, Init::Zeros)).collect::<Vec<_>>();
    let home = Arc::new(FlatParams::new(places, dtype, weights, grads, device).unwrap());
    params.iter().enumerate().for_each(|(index, param)| param.settle(home.clone(), index));
    (params, home)
}

/// The gradient of parameter `index`.
pub fn grad_of(home: &FlatParams, index: usize) -> Vec<f64> {
    let place = home.places()[index];
    assert!(home.touched(index), "parameter {index} got no gradient");
    let range = place.first..place.first + place.shape.n_elems();
    let widen = |grads: &[f32]| grads.iter().map(|g| f64::from(*g)).collect();
    transfer::read_with(&home.grads().unwrap(), range, widen).unwrap()
}

/// A scalar that depends on each element differently: the sum of `weights[i] · y[i]` over all inputs.
pub struct Weighted;

pub fn weights_of_loss(n: usize) -> Vec<f64> {
    values(77, n)
}

impl CustomOp for Weighted {
    fn name(&self) -> &'static str {
        "weighted"
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let sum =
            |y: &Tensor| weights_of_loss(y.n_elems()).iter().zip(f64s(y)).map(|(w, y)| w * y).sum::<f64>();
        Tensor::from_slice(&[inputs.iter().map(sum).sum::<f64>() as f32], [], inputs[0].device())
    }

    fn backward(&self, inputs: &[Tensor], grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let seed = grad.item::<f64>()?;
        let of = |y: &Tensor| {
            let data = weights_of_loss(y.n_elems()).into_iter().map(|w| w * seed).collect();
            Some(tensor(&Array { shape: y.sizes().to_vec(), data }, y.dtype(), y.device()))
        };
        Ok(inputs.iter().map(of).collect())
    }
}

/// Values and gradients of one run, or what their errors are measured by.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub y: Vec<f64>,
    pub d_inputs: Vec<Vec<f64>>,
    pub d_params: Vec<Vec<f64>>,
}

/// How a case is run.
#[derive(Clone, Copy)]
pub struct Mode {
    pub inputs_are_leaves: bool,
    pub params_are_trained: bool,
    /// How often the op is used on the same inputs and parameters.
    pub n_uses: usize,
}

pub const TRAINED: Mode = Mode { inputs_are_leaves: true, params_are_trained: true, n_uses: 1 };

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// What the backward pass starts from: not 1, so that nobody can ignore it.
const SEED: f32 = 0.5;

impl Case {
    pub fn run(&self, device: &Device, dtype: DType, mode: Mode) -> Run {
        let (params, home) = settle(&self.params, dtype, device, mode.params_are_trained);
        let env = Env { tape: Tape::new(), device: device.clone() };
        let place = |array: &Array| {
            let t = tensor(array, dtype, device);
            if mode.inputs_are_leaves { env.tape.leaf(&t) } else { env.tape.input(&t) }
        };
        let inputs: Vec<Tensor> = self.inputs.iter().map(place).collect();
        let outputs: Vec<Tensor> = (0..mode.n_uses)
            .map(|_| (self.op)(&env, &inputs, &params).unwrap_or_else(|e| panic!("{}: {e}", self.name)))
            .collect();
        let loss = ops::custom(Weighted, &outputs.iter().collect::<Vec<_>>()).unwrap();
        let gradients = env.tape.backward(&loss, SEED).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        let of = |input: &Tensor| gradients.of(input).map(f64s);
        let d_inputs: Option<Vec<_>> =
            if mode.inputs_are_leaves { inputs.iter().map(of).collect() } else { Some(Vec::new()) };
        let d_params = if mode.params_are_trained {
            (0..params.len()).map(|i| grad_of(&home, i)).collect()
        } else {
            Vec::new()
        };
        Run { y: f64s(&outputs[0]), d_inputs: d_inputs.expect("a leaf got no gradient"), d_params }
    }

    /// The reference's values and its gradients by central differences, and for each of them the sum of the absolute
    /// values of its terms: of the gradient of an element, one for each output that it is in; of an output, its value, or
    /// the shares of the elements of the first input in it, `x ∂y/∂x`, which are its terms if it is linear in that input.
    fn expected(&self) -> (Run, Run) {
        match &self.reference {
            Reference::Numbers(reference) => self.by_differences(reference),
            Reference::Formula(formula) => {
                let run = self.by_formula(formula);
                // Nobody asks for the terms of a formula.
                (run.clone(), run)
            }
        }
    }

    /// The values and gradients of a formula.
    fn by_formula(&self, of: &OfNodes) -> Run {
        let formula = Formula::default();
        let nodes = |arrays: &[Array]| -> Vec<Node> {
            arrays.iter().map(|a| formula.array(&a.shape, a.data.clone())).collect()
        };
        let (inputs, params) = (nodes(&self.inputs), nodes(&self.params));
        let y = of(&inputs, &params);
        let upstream = weights_of_loss(y.values.len()).iter().map(|w| f64::from(SEED) * w).collect();
        let mut d_inputs = formula.gradients(&y, upstream, &[inputs, params].concat());
        let d_params = d_inputs.split_off(self.inputs.len());
        Run { y: y.values.to_vec(), d_inputs, d_params }
    }

    fn by_differences(&self, reference: &Numbers) -> (Run, Run) {
        const H: f64 = 1e-5;
        let seed = f64::from(SEED);
        fn views(arrays: &[Vec<f64>]) -> Vec<&[f64]> {
            arrays.iter().map(Vec::as_slice).collect()
        }
        let data = |arrays: &[Array]| arrays.iter().map(|a| a.data.clone()).collect::<Vec<_>>();
        let mut all = [data(&self.inputs), data(&self.params)];
        let value = |all: &[Vec<Vec<f64>>; 2]| reference(&views(&all[0]), &views(&all[1]));
        let y = value(&all);
        let weights = weights_of_loss(y.len());
        let mut shares = vec![0.0; y.len()];
        let (mut sums, mut terms) = ([vec![], vec![]], [vec![], vec![]]);
        let (inputs, params) = (0..self.inputs.len(), 0..self.params.len());
        for (kind, k) in inputs.map(|k| (0, k)).chain(params.map(|k| (1, k))) {
            let (mut sum, mut term) = (vec![], vec![]);
            for i in 0..all[kind][k].len() {
                let before = all[kind][k][i];
                let mut at = |x: f64| {
                    all[kind][k][i] = x;
                    value(&all)
                };
                let (above, below) = (at(before + H), at(before - H));
                at(before);
                let slopes: Vec<f64> = above.iter().zip(&below).map(|(a, b)| (a - b) / (2.0 * H)).collect();
                let parts = || slopes.iter().zip(&weights).map(|(slope, weight)| seed * weight * slope);
                sum.push(parts().sum());
                term.push(parts().map(f64::abs).sum());
                if (kind, k) == (0, 0) {
                    shares
                        .iter_mut()
                        .zip(&slopes)
                        .for_each(|(share, slope)| *share += (before * slope).abs());
                }
            }
            sums[kind].push(sum);
            terms[kind].push(term);
        }
        shares.iter_mut().zip(&y).for_each(|(share, y)| *share = share.max(y.abs()));
        let run = |y, [d_inputs, d_params]: [Vec<Vec<f64>>; 2]| Run { y, d_inputs, d_params };
        (run(y, sums), run(shares, terms))
    }

    #[track_caller]
    fn assert_close(&self, got: &Run, (want, sizes): (&Run, &Run), dtype: DType, slack: f64, how: &str) {
        let slack = self.slack * slack;
        let what = |part: &str| format!("{}, {dtype}, {how}: {part}", self.name);
        assert_within(&got.y, &want.y, &sizes.y, dtype, slack, &what("output"));
        for (i, (got, (want, sizes))) in
            got.d_inputs.iter().zip(want.d_inputs.iter().zip(&sizes.d_inputs)).enumerate()
        {
            assert_within(got, want, sizes, dtype, slack, &what(&format!("gradient of input {i}")));
        }
        for (i, (got, (want, sizes))) in
            got.d_params.iter().zip(want.d_params.iter().zip(&sizes.d_params)).enumerate()
        {
            assert_within(got, want, sizes, dtype, slack, &what(&format!("gradient of parameter {i}")));
        }
    }

    /// Against the reference on every code path, dtype and thread count, frozen and trained, used once and twice.
    #[track_caller]
    pub fn check(&self) {
        self.check_dtypes(&DTYPES);
    }

    #[track_caller]
    pub fn check_dtypes(&self, dtypes: &[DType]) {
        let (want, _) = self.expected();
        let of_all = |grads: &[Vec<f64>]| grads.iter().map(|grads| largest(grads)).collect();
        let sizes =
            Run { y: largest(&want.y), d_inputs: of_all(&want.d_inputs), d_params: of_all(&want.d_params) };
        self.check_within(dtypes, (&want, &sizes));
    }

    /// As [`Case::check`], for an op whose results are sums that may be small beside their terms, each error relative to
    /// the sum s of the absolute values of the terms.
    ///
    /// Of a sum of terms t(1 + d) with |d| <= n u, where u is the unit roundoff and n the number of roundings that a term
    /// meets on its way, the error is at most n u s, to first order in u (Higham 2002, section 4.2). The inputs and the
    /// weights of the loss are exact in every dtype. In the short dtypes sums are formed in f32, so that the number of
    /// their terms has no part in n; n counts the tensors that are stored on the way, of which there are up to four, and
    /// one more where a gradient comes in two parts. The table allows for eight. In f32, n includes the additions and
    /// the polynomials, as the table says.
    #[track_caller]
    pub fn check_sums(&self) {
        let (want, terms) = self.expected();
        self.check_within(&DTYPES, (&want, &terms));
    }

    #[track_caller]
    fn check_within(&self, dtypes: &[DType], (want, sizes): (&Run, &Run)) {
        let doubled =
            |grads: &[Vec<f64>]| grads.iter().map(|g| g.iter().map(|g| 2.0 * g).collect()).collect();
        let doubled = |run: &Run| Run {
            y: run.y.clone(),
            d_inputs: doubled(&run.d_inputs),
            d_params: doubled(&run.d_params),
        };
        let (twice, twice_sizes) = (doubled(want), doubled(sizes));
        let pars = [Par::solo(), Par::threads(2).unwrap(), Par::threads(7).unwrap()];
        let mut promised: Vec<(DType, Run)> = Vec::new();
        for isa in Isa::available() {
            for &dtype in dtypes {
                let [solo, two, seven] = pars.clone().map(|par| Device::cpu(isa, par));
                let got = self.run(&solo, dtype, TRAINED);
                let how = solo.describe();
                self.assert_close(&got, (want, sizes), dtype, 1.0, &how);
                // The paths of which docs/numerics.md promises the same bits.
                let is_paired = isa.path() == Path::Avx512Bf16 && dtype == DType::BF16;
                if isa.path() != Path::Portable && !is_paired {
                    match promised.iter().find(|(of, _)| *of == dtype) {
                        Some((_, bits)) => assert_eq!(&got, bits, "{}, {dtype}: {how} alone", self.name),
                        None => promised.push((dtype, got.clone())),
                    }
                }
                assert_eq!(self.run(&two, dtype, TRAINED), got, "{}: two threads", self.name);
                assert_eq!(self.run(&seven, dtype, TRAINED), got, "{}: seven threads", self.name);
                let used_twice = Mode { n_uses: 2, ..TRAINED };
                let again = self.run(&solo, dtype, used_twice);
                self.assert_close(&again, (&twice, &twice_sizes), dtype, 2.0, &format!("{how}, used twice"));
                if isa == Isa::detect() {
                    for device in [Device::strict, Device::staging] {
                        let device = device(isa, Par::threads(2).unwrap());
                        assert_eq!(
                            self.run(&device, dtype, TRAINED),
                            got,
                            "{}: {}",
                            self.name,
                            device.describe()
                        );
                        let twice = self.run(&device, dtype, used_twice);
                        assert_eq!(twice, again, "{}: {}, used twice", self.name, device.describe());
                        device.synchronize().unwrap();
                    }
                    if let Some(gpu) = gpu() {
                        let how = gpu.describe();
                        let got = self.run(gpu, dtype, TRAINED);
                        self.assert_close(&got, (want, sizes), dtype, 1.0, &how);
                        let again = self.run(gpu, dtype, used_twice);
                        self.assert_close(
                            &again,
                            (&twice, &twice_sizes),
                            dtype,
                            2.0,
                            &format!("{how}, used twice"),
                        );
                        assert_eq!(
                            self.run(gpu, dtype, TRAINED),
                            got,
                            "{}: a second run on {how}",
                            self.name
                        );
                    }
                }
                if !self.params.is_empty() {
                    if !self.inputs.is_empty() {
                        let frozen = self.run(&solo, dtype, Mode { params_are_trained: false, ..TRAINED });
                        assert_eq!(
                            (&frozen.y, &frozen.d_inputs),
                            (&got.y, &got.d_inputs),
                            "{}: frozen",
                            self.name
                        );
                    }
                    let plain = self.run(&solo, dtype, Mode { inputs_are_leaves: false, ..TRAINED });
                    assert_eq!(
                        (&plain.y, &plain.d_params),
                        (&got.y, &got.d_params),
                        "{}: plain inputs",
                        self.name
                    );
                }
            }
        }
        let device = Device::cpu(Isa::detect(), Par::threads(2).unwrap());
        self.run(&device, DType::F32, TRAINED);
        let fresh = device.arena().n_fresh();
        self.run(&device, DType::F32, TRAINED);
        assert_eq!(
            device.arena().n_fresh(),
            fresh,
            "{}: a second step took memory from the system",
            self.name
        );
    }
}
