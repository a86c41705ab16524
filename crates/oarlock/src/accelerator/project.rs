//! Where a project keeps its checkpoints, and what they are called.
