//! The memory backend keeps the contract.

use pillarbox_core::{Mailboxes, MemoryBackend, MessageId};
use pillarbox_testing::Subject;

/// A backend with a unique name. One handle is kept open, because a memory backend is deleted with the last of its
/// handles; opening it again by its name simulates a restart.
fn subject() -> Subject {
    let name = MessageId::new().to_string();
    let kept = MemoryBackend::named(&name);
    let backend = Mailboxes::new(MemoryBackend::named(&name));
    Subject::with_paused_time(backend).with_restart(move || {
        let _ = &kept;
        let again = Mailboxes::new(MemoryBackend::named(&name));
        async move { again }
    })
}

pillarbox_testing::conformance!(subject());
