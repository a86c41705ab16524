//! What a training run is configured by, below everything that runs it. [`settings`] says how settings are written and
//! resolved, each with its location; [`config`] has the plain values with their keys; [`dialect`] reads the configurations of
//! other programs (DeepSpeed's JSON, FSDP's in the terms of Accelerate). [`json`] reads JSON in which a key stands once. Misspelled
//! names find the nearest one ([`nearest`]), also where letters only look alike ([`lookalikes`]).

pub mod config;
pub mod dialect;
pub mod json;
pub mod json_edit;
pub mod lookalikes;
pub mod nearest;
pub mod settings;
