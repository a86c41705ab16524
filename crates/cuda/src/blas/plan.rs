//! The descriptors and the algorithm of a product, made once for each shape.

use std::ffi::{c_int, c_void};

use super::algorithm::Algorithm;
use super::api::{ARCH_MISMATCH, Algo, Api, Choice, Destroy, Handle, NOT_SUPPORTED, Owned, Status, call};
use super::product::{Dims, Form, Layout, Precision, Product};
use crate::binding::Function;
use crate::element::Element;
use crate::error::{Error, Result};

const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
const BATCH_COUNT: c_int = 5;
const BATCH_STRIDE: c_int = 6;
const WORKSPACE_BYTES: c_int = 1;
const REDUCTION_MASK: c_int = 3;
/// Parts of a sum that is split are added in f32, in the workspace.
pub(super) const SUMS_IN_F32: u32 = 2;
/// Of the first operand; those of the second, of C and of D follow.
const ALIGNMENT: c_int = 5;
const EPILOGUE_BIAS: u32 = 4;
pub(super) const TYPE_F32: c_int = 0;
const COMPUTE_F32: c_int = 68;
const COMPUTE_TF32: c_int = 77;
/// What the library answers that has no kernel for a product on this GPU; nothing was launched then.
pub(super) const LACKS: [Status; 2] = [ARCH_MISMATCH, NOT_SUPPORTED];
/// No algorithm asks for more.
const MOST_ALIGNMENT: u64 = 256;

/// All that the choice of an algorithm depends on.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) precision: Precision,
    pub(super) out: Element,
    pub(super) batch: usize,
    pub(super) dims: Dims,
    pub(super) forms: [Form; 2],
    pub(super) layouts: [Layout; 3],
    /// Of A, B, C, D and the bias; 0 for none.
    pub(super) alignments: [u32; 5],
}

impl Key {
    pub(super) fn new(product: &Product<'_>, dims: Dims) -> Key {
        let c = product.c.unwrap_or(product.d);
        let of = |address: u64| (1 << address.trailing_zeros().min(63)).min(MOST_ALIGNMENT) as u32;
        let addresses = [product.a.memory, product.b.memory, c, product.d].map(|slice| of(slice.address()));
        let [a, b, c, d] = addresses;
        let bias = product.bias.map_or(0, |bias| of(bias.address()));
        Key {
            precision: product.precision,
            out: product.out,
            batch: product.batch,
            dims,
            forms: [product.a.form, product.b.form],
            layouts: [product.a.layout, product.b.layout, product.d_layout],
            alignments: [a, b, c, d, bias],
        }
    }
}

/// What cuBLASLt is given. It knows columns, so it computes the transposed product: the memory of a matrix, row after row,
/// is that of its transpose, column after column, and `D' = op(B)' op(A)'` is the same with the operands swapped.
pub(super) struct Descriptors {
    pub(super) desc: Owned,
    /// Of B, A and D.
    pub(super) layouts: [Owned; 3],
    /// Of B, A, C and D.
    pub(super) types: [c_int; 4],
    pub(super) compute: c_int,
}

/// A product as cuBLASLt computes it.
pub(super) struct Plan {
    descriptors: Descriptors,
    algo: Algo,
    pub(super) origin: Origin,
}

/// Who chose an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Library,
    Table,
    /// The library, since it does not have what a table has.
    Instead,
}

impl Descriptors {
    pub(super) fn new(api: &Api, product: &Product<'_>, key: &Key) -> Result<Descriptors> {
        let compute = if key.precision == Precision::TF32 { COMPUTE_TF32 } else { COMPUTE_F32 };
        let desc = make(api, &api.desc_destroy, |made| {
            // SAFETY: the pointer is valid for the call.
            unsafe { call!(api, desc_create(made, compute, TYPE_F32)) }
        })?;
        let transposed = key.forms.map(|form| c_int::from(form == Form::Transposed));
        set(api, Set::Desc, &desc, TRANSPOSE_A, &transposed[1])?;
        set(api, Set::Desc, &desc, TRANSPOSE_B, &transposed[0])?;
        if let Some(bias) = product.bias {
            set(api, Set::Desc, &desc, EPILOGUE, &EPILOGUE_BIAS)?;
            // Its alignment counts for the choice.
            set(api, Set::Desc, &desc, BIAS_POINTER, &bias.address())?;
        }
        let (input, out) = (type_of(key.precision.element()), type_of(key.out));
        let [a, b, d] = &key.layouts;
        let layouts = [
            layout(api, input, b, key.batch)?,
            layout(api, input, a, key.batch)?,
            layout(api, out, d, key.batch)?,
        ];
        Ok(Descriptors { desc, layouts, types: [input, input, out, out], compute })
    }
}

impl Plan {
    /// With this algorithm, or with one that the library chooses where there is none or it cannot be used.
    pub(super) fn new(
        api: &Api,
        handle: Handle,
        product: &Product<'_>,
        key: &Key,
        workspace_bytes: usize,
        tuned: Option<Algorithm>,
    ) -> Result<Plan> {
        let descriptors = Descriptors::new(api, product, key)?;
        let of_table = tuned.and_then(|tuned| tuned.build(api, handle, &descriptors, workspace_bytes));
        let (algo, origin) = match (of_table, tuned) {
            (Some(algo), _) => (algo, Origin::Table),
            (None, tuned) => {
                let choices = choose(api, handle, product, key, workspace_bytes, &descriptors, 1)?;
                // There is at least one.
                (choices[0], if tuned.is_some() { Origin::Instead } else { Origin::Library })
            }
        };
        Ok(Plan { descriptors, algo, origin })
    }

    /// With the algorithms that the library would choose, best first.
    pub(super) fn candidates(
        api: &Api,
        handle: Handle,
        product: &Product<'_>,
        key: &Key,
        workspace_bytes: usize,
        wanted: usize,
    ) -> Result<Vec<Algorithm>> {
        let descriptors = Descriptors::new(api, product, key)?;
        let algos = choose(api, handle, product, key, workspace_bytes, &descriptors, wanted)?;
        algos.iter().map(|algo| Algorithm::of(api, algo)).collect()
    }

    /// Runs it on a stream: the call and what it returned.
    pub(super) fn run(
        &self,
        api: &Api,
        handle: Handle,
        product: &Product<'_>,
        workspace: (u64, usize),
        stream: Handle,
    ) -> Result<(&'static str, Status)> {
        let Descriptors { desc, layouts, .. } = &self.descriptors;
        if let Some(bias) = product.bias {
            set(api, Set::Desc, desc, BIAS_POINTER, &bias.address())?;
        }
        let [b, a, d] = layouts;
        let c = product.c.unwrap_or(product.d);
        // SAFETY: all descriptors are live. The layouts were compared with the memory, which lives until the product is
        // done, since its end waits for the GPU; as does the workspace, which only this stream uses. Alpha and beta are read
        // before the call returns.
        let called = unsafe {
            call!(
                api,
                matmul(
                    handle,
                    desc.handle,
                    (&raw const product.alpha).cast(),
                    product.b.memory.address(),
                    b.handle,
                    product.a.memory.address(),
                    a.handle,
                    (&raw const product.beta).cast(),
                    c.address(),
                    d.handle,
                    product.d.address(),
                    d.handle,
                    &self.algo,
                    workspace.0,
                    workspace.1,
                    stream,
                )
            )
        };
        Ok(called)
    }
}

/// As many as there are of the best algorithms, but at least one.
fn choose(
    api: &Api,
    handle: Handle,
    product: &Product<'_>,
    key: &Key,
    workspace_bytes: usize,
    descriptors: &Descriptors,
    wanted: usize,
) -> Result<Vec<Algo>> {
    let preference = make(api, &api.preference_destroy, |made| {
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(api, preference_create(made)) }
    })?;
    set(api, Set::Preference, &preference, WORKSPACE_BYTES, &workspace_bytes)?;
    set(api, Set::Preference, &preference, REDUCTION_MASK, &SUMS_IN_F32)?;
    let [a, b, c, d, _] = key.alignments;
    for (attribute, alignment) in (ALIGNMENT..).zip([b, a, c, d]) {
        set(api, Set::Preference, &preference, attribute, &alignment)?;
    }
    let (mut choices, mut count) = (vec![Choice::none(); wanted.max(1)], 0);
    let room = c_int::try_from(choices.len()).unwrap_or(c_int::MAX);
    let [b, a, d] = &descriptors.layouts;
    // SAFETY: all descriptors are live, there is room for the choices, and the pointers are valid for the call.
    let (name, status) = unsafe {
        call!(
            api,
            heuristic(
                handle,
                descriptors.desc.handle,
                b.handle,
                a.handle,
                d.handle,
                d.handle,
                preference.handle,
                room,
                choices.as_mut_ptr(),
                &mut count,
            )
        )
    };
    let n_found = usize::try_from(count).unwrap_or(0);
    let found: Vec<Algo> =
        choices.iter().take(n_found).filter(|choice| choice.state == 0).map(|choice| choice.algo).collect();
    if LACKS.contains(&status) || (status == 0 && found.is_empty()) {
        return Err(none(api, product, workspace_bytes));
    }
    api.check((name, status))?;
    Ok(found)
}

/// The error that there is no algorithm.
pub(super) fn none(api: &Api, product: &Product<'_>, workspace_bytes: usize) -> Error {
    Error::NoAlgorithm { version: api.version(), product: product.to_string(), workspace_bytes }
}

fn layout(api: &Api, of: c_int, layout: &Layout, batch: usize) -> Result<Owned> {
    let (rows, cols) = (layout.cols as u64, layout.rows as u64);
    let stride = i64::try_from(layout.row_stride).unwrap_or(i64::MAX);
    let made = make(api, &api.layout_destroy, |made| {
        // SAFETY: the pointer is valid for the call.
        unsafe { call!(api, layout_create(made, of, rows, cols, stride)) }
    })?;
    if batch > 1 {
        let count = c_int::try_from(batch).unwrap_or(c_int::MAX);
        set(api, Set::Layout, &made, BATCH_COUNT, &count)?;
        let stride = i64::try_from(layout.batch_stride).unwrap_or(i64::MAX);
        set(api, Set::Layout, &made, BATCH_STRIDE, &stride)?;
    }
    Ok(made)
}

fn make(
    api: &Api,
    destroy: &Function<Destroy>,
    create: impl FnOnce(*mut Handle) -> (&'static str, Status),
) -> Result<Owned> {
    let mut handle = std::ptr::null_mut();
    api.check(create(&mut handle))?;
    Ok(Owned::new(handle, destroy))
}

/// Of what an attribute is set.
#[derive(Clone, Copy)]
enum Set {
    Desc,
    Layout,
    Preference,
}

fn set<T: Copy>(api: &Api, what: Set, of: &Owned, attribute: c_int, value: &T) -> Result<()> {
    let function = match what {
        Set::Desc => &api.desc_set,
        Set::Layout => &api.layout_set,
        Set::Preference => &api.preference_set,
    };
    let value: *const c_void = (&raw const *value).cast();
    // SAFETY: the descriptor is live and of the kind of the function, which reads as many bytes as the value has.
    let status = unsafe { (function.call)(of.handle, attribute, value, size_of::<T>()) };
    api.check((function.name, status))
}

/// The number of a type in `cudaDataType_t`.
fn type_of(element: Element) -> c_int {
    match element {
        Element::BF16 => 14,
        Element::F16 => 2,
        _ => TYPE_F32,
    }
}
