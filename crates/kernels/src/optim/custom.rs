//! Rules from outside of this crate: what runs them over the elements, with gradients that are scaled already.

use super::{Buffers, MAX_STATES, STRIP, part};
use crate::Cpu;
use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};

/// Updates weights and states from scaled gradients; states that the rule does not keep are empty.
pub type Update<'a> = &'a (dyn Fn(&mut [f32], [&mut [f32]; MAX_STATES], &[f32]) + Sync);

instances! {
    /// Calls `update` for runs of elements, on several threads.
    pub fn elementwise[T: Float](cpu: &Cpu, grad_scale: f32, buffers: Buffers<'_, T>, update: Update<'_>) {
        let Buffers { weights, state, grad, working } = buffers;
        let n = grad.len();
        assert!(weights.len() == n && working.as_ref().is_none_or(|w| w.len() == n), "optimizer: lengths");
        assert!(state.iter().all(|state| [0, n].contains(&state.len())), "optimizer: states");
        let outputs = (
            cut(weights, TASK_ELEMS),
            state.map(|state| cut(state, TASK_ELEMS)),
            working.map(|w| cut(w, TASK_ELEMS)),
        );
        for_pieces(&cpu.par, n.div_ceil(TASK_ELEMS), outputs, |i, (weights, mut state, mut working)| {
            let grad = &grad[i * TASK_ELEMS..][..weights.len()];
            let mut scaled = [0.0; STRIP];
            for (i, (weights, grad)) in weights.chunks_mut(STRIP).zip(grad.chunks(STRIP)).enumerate() {
                let (from, to) = (i * STRIP, i * STRIP + weights.len());
                let scaled = &mut scaled[..grad.len()];
                scale(cpu.isa, grad, grad_scale, scaled);
                update(weights, state.each_mut().map(|state| part(state, from, to)), scaled);
                if let Some(working) = &mut working {
                    round(cpu.isa, weights, &mut working[from..to]);
                }
            }
        });
    }
}

instances! {
    /// Calls `update` once, for one whole parameter; `scaled` has room for its gradient.
    pub fn whole[T: Float](
        cpu: &Cpu,
        grad_scale: f32,
        buffers: Buffers<'_, T>,
        scaled: &mut [f32],
        update: Update<'_>,
    ) {
        let Buffers { weights, state, grad, working } = buffers;
        let scaled = &mut scaled[..grad.len()];
        cpu.par.chunks_mut(scaled, TASK_ELEMS, |i, scaled| {
            scale(cpu.isa, &grad[i * TASK_ELEMS..][..scaled.len()], grad_scale, scaled);
        });
        update(weights, state, scaled);
        if let Some(working) = working {
            cpu.par.chunks_mut(working, TASK_ELEMS, |i, working| {
                round(cpu.isa, &weights[i * TASK_ELEMS..][..working.len()], working);
            });
        }
    }
}

multiversion! {
    pub(super) fn scale(grad: &[f32], by: f32, scaled: &mut [f32]) {
        for (scaled, g) in scaled.iter_mut().zip(grad) {
            *scaled = g * by;
        }
    }
}

multiversion! {
    pub(super) fn round[T: Float](weights: &[f32], working: &mut [T]) {
        for (rounded, weight) in working.iter_mut().zip(weights) {
            *rounded = T::from_f32(*weight);
        }
    }
}
