//! The contract of Pillarbox: durable mailboxes with SQS semantics, the same on every backend.
//!
//! Most programs use the `pillarbox` crate, which re-exports what they need from here. This crate
//! is for those who write a backend, a tool or a test double.
//!
//! | to find | look at |
//! |---|---|
//! | what users hold | [`Mailbox`], [`Message`], [`Batch`], [`Mailboxes`] |
//! | what a backend writes | [`Queue`], [`Backend`], [`Capabilities`] |
//! | what the rules mean, exactly | [`lease::Ledger`] |
//! | the backend in memory | [`MemoryBackend`] |
//! | how bodies become bytes | [`Codec`] |
//! | where replies go | [`MailboxResolver`] |
//! | time | [`Clock`] |
//! | events within a process | [`events::Dispatcher`] |

mod attributes;
mod capabilities;
pub mod clock;
pub mod codec;
mod counts;
mod diagnosis;
mod error;
pub mod events;
mod gate;
mod id;
#[doc(hidden)]
pub mod internal;
pub mod lease;
mod mailbox;
mod memory;
mod name;
mod options;
mod queue;
mod readable;
mod receipt;

pub use attributes::Attributes;
pub use capabilities::Capabilities;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
#[cfg(feature = "msgpack")]
pub use codec::MessagePack;
pub use codec::{Codec, Json, Raw};
pub use counts::Counts;
pub use diagnosis::{Diagnosis, Fact, Finding, Repair, Severity};
#[doc(hidden)]
pub use error::__fmt_error;
pub use error::{Cause, Error, Result};
pub use gate::Gate;
pub use id::MessageId;
pub use mailbox::{
    Batch, BatchResults, Factory, Leased, Mailbox, MailboxBuilder, MailboxResolver, Mailboxes,
    Message, NoReplies, Peek, Registry, RegistryThenFactory, Undecodable,
};
pub use memory::MemoryBackend;
pub use name::QueueName;
pub use options::{Receive, SendOptions};
pub use queue::{
    Backend, BoxFuture, Cursor, Delivery, MessageState, Outgoing, Partitions, PeekPage, Peeked,
    Queue, QueueOptions, RawMessage, Redrive, Sent, Settle, SettleAction,
};
pub use readable::{BodyEncoding, ReadableBody};
pub use receipt::{Nonce, Receipt};
