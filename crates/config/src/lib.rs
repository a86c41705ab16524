//! What a training run is configured by, below everything that runs it: [`config`] has the plain values, and [`settings`]
//! reads them from the configurations of other programs (DeepSpeed's JSON, FSDP's in the terms of Accelerate), each value with
//! its location; [`json`] reads JSON in which a key stands once. Misspelled names find the nearest one ([`nearest`]), also where letters only look alike ([`lookalikes`]).

pub mod config;
pub mod json;
pub mod lookalikes;
pub mod nearest;
pub mod settings;
