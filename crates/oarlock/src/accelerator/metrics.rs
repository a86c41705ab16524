//! `gather_for_metrics`: every sample once, in order, whatever the loaders repeated.
