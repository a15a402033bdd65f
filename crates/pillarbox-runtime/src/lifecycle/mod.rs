//! The life of a process: several loops that begin, are watched, and end together.
//!
//! ```text
//!              ┌─ supervisor ─ loop "orders"      (made anew when it fails)
//!  LoopGroup ──┼─ supervisor ─ loop "orders-dlq"
//!              ├─ supervisor ─ task "http"        (the program's own)
//!              ├─ watchdog     (a thread: is one of them stuck? tells systemd)
//!              └─ health       (a thread: /health/live, /health/ready, /metrics)
//! ```

mod checks;
#[cfg(feature = "health")]
mod connections;
mod control;
mod group;
mod health;
#[cfg(feature = "health")]
mod http;
#[cfg(feature = "health")]
mod prometheus;
mod pulse;
mod report;
mod restart;
mod roster;
mod supervisor;
mod systemd;
mod task;
mod watchdog;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "health")]
pub use metrics_exporter_prometheus::PrometheusHandle;

pub use control::GroupControl;
pub use group::{LoopGroup, RunningGroup};
pub use health::{DeadLettersHealth, DlqDepth, GroupStatus, LoopHealth, LoopState, Readiness};
pub(crate) use pulse::{Pulse, Slot};
pub use report::{GroupError, GroupReport, LoopReport};
pub use restart::Restart;
pub use task::{StopSignal, Task};
pub use watchdog::Stuck;

/// What is locked here is whole at all times, also where somebody panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
