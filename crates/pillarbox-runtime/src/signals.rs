//! SIGTERM and SIGINT.

use std::convert::Infallible;

use crate::control::Control;

/// Stops the workers by signals: the first lets what is running come to an end, the second cancels it, the
/// third ends the process.
#[cfg(unix)]
pub(crate) async fn obey(control: &Control) -> Infallible {
    use tokio::signal::unix::{Signal, SignalKind, signal};

    let open = |kind: SignalKind| match signal(kind) {
        Ok(signal) => Some(signal),
        Err(error) => {
            tracing::warn!(%error, "cannot listen to signals; stop the workers by other means");
            None
        }
    };
    let heard = async |signal: &mut Option<Signal>| match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    };
    let mut interrupt = open(SignalKind::interrupt());
    let mut terminate = open(SignalKind::terminate());
    for count in 1.. {
        let code = tokio::select! {
            () = heard(&mut interrupt) => 130,
            () = heard(&mut terminate) => 143,
        };
        told(control, count, code);
    }
    std::future::pending().await
}

#[cfg(not(unix))]
pub(crate) async fn obey(control: &Control) -> Infallible {
    for count in 1.. {
        if tokio::signal::ctrl_c().await.is_err() {
            break;
        }
        told(control, count, 130);
    }
    std::future::pending().await
}

fn told(control: &Control, count: u32, code: i32) {
    match count {
        1 => {
            tracing::info!("stopping: what is running is finished; once more cancels it");
            control.stop();
        }
        2 => {
            tracing::warn!("stopping now: what is running is cancelled and given back");
            control.stop_now();
        }
        _ => std::process::exit(code),
    }
}
