//! Every op of the tape against a plain f64 reference: its values, and its gradients against finite differences of
//! that reference, for each dtype on each code path of this CPU; and what the tape promises around them.

mod attention;
mod common;
mod conv;
mod einsum;
mod elementwise;
mod fused;
mod head;
mod indices;
mod layout;
mod losses;
mod pool;
mod products;
mod recompute;
mod reduce;
mod shapes;
mod slices;
mod sorting;
mod steps;
mod tape;
