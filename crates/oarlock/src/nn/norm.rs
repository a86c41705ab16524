//! Norms.
