//! The contract of Pillarbox: durable mailboxes with SQS semantics, the same on every backend.
//!
//! Most programs use the `pillarbox` crate, which re-exports this one. Depend on this crate to write a backend, a
//! tool or a test double.
//!
//! | subject | items |
//! |---|---|
//! | typed mailboxes, for users | [`Mailbox`], [`Message`], [`Batch`], [`Mailboxes`] |
//! | traits of a backend | [`Queue`], [`Backend`], [`Capabilities`] |
//! | executable specification of the contract | [`ledger::Ledger`] |
//! | in-memory backend | [`MemoryBackend`] |
//! | encoding of bodies | [`Codec`] |
//! | reply addresses | [`MailboxResolver`] |
//! | time | [`Clock`] |
//! | events within a process | [`events::Dispatcher`] |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attributes;
mod capabilities;
pub mod clock;
pub mod codec;
mod counts;
mod diagnosis;
mod error;
pub mod events;
mod future;
mod gate;
mod id;
#[doc(hidden)]
pub mod internal;
pub mod ledger;
mod mailbox;
mod memory;
mod message;
mod name;
mod options;
mod parse;
mod queue;
mod readable;
mod receipt;
mod settle;

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
pub use future::{BoxFuture, OperationFuture};
pub use gate::Gate;
pub use id::MessageId;
pub use mailbox::{
    Batch, BatchResults, Factory, Leased, Mailbox, MailboxBuilder, MailboxResolver, Mailboxes,
    Message, NoReplies, Peek, Registry, RegistryThenFactory, Undecodable,
};
pub use memory::MemoryBackend;
pub use message::{Cursor, Delivery, MessageState, Outgoing, PeekPage, Peeked, RawMessage, Sent};
pub use name::QueueName;
pub use options::{Partitions, QueueOptions, Receive, Redrive, SendOptions};
pub use queue::{Backend, Queue};
pub use readable::{BodyEncoding, ReadableBody};
pub use receipt::{Nonce, Receipt};
pub use settle::{Settle, SettleAction};
