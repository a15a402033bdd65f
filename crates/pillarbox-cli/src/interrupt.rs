//! Ctrl+C, and the signals that mean the same.

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::failure::{Failure, Result};

/// Notices that the user wants to end. The second time, the process ends at once.
#[derive(Debug)]
pub(crate) struct Interrupt {
    told: watch::Receiver<bool>,
    listener: JoinHandle<()>,
}

impl Interrupt {
    /// Begins to notice. From now on a signal ends nothing by itself.
    pub(crate) fn listen() -> Result<Self> {
        let mut signals = Signals::new()
            .map_err(|error| Failure::Other(format!("cannot listen for signals: {error}")))?;
        let (tell, told) = watch::channel(false);
        let listener = tokio::spawn(async move {
            signals.next().await;
            tell.send_replace(true);
            signals.next().await;
            std::process::exit(130);
        });
        Ok(Self { told, listener })
    }

    /// Whether the user wants to end.
    pub(crate) fn is_told(&self) -> bool {
        *self.told.borrow()
    }

    /// Waits until the user wants to end.
    pub(crate) async fn told(&self) {
        let mut told = self.told.clone();
        // The sender lives as long as the listener, and that as long as this.
        let _ = told.wait_for(|told| *told).await;
    }

    /// Does something unless the user wants to end first. What is ready wins: it is not thrown
    /// away for a signal that came at the same moment.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.told() => Err(Failure::Interrupted),
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

#[cfg(unix)]
struct Signals([tokio::signal::unix::Signal; 3]);

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
