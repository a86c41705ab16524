//! Steps: the accumulation window before one, prepared optimizers and schedulers, local SGD.

pub(crate) mod accumulation;
pub(crate) mod gradient_state;
pub(crate) mod loaders;
pub(crate) mod local_sgd;
pub(crate) mod optimizer;
pub(crate) mod scheduler;
pub(crate) mod window;
