//! The parameters and buffers of a model beside weights that have names: what fits, what is missing, what is left over.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use oarlock_tensor::Shape;
use safetensors::Dtype;

use super::elements;
use crate::nn::{Module, NamedBuffer, buffers, names_of};
use crate::report::error::OtherBase;

/// Names listed in one message.
const MAX_LISTED: usize = 5;

/// Whether a model and the weights that it is given must have the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strict {
    /// They must.
    #[default]
    Yes,
    /// What both name is loaded.
    No,
}

/// Where the names of a model and of the weights that it is given differ: torch's `missing_keys` and `unexpected_keys`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Names of the model that the weights lack.
    pub missing: Vec<String>,
    /// Names of the weights that the model lacks.
    pub unexpected: Vec<String>,
    /// The weights are adapters, and this is how the model's frozen parameters differ from those beside which they were
    /// trained.
    pub other_base: Option<OtherBase>,
}

impl Differences {
    /// The first of the missing names, and how many more there are.
    pub(crate) fn missing_in_short(&self) -> String {
        listed(&self.missing)
    }
}

/// A tensor that has a name somewhere.
pub(crate) trait Named {
    /// Its sizes.
    fn sizes(&self) -> &[usize];

    /// Its dtype.
    fn dtype(&self) -> Dtype;
}

/// A model beside weights.
pub(crate) struct Matched {
    /// The tensors of the model's parameters, by the names that the model uses.
    pub tensors: HashMap<String, String>,
    /// The buffers that the weights have values for, under these names.
    pub buffers: Vec<NamedBuffer>,
    pub differences: Differences,
    /// What is there, but does not fit.
    misshapen: Vec<String>,
}

impl Matched {
    /// Finds the parameters of a model; `stored` is what they are called there, `asks` who says the shape.
    pub fn parameters<T: Named>(
        model: &dyn Module,
        stored: &dyn Fn(&str) -> String,
        asks: &str,
        found: &BTreeMap<String, T>,
    ) -> Matched {
        // Each parameter with all its names, in the order in which the model shows it.
        let mut params: Vec<(Shape, Vec<String>)> = Vec::new();
        let mut index_of = HashMap::new();
        for named in names_of(model) {
            let index = *index_of.entry(named.param.id()).or_insert(params.len());
            match params.get_mut(index) {
                Some((_, names)) => names.push(named.name),
                None => params.push((*named.param.shape(), vec![named.name])),
            }
        }
        let (mut tensors, mut known) = (HashMap::new(), BTreeSet::new());
        let (mut missing, mut misshapen) = (Vec::new(), Vec::new());
        for (shape, names) in &params {
            let stored: Vec<String> = names.iter().map(|name| stored(name)).collect();
            known.extend(stored.iter().cloned());
            let is_there = |stored: &String| Some((stored.clone(), found.get(stored)?));
            let Some((stored, tensor)) = stored.iter().find_map(is_there) else {
                missing.push(stored[0].clone());
                continue;
            };
            let (its, asked) = (tensor.sizes(), shape.sizes());
            if its != asked {
                misshapen.push(format!("{stored} {its:?} ({asks} asks for {asked:?})"));
                continue;
            }
            if !elements::is_float(tensor.dtype()) {
                let dtype = tensor.dtype();
                misshapen.push(format!("{stored} of {dtype:?} (supported are F32, F64, BF16 and F16)"));
                continue;
            }
            tensors.extend(names.iter().map(|name| (name.clone(), stored.clone())));
        }
        let strange = |name: &&String| !known.contains(*name) && !follows_from_settings(name);
        let unexpected: Vec<String> = found.keys().filter(strange).cloned().collect();
        let differences = Differences { missing, unexpected, other_base: None };
        Matched { tensors, buffers: Vec::new(), differences, misshapen }
    }

    /// Finds the buffers of the model as well.
    pub fn and_buffers<T: Named>(&mut self, model: &dyn Module, found: &BTreeMap<String, T>) {
        for named in buffers(model) {
            let NamedBuffer { name, buffer } = &named;
            self.differences.unexpected.retain(|other| other != name);
            match found.get(name) {
                Some(tensor)
                    if tensor.sizes() != buffer.shape().sizes()
                        || !elements::fits(&buffer.values(), tensor.dtype()) =>
                {
                    let (shape, dtype) = (tensor.sizes(), tensor.dtype());
                    let problem = format!("{name} {shape:?} of {dtype:?} (the model asks for {buffer:?})");
                    self.misshapen.push(problem);
                }
                Some(_) => self.buffers.push(named),
                None if buffer.is_persistent() => self.differences.missing.push(named.name),
                None => {}
            }
        }
    }

    /// What is wrong, a sentence for each; `ask` is "config.json asks for".
    pub fn problems(&self, ask: &str, strict: Strict) -> Vec<String> {
        let Differences { missing, unexpected, .. } = &self.differences;
        let mut problems = Vec::new();
        if !missing.is_empty() && strict == Strict::Yes {
            problems.push(format!("lacks weights that {ask}: {}", listed(missing)));
        }
        if !unexpected.is_empty() && strict == Strict::Yes {
            let not = ask.replace(" asks for", " does not ask for");
            problems.push(format!("holds weights that {not}: {}", listed(unexpected)));
        }
        if !self.misshapen.is_empty() {
            problems.push(format!("holds weights that do not fit: {}", listed(&self.misshapen)));
        }
        problems
    }

    /// As [`Matched::problems`] of a model whose weights are all to come from there; none of them is a problem as well.
    pub fn problems_of_module(&self, strict: Strict) -> Vec<String> {
        let mut problems = self.problems("the model asks for", strict);
        if self.tensors.is_empty() && problems.is_empty() {
            problems.push("holds no weight of the model".to_owned());
        }
        problems
    }
}

/// Whether a tensor is a table that follows from the settings, which older files store beside the weights.
fn follows_from_settings(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    matches!(last, "inv_freq" | "pos_cis" | "freqs_cos" | "freqs_sin") || name.ends_with(".attention.mask")
}

fn listed(names: &[String]) -> String {
    let more = match names.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{}{more}", names[..names.len().min(MAX_LISTED)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::follows_from_settings;

    #[test]
    fn tables_are_told_from_weights() {
        for table in [
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "pos_cis",
            "layers.1.attention.mask",
            "model.freqs_cos",
        ] {
            assert!(follows_from_settings(table), "{table}");
        }
        assert!(!follows_from_settings("model.layers.0.mlp.gate.weight"));
    }
}
