//! A linear layer with the updates of several adapters beside it, of which each row of a pass takes its own, or none.

use oarlock_engine::nn::{Forward, Linear, Module, Visitor};
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_engine::{Error, Result};
use oarlock_tensor::{Tensor, ops};

use super::adaptation::LowRank;
use super::folder::Adapter;
use crate::model::{Decoder, rows};

/// What stands before the number of an adapter in the names of its parameters.
const ADAPTER: &str = "adapter_";

/// The layer. Its own parameters keep their names; those of the updates are `adapter_0.lora_A.weight` and so on.
#[derive(Debug)]
pub(super) struct Mixed {
    base: Linear,
    /// By the numbers of the adapters; `None` where one leaves this layer alone.
    updates: Vec<Option<Update>>,
}

#[derive(Debug)]
struct Update {
    lora_a: Linear,
    lora_b: Linear,
    scale: f32,
}

impl Mixed {
    /// A layer with room for updates of these ranks; `None` where no adapter has one.
    pub(super) fn around(base: &Linear, ranks: &[Option<LowRank>]) -> oarlock_tensor::Result<Option<Mixed>> {
        let &[n_out, n_in] = base.weight.shape().sizes() else { return Ok(None) };
        let update = |low_rank: &Option<LowRank>| {
            let update = |&LowRank { rank, scale }: &LowRank| {
                let (lora_a, lora_b) =
                    (Linear::new(n_in, rank)?.no_bias(), Linear::new(rank, n_out)?.no_bias());
                Ok::<_, oarlock_tensor::Error>(Update { lora_a, lora_b, scale })
            };
            low_rank.as_ref().map(update).transpose()
        };
        let updates: Vec<_> = ranks.iter().map(update).collect::<oarlock_tensor::Result<_>>()?;
        Ok(updates.iter().any(Option::is_some).then(|| Mixed { base: base.clone(), updates }))
    }
}

impl Update {
    /// s·B·A·x in the dtype of y.
    fn of(&self, x: &Tensor, y: &Tensor) -> oarlock_tensor::Result<Tensor> {
        let update = self.lora_b.forward(&self.lora_a.forward(x)?.scale(self.scale)?)?;
        if update.dtype() == y.dtype() { Ok(update) } else { update.cast(y.dtype()) }
    }
}

impl Forward<Tensor> for Mixed {
    type Output = Tensor;

    /// x `[B, S, E]`. The rows of one adapter go through its update together, adapter after adapter. A row has the same bits
    /// whatever stands beside it.
    fn forward(&self, x: &Tensor) -> oarlock_tensor::Result<Tensor> {
        let y = self.base.forward(x)?;
        let rows = rows();
        if rows.is_empty() {
            return Ok(y);
        }
        let n_rows = x.sizes().first().copied().unwrap_or(0);
        if rows.len() != n_rows || rows.iter().flatten().any(|&adapter| adapter >= self.updates.len()) {
            return Err(oarlock_tensor::Error::Usage(format!(
                "{n_rows} rows are for the adapters {rows:?}, and the model has {}",
                self.updates.len()
            )));
        }
        let row = |of: &Tensor, at: usize| ops::narrow(of, 0, at..at + 1);
        let mut updated: Vec<Option<Tensor>> = vec![None; n_rows];
        for (number, update) in self.updates.iter().enumerate() {
            let Some(update) = update else { continue };
            let own: Vec<usize> = (0..n_rows).filter(|&at| rows[at] == Some(number)).collect();
            if own.is_empty() {
                continue;
            }
            // Products of few rows have sums of another order. Where all rows are many, so are those of each adapter.
            let n_at_once =
                if n_rows > Decoder::FEW_ROWS { own.len().max(Decoder::FEW_ROWS + 1) } else { own.len() };
            let inputs: Vec<Tensor> = (0..n_at_once)
                .map(|at| row(x, own[at % own.len()]))
                .collect::<oarlock_tensor::Result<_>>()?;
            let more = update.of(&ops::concat(&inputs, 0)?, &y)?;
            for (at, &to) in own.iter().enumerate() {
                updated[to] = Some(row(&y, to)?.add(&row(&more, at)?)?);
            }
        }
        let all =
            updated.into_iter().enumerate().map(|(at, updated)| updated.map_or_else(|| row(&y, at), Ok));
        ops::concat(&all.collect::<oarlock_tensor::Result<Vec<_>>>()?, 0)
    }
}

impl Module for Mixed {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.base.visit(visitor);
        for (number, update) in self.updates.iter().enumerate() {
            if let Some(update) = update {
                visitor.child(&format!("{ADAPTER}{number}"), update);
            }
        }
    }

    fn kind(&self) -> &'static str {
        self.base.kind()
    }
}

impl Module for Update {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("lora_A", &self.lora_a);
        visitor.child("lora_B", &self.lora_b);
    }
}

/// The weights of a model with those of the adapters beside them.
pub(super) struct MixedSource<S> {
    pub(super) base: S,
    pub(super) adapters: Vec<Adapter>,
}

impl<S: WeightSource> WeightSource for MixedSource<S> {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let Some((path, rest)) = slice.name.split_once(&format!(".{ADAPTER}")) else {
            return self.base.read(slice, out);
        };
        let found = rest.split_once('.').and_then(|(number, part)| {
            let adapter = self.adapters.get(number.parse::<usize>().ok()?)?;
            adapter.values(path, part)?.1.get(slice.elements.clone())
        });
        let missing = || Error::Model(format!("no adapter has {}", slice.name));
        out.copy_from_slice(found.filter(|found| found.len() == out.len()).ok_or_else(missing)?);
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let of_adapters = self.adapters.iter().flat_map(|adapter| adapter.notes().iter().cloned());
        self.base.notes().into_iter().chain(of_adapters).collect()
    }
}
