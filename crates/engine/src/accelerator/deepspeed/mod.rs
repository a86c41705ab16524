//! DeepSpeed's shape of a training: `initialize`, its engine, `zero`.
//!
//! ```
//! use oarlock::deepspeed::{self, Config, InitializeArgs};
//! use oarlock::nn::{self, Forward, Linear, Module};
//! use oarlock::Tensor;
//!
//! #[derive(Module)]
//! struct Net {
//!     head: Linear,
//! }
//!
//! impl Forward<Tensor> for Net {
//!     type Output = Tensor;
//!     fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
//!         self.head.forward(x)
//!     }
//! }
//!
//! # fn main() -> oarlock::Result<()> {
//! let config = Config::from_text("ds.json", r#"{
//!     "train_batch_size": 2,
//!     "optimizer": { "type": "AdamW", "params": { "lr": 0.01 } },
//!     "zero_optimization": { "stage": 2 },
//! }"#)?;
//! let net = Net { head: Linear::normal(4, 1, true, 0.1)? };
//! let (engine, ()) = deepspeed::initialize(InitializeArgs::new(net, config))?;
//! for _step in 0..3 {
//!     let x = Tensor::from_slice(&[0.5f32; 8], [2, 4], engine.device())?;
//!     let loss = engine.forward(&x)?.square()?.mean_all()?;
//!     engine.backward(&loss)?;
//!     engine.step()?;
//! }
//! assert_eq!(engine.global_steps(), 3);
//! # Ok(())
//! # }
//! ```

mod checkpoint;
mod engine;
mod initialize;
mod pipeline;
pub mod zero;

pub use engine::DeepSpeedEngine;
pub use initialize::{InitializeArgs, initialize};
pub use oarlock_config::dialect::{DeepSpeedArgs, DeepSpeedConfig as Config};
pub use pipeline::{LayerSpec, PipelineEngine, PipelineModule, TiedLayerSpec, initialize_pipeline};
