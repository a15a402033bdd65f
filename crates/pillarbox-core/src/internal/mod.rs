//! Helpers that the crates of this workspace share. Not part of the public API: they change without notice.

mod batch_sizer;
mod emptiness;
mod lock;
mod panic_text;
mod retry_delay;

pub use batch_sizer::BatchSizer;
pub use emptiness::Emptiness;
pub use lock::lock;
pub use panic_text::panic_text;
pub use retry_delay::RetryDelay;
