//! The clock of the machine that the file is on.

use pillarbox_core::{BoxFuture, Clock, Timestamp};

/// The wall clock, the one clock that all processes of a machine share and that goes on over a
/// restart.
///
/// When it is set back, leases and delays last that much longer; when it is set forward, they end
/// that much earlier. Neither loses a message, and neither lets a stale receipt settle.
#[derive(Debug)]
pub(crate) struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(deadline.since(self.now())))
    }
}
