//! Requests and replies: a loop that answers requests, and its client.
//!
//! ```text
//!  client ── send ──► requests ──► main loop: adapter ── send reply ──► the client's own mailbox ──► client
//!                                      then acknowledge
//! ```
//!
//! A [`MainLoop`] is a [`Worker`](crate::Worker) with the service in `answering.rs`. A [`Client`] is a mailbox for
//! replies and a table of waiters.

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
/// The id of requests.
pub use uuid::Uuid;
