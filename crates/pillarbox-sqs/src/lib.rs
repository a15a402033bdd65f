//! Pillarbox mailboxes on AWS SQS: a thin mapping, in batches of ten.
//!
//! ```no_run
//! use pillarbox_core::{Mailbox, Mailboxes};
//! use pillarbox_sqs::{SqsBackend, SqsOptions};
//!
//! # async fn run() -> pillarbox_core::Result<()> {
//! let options = SqsOptions::from_url("sqs://eu-central-1/shop-")?;
//! let backend = Mailboxes::new(SqsBackend::open(options).await?);
//! let jobs: Mailbox<String> = backend.mailbox("jobs")?; // The queue `shop-jobs`.
//! jobs.send(&"sweep the floor".to_owned()).await?;
//! # Ok(()) }
//! ```
//!
//! Programs that use the `pillarbox` crate open it by URL, with the feature `sqs`.
//!
//! # Mapping
//!
//! | in Pillarbox | on SQS |
//! |---|---|
//! | send | `SendMessageBatch` |
//! | receive | `ReceiveMessage`, with a long poll of up to 20 s |
//! | acknowledge | `DeleteMessageBatch` |
//! | nack, extend | `ChangeMessageVisibilityBatch` |
//! | purge | `PurgeQueue`, at most once in 60 s |
//! | counts | `GetQueueAttributes`, approximate |
//! | attributes | `MessageAttributes` |
//! | id | the attribute `pillarbox.id`; for messages of other programs, the id of SQS |
//! | reply address | the attribute `pillarbox.reply_to`: the name of a queue, or its URL |
//! | delivery count | `ApproximateReceiveCount` |
//! | time of sending | `SentTimestamp`, or the attribute `pillarbox.enqueued_at` of a message that was moved |
//! | a body that is not text | base64, marked by the attribute `pillarbox.encoding` |
//!
//! The capabilities state which rules of the contract SQS cannot keep; `docs/sqs.md` in the repository lists what that
//! means for a program.

mod attributes;
mod backend;
mod diagnose;
mod failure;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod limits;
mod options;
mod polls;
mod queue;
mod redrive;
mod service;
mod wire;

pub use attributes::TYPES;
pub use aws_sdk_sqs;
pub use backend::SqsBackend;
pub use options::SqsOptions;
