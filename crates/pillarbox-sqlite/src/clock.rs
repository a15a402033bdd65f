//! The clock of the machine that the database is on.

use pillarbox_core::{BoxFuture, Clock, Timestamp};

/// The wall clock, the only one that all processes of a machine share and that continues after a reboot.
///
/// When it is set back, leases and delays last that much longer; when it is set forward, they end that much
/// earlier. Neither loses a message or makes a stale receipt valid.
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
