//! Losses.
