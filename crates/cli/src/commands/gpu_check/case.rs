//! A case: an op with its inputs and parameters, run forward and backward on a device, beside its formula in f64.

use oarlock_reference::formula::{Array, Formula};
use oarlock_tensor::{DType, Device, Param, Result, Tape, Tensor};

use super::place::{Place, Values, leaves};

pub(super) const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// What a case runs.
pub(super) struct Call<'a> {
    pub place: &'a Place<'a>,
    pub tape: &'a Tape,
    pub inputs: &'a [Tensor],
    pub params: &'a [Param],
}

/// The same in f64.
pub(super) struct CaseInputs {
    pub inputs: Vec<Array>,
    pub params: Vec<Array>,
}

type Op = dyn Fn(&Call<'_>) -> Result<Tensor>;

/// What an op is to give, in f64.
type Expected = dyn Fn(&CaseInputs) -> Array;

/// An op with the shapes of its inputs and parameters, which all get gradients.
pub(super) struct Case {
    pub name: String,
    inputs: Vec<Vec<usize>>,
    params: Vec<Vec<usize>>,
    /// Whether the tape is promised its seed, so that the head makes its gradients in the forward pass.
    seeded: bool,
    pub dtypes: &'static [DType],
    /// Whether nothing is computed, so that every element must be the very number.
    pub exact: bool,
    op: Box<Op>,
    /// None of an op whose bits the CPU defines, which is compared forward alone.
    formula: Option<Box<Expected>>,
}

/// Of the gradient that a case begins with.
const UPSTREAM: u64 = 99;

impl Case {
    pub fn new<const N: usize, const M: usize>(
        name: impl Into<String>,
        inputs: [&[usize]; N],
        params: [&[usize]; M],
        op: impl Fn(&Call<'_>) -> Result<Tensor> + 'static,
        formula: impl Fn(&CaseInputs) -> Array + 'static,
    ) -> Case {
        Case {
            name: name.into(),
            inputs: inputs.iter().map(|sizes| sizes.to_vec()).collect(),
            params: params.iter().map(|sizes| sizes.to_vec()).collect(),
            dtypes: &DTYPES,
            seeded: false,
            exact: false,
            op: Box::new(op),
            formula: Some(Box::new(formula)),
        }
    }

    /// One whose output is bitwise identical to the CPU's.
    pub fn as_on_cpu<const N: usize>(
        name: impl Into<String>,
        inputs: [&[usize]; N],
        op: impl Fn(&Call<'_>) -> Result<Tensor> + 'static,
    ) -> Case {
        let inputs = inputs.iter().map(|sizes| sizes.to_vec()).collect();
        Case {
            name: name.into(),
            inputs,
            params: Vec::new(),
            dtypes: &DTYPES,
            seeded: false,
            exact: true,
            op: Box::new(op),
            formula: None,
        }
    }

    /// One whose numbers may have another rounding than the CPU's.
    pub fn nearly(self) -> Case {
        Case { exact: false, ..self }
    }

    /// One of integers, which its op makes itself.
    pub fn of_ints(self) -> Case {
        Case { dtypes: &[DType::I32], ..self }
    }

    /// The same on a tape that was promised its seed.
    pub fn seeded(self) -> Case {
        Case { seeded: true, ..self }
    }

    /// One that copies, chooses or orders, and rounds nothing that it was given.
    pub fn exactly(self) -> Case {
        Case { exact: true, ..self }
    }

    /// The output and all gradients, where the gradient of the output is random.
    pub fn run(&self, place: &Place<'_>) -> Result<Values> {
        let tape = if self.seeded { Tape::with_seed(1.0) } else { Tape::new() };
        let inputs = leaves(place, &self.inputs, &tape)?;
        let params = place.params(&self.params)?;
        let y = (self.op)(&Call { place, tape: &tape, inputs: &inputs, params: &params.params })?;
        let sizes = y.sizes().to_vec();
        let output = match y.dtype() {
            DType::I32 => y.to_vec::<i32>()?.into_iter().map(|x| x as f32).collect(),
            _ => y.to_f32_vec()?,
        };
        let mut values = vec![("output".to_owned(), output)];
        if self.formula.is_none() {
            return Ok(values);
        }
        let gradients = if self.seeded {
            tape.backward(&y, 1.0)?
        } else {
            let upstream = place.values(UPSTREAM, sizes.iter().product(), 1.0);
            let upstream = place.tensor_of(y.dtype(), &upstream, &sizes)?;
            tape.backward_from(y, upstream)?
        };
        for (i, input) in inputs.iter().enumerate() {
            let missing = || vec![f32::NAN; input.n_elems()];
            let gradient = gradients.of(input).map_or_else(|| Ok(missing()), Tensor::to_f32_vec)?;
            values.push((format!("gradient of input {i}"), gradient));
        }
        values.extend(params.gradients()?);
        Ok(values)
    }

    /// What [`Case::run`] gives but for roundings, by the formula on the same numbers.
    pub fn want(&self, place: &Place<'_>, cpu: &Device) -> Result<Vec<Vec<f64>>> {
        let Some(of_op) = &self.formula else {
            let values = self.run(&Place { device: cpu, ..*place })?.into_iter();
            return Ok(values.map(|(_, x)| x.into_iter().map(f64::from).collect()).collect());
        };
        let formula = Formula::default();
        let array =
            |sizes: &[usize], x: Vec<f32>| formula.array(sizes, x.into_iter().map(f64::from).collect());
        let inputs = self.inputs.iter().enumerate();
        let inputs =
            inputs.map(|(i, sizes)| array(sizes, place.values(i as u64, sizes.iter().product(), 1.0)));
        let params = self.params.iter().enumerate();
        let params = params.map(|(i, sizes)| array(sizes, place.weights(i, sizes)));
        let given = CaseInputs { inputs: inputs.collect(), params: params.collect() };
        let y = of_op(&given);
        let upstream = if self.seeded { vec![1.0] } else { place.values(UPSTREAM, y.values.len(), 1.0) };
        let upstream = upstream.into_iter().map(f64::from).collect();
        let gradients = formula.gradients(&y, upstream, &[given.inputs, given.params].concat());
        Ok([vec![y.values.to_vec()], gradients].concat())
    }
}
