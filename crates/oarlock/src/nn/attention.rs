//! Multi-head attention.
