//! The ways to run workers, and everything that is made of them.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Counts, Error};

use crate::control::Control;
use crate::running::Running;
use crate::signals::Signals;
use crate::stats::StatsSnapshot;
use crate::until_empty;

/// Something that works until it is stopped: a [`Worker`](crate::Worker), and what is made of one, such as a
/// [`MainLoop`](crate::loops::MainLoop) or a [`DlqConsumer`](crate::DlqConsumer).
///
/// A program chooses how it runs:
///
/// | method | runs until | signals |
/// |---|---|---|
/// | [`run`](Self::run) | it is stopped | SIGTERM and SIGINT stop it |
/// | [`run_until`](Self::run_until) | a future completes | left alone |
/// | [`run_until_empty`](Self::run_until_empty) | its mailboxes hold no message | left alone |
/// | [`run_iterations`](Self::run_iterations) | a number of attempts was made, or no message is ready or in flight | left alone |
/// | [`start`](Self::start) | it is stopped, in a task of its own | left alone |
///
/// A [`LoopGroup`](crate::group::LoopGroup) runs several side by side. For other work of a program, such as an HTTP
/// server, there is [`Task`](crate::group::Task).
pub trait Runnable: Sized + Send + 'static {
    /// The error with which it fails.
    type Error: From<Error> + Into<LoopFailure> + Send + 'static;

    /// Returns its name in logs and health probes.
    fn name(&self) -> String;

    /// Returns a handle that controls it. Works before it runs as well.
    fn control(&self) -> Control;

    /// Works until it is stopped and returns its final statistics. Leaves signals alone.
    ///
    /// This is what an implementation provides, most often by delegation to a worker whose [`Control`] it returns.
    /// Programs call one of the methods below.
    fn work(self) -> impl Future<Output = Result<StatsSnapshot, Self::Error>> + Send + 'static;

    /// Works until it is stopped, by [`Control::stop`] or by a signal, and returns its final statistics.
    ///
    /// The first SIGTERM or SIGINT drains: what is running finishes. The second cancels what is running. The third
    /// ends the process.
    ///
    /// Dropping the future ends everything at once: messages in flight are delivered again when their leases
    /// expire.
    ///
    /// A program that ends next should close its backend first
    /// ([`Mailboxes::close`](pillarbox_core::Mailboxes::close)). A receive that was under way at the stop gives its
    /// messages back, and closing waits for that. Otherwise they are delivered again when their leases expire.
    ///
    /// # Errors
    ///
    /// Of a worker: [`Error::InvalidParameter`] at once, if an option is out of range, and [`Error::Closed`], if
    /// every mailbox was closed. An unreachable backend is no error; the worker tries again until it answers.
    fn run(self) -> impl Future<Output = Result<StatsSnapshot, Self::Error>> + Send {
        async move {
            let control = self.control();
            let handles_signals = control.handles_signals();
            let stop = move |stop| control.request_stop(stop);
            let _signals = handles_signals.then(|| Signals::listen(stop));
            self.work().await
        }
    }

    /// Works until `stop` completes, and then drains.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    fn run_until(
        self,
        stop: impl Future<Output = ()>,
    ) -> impl Future<Output = Result<StatsSnapshot, Self::Error>> {
        async move {
            let control = self.control();
            let mut work = std::pin::pin!(self.work());
            tokio::select! {
                biased;
                ended = &mut work => return ended,
                () = stop => control.stop(),
            }
            work.await
        }
    }

    /// Works until its mailboxes hold no message, delayed ones included: for batch jobs and tests.
    ///
    /// Others may send meanwhile: it ends at a moment at which the mailboxes were empty. On a backend whose counts
    /// lag behind ([`exact_counts`](pillarbox_core::Capabilities::exact_counts)) it may end early. A
    /// [`DlqConsumer`](crate::DlqConsumer) ignores dead letters that its handler has
    /// [left](crate::DlqAction::leave).
    ///
    /// ```
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::{Runnable, Worker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
    /// let jobs: Mailbox<u64> = Mailboxes::new(MemoryBackend::new()).mailbox("jobs")?;
    /// jobs.send_batch(&[1, 2, 3]).await?.all()?;
    /// let stats = Worker::new(jobs).handler(|n: u64| async move { println!("{n}") }).run_until_empty().await?;
    /// assert_eq!(stats.succeeded, 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run), and [`Error::InvalidParameter`] if only delayed messages remain and the clock
    /// of the backend has not moved for 5 seconds. That is a manual clock, such as that of a `FakeMailbox`, which
    /// the test does not advance.
    fn run_until_empty(self) -> impl Future<Output = Result<StatsSnapshot, Self::Error>> {
        run_until_none(self, until_empty::INTERVAL, Counts::total)
    }

    /// Handles at most `max_iterations` messages, one after the other. Ends earlier if none is ready or in flight:
    /// for jobs that run now and then, and for tests.
    ///
    /// ```
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::{DlqAction, DlqConsumer, Outcome, Runnable, Worker};
    /// # use pillarbox_runtime::dead_letters::{DeadLetter, DlqPolicy};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
    /// # let backend = Mailboxes::new(MemoryBackend::new());
    /// # let orders: Mailbox<u32> = backend.mailbox("orders")?;
    /// # orders.send_batch(&[1, 2, 3]).await?.all()?;
    /// # Worker::new(orders.clone()).dead_letters(DlqPolicy::new())
    /// #     .handler(|_: u32| async { Outcome::reject("no") }).run_until_empty().await?;
    /// // Replays some, and leaves the others for later.
    /// let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq")?;
    /// let consumer = DlqConsumer::new(dead.clone(), |letter: DeadLetter<u32>| async move {
    ///     if letter.body == 2 { DlqAction::replay() } else { DlqAction::leave() }
    /// });
    /// consumer.run_iterations(100).await?;
    /// assert_eq!((orders.counts().await?.ready, dead.counts().await?.ready), (1, 2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    fn run_iterations(
        self,
        max_iterations: usize,
    ) -> impl Future<Output = Result<StatsSnapshot, Self::Error>> {
        self.control().limit_attempts(max_iterations);
        let remaining = |counts: &Counts| counts.ready + counts.in_flight;
        run_until_none(self, until_empty::SHORT_INTERVAL, remaining)
    }

    /// Works in a task of its own until it is stopped, or until the returned handle is dropped.
    fn start(self) -> Running<Self::Error> {
        let control = self.control();
        Running::new(control, tokio::spawn(self.work()))
    }
}

async fn run_until_none<R: Runnable>(
    runnable: R,
    interval: Duration,
    remaining: impl Fn(&Counts) -> u64,
) -> Result<StatsSnapshot, R::Error> {
    let control = runnable.control();
    let mut waited = Ok(());
    let stop = async { waited = until_empty::wait(&control, interval, remaining).await };
    let stats = runnable.run_until(stop).await?;
    waited?;
    Ok(stats)
}

/// The reason why a [`Runnable`] of a [`LoopGroup`](crate::group::LoopGroup) failed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoopFailure {
    /// It ended with an error.
    #[error(transparent)]
    Error(#[from] Error),
    /// It is a [`Task`](crate::group::Task) and ended with this error.
    #[error("it ended with an error: {0}")]
    Task(#[source] Arc<dyn StdError + Send + Sync>),
    /// It panicked with this message.
    #[error("it panicked: {0}")]
    Panic(String),
}

pillarbox_core::__error_debug!(
    enum LoopFailure {
        Error(error),
        Panic(text),
        Task(error),
    }
);
