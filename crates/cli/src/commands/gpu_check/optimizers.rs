//! Steps of optimizers on flat buffers.

use oarlock_tensor::ops::optimizer::{Part, Role, Rule, StepArgs, UpdateParts, Workspace, update};
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, FlatBuffer, Result, Shape};

use super::place::{Place, Values};

/// The rules that have a form for a GPU, by name, with the number of their states.
pub(super) fn rules() -> [(&'static str, (Rule, usize)); 4] {
    [
        ("adamw", (Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 2)),
        ("sgd", (Rule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false }, 0)),
        ("sgd with momentum", (Rule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: true }, 1)),
        ("lion", (Rule::Lion { beta1: 0.9, beta2: 0.99 }, 1)),
    ]
}

/// Three steps: weights in f32, states, and the working copy where the dtype is a short one. f32 weights stand for their
/// own working copy.
pub(super) fn run((rule, n_states): &(Rule, usize), place: &Place<'_>, quick: bool) -> Result<Values> {
    let (device, n) = (place.device, if quick { 1000 } else { 100_000 });
    let initial = place.values(1, n, 1.0);
    let zeros = || place.flat(DType::F32, &vec![0.0; n]);
    let (weights, grads) = (place.flat(place.dtype, &initial)?, zeros()?);
    let master = (place.dtype != DType::F32).then(|| place.flat(DType::F32, &initial)).transpose()?;
    let states = (0..*n_states).map(|_| zeros()).collect::<Result<Vec<_>>>()?;
    fn whole(flat: &FlatBuffer, n: usize) -> Part<'_> {
        Part { flat, range: 0..n }
    }
    for step in 1..=3 {
        transfer::store(device, &place.values(1 + step, n, 1.0), &grads, 0, DType::F32)?;
        let parts = UpdateParts {
            weights: whole(&weights, n),
            dtype: place.dtype,
            master: master.as_ref().map(|master| whole(master, n)),
            grads: whole(&grads, n),
            state: &states.iter().map(|state| whole(state, n)).collect::<Vec<_>>(),
        };
        // The gradients are scaled, as after clipping.
        let args = StepArgs { step, lr: 1e-2, weight_decay: 0.1, grad_scale: 0.5 };
        update(
            device,
            rule,
            &args,
            &Shape::new(&[n])?,
            Role::Other,
            &parts,
            &mut Workspace::new(device, 0)?,
        )?;
    }
    let read = |flat: &FlatBuffer, dtype: DType| {
        let mut values = vec![0.0; n];
        transfer::load(flat, 0, dtype, &mut values).map(|()| values)
    };
    let exact = read(master.as_ref().unwrap_or(&weights), DType::F32)?;
    let mut values = vec![("weights".to_owned(), exact)];
    for (i, state) in states.iter().enumerate() {
        values.push((format!("state {i}"), read(state, DType::F32)?));
    }
    values.push(("working copy".to_owned(), read(&weights, place.dtype)?));
    Ok(values)
}
