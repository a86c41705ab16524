//! Data sets and loaders of a loop of one's own, divided among the ranks.
