//! What can be run beside others in a process.

use pillarbox_core::{BoxFuture, Result};

use crate::control::Control;
use crate::stats::StatsSnapshot;
use crate::worker::ReadyWorker;

/// Something that works until it is stopped: [`Worker`](crate::Worker)s, and what is made of them, such as a
/// [`DlqConsumer`](crate::DlqConsumer).
pub trait Runnable: Send + 'static {
    /// What it is called, in logs and health probes.
    fn name(&self) -> String;

    /// Controls it, also before it runs.
    fn control(&self) -> Control;

    /// Works until it is stopped, leaves signals alone, and says how it went.
    fn run(self: Box<Self>) -> BoxFuture<'static, Result<StatsSnapshot>>;
}

impl Runnable for Box<dyn Runnable> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn control(&self) -> Control {
        (**self).control()
    }

    fn run(self: Box<Self>) -> BoxFuture<'static, Result<StatsSnapshot>> {
        (*self).run()
    }
}

impl<T, R, C> Runnable for ReadyWorker<T, R, C>
where
    T: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
{
    fn name(&self) -> String {
        self.group_name()
    }

    fn control(&self) -> Control {
        Self::control(self)
    }

    fn run(self: Box<Self>) -> BoxFuture<'static, Result<StatsSnapshot>> {
        Box::pin(self.work())
    }
}
