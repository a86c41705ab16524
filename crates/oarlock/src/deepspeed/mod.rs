//! DeepSpeed's shape of a training: `initialize`, its engine, `zero`.
