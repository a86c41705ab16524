//! temp
use super::{Cpu, Store};
use crate::dtype::Float;
pub fn add<T: Float>(_c: &Cpu, a: &[T], b: &[T], y: &mut [T]) { for ((y, a), b) in y.iter_mut().zip(a).zip(b) { *y = T::from_f32(a.to_f32() + b.to_f32()); } }
pub fn add_in_place<T: Float>(_c: &Cpu, y: &mut [T], a: &[T]) { for (y, a) in y.iter_mut().zip(a) { *y = T::from_f32(a.to_f32() + y.to_f32()); } }
pub fn add_bias<T: Float>(_c: &Cpu, y: &mut [T], b: &[T]) { for r in y.chunks_mut(b.len()) { for (y, b) in r.iter_mut().zip(b) { *y = T::from_f32(y.to_f32() + b.to_f32()); } } }
pub fn bias_grad_scratch(_r: usize, _d: usize) -> usize { 0 }
pub fn bias_grad<T: Float>(_c: &Cpu, dy: &[T], d: &mut [f32], s: Store, _scratch: &mut [f32]) { if s == Store::Overwrite { d.fill(0.0) } for r in dy.chunks(d.len()) { for (d, y) in d.iter_mut().zip(r) { *d += y.to_f32(); } } }
pub fn cast<A: Float, B: Float>(_c: &Cpu, x: &[A], y: &mut [B]) { for (y, x) in y.iter_mut().zip(x) { *y = B::from_f32(x.to_f32()); } }
