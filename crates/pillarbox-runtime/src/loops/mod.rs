//! Requests and their answers: a loop that answers them, a client that asks.
//!
//! ```text
//!  client ── send ──► requests ──► main loop: adapter ── send reply ──► the client's own mailbox ──► client
//!                                      then acknowledge
//! ```
//!
//! A [`MainLoop`] is a [`Worker`](crate::Worker) whose handler is made of the rules in `answering.rs`; a
//! [`Client`] is a mailbox for replies, and a table of those who wait for one.

mod adapter;
mod answering;
mod client;
mod extensions;
mod main_loop;
mod message;
mod run;
mod sweep;

pub use adapter::{Adapter, AdapterService, IntoOutput};
pub use client::{CallError, Client, Submission};
pub use extensions::Extensions;
pub use main_loop::MainLoop;
pub use message::{
    Budget, MainLoopRequest, MainLoopResult, RemoteError, RemoteErrorKind, Resources,
};
pub use run::{LoopCall, NotRegistered, Run};
pub use sweep::{Swept, sweep_replies};
