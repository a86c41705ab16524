//! A Chrome trace of each rank.
