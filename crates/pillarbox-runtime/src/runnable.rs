//! What can be run beside others in a process.

use pillarbox_core::BoxFuture;

use crate::control::Control;
use crate::lifecycle::LoopFailure;
use crate::stats::StatsSnapshot;
use crate::worker::ReadyWorker;

/// Something that works until it is stopped: [`Worker`](crate::Worker)s, and what is made of them, such as a
/// [`DlqConsumer`](crate::DlqConsumer). Of work of the program's own, a [`Task`](crate::Task) makes one.
pub trait Runnable: Send + 'static {
    /// What it is called, in logs and health probes.
    fn name(&self) -> String;

    /// Controls it, also before it runs.
    fn control(&self) -> Control;

    /// Works until it is stopped, leaves signals alone, and says how it went.
    fn run(self: Box<Self>) -> BoxFuture<'static, Result<StatsSnapshot, LoopFailure>>;
}

impl Runnable for Box<dyn Runnable> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn control(&self) -> Control {
        (**self).control()
    }

    fn run(self: Box<Self>) -> BoxFuture<'static, Result<StatsSnapshot, LoopFailure>> {
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

    fn run(self: Box<Self>) -> BoxFuture<'static, Result<StatsSnapshot, LoopFailure>> {
        Box::pin(async { Ok(self.work().await?) })
    }
}
