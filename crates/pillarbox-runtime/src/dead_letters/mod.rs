//! Dead letters: messages that are not retried any more.
//!
//! | subject | item |
//! |---|---|
//! | when a failed message becomes a dead letter, and where it is sent | [`DlqPolicy`] (`policy.rs`, `rules.rs`, `destination.rs`) |
//! | whether a retry may succeed | [`ErrorClass`], [`Classify`] (`error_class.rs`) |
//! | the stored form | [`DeadLetter`] (`dead_letter.rs`) |
//! | inspection, retention, health | [`Dlq`] (`dlq.rs`), [`Summary`] (`summary.rs`) |
//! | replaying and discarding | [`Pass`] (`pass/`, `replay.rs`) |
//!
//! `DlqConsumer`, a worker pool that handles dead letters, is in the module `dlq_consumer`.

mod dead_letter;
mod destination;
mod dlq;
mod error_class;
pub(crate) mod metrics;
mod pass;
mod policy;
mod replay;
mod rules;
mod summary;

pub use dead_letter::{DeadLetter, DeadLetterCodec, DeadLetterInfo};
pub(crate) use dlq::backend_time;
pub use dlq::{Dlq, DlqHealth, DlqLimits, DlqStatus, PeekedDeadLetter};
pub use error_class::{Classify, ErrorClass};
pub(crate) use pass::report_processed;
pub use pass::{Pass, PassFailed, PassReport};
pub use policy::DlqPolicy;
pub(crate) use replay::{DEFAULT_MAX_REPLAYS, send_back};
pub(crate) use rules::Rules;
pub use rules::{Decide, Decision, FailedDelivery};
pub use summary::{ErrorGroup, Summary};
