//! The program `oarlock`: its commands and those of other programs, the launcher, and what turns texts into
//! configurations. All that trains is the library [`oarlock`].

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests compare within tolerances"))]

pub mod commands;
pub mod config;
mod console;
mod error;
pub mod front;
pub mod import;
pub mod launch;
mod plots;
mod serving;
