//! A model that is divided over ranks by what it computes: its layers in stages ([`pipeline`]), each sequence in parts
//! ([`sequence_parallel`]). How its state is divided is a matter of [`shard`](crate::shard) and independent of it.

pub mod pipeline;
pub mod sequence_parallel;
