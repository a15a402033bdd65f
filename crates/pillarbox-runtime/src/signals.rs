//! SIGTERM and SIGINT.

use std::convert::Infallible;

use crate::control::Control;

/// Stops the workers by signals, as long as it is not dropped: the first lets what is running come to an
/// end, the second cancels it, the third ends the process.
pub(crate) async fn obey(control: &Control) -> Infallible {
    let mut signals = imp::Signals::listen();
    signals.next().await;
    tracing::info!("stopping: what is running is finished; once more cancels it");
    control.stop();
    signals.next().await;
    tracing::warn!("stopping now: what is running is cancelled and given back");
    control.stop_now();
    // A handler that blocks its thread may block all of this as well; what comes next must not depend on
    // anything that runs here.
    signals.let_go();
    // Unless it came before that was said.
    signals.next().await;
    std::process::exit(143);
}

#[cfg(unix)]
mod imp {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, LazyLock};

    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag::register_conditional_default;
    use tokio::signal::unix::{Signal, SignalKind, signal};

    /// Whether a signal does what it would do without us. Tokio never gives a signal back: without this, a
    /// program that goes on after its workers have ended could not be interrupted any more.
    static IS_DEFAULT: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
        let is_default = Arc::new(AtomicBool::new(true));
        for number in [SIGINT, SIGTERM] {
            if let Err(error) = register_conditional_default(number, is_default.clone()) {
                tracing::warn!(%error, "a third signal will not end the process");
            }
        }
        is_default
    });

    /// How many groups of workers listen.
    static LISTENERS: AtomicUsize = AtomicUsize::new(0);

    pub(super) struct Signals {
        interrupt: Option<Signal>,
        terminate: Option<Signal>,
        is_listening: bool,
    }

    impl Signals {
        pub(super) fn listen() -> Self {
            let is_default = &*IS_DEFAULT;
            LISTENERS.fetch_add(1, Ordering::SeqCst);
            is_default.store(false, Ordering::SeqCst);
            let open = |kind: SignalKind| match signal(kind) {
                Ok(signal) => Some(signal),
                Err(error) => {
                    tracing::warn!(%error, "cannot listen to signals; stop the workers by other means");
                    None
                }
            };
            let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
            Self { interrupt: open(interrupt), terminate: open(terminate), is_listening: true }
        }

        pub(super) async fn next(&mut self) {
            let heard = async |signal: &mut Option<Signal>| match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            };
            tokio::select! {
                () = heard(&mut self.interrupt) => {}
                () = heard(&mut self.terminate) => {}
            }
        }

        /// From now on signals do what they would do without us, unless others listen.
        pub(super) fn let_go(&mut self) {
            if std::mem::replace(&mut self.is_listening, false)
                && LISTENERS.fetch_sub(1, Ordering::SeqCst) == 1
            {
                IS_DEFAULT.store(true, Ordering::SeqCst);
            }
        }
    }

    impl Drop for Signals {
        fn drop(&mut self) {
            self.let_go();
        }
    }
}

#[cfg(not(unix))]
mod imp {
    pub(super) struct Signals;

    impl Signals {
        pub(super) fn listen() -> Self {
            Self
        }

        pub(super) async fn next(&mut self) {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending().await
            }
        }

        pub(super) fn let_go(&mut self) {}
    }
}
