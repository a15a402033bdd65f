//! Test doubles of mailboxes.

mod collecting;
mod fake;
mod null;

pub use collecting::CollectingMailbox;
pub use fake::{FakeMailbox, Injected};
pub use null::NullMailbox;
