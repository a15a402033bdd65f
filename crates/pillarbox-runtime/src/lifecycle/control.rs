//! Telling a group of loops what to do, and asking how it is.

use std::fmt;
#[cfg(feature = "health")]
use std::net::SocketAddr;
use std::sync::Arc;

use super::health::Readiness;
use super::roster::Roster;
use super::watchdog::Stuck;
use crate::control::{Control, Stop};
use crate::signals::Stops;

/// Controls a group of loops. Cheap to clone.
#[derive(Clone)]
pub struct GroupControl {
    roster: Arc<Roster>,
}

impl GroupControl {
    pub(super) const fn new(roster: Arc<Roster>) -> Self {
        Self { roster }
    }

    /// Stops all loops for good, at the same time: each lets what is running come to an end, for as long as
    /// it has, and all together for as long as [`drain_for`](super::LoopGroup::drain_for) says.
    pub fn stop(&self) {
        self.roster.stop(Stop::Graceful);
    }

    /// Stops all loops for good, now: what is running is cancelled and given back.
    pub fn stop_now(&self) {
        self.roster.stop(Stop::Now);
    }

    /// What the loops are called, in the order in which they were added.
    pub fn names(&self) -> Vec<String> {
        self.roster.names()
    }

    /// Controls one loop, by its name. One that was made anew has a new control; one that is
    /// [made by a function](super::LoopGroup::add_with) has none before the group runs.
    pub fn control_of(&self, name: &str) -> Option<Control> {
        self.roster.control(name)
    }

    /// Whether the group does its work: what `/health/ready` answers.
    pub async fn readiness(&self) -> Readiness {
        self.roster.readiness().await
    }

    /// What is stuck now: what `/health/live` answers.
    pub fn stuck(&self) -> Vec<Stuck> {
        self.roster.stuck()
    }

    /// Where health is told, once the group runs: also where
    /// [port 0](super::LoopGroup::health_addr) let the system choose.
    #[cfg(feature = "health")]
    pub fn health_addr(&self) -> Option<SocketAddr> {
        self.roster.address.get().copied()
    }
}

impl Stops for GroupControl {
    fn stop(&self) {
        Self::stop(self);
    }

    fn stop_now(&self) {
        Self::stop_now(self);
    }
}

impl fmt::Debug for GroupControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GroupControl").field(&self.names()).finish()
    }
}
