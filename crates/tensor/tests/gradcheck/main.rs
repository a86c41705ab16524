//! Every op of the tape against a plain f64 reference: its values, and its gradients against finite differences of
//! that reference, for each dtype on each code path of this CPU; and what the tape promises around them.

#![allow(clippy::disallowed_methods, reason = "what is expected is compared within tolerances")]

mod attention;
mod common;
mod compare;
mod conv;
mod conv_transpose;
mod create;
mod custom;
mod einsum;
mod elementwise;
mod fused;
mod fused_products;
mod gpu;
mod gpu_cost;
mod gpu_forms;
mod gpu_memory;
mod gpu_norms;
mod gpu_steps;
mod gpu_waits;
mod head;
mod indices;
mod layout;
mod losses;
mod operators;
mod pinned;
mod pool;
mod products;
mod quantized;
mod recompute;
mod reduce;
mod resample;
mod shapes;
mod slices;
mod sorting;
mod statistics;
mod steps;
mod tape;
