//! Products by the kernels of this crate.

use std::sync::Arc;

use super::product::{Dims, Form, Layout, Product};
use crate::driver::{Arg, Slice, Stream};
use crate::element::Element;
use crate::error::Result;
use crate::gemm::{GemmShape, MOST_BATCH};
use crate::modules::Modules;

pub(super) struct Own {
    modules: Arc<Modules>,
}

impl Own {
    pub(super) fn new(modules: Arc<Modules>) -> Own {
        Own { modules }
    }

    /// Sums are f32, and those of TF32 have all bits of their terms.
    pub(super) fn multiply(&self, stream: &Stream, product: &Product<'_>, dims: Dims) -> Result<()> {
        let (element, out) = (product.precision.element(), product.out);
        let shape = GemmShape {
            batch: product.batch,
            m: dims.m,
            n: dims.n,
            k: dims.k,
            a_transposed: product.a.form == Form::Transposed,
            b_transposed: product.b.form == Form::Transposed,
        };
        let Some(function) = self.modules.find(shape.op(), &[element, out], None, None)? else {
            return Err(product.wrong(format!("no kernel multiplies {element} to {out}")));
        };
        let [a, b, d] = [&product.a.layout, &product.b.layout, &product.d_layout];
        for first in (0..product.batch).step_by(MOST_BATCH) {
            let shape = GemmShape { batch: (product.batch - first).min(MOST_BATCH), ..shape };
            let row = Layout { batch_stride: 0, ..*d };
            let args = [
                from(first, product.a.memory, a, element)?,
                Arg::u64(a.row_stride as u64),
                Arg::u64(a.batch_stride as u64),
                from(first, product.b.memory, b, element)?,
                Arg::u64(b.row_stride as u64),
                Arg::u64(b.batch_stride as u64),
                from(first, product.c.unwrap_or(product.d), d, out)?,
                product.bias.map_or(Ok(Arg::null(out)), |bias| from(first, bias, &row, out))?,
                from(first, product.d, d, out)?,
                Arg::u64(d.row_stride as u64),
                Arg::u64(d.batch_stride as u64),
                Arg::f32(product.alpha),
                Arg::f32(product.beta),
                Arg::u32(dims.m as u32),
                Arg::u32(dims.n as u32),
                Arg::u32(dims.k as u32),
            ];
            // SAFETY: the product was checked: each operand has the elements of its layout for all of the batch, and so does
            // the bias.
            unsafe { stream.launch(&function, shape.geometry(element), &args) }?;
        }
        Ok(())
    }
}

/// The matrices of a layout from `first` on.
fn from<'a>(first: usize, memory: Slice<'a>, layout: &Layout, of: Element) -> Result<Arg<'a>> {
    let start = first * layout.batch_stride * of.size();
    // Bytes behind the last element are not passed on.
    let end = memory.bytes() / of.size() * of.size();
    Ok(Arg::memory(of, memory.part(start..end)?))
}
