//! Activations as layers.
