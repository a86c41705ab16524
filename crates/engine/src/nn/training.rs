//! Puts the layers of a model into training or evaluation, and tells them of passes.

use std::sync::atomic::Ordering::Relaxed;

use super::leaf::{Leaf, each_leaf};
use super::mode::Mode;
use super::module::Module;

/// Puts all layers of a model into training or evaluation mode.
pub fn set_training(model: &dyn Module, training: bool) {
    each(model, &mut |_, mode| mode.0.training.store(training, Relaxed));
}

/// Tells all layers of a model that a forward pass begins.
pub(crate) fn begin_pass(model: &dyn Module) {
    let (pass, mut any) = (n_passes(model), false);
    each(model, &mut |_, mode| {
        mode.0.pass.store(pass + 1, Relaxed);
        mode.0.draws.store(0, Relaxed);
        any = true;
    });
}

/// The forward passes that the layers of a model have been told of; 0 where none asks.
pub fn n_passes(model: &dyn Module) -> u64 {
    let mut most = 0;
    each(model, &mut |_, mode| most = most.max(mode.pass()));
    most
}

/// Has the layers of a model go on as after so many forward passes: a run that is resumed drops what it would have
/// dropped.
pub fn set_passes(model: &dyn Module, passes: u64) {
    each(model, &mut |_, mode| mode.0.pass.store(passes, Relaxed));
}

/// Whether a layer of the model asks for random numbers or for the mode.
pub(crate) fn has_modes(model: &dyn Module) -> bool {
    let mut any = false;
    each(model, &mut |_, _| any = true);
    any
}

/// Gives every layer random numbers of its own: by the run's seed, the layer's path and the rank.
pub(crate) fn seed_layers(model: &dyn Module, seed: u64, rank: usize) {
    each(model, &mut |path, mode| {
        let words = [seed, path.bytes().fold(0, |hash, byte| mix(hash, u64::from(byte))), rank as u64];
        mode.0.seed.store(words.into_iter().fold(0, mix), Relaxed);
    });
}

/// Joins a word to a hash (the finalizer of SplitMix64, which changes half of the bits for each changed bit).
fn mix(hash: u64, word: u64) -> u64 {
    let mut x = hash.rotate_left(23) ^ word;
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Where the layers of a module stand: so that what is computed again draws the random numbers of the first time.
pub(super) struct RngSnapshot(Vec<(Mode, u64, u64)>);

impl RngSnapshot {
    /// Now.
    pub fn of(module: &dyn Module) -> RngSnapshot {
        let mut modes = Vec::new();
        each(module, &mut |_, mode| modes.push((mode.clone(), mode.pass(), mode.0.draws.load(Relaxed))));
        RngSnapshot(modes)
    }

    /// Runs `f` as if it were then.
    pub fn again<R>(&self, f: impl FnOnce() -> R) -> R {
        let set = |(mode, pass, draws): &(Mode, u64, u64)| {
            (mode.0.pass.swap(*pass, Relaxed), mode.0.draws.swap(*draws, Relaxed))
        };
        let now: Vec<(u64, u64)> = self.0.iter().map(set).collect();
        let result = f();
        for ((mode, pass, draws), now) in self.0.iter().zip(now) {
            // The first run is now itself: what it has drawn stays drawn.
            if now != (*pass, *draws) {
                set(&(mode.clone(), now.0, now.1));
            }
        }
        result
    }
}

/// Shows every mode of a model with the path of its layer.
fn each(model: &dyn Module, f: &mut dyn FnMut(&str, &Mode)) {
    each_leaf(model, &mut |path, _, leaf| {
        if let Leaf::Mode(mode) = leaf {
            f(&path.join("."), mode);
        }
    });
}
