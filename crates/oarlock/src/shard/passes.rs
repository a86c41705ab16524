//! What moves during a step: units are gathered before their use and released after it, and their gradients leave when
//! they are complete.
//!
//! All ranks do the same in the same order, the order in which the model declares its units. A rank that skips units
//! (a branch not taken) joins in when it comes to a later one, or at the end of the pass. Where the weights are always
//! there and gradients stay, nothing of this moves anything.

use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_comm::{Ownership, Ready, Scalar, Sharing};
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, Device, FlatBuffer, FlatParams};

use crate::error::Result;
use crate::shard::column::Store;
use crate::shard::group::{Grads, Group, Weights};
use crate::shard::mesh::Mesh;
use crate::shard::order::ready;
use crate::shard::placement::{Lifetime, Options};
use crate::shard::windows::{Window, Windows};

/// The groups of a model, and what is open of them.
pub(super) struct Core {
    pub mesh: Mesh,
    pub device: Device,
    pub options: Options,
    pub groups: Vec<Group>,
    pub units: Vec<UnitUse>,
    /// 16-bit copies of gradients on their way, where they are reduced so.
    pub(super) staging: Option<Window>,
    now: Mutex<Now>,
}

/// What a unit needs.
pub(super) struct UnitUse {
    pub name: String,
    /// The groups that its ops use; shared weights belong to several units.
    pub groups: Vec<usize>,
    /// Those that no unit before it uses: their gradients are complete after its backward pass.
    pub completes: Vec<usize>,
}

/// Where the pass is.
pub(super) struct Now {
    /// The unit that the forward pass comes to next.
    forward: usize,
    /// Whether a backward pass will follow.
    trains: bool,
    /// The unit that the backward pass has left last; `None` outside of one.
    backward: Option<usize>,
    /// Units that hold their groups open.
    holds: Vec<bool>,
    pub(super) groups: Vec<GroupNow>,
    windows: Windows,
    secondary_windows: Option<Windows>,
    pub(super) slots: Windows,
}

#[derive(Default)]
pub(super) struct GroupNow {
    /// Units that hold it open.
    n_holds: usize,
    /// Where it is gathered, and when it is there; `bool`: the window is one of the secondary group's.
    window: Option<(Window, Option<Ready>, bool)>,
    /// This rank's part of the second copy.
    secondary: Option<FlatBuffer>,
    /// Where gradients come together.
    pub(super) slot: Option<Window>,
    /// Whether the sums hold something of this step.
    pub(super) summed: bool,
    /// The parameters that this rank has touched since the last step.
    touched: Vec<bool>,
}

impl GroupNow {
    /// Notes which parameters have gradients, before the others' are filled with zeros.
    pub(super) fn note_touched(&mut self, params: &FlatParams) {
        self.touched.resize(params.places().len(), false);
        for (index, touched) in self.touched.iter_mut().enumerate() {
            *touched |= params.touched(index);
        }
    }
}

impl Core {
    pub fn new(
        mesh: Mesh,
        device: Device,
        options: Options,
        groups: Vec<Group>,
        units: Vec<UnitUse>,
    ) -> Result<Core> {
        let staging = match options.reduce_dtype {
            DType::F32 => None,
            dtype => {
                let most = groups.iter().filter(|g| g.trainable).map(|g| g.layout.n_elems()).max();
                let mut windows = Windows::new(&mesh.shard, Sharing::PerRank, "16-bit gradients");
                Some(windows.take(most.unwrap_or(0) * dtype.size())?)
            }
        };
        let now = Now {
            forward: 0,
            trains: false,
            backward: None,
            holds: vec![false; units.len()],
            groups: groups.iter().map(|_| GroupNow::default()).collect(),
            windows: Windows::new(&mesh.shard, Sharing::Replicated, "gathered weights"),
            secondary_windows: mesh
                .secondary
                .as_ref()
                .map(|comm| Windows::new(comm, Sharing::Replicated, "gathered weights")),
            slots: Windows::new(&mesh.shard, Sharing::PerRank, "gradients on their way"),
        };
        Ok(Core { mesh, device, options, groups, units, staging, now: Mutex::new(now) })
    }

    pub(super) fn now(&self) -> MutexGuard<'_, Now> {
        // After a panic inside of a pass the ranks no longer agree on where they are, and the next collective says so.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything moves during a pass.
    pub(super) fn is_still(&self) -> bool {
        self.groups.iter().all(|group| {
            matches!(group.weights, Weights::Resident(_)) && !matches!(group.grads, Grads::Sharded { .. })
        })
    }

    /// Bytes of the windows: for weights, for gradients.
    pub fn window_bytes(&self) -> (usize, usize) {
        let now = self.now();
        let second = now.secondary_windows.as_ref().map_or(0, Windows::bytes);
        let staging = self.staging.as_ref().map_or(0, |staging| staging.region.bytes());
        (now.windows.bytes() + second, now.slots.bytes() + staging)
    }

    pub(super) fn before_forward(&self, unit: usize, trains: bool) -> Result<()> {
        let mut now = self.now();
        self.finish_backward_in(&mut now)?;
        if unit < now.forward || now.trains != trains && now.forward > 0 {
            self.finish_forward_in(&mut now)?;
            now.forward = 0;
        }
        now.trains = trains;
        while now.forward < unit {
            let skipped = now.forward;
            self.enter(&mut now, skipped, true)?;
            self.leave_forward(&mut now, skipped)?;
        }
        self.enter(&mut now, unit, true)
    }

    pub(super) fn after_forward(&self, unit: usize) -> Result<()> {
        self.leave_forward(&mut self.now(), unit)
    }

    pub(super) fn before_backward(&self, unit: usize) -> Result<()> {
        let mut now = self.now();
        self.finish_forward_in(&mut now)?;
        if now.backward.is_some_and(|left| unit >= left) {
            self.finish_backward_in(&mut now)?;
        }
        for skipped in (unit + 1..now.backward.unwrap_or(self.units.len())).rev() {
            self.enter(&mut now, skipped, false)?;
            self.leave_backward(&mut now, skipped)?;
        }
        now.backward = Some(unit + 1);
        self.enter(&mut now, unit, false)
    }

    pub(super) fn after_backward(&self, unit: usize) -> Result<()> {
        let mut now = self.now();
        self.leave_backward(&mut now, unit)?;
        if unit == 0 {
            self.end_backward(&mut now);
        }
        Ok(())
    }

    /// Joins in what the others may have done in the units that this rank has skipped.
    pub fn finish_backward(&self) -> Result<()> {
        self.finish_backward_in(&mut self.now())
    }

    pub(super) fn finish_backward_in(&self, now: &mut Now) -> Result<()> {
        let Some(left) = now.backward else { return Ok(()) };
        for unit in (0..left).rev() {
            self.enter(now, unit, false)?;
            self.leave_backward(now, unit)?;
        }
        self.end_backward(now);
        Ok(())
    }

    fn end_backward(&self, now: &mut Now) {
        now.backward = None;
        now.forward = 0;
        now.trains = false;
    }

    fn finish_forward_in(&self, now: &mut Now) -> Result<()> {
        while now.forward > 0 && now.forward < self.units.len() {
            let skipped = now.forward;
            self.enter(now, skipped, true)?;
            self.leave_forward(now, skipped)?;
        }
        Ok(())
    }

    /// Opens a unit, and begins to open those that come after it.
    fn enter(&self, now: &mut Now, unit: usize, forward: bool) -> Result<()> {
        self.hold(now, unit, forward)?;
        for &group in &self.units[unit].groups {
            self.arrive(now, group)?;
        }
        let gathered = |group: usize| match self.groups[group].weights {
            Weights::Gathered => self.groups[group].layout.n_elems(),
            Weights::Resident(_) => 0,
        };
        let mut ahead = 0;
        let mut live: usize =
            (0..self.groups.len()).filter(|&g| now.groups[g].window.is_some()).map(gathered).sum();
        let next: Vec<usize> = match forward {
            true => (unit + 1..self.units.len()).collect(),
            false => (0..unit).rev().collect(),
        };
        for unit in next {
            let more: usize = self.units[unit]
                .groups
                .iter()
                .filter(|&&g| now.groups[g].window.is_none())
                .map(|&g| gathered(g))
                .sum();
            ahead += more;
            live += more;
            if ahead > self.options.prefetch_elems || live > self.options.max_live_elems {
                break;
            }
            self.hold(now, unit, forward)?;
        }
        Ok(())
    }

    fn hold(&self, now: &mut Now, unit: usize, forward: bool) -> Result<()> {
        if std::mem::replace(&mut now.holds[unit], true) {
            return Ok(());
        }
        for &group in &self.units[unit].groups {
            now.groups[group].n_holds += 1;
            self.gather(now, group, forward)?;
        }
        Ok(())
    }

    fn let_go(&self, now: &mut Now, unit: usize) -> Result<()> {
        if !std::mem::replace(&mut now.holds[unit], false) {
            return Ok(());
        }
        for &group in &self.units[unit].groups {
            now.groups[group].n_holds -= 1;
            if now.groups[group].n_holds == 0 {
                self.release(now, group)?;
            }
        }
        Ok(())
    }

    fn leave_forward(&self, now: &mut Now, unit: usize) -> Result<()> {
        now.forward = unit + 1;
        let last = unit + 1 == self.units.len();
        // The backward pass begins with the unit that the forward pass ends with.
        let keep = now.trains && (self.options.lifetime == Lifetime::ForwardToBackward || last);
        if now.trains && now.secondary_windows.is_some() {
            for &group in &self.units[unit].groups {
                self.keep_second_copy(now, group)?;
            }
        }
        if keep { Ok(()) } else { self.let_go(now, unit) }
    }

    fn leave_backward(&self, now: &mut Now, unit: usize) -> Result<()> {
        now.backward = Some(unit);
        for &group in &self.units[unit].completes {
            if matches!(self.groups[group].grads, Grads::Sharded { .. }) {
                self.reduce(now, group)?;
            }
        }
        self.let_go(now, unit)?;
        for &group in &self.units[unit].completes {
            now.groups[group].secondary = None;
        }
        Ok(())
    }

    /// Begins to bring a group's weights together.
    fn gather(&self, now: &mut Now, index: usize, forward: bool) -> Result<()> {
        let group = &self.groups[index];
        if !matches!(group.weights, Weights::Gathered) || now.groups[index].window.is_some() {
            return Ok(());
        }
        let dtype = group.params.dtype();
        let bytes = group.layout.n_elems() * dtype.size();
        let second = if forward { None } else { now.groups[index].secondary.clone() };
        let secondary = second.is_some();
        let windows = match &mut now.secondary_windows {
            Some(windows) if secondary => windows,
            _ => &mut now.windows,
        };
        let comm = windows.comm().clone();
        let window = windows.take(bytes)?;
        let owners = match secondary {
            true => self.owners_of(group, comm.world_size())?,
            false => group.owners.clone(),
        };
        let owned = owners.of(comm.rank()).first().cloned().unwrap_or(0..0);
        let to = Part { flat: &window.flat, range: owned.clone() };
        match (&second, &group.state.weights.store) {
            (Some(flat), _) => {
                transfer::copy(&self.device, dtype, &Part { flat, range: 0..owned.len() }, &to)?;
            }
            (None, Store::Memory(flat)) => {
                transfer::copy(&self.device, dtype, &Part { flat, range: 0..owned.len() }, &to)?;
            }
            (None, store @ Store::File { .. }) => {
                let range = owned.start * dtype.size()..owned.end * dtype.size();
                transfer::write_with::<u8, _>(&window.flat, range, |bytes| store.read_bytes(bytes, 0))??;
            }
        }
        let ready = comm.all_gather(&window.region, dtype, &owners, ready(&window.flat))?;
        match &mut now.secondary_windows {
            Some(windows) if secondary => windows.met(),
            _ => now.windows.met(),
        }
        now.groups[index].window = Some((window, Some(ready), secondary));
        Ok(())
    }

    /// Waits until a group's weights are there, and shows them to the ops.
    fn arrive(&self, now: &mut Now, index: usize) -> Result<()> {
        if let Some((window, ready, _)) = &mut now.groups[index].window
            && let Some(ready) = ready.take()
        {
            ready.wait()?;
            self.groups[index].params.attach_weights(window.flat.clone())?;
        }
        Ok(())
    }

    fn release(&self, now: &mut Now, index: usize) -> Result<()> {
        let Some((window, ready, secondary)) = now.groups[index].window.take() else { return Ok(()) };
        if let Some(ready) = ready {
            ready.wait()?;
        }
        self.groups[index].params.detach_weights();
        match &mut now.secondary_windows {
            Some(windows) if secondary => windows.give_back(window),
            _ => now.windows.give_back(window),
        }
    }

    /// Keeps this rank's part of the second copy of what is gathered now.
    fn keep_second_copy(&self, now: &mut Now, index: usize) -> Result<()> {
        let (group, Some(comm)) = (&self.groups[index], &self.mesh.secondary) else { return Ok(()) };
        let here = &mut now.groups[index];
        let (Some((window, _, _)), None) = (&here.window, &here.secondary) else { return Ok(()) };
        let (rank, n) = (comm.rank(), comm.world_size());
        let part = group.layout.owned(rank, n);
        let dtype = group.params.dtype();
        let kept = FlatBuffer::pooled(&self.device, part.len() * dtype.size(), "secondary parameters")?;
        let to = Part { flat: &kept, range: 0..part.len() };
        transfer::copy(&self.device, dtype, &Part { flat: &window.flat, range: part }, &to)?;
        here.secondary = Some(kept);
        Ok(())
    }

    fn owners_of(&self, group: &Group, n: usize) -> Result<Ownership> {
        Ok(Ownership::new((0..n).map(|rank| vec![group.layout.owned(rank, n)]).collect())?)
    }

    /// For each group and parameter, whether any rank has touched it since the last step: the same answer on all. To be
    /// asked after gradients are reduced.
    pub fn touched(&self) -> Result<Vec<Vec<bool>>> {
        let now = self.now();
        let sizes = || self.groups.iter().map(|group| group.layout.params().len());
        let here = |group: usize, param: usize| now.groups[group].touched.get(param) == Some(&true);
        let mut flags: Vec<f64> = sizes()
            .enumerate()
            .flat_map(|(group, n)| (0..n).map(move |param| (group, param)))
            .map(|(group, param)| f64::from(u8::from(here(group, param))))
            .collect();
        self.mesh.shard.all_reduce_f64(&mut flags, Scalar::Max)?;
        if let Some(replica) = &self.mesh.replica {
            replica.all_reduce_f64(&mut flags, Scalar::Max)?;
        }
        let mut flags = flags.into_iter().map(|flag| flag != 0.0);
        Ok(sizes().map(|n| flags.by_ref().take(n).collect()).collect())
    }

    /// After a step: every gathered copy is stale, and gradients begin anew.
    pub fn begin_step(&self) -> Result<()> {
        let mut now = self.now();
        let now = &mut *now;
        for unit in 0..self.units.len() {
            self.let_go(now, unit)?;
        }
        self.end_backward(now);
        for (group, now) in self.groups.iter().zip(&mut now.groups) {
            group.params.clear_grads();
            (now.summed, now.secondary) = (false, None);
            now.touched.clear();
        }
        Ok(())
    }
}
