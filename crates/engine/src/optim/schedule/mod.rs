//! The learning rate of every optimizer step: pure formulas, those of transformers, MiniMind and DeepSpeed.

mod course;
mod deepspeed;
mod minimind;
mod rates;
mod transformers;

pub use course::Schedule;
