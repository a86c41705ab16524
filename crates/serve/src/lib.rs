//! A server of language models: OpenAI's API over HTTP, in front of any [`Backend`].
//!
//! It knows requests, streams and limits, and no models. A backend renders conversations, makes tokens and answers; its
//! threads are its own, and need no runtime. [`serve`] runs the server until it is told to end.
//!
//! This model answers each prompt with the prompt, byte by byte:
//!
//! ```no_run
//! use std::net::TcpListener;
//! use std::sync::Arc;
//!
//! use oarlock_serve::{
//!     AnswerFormat, Backend, Call, Conversation, DEFAULT_HOST, DEFAULT_PORT, Event, EventSender, Finished, Model,
//!     Options, Prompt, Refusal, Request, Sampling, StopReason, Token, Tool, serve, stop,
//! };
//!
//! struct Echo;
//!
//! impl Backend for Echo {
//!     fn models(&self) -> Vec<Model> {
//!         let (name, fingerprint) = ("echo".to_owned(), "fp_1".to_owned());
//!         let (created, context_length) = (0, 1024);
//!         vec![Model { name, parent: None, created, context_length, sampling: Sampling::OPENAI, fingerprint }]
//!     }
//!
//!     fn render(&self, _: &str, conversation: &Conversation) -> Result<Prompt, Refusal> {
//!         let text: String = conversation.messages.iter().map(|message| message.content.as_str()).collect();
//!         Ok(Prompt { ids: text.bytes().map(u32::from).collect(), text, format: AnswerFormat::default() })
//!     }
//!
//!     fn tokenize(&self, _: &str, text: &str, _: bool) -> Result<Vec<u32>, Refusal> {
//!         Ok(text.bytes().map(u32::from).collect())
//!     }
//!
//!     fn detokenize(&self, _: &str, ids: &[u32]) -> Result<Vec<Vec<u8>>, Refusal> {
//!         Ok(ids.iter().map(|id| vec![*id as u8]).collect())
//!     }
//!
//!     fn calls(&self, _: &str, _: &str, _: &[Tool]) -> Option<Vec<Call>> {
//!         None
//!     }
//!
//!     fn submit(&self, request: Request, mut events: EventSender) -> Result<(), Refusal> {
//!         std::thread::spawn(move || {
//!             for id in request.ids.iter().take(request.max_tokens) {
//!                 let token = Token { id: *id, bytes: vec![*id as u8], logprob: None, top: Vec::new() };
//!                 if events.send(Event::Token(token)).is_err() {
//!                     return; // The client has gone.
//!                 }
//!             }
//!             let end = Finished { reason: StopReason::Stop, n_cached_tokens: 0, timings: None };
//!             _ = events.send(Event::Finished(end));
//!         });
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = TcpListener::bind((DEFAULT_HOST, DEFAULT_PORT))?;
//! let (stop, stopped) = stop(); // `stop.stop()` ends the server, from any thread.
//! # let _ = stop;
//! serve(listener, Arc::new(Echo), Options::local(), stopped)?;
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
mod form;
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
pub use form::{CallForm, Form, ReadForm, Schema, TextForm};
pub use options::{ApiKey, DEFAULT_HOST, DEFAULT_PORT, Limits, Options};
pub use server::{Ended, ServeError, Stop, serve, stop};
