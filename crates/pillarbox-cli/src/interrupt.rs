//! Ctrl+C, and the signals that mean the same.

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::failure::{Failure, Result};

/// Listens for an interrupt by the user. The second one ends the process at once.
#[derive(Debug)]
pub(crate) struct Interrupt {
    received: watch::Receiver<bool>,
    listener: JoinHandle<()>,
}

impl Interrupt {
    /// Starts to listen. From now on a first signal does not end the process.
    pub(crate) fn listen() -> Result<Self> {
        let mut signals = Signals::new()
            .map_err(|error| Failure::Other(format!("cannot listen for signals: {error}")))?;
        let (sender, received) = watch::channel(false);
        let listener = tokio::spawn(async move {
            signals.next().await;
            sender.send_replace(true);
            signals.next().await;
            std::process::exit(130);
        });
        Ok(Self { received, listener })
    }

    /// Returns whether there was an interrupt.
    pub(crate) fn is_interrupted(&self) -> bool {
        *self.received.borrow()
    }

    /// Waits for an interrupt.
    pub(crate) async fn interrupted(&self) {
        let mut received = self.received.clone();
        // The sender lives as long as the listener, which lives as long as `self`.
        let _ = received.wait_for(|received| *received).await;
    }

    /// Runs a future until it completes or there is an interrupt. Completion wins over a signal at the same
    /// moment, so that a result is never dropped.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.interrupted() => Err(Failure::Interrupted),
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
