//! The SQLite suite: queues in a file that survives.
//!
//! | case | what it asks |
//! |---|---|
//! | bodies of 16 and 256 KiB | what a cycle costs when the bytes themselves cost something |
//! | durable send | how long a caller waits until its message cannot be lost |
//! | backlog | whether a long queue makes each message dearer |
//! | leases that have ended | what a dead consumer with many messages costs its heir |
//! | 2 and 4 processes | what is left when processes take turns, and whether one of them starves |
//! | a receiver that waits | how soon it has a message from another process, and what it costs to wait |
//! | after SIGKILL | how soon a full file can be used again |
//!
//! The limit is a log that only appends (see `log`), which says in its module what it leaves out. Where
//! ours is compared with itself, the ratio is what the difference costs. Peers and the number of callers are
//! on the curves.
//!
//! All wait for the disk, so the figures tell of the disk first. How long a sync takes is printed
//! before each case: where it takes long, all are nearer to each other; where it is quick, the work
//! shows. Some disks, those of virtual machines above all, answer before anything is safe, and some
//! change their pace by the minute: a ratio whose rounds lie far apart, as printed after each case,
//! says nothing. To hold the pace, let `strace` delay every sync:
//!
//! ```text
//! strace -f --seccomp-bpf -e trace=fsync,fdatasync -e inject=fsync,fdatasync:delay_enter=4000 \
//!     -o /dev/null pillarbox-bench sqlite
//! ```

pub(crate) mod apalis;
mod backlog;
mod child;
pub(crate) mod cycle;
mod expiry;
mod load;
pub(crate) mod log;
pub(crate) mod one_by_one;
mod ours;
mod processes;
mod reopen;
mod wake;

use std::time::Duration;

use pillarbox_sqlite::Synchronous;

use self::backlog::Backlog;
pub(crate) use self::child::Child;
use crate::measure::{Case, Plan, Result};
use crate::place;
use crate::report::Report;

const SUITE: &str = "sqlite";

/// Runs all cases.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    place::warn_if_in_memory();
    let mut add = |case: Case| -> Result<()> {
        if !plan.wants(case.name()) {
            return Ok(());
        }
        place::tell_sync_time(SUITE)?;
        report.add(case.run(SUITE, plan.rounds())?);
        Ok(())
    };
    for kibibytes in [16, 256] {
        add(cycle::bodies(plan, kibibytes))?;
    }
    for callers in [1, 64] {
        add(cycle::latency(plan, callers))?;
    }
    if plan.wants("backlog") {
        let backlog = Backlog::new(plan)?;
        for synchronous in [Synchronous::Full, Synchronous::Normal] {
            add(backlog.case(synchronous)?)?;
        }
    }
    add(expiry::case(plan))?;
    for processes in [2, 4] {
        add(processes::case(plan, processes))?;
    }
    add(wake::latency(plan))?;
    add(wake::idle(plan))?;
    if plan.wants("SIGKILL") {
        add(reopen::case(plan)?)?;
    }
    Ok(())
}

/// How long a run takes whose figure is a rate or a latency. By time and not by count, for disks
/// differ by more than anything that is measured here.
fn window(plan: &Plan) -> Duration {
    plan.pick(Duration::from_millis(1500), Duration::from_millis(40))
}
