//! Stopping by SIGTERM and SIGINT.

/// Stops by signals until it is dropped: the first signal lets running handlers finish, the second cancels them, the
/// third ends the process.
pub(crate) use imp::Signals;

#[cfg(unix)]
mod imp {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, LazyLock};
    use std::thread::JoinHandle;

    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag::register_conditional_default;
    use signal_hook::iterator::{Handle, Signals as Iter};

    use crate::desired_state::Stop;

    /// Whether signals have their default effect. A signal handler cannot be removed: without this, a program that
    /// goes on after its workers have ended could not be interrupted.
    static IS_DEFAULT: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
        let is_default = Arc::new(AtomicBool::new(true));
        for number in [SIGINT, SIGTERM] {
            if let Err(error) = register_conditional_default(number, is_default.clone()) {
                tracing::warn!(%error, "a third signal will not end the process");
            }
        }
        is_default
    });

    /// Number of listeners.
    static LISTENERS: AtomicUsize = AtomicUsize::new(0);

    pub(crate) struct Signals {
        listener: Option<(Handle, JoinHandle<()>)>,
    }

    impl Signals {
        /// Listens on its own thread, which no handler can block.
        pub(crate) fn listen(stop: impl Fn(Stop) + Send + 'static) -> Self {
            let is_default = &*IS_DEFAULT;
            let mut signals = match Iter::new([SIGINT, SIGTERM]) {
                Ok(signals) => signals,
                Err(error) => {
                    tracing::warn!(%error, "cannot listen to signals; stop by other means");
                    return Self { listener: None };
                }
            };
            LISTENERS.fetch_add(1, Ordering::SeqCst);
            is_default.store(false, Ordering::SeqCst);
            let handle = signals.handle();
            let listen = move || {
                for (count, number) in (1..).zip(signals.forever()) {
                    received(&stop, count, number);
                }
            };
            match std::thread::Builder::new().name("pillarbox-signals".to_owned()).spawn(listen) {
                Ok(thread) => Self { listener: Some((handle, thread)) },
                Err(error) => {
                    tracing::warn!(%error, "cannot listen to signals; stop by other means");
                    stop_listening();
                    Self { listener: None }
                }
            }
        }
    }

    fn received(stop: &impl Fn(Stop), count: u32, number: i32) {
        match count {
            1 => {
                tracing::info!("stopping: running handlers finish; a second signal cancels them");
                stop(Stop::Graceful);
            }
            2 => {
                tracing::warn!("stopping now: running handlers are cancelled");
                stop(Stop::Now);
            }
            _ => std::process::exit(128 + number),
        }
    }

    /// Restores the default effect of signals, unless there are other listeners.
    fn stop_listening() {
        if LISTENERS.fetch_sub(1, Ordering::SeqCst) == 1 {
            IS_DEFAULT.store(true, Ordering::SeqCst);
        }
    }

    impl Drop for Signals {
        fn drop(&mut self) {
            if let Some((handle, thread)) = self.listener.take() {
                stop_listening();
                handle.close();
                // It ends at once. A panic in it has been reported.
                let _ = thread.join();
            }
        }
    }
}

#[cfg(not(unix))]
mod imp {
    use crate::desired_state::Stop;

    pub(crate) struct Signals {
        task: tokio::task::JoinHandle<()>,
    }

    impl Signals {
        pub(crate) fn listen(stop: impl Fn(Stop) + Send + 'static) -> Self {
            let task = tokio::spawn(async move {
                for count in 1.. {
                    if tokio::signal::ctrl_c().await.is_err() {
                        return;
                    }
                    match count {
                        1 => stop(Stop::Graceful),
                        2 => stop(Stop::Now),
                        _ => std::process::exit(130),
                    }
                }
            });
            Self { task }
        }
    }

    impl Drop for Signals {
        fn drop(&mut self) {
            self.task.abort();
        }
    }
}
