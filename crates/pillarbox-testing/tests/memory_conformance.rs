//! The memory backend keeps the contract.

use pillarbox_core::{Mailboxes, MemoryBackend};
use pillarbox_testing::Subject;

pillarbox_testing::conformance!(Subject::with_paused_time(Mailboxes::new(MemoryBackend::new())));
