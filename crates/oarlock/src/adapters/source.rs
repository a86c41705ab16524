//! The first values of an adapted model: its base with adapters merged into it, and the trained one beside it.

use std::collections::HashMap;
use std::ops::Range;

use oarlock_tensor::{Device, Init, Shape};

use super::folder::{Adapter, PARTS};
use super::lora::REFERENCE;
use crate::error::Result;
use crate::nn::{Module, names_of};
use crate::shard::{SeededInit, WeightSource};

/// Weights of a base, with adapters merged into them in order, and the first values of the adapter that is trained: those
/// of one that is continued, or new ones of a seed. Merging adds in f32, so that a weight is rounded once, where it is
/// stored.
pub struct AdaptedSource {
    base: Box<dyn WeightSource>,
    merged: Vec<Adapter>,
    trained: Option<Adapter>,
    init: SeededInit,
    /// The parameters of the model by all of their names.
    params: HashMap<String, (Shape, Init)>,
    /// All names of each parameter, by each of them.
    names: HashMap<String, Vec<String>>,
}

impl AdaptedSource {
    /// The weights of `base` for `model`, with a new adapter of this seed, drawn on a device.
    pub fn new(base: Box<dyn WeightSource>, model: &dyn Module, seed: u64, device: &Device) -> AdaptedSource {
        let all = names_of(model);
        let aliases = |id: usize| all.iter().filter(move |other| other.param.id() == id);
        AdaptedSource {
            base,
            merged: Vec::new(),
            trained: None,
            init: SeededInit::new(seed, device),
            params: all.iter().map(|n| (n.name.clone(), (*n.param.shape(), n.param.init()))).collect(),
            names: (all.iter())
                .map(|n| (n.name.clone(), aliases(n.param.id()).map(|other| other.name.clone()).collect()))
                .collect(),
        }
    }

    /// With adapters merged into the base, one after the other.
    #[must_use]
    pub fn merging(self, merged: Vec<Adapter>) -> AdaptedSource {
        AdaptedSource { merged, ..self }
    }

    /// With the values of an adapter that is continued.
    #[must_use]
    pub fn continuing(self, trained: Option<Adapter>) -> AdaptedSource {
        AdaptedSource { trained, ..self }
    }

    /// A weight of the base with all adapters merged into it.
    fn merged(
        &mut self,
        name: &str,
        shape: &Shape,
        init: Init,
        elements: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let names = self.names.get(name).cloned().unwrap_or_default();
        let whole = |adapter: &Adapter| {
            names
                .iter()
                .find_map(|name| adapter.tensor(name))
                .map(|(_, values)| values[elements.clone()].to_vec())
        };
        let from = self.merged.iter().rposition(|adapter| whole(adapter).is_some());
        match from.and_then(|index| whole(&self.merged[index])) {
            Some(values) => out.copy_from_slice(&values),
            None => self.base.read(name, shape, init, elements.clone(), out)?,
        }
        let path = name.strip_suffix(".weight").unwrap_or(name);
        let after = from.map_or(0, |index| index + 1);
        let updates = |adapter: &Adapter| adapter.values(path, PARTS[0]).is_some();
        if !self.merged[after..].iter().any(updates) {
            return Ok(());
        }
        // Whole rows, whose lengths DoRA needs.
        let &[_, n_in] = shape.sizes() else { return Ok(()) };
        let rows = elements.start / n_in..elements.end.div_ceil(n_in);
        let mut values = vec![0.0; rows.len() * n_in];
        self.base.read(name, shape, init, rows.start * n_in..rows.end * n_in, &mut values)?;
        for adapter in self.merged[after..].iter().filter(|adapter| updates(adapter)) {
            merge(adapter, path, rows.start, &mut values);
        }
        let first = elements.start - rows.start * n_in;
        out.copy_from_slice(&values[first..first + elements.len()]);
        Ok(())
    }

    /// The lengths of rows of a weight of the base.
    fn lengths(&mut self, weight: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let Some((shape, init)) = self.params.get(weight).copied() else { return Ok(()) };
        let n_in = shape.last();
        let mut row = vec![0.0; n_in];
        for (index, out) in rows.zip(out) {
            self.merged(weight, &shape, init, index * n_in..(index + 1) * n_in, &mut row)?;
            *out = length(&row);
        }
        Ok(())
    }
}

impl WeightSource for AdaptedSource {
    fn read(
        &mut self,
        name: &str,
        shape: &Shape,
        init: Init,
        elements: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        // A reference begins as what is trained, and stays so.
        let name = &*name.replace(REFERENCE, ".");
        // The names of the adapter itself are none of the base.
        let names = self.names.get(name).map_or(&[][..], Vec::as_slice);
        let of = |own: &'_ Adapter| {
            let found = own.tensor(name).or_else(|| names.iter().find_map(|name| own.tensor(name)));
            found.map(|(_, values)| values[elements.clone()].to_vec())
        };
        if let Some(values) = self.trained.as_ref().and_then(of) {
            out.copy_from_slice(&values);
            return Ok(());
        }
        let [a, b, magnitudes] = PARTS.map(|part| name.strip_suffix(part));
        if a.or(b).is_some() {
            return self.init.read(name, shape, init, elements, out);
        }
        match magnitudes {
            Some(path) => self.lengths(&format!("{path}weight"), elements, out),
            None => self.merged(name, shape, init, elements, out),
        }
    }
}

/// Adds the update of a layer to rows of its weight, from `first` on.
fn merge(adapter: &Adapter, path: &str, first: usize, rows: &mut [f32]) {
    let parts = PARTS.map(|part| adapter.values(path, part));
    let (Some((_, a)), Some((_, b))) = (parts[0], parts[1]) else { return };
    let module = adapter.module(path);
    let n_in = a.len() / module.rank;
    let mut update = vec![0.0; n_in];
    for (index, row) in rows.chunks_exact_mut(n_in).enumerate() {
        update.fill(0.0);
        let weights = &b[(first + index) * module.rank..][..module.rank];
        for (weight, a) in weights.iter().zip(a.chunks_exact(n_in)) {
            update.iter_mut().zip(a).for_each(|(sum, a)| *sum += weight * a);
        }
        row.iter_mut().zip(&update).for_each(|(w, sum)| *w += module.scale * sum);
        if let Some((_, magnitudes)) = parts[2] {
            let factor = magnitudes[first + index] / length(row);
            row.iter_mut().for_each(|w| *w *= factor);
        }
    }
}

fn length(row: &[f32]) -> f32 {
    row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt() as f32
}
