//! A server of language models: OpenAI's API over HTTP, in front of any [`Backend`].
//!
//! It knows requests, streams and limits, and no models. A backend renders conversations, makes tokens and answers; its
//! threads are its own, and need no runtime. [`serve`] runs the server until it is told to end.
//!
//! ```no_run
//! # fn model() -> std::sync::Arc<dyn oarlock_serve::Backend> { unreachable!() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use oarlock_serve::{DEFAULT_HOST, DEFAULT_PORT, Options, serve, stop};
//!
//! let listener = std::net::TcpListener::bind((DEFAULT_HOST, DEFAULT_PORT))?;
//! let (stop, stopped) = stop(); // `stop.stop()` ends the server, from any thread.
//! # let _ = stop;
//! serve(listener, model(), Options::local(), stopped)?;
//! # Ok(())
//! # }
//! ```

mod ask;
mod backend;
mod body;
mod connection;
mod conversation;
mod delta;
mod error;
mod events;
mod fields;
mod gate;
mod hosts;
mod ids;
mod metrics;
mod options;
mod reply;
mod request;
mod routes;
mod run;
mod sequence;
mod server;
mod state;
mod text;

pub use backend::{
    AnswerFormat, Backend, CallMarks, Model, Numbers, Prompt, Refusal, Request, Sampling, ThoughtMarks,
};
pub use conversation::{Call, Conversation, Message, Role, Tool};
pub use events::{Alternative, Canceled, Event, EventSender, Finished, StopReason, Timings, Token};
pub use options::{ApiKey, DEFAULT_HOST, DEFAULT_PORT, Limits, Options};
pub use server::{Ended, ServeError, Stop, serve, stop};
