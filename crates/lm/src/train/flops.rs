//! The profile of a model on this rank: its modules with their parameters and products by formula, and their times by
//! one more forward pass.

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_config::config::FlopsArgs;
use oarlock_engine::nn::{Module, UnitRun, Visitor, time_of};
use oarlock_engine::report::flops::{ModuleCost, ProfiledStep, Shown, report};
use oarlock_engine::report::speed::{Phase, PhaseTimes};
use oarlock_engine::{Accelerator, Prepared, Result};
use oarlock_tensor::{Param, Scope};

use super::objective::Objective;
use super::step::evaluate;
use crate::data::Batch;
use crate::model::Decoder;

/// Measures a forward pass over `batch` on all ranks, and writes the report on the step that took `times`.
///
/// # Errors
/// As [`evaluate`].
pub fn profile(
    accelerator: &Accelerator,
    objective: &dyn Objective,
    model: &Prepared<Decoder>,
    args: &FlopsArgs,
    batch: &Batch,
    accumulation: usize,
    times: &PhaseTimes,
) -> Result<String> {
    accelerator.device().profile().enable_scopes();
    evaluate(accelerator, objective, model, std::iter::once(batch.clone()))?;
    let scopes = accelerator.device().profile().take_scopes();
    let parts = accelerator.sequence_parallel().map_or(1, |sequence| sequence.size());
    let costs = costs(model.module(), (batch.rows, batch.len, parts), &scopes);
    let step = ProfiledStep {
        step: args.after_steps + 1,
        ranks: accelerator.num_processes(),
        micro_batch: batch.rows,
        accumulation,
        forward: times.of(Phase::Forward),
        backward: times.of(Phase::Backward) + times.of(Phase::Reduce),
        update: times.of(Phase::Clip) + times.of(Phase::Optimizer),
        recompute_factor: args.recompute_factor,
    };
    let shown = Shown { depth: args.depth, top: args.top, detailed: args.detailed };
    Ok(report(&costs, &step, shown))
}

/// The modules of a model, with their times: for rows of `len` tokens, each of which is one of `parts` of its sequence.
fn costs(
    model: &Decoder,
    (rows, len, parts): (usize, usize, usize),
    scopes: &BTreeMap<Scope, Duration>,
) -> ModuleCost {
    let spans = model.config().layers.iter().map(|layer| {
        // Scores and their product with the values, over all pairs of positions.
        model.config().span(&layer.attention, len * parts) * layer.attention.q_dim() as u64
    });
    let spans: Vec<u64> = spans.collect();
    let mut walk = Walk::new("", model, spans.iter(), (rows as u64, len as u64), scopes);
    model.visit(&mut walk);
    walk.finish(model).0
}

/// Counts what is in one module.
struct Walk<'m> {
    cost: ModuleCost,
    /// Its parameters and their elements, each once.
    params: BTreeMap<usize, u64>,
    /// Channels times positions of the attentions that are not gone through yet.
    spans: std::slice::Iter<'m, u64>,
    rows: u64,
    len: u64,
    scopes: &'m BTreeMap<Scope, Duration>,
}

impl<'m> Walk<'m> {
    fn new(
        name: &str,
        module: &dyn Module,
        mut spans: std::slice::Iter<'m, u64>,
        (rows, len): (u64, u64),
        scopes: &'m BTreeMap<Scope, Duration>,
    ) -> Walk<'m> {
        let mut cost =
            ModuleCost { name: name.to_owned(), kind: module.kind().to_owned(), ..ModuleCost::default() };
        if cost.kind == "Attention"
            && let Some(span) = spans.next()
        {
            cost.macs = 2 * rows * len * span;
        }
        Walk { cost, params: BTreeMap::new(), spans, rows, len, scopes }
    }

    fn finish(mut self, module: &dyn Module) -> (ModuleCost, BTreeMap<usize, u64>) {
        self.cost.params = self.params.values().sum();
        self.cost.latency = time_of(module, self.scopes);
        (self.cost, self.params)
    }
}

impl Visitor for Walk<'_> {
    fn param(&mut self, name: &str, param: &Param) {
        let elements: usize = param.shape().sizes().iter().product();
        self.params.insert(param.id(), elements as u64);
        // A matrix meets every token; an embedding only looks up.
        if name == "weight" && self.cost.kind == "Linear" {
            self.cost.macs += self.rows * self.len * elements as u64;
        }
    }

    fn child(&mut self, name: &str, child: &dyn Module) {
        let mut walk = Walk::new(name, child, self.spans.clone(), (self.rows, self.len), self.scopes);
        child.visit(&mut walk);
        self.spans = walk.spans.clone();
        let (cost, params) = walk.finish(child);
        self.params.extend(params);
        self.cost.macs += cost.macs;
        match name {
            // What has no name of its own is a part of its parent.
            "" => self.cost.children.extend(cost.children),
            _ => self.cost.children.push(cost),
        }
    }

    fn unit(&mut self, _unit: &UnitRun, inside: &dyn Module) {
        inside.visit(self);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::DecoderConfig;
    use crate::model::hf::HfConfig;

    #[test]
    fn parameters_and_products_are_those_that_deepspeed_counts() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden");
        let hf = HfConfig::read(&golden.join("train-llama")).unwrap();
        let model = Decoder::new(hf.decoder().clone(), 32).unwrap();
        let costs = costs(&model, (6, 32, 1), &BTreeMap::new());
        let text = std::fs::read_to_string(golden.join("monitors/profile.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (costs.params, costs.macs),
            (expected["params"].as_u64().unwrap(), expected["macs"].as_u64().unwrap())
        );
        assert_eq!((costs.name.as_str(), costs.kind.as_str()), ("", "Decoder"));
        let names: Vec<_> = costs.children.iter().map(|c| (c.name.as_str(), c.kind.as_str())).collect();
        let expected = [
            ("model.embed_tokens", "Embedding"),
            ("model.layers", "Vec"),
            ("model.norm", "RmsNorm"),
            ("lm_head", "Linear"),
        ];
        assert_eq!(names, expected);
        let block = &costs.children[1].children[0];
        // As the original shows them: 10.82 K and 2.46 M; 3.07 K and 983.04 K; 7.68 K and 1.47 M.
        let parts =
            [block, &block.children[1], &block.children[3]].map(|c| (c.kind.as_str(), c.params, c.macs));
        let expected = [
            ("LlamaDecoderLayer", 10_816, 2_457_600),
            ("Attention", 3_072, 983_040),
            ("Mlp", 7_680, 1_474_560),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn shared_parameters_count_once() {
        let config = DecoderConfig { tie_embeddings: true, ..DecoderConfig::llama(100, 64, 1, 16) };
        let model = Decoder::new(config, 16).unwrap();
        let costs = costs(&model, (1, 16, 1), &BTreeMap::new());
        let children: u64 = costs.children.iter().map(|child| child.params).sum();
        assert_eq!(costs.params, children - 100 * 64);
        assert_eq!(costs.children.last().unwrap().macs, 16 * 100 * 64);
    }
}
