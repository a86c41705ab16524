//! Layers one after the other.
