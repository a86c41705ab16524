//! The first values of an adapted model: its base with adapters merged into it, and the trained one beside it.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use oarlock_config::config::{AdapterKind, LoraInit};
use oarlock_engine::nn::{Module, names_of};
use oarlock_engine::shard::{ParamSlice, SeededInit, WeightSource};
use oarlock_engine::{Error, Result};
use oarlock_tensor::{Device, Init, Shape};

use super::adaptation::{Adaptation, AdaptedModule, LowRank};
use super::folder::{Adapter, PARTS};
use super::oft::Rotated;
use super::pissa::Principal;
use super::reference::REFERENCE;
use super::update::add_update;

/// Weights of a base, with adapters merged into them in order, and the first values of the adapter that is trained: those
/// of one that is continued, or new ones of a seed. Merging adds in f32, so that a weight is rounded once, where it is
/// stored.
pub struct AdaptedSource {
    base: Box<dyn WeightSource>,
    merged: Vec<Adapter>,
    trained: Option<Adapter>,
    init: SeededInit,
    device: Device,
    /// The adapter beside the model, where that is one of PiSSA: its base is what is left of the weights.
    principal: Option<Adaptation>,
    /// What was taken out of weights, by the number of adapters merged before and by paths.
    taken: HashMap<(usize, String), Rc<Principal>>,
    /// The rotations of adapters that are merged, by their numbers and by paths.
    rotated: HashMap<(usize, String), Rc<Rotated>>,
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
            device: device.clone(),
            principal: None,
            taken: HashMap::new(),
            rotated: HashMap::new(),
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
    pub fn continuing(mut self, trained: Option<Adapter>) -> AdaptedSource {
        if let Some(adapter) = &trained {
            self = self.beside(&Adaptation::of(adapter));
        }
        AdaptedSource { trained, ..self }
    }

    /// For a model with such an adapter beside it: one of PiSSA takes its first values out of the weights.
    #[must_use]
    pub fn beside(self, adaptation: &Adaptation) -> AdaptedSource {
        AdaptedSource { principal: adaptation.config.is_pissa().then(|| adaptation.clone()), ..self }
    }

    /// Elements of a weight of the base with all adapters merged into it.
    fn merged(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let (path, n_merged) = (path_of(slice.name), self.merged.len());
        let from = self.replaced_by(slice.name, n_merged).map_or(0, |index| index + 1);
        if !self.merged[from..].iter().any(|adapter| adapter.module(path).is_some()) {
            return self.first(slice, n_merged, out);
        }
        // Whole rows, whose lengths DoRA needs.
        self.in_rows(slice, out, |source, rows, values| source.rows(rows, n_merged, values))
    }

    /// The same of what PiSSA leaves of it.
    fn left(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let (path, n_merged) = (path_of(slice.name), self.merged.len());
        if self.principal_module(path).is_none() {
            return self.merged(slice, out);
        }
        let principal = self.principal(path, n_merged)?;
        self.in_rows(slice, out, |source, rows, values| {
            source.rows(rows, n_merged, values)?;
            principal.subtract(first_row(rows), values);
            Ok(())
        })
    }

    /// Elements of a matrix by the whole rows that they lie in.
    fn in_rows(
        &mut self,
        slice: &ParamSlice<'_>,
        out: &mut [f32],
        read: impl FnOnce(&mut AdaptedSource, &ParamSlice<'_>, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let (n_in, Range { start, end }) = (slice.shape.last(), slice.elements.clone());
        let rows = slice.at(start / n_in * n_in..end.div_ceil(n_in) * n_in);
        let mut values = vec![0.0; rows.elements.len()];
        read(self, &rows, &mut values)?;
        let first = start - rows.elements.start;
        out.copy_from_slice(&values[first..first + slice.elements.len()]);
        Ok(())
    }

    /// The last of the first so many adapters that has a trained copy of a weight.
    fn replaced_by(&self, name: &str, n_merged: usize) -> Option<usize> {
        let names = self.names.get(name).map_or(&[][..], Vec::as_slice);
        let has = |adapter: &Adapter| names.iter().any(|name| adapter.tensor(name).is_some());
        self.merged[..n_merged].iter().rposition(has)
    }

    /// Elements of a weight without updates of adapters: of the last copy among the first so many adapters, or of the base.
    fn first(&mut self, slice: &ParamSlice<'_>, n_merged: usize, out: &mut [f32]) -> Result<()> {
        let Some(index) = self.replaced_by(slice.name, n_merged) else {
            return self.base.read(slice, out);
        };
        let names = self.names.get(slice.name).map_or(&[][..], Vec::as_slice);
        if let Some((_, values)) = names.iter().find_map(|name| self.merged[index].tensor(name)) {
            out.copy_from_slice(&values[slice.elements.clone()]);
        }
        Ok(())
    }

    /// Whole rows of a weight with the first so many adapters merged into it.
    fn rows(&mut self, rows: &ParamSlice<'_>, n_merged: usize, out: &mut [f32]) -> Result<()> {
        let path = path_of(rows.name);
        self.first(rows, n_merged, out)?;
        let from = self.replaced_by(rows.name, n_merged).map_or(0, |index| index + 1);
        for index in from..n_merged {
            match self.merged[index].module(path) {
                Some(AdaptedModule::LowRank(module)) => {
                    if self.merged[index].config().is_pissa() {
                        self.principal(path, index)?.subtract(first_row(rows), out);
                    }
                    merge(&self.merged[index], path, module, first_row(rows), out);
                }
                Some(AdaptedModule::Rotated(block)) => self.rotated(path, index, block).merge(out),
                None => {}
            }
        }
        Ok(())
    }

    /// The rotations of a layer by one of the merged adapters.
    fn rotated(&mut self, path: &str, index: usize, block: usize) -> Rc<Rotated> {
        let adapter = &self.merged[index];
        let rotated = || {
            let terms = match &adapter.config().kind {
                AdapterKind::Oft(oft) => oft.terms,
                AdapterKind::Lora(_) => 0,
            };
            let skew = adapter.values(path, PARTS[3]).map_or(&[][..], |(_, skew)| skew);
            Rc::new(Rotated::new(skew, block, terms))
        };
        self.rotated.entry((index, path.to_owned())).or_insert_with(rotated).clone()
    }

    /// The adapter of PiSSA beside a layer.
    fn principal_module(&self, path: &str) -> Option<LowRank> {
        low_rank(self.principal.as_ref()?.modules.get(path).copied())
    }

    /// What PiSSA takes out of the weight of a layer into which the first so many adapters are merged.
    fn principal(&mut self, path: &str, n_merged: usize) -> Result<Rc<Principal>> {
        let key = (n_merged, path.to_owned());
        if let Some(found) = self.taken.get(&key) {
            return Ok(found.clone());
        }
        let adapter = self.merged.get(n_merged);
        let of_adapter = adapter.and_then(|adapter| low_rank(adapter.module(path)));
        let module = of_adapter.or(self.principal_module(path));
        let config = adapter.map(Adapter::config).or(self.principal.as_ref().map(|beside| &beside.config));
        let init = config.and_then(|config| config.lora()).map(|lora| lora.init);
        let name = format!("{path}.weight");
        let (Some(module), Some(LoraInit::Pissa { iterations }), Some((shape, first))) =
            (module, init, self.params.get(&name).copied())
        else {
            return Err(Error::Model(format!(
                "{path} has no weight that an adapter of PiSSA could begin with"
            )));
        };
        let sizes = [shape.n_elems() / shape.last().max(1), shape.last()];
        let mut weight = vec![0.0; shape.n_elems()];
        let elements = 0..weight.len();
        self.rows(&ParamSlice { name: &name, shape, init: first, elements }, n_merged, &mut weight)?;
        let found = Rc::new(Principal::of(&self.device, path, &weight, sizes, module, iterations)?);
        self.taken.insert(key, found.clone());
        Ok(found)
    }

    /// The lengths of rows of a weight of the base.
    fn lengths(&mut self, weight: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let Some((shape, init)) = self.params.get(weight).copied() else { return Ok(()) };
        let n_in = shape.last();
        let mut row = vec![0.0; n_in];
        for (index, out) in rows.zip(out) {
            let elements = index * n_in..(index + 1) * n_in;
            self.merged(&ParamSlice { name: weight, shape, init, elements }, &mut row)?;
            *out = length(&row);
        }
        Ok(())
    }
}

impl WeightSource for AdaptedSource {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        // A reference begins as what is trained, and stays so.
        let name = &*slice.name.replace(REFERENCE, ".");
        let slice = &ParamSlice { name, ..slice.clone() };
        let elements = slice.elements.clone();
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
        let [a, b, magnitudes, rotations] = PARTS.map(|part| name.strip_suffix(part)?.strip_suffix('.'));
        if rotations.is_some() {
            return self.init.read(slice, out);
        }
        if let Some(path) = a.or(b) {
            if self.principal_module(path).is_none() {
                return self.init.read(slice, out);
            }
            let principal = self.principal(path, self.merged.len())?;
            out.copy_from_slice(&if a.is_some() { &principal.a } else { &principal.b }[elements]);
            return Ok(());
        }
        match magnitudes {
            Some(path) => self.lengths(&format!("{path}.weight"), elements, out),
            None => self.left(slice, out),
        }
    }

    fn has(&self, name: &str) -> bool {
        let name = &*name.replace(REFERENCE, ".");
        let is_of_adapter =
            PARTS.iter().any(|part| name.strip_suffix(part).is_some_and(|path| path.ends_with('.')));
        let is_copied = |adapter: &Adapter| adapter.tensor(name).is_some();
        is_of_adapter
            || self.trained.as_ref().is_some_and(is_copied)
            || self.replaced_by(name, self.merged.len()).is_some()
            || self.base.has(name)
    }

    fn notes(&self) -> Vec<String> {
        let of_adapters =
            self.merged.iter().chain(&self.trained).flat_map(|adapter| adapter.notes().iter().cloned());
        self.base.notes().into_iter().chain(of_adapters).collect()
    }
}

/// The layer whose weight this is.
fn path_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// The row that whole rows of a matrix begin with.
fn first_row(rows: &ParamSlice<'_>) -> usize {
    rows.elements.start / rows.shape.last().max(1)
}

/// The adapter of a layer, if it is one of low rank.
fn low_rank(module: Option<AdaptedModule>) -> Option<LowRank> {
    match module? {
        AdaptedModule::LowRank(module) => Some(module),
        AdaptedModule::Rotated(_) => None,
    }
}

/// Merges an update of a layer into rows of its weight, from `first` on.
fn merge(adapter: &Adapter, path: &str, module: LowRank, first: usize, rows: &mut [f32]) {
    let parts = PARTS.map(|part| adapter.values(path, part));
    let (Some((_, a)), Some((_, b))) = (parts[0], parts[1]) else { return };
    add_update(a, b, module, first, rows);
    if let Some((_, magnitudes)) = parts[2] {
        let n_in = a.len() / module.rank;
        for (row, magnitude) in rows.chunks_exact_mut(n_in).zip(&magnitudes[first..]) {
            let factor = magnitude / length(row);
            row.iter_mut().for_each(|w| *w *= factor);
        }
    }
}

fn length(row: &[f32]) -> f32 {
    row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt() as f32
}
