//! Messages that are not tried again: when, where they go, and what becomes of them.
//!
//! | to find | look at |
//! |---|---|
//! | when a failed message becomes a dead letter, and where it goes | [`DlqPolicy`] (`policy.rs`) |
//! | whether an error is worth another try | [`ErrorClass`], [`Classify`] (`class.rs`) |
//! | what is stored | [`DeadLetter`] (`letter.rs`) |
//! | looking, replaying, discarding, counting, health | [`Dlq`] (`dlq.rs`, `pass.rs`, `replay.rs`, `paging.rs`, `summary.rs`) |
//! | a program that handles dead letters | [`DlqConsumer`] (`consumer.rs`; `left.rs` for those that it leaves) |

mod class;
mod consumer;
mod dlq;
mod left;
mod letter;
mod metrics;
mod paging;
mod pass;
mod policy;
mod replay;
mod summary;

pub use class::{Classify, ErrorClass};
pub use consumer::{DlqAction, DlqConsumer, IntoDlqAction};
pub use dlq::{Dlq, DlqHealth, DlqLimits, DlqStatus, Found};
pub use letter::{DeadLetter, Letters};
pub(crate) use letter::{REQUEST_ID, cut, original_id, replays, request_id};
pub use pass::{Pass, PassFailed, Report};
pub(crate) use policy::Rules;
pub use policy::{Decide, Decision, DlqPolicy, FailedDelivery};
pub use summary::{ErrorGroup, Summary};
