//! Seeds of everything that is drawn.
