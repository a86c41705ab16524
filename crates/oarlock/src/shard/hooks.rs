//! Where the engine is called from inside a pass: by units, by the tape, and by ops that want a weight or have a gradient.

use std::sync::{Arc, Weak};

use oarlock_tensor::{FlatParams, GradSlot, ParamHome, Result as TensorResult, Tensor, UnitHook};

use crate::error::{Error, Result};
use crate::shard::passes::Core;

/// What the tape and the units call.
pub(super) struct Hook {
    pub core: Weak<Core>,
    pub unit: usize,
}

/// What a tape calls around a whole pass.
pub(super) struct PassHook(pub Weak<Core>);

/// Runs `f` on a core where anything moves at all.
fn call(core: &Weak<Core>, f: impl FnOnce(&Core) -> Result<()>) -> TensorResult<()> {
    let Some(core) = core.upgrade() else {
        return Err(oarlock_tensor::Error::Usage("the model's optimizer is gone".to_string()));
    };
    if core.is_still() {
        return Ok(());
    }
    f(&core).map_err(|error| match error {
        Error::Tensor(error) => error,
        error => oarlock_tensor::Error::Hook(Box::new(error)),
    })
}

impl UnitHook for Hook {
    fn before_forward(&self, trains: bool) -> TensorResult<()> {
        call(&self.core, |core| core.before_forward(self.unit, trains))
    }
    fn after_forward(&self, _trains: bool) -> TensorResult<()> {
        call(&self.core, |core| core.after_forward(self.unit))
    }
    fn before_backward(&self) -> TensorResult<()> {
        call(&self.core, |core| core.before_backward(self.unit))
    }
    fn after_backward(&self) -> TensorResult<()> {
        call(&self.core, |core| core.after_backward(self.unit))
    }
}

impl UnitHook for PassHook {
    fn before_forward(&self, _trains: bool) -> TensorResult<()> {
        Ok(())
    }
    fn after_forward(&self, _trains: bool) -> TensorResult<()> {
        Ok(())
    }
    fn before_backward(&self) -> TensorResult<()> {
        Ok(())
    }
    fn after_backward(&self) -> TensorResult<()> {
        call(&self.0, Core::finish_backward)
    }
}

/// The home of a parameter: its group's buffers, with a place for gradients made when the first comes.
pub(super) struct Home {
    pub core: Weak<Core>,
    pub group: usize,
    pub params: Arc<FlatParams>,
}

impl ParamHome for Home {
    fn weight(&self, index: usize) -> TensorResult<Tensor> {
        self.params.weight(index)
    }

    fn grad(&self, index: usize) -> TensorResult<Option<GradSlot>> {
        if self.params.trainable(index)
            && self.params.grads().is_none()
            && let Some(core) = self.core.upgrade()
        {
            core.open_slot(self.group).map_err(|error| oarlock_tensor::Error::Hook(Box::new(error)))?;
        }
        self.params.grad(index)
    }

    fn trainable(&self, index: usize) -> bool {
        self.params.trainable(index)
    }
}
