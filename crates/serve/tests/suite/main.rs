//! The server in front of a backend that only pretends, asked over sockets as any client does.

mod access;
mod agents;
mod chat;
mod client;
mod completions;
mod fake;
mod forms;
mod life;
mod limits;
mod mutated;
mod others;
mod stream;
