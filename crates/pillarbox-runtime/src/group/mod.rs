//! Groups of loops: several loops in one process that are started, watched and stopped together.
//!
//! ```text
//!              ┌─ supervisor ─ loop "orders"      (restarted when it fails)
//!  LoopGroup ──┼─ supervisor ─ loop "orders-dlq"
//!              ├─ supervisor ─ task "http"        (other work of the program)
//!              ├─ watchdog     (a thread: detects stuck loops, notifies systemd)
//!              └─ health       (a thread: /health/live, /health/ready, /metrics)
//! ```

#[cfg(feature = "health")]
mod connections;
mod control;
mod dead_letter_checks;
mod health;
#[cfg(feature = "health")]
mod http;
mod loop_group;
#[cfg(feature = "health")]
mod prometheus;
mod registry;
mod report;
mod restart;
mod running;
mod stuck;
mod supervisor;
mod systemd;
mod task;
mod watchdog;

#[cfg(feature = "health")]
pub use metrics_exporter_prometheus::PrometheusHandle;

pub use control::GroupControl;
pub use health::{DeadLettersHealth, DlqDepth, GroupStatus, LoopHealth, LoopState, Readiness};
pub use loop_group::LoopGroup;
pub use report::{GroupError, GroupReport, LoopReport};
pub use restart::Restart;
pub use running::RunningGroup;
pub use stuck::Stuck;
pub use task::{StopSignal, Task};
