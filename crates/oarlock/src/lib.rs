//! Oarlock.
