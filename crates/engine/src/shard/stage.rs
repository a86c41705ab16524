//! The part of a model that a rank holds as a stage of a pipeline, and the parameters that several stages share.
//!
//! A shared parameter, such as an embedding that is the output weights as well, is on each stage that uses it. It is in a
//! group of its own there, so that it is divided alike on all of them; its gradients are summed over them before the step,
//! which then does the same to each copy. Norms count it and checkpoints have it once, from the first of its stages.

use std::collections::{BTreeSet, HashMap, HashSet};

use oarlock_comm::{Communicator, Region, Sharing};
use oarlock_tensor::Param;

use crate::Result;
use crate::nn::{NamedParam, UnitParams};

/// The part of a model that this rank holds.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The ranks of its pipeline, in the order of their stages.
    pub pipe: Communicator,
    /// The stage of each unit of the model.
    pub stage_of_unit: Vec<usize>,
}

/// The ranks that hold copies of the same parameters as stages of one pipeline.
#[derive(Clone, Debug)]
pub(super) struct Tie {
    pub comm: Communicator,
    /// Whether this rank counts and saves them.
    pub is_first: bool,
}

/// A group of tied parameters.
pub(super) struct TiedGroup {
    pub tie: Tie,
    /// Where the gradients of what a rank updates become sums.
    pub region: Region,
}

impl TiedGroup {
    /// All stages of the tie make their groups of it in one order.
    pub fn new(tie: &Tie, n_updated: usize) -> Result<TiedGroup> {
        let name = format!("tied gradients of {n_updated} elements");
        Ok(TiedGroup { tie: tie.clone(), region: tie.comm.allocate(&name, 4 * n_updated, Sharing::PerRank)? })
    }
}

/// What a rank holds of a model.
pub(super) struct StageUnits {
    pub units: Vec<UnitParams>,
    /// The ties that this rank is in or not, and that of each tied parameter by its id.
    pub ties: Vec<Tie>,
    pub tie_of: HashMap<usize, usize>,
}

impl StageUnits {
    /// All units.
    pub fn whole(units: Vec<UnitParams>) -> StageUnits {
        StageUnits { units, ties: Vec::new(), tie_of: HashMap::new() }
    }

    /// The units of a stage. All ranks of its pipeline call it.
    pub fn of_stage(found: &[UnitParams], stage: &Stage) -> Result<StageUnits> {
        let Stage { pipe, stage_of_unit } = stage;
        let own = pipe.rank();
        // The stages of each parameter, in the order of the model.
        let mut stages: Vec<(NamedParam, BTreeSet<usize>)> = Vec::new();
        let mut index_of: HashMap<usize, usize> = HashMap::new();
        for (unit, &on) in found.iter().zip(stage_of_unit) {
            for named in &unit.params {
                index_of.insert(named.param.id(), stages.len());
                stages.push((named.clone(), BTreeSet::from([on])));
            }
            for shared in &unit.shared {
                if let Some(&index) = index_of.get(&shared.id()) {
                    stages[index].1.insert(on);
                }
            }
        }
        let (mut sets, mut ties, mut tie_of) = (Vec::<&BTreeSet<usize>>::new(), Vec::new(), HashMap::new());
        for (named, set) in stages.iter().filter(|(_, set)| set.len() > 1) {
            let tie = match sets.iter().position(|other| *other == set) {
                Some(tie) => tie,
                None => {
                    let mut groups: Vec<Vec<usize>> = vec![set.iter().copied().collect()];
                    groups.extend((0..pipe.world_size()).filter(|on| !set.contains(on)).map(|on| vec![on]));
                    sets.push(set);
                    ties.push(Tie { comm: pipe.split(&groups)?, is_first: set.first() == Some(&own) });
                    ties.len() - 1
                }
            };
            tie_of.insert(named.param.id(), tie);
        }
        let named_of = |param: &Param| index_of.get(&param.id()).map(|&index| stages[index].0.clone());
        let mut here: HashSet<usize> = HashSet::new();
        let mut units = Vec::new();
        for (unit, _) in found.iter().zip(stage_of_unit).filter(|(_, on)| **on == own) {
            let mut params = unit.params.clone();
            let (mut shared, mut first_here) = (Vec::new(), Vec::new());
            here.extend(params.iter().map(|named| named.param.id()));
            for param in &unit.shared {
                match here.insert(param.id()) {
                    true => first_here.extend(named_of(param)),
                    false => shared.push(param.clone()),
                }
            }
            params.extend(first_here);
            units.push(UnitParams { name: unit.name.clone(), params, shared, run: unit.run.clone() });
        }
        Ok(StageUnits { units, ties, tie_of })
    }
}
