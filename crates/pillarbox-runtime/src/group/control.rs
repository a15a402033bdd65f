//! The handle that controls a group of loops.

use std::fmt;
#[cfg(feature = "health")]
use std::net::SocketAddr;
use std::sync::Arc;

use super::health::Readiness;
use super::registry::Registry;
use super::stuck::Stuck;
use crate::control::Control;
use crate::desired_state::Stop;

/// A handle that controls a group of loops. Cheap to clone.
#[derive(Clone)]
pub struct GroupControl {
    registry: Arc<Registry>,
}

impl GroupControl {
    pub(super) const fn new(registry: Arc<Registry>) -> Self {
        Self { registry }
    }

    /// Stops all loops at the same time. Each finishes what is running within its own drain time, and all together
    /// within that of the [group](super::LoopGroup::drain_for).
    pub fn stop(&self) {
        self.registry.stop(Stop::Graceful);
    }

    /// Stops all loops now: what is running is cancelled, and its messages are released.
    pub fn stop_now(&self) {
        self.registry.stop(Stop::Now);
    }

    /// Returns the names of the loops, in the order in which they were added.
    pub fn names(&self) -> Vec<String> {
        self.registry.names()
    }

    /// Returns the control of one loop. A restarted loop has a new control, and one that is
    /// [made by a function](super::LoopGroup::add_with) has none before the group runs.
    pub fn control_of(&self, name: &str) -> Option<Control> {
        self.registry.control(name)
    }

    /// Returns the readiness of the group, as `/health/ready` does.
    pub async fn readiness(&self) -> Readiness {
        self.registry.readiness().await
    }

    /// Returns what is stuck now, as `/health/live` does.
    pub fn stuck(&self) -> Vec<Stuck> {
        self.registry.stuck()
    }

    /// Returns the address of the health server while the group runs, also if the system chose the
    /// [port](super::LoopGroup::health_addr).
    #[cfg(feature = "health")]
    pub fn health_addr(&self) -> Option<SocketAddr> {
        self.registry.address.get().copied()
    }
}

impl fmt::Debug for GroupControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GroupControl").field(&self.names()).finish()
    }
}
