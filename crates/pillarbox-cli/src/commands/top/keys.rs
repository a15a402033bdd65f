//! Keyboard input.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

/// Event of the terminal.
#[derive(Debug)]
pub(crate) enum Input {
    Key(KeyCode),
    Resized,
}

/// Reads the terminal in a thread, which ends when this is dropped if the terminal still exists.
#[derive(Debug)]
pub(crate) struct Keys {
    inputs: mpsc::Receiver<Input>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keys {
    pub(crate) fn listen() -> io::Result<Self> {
        let (send, inputs) = mpsc::channel(32);
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let thread =
            std::thread::Builder::new().name("pillarbox-keys".into()).spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let input = match event::poll(Duration::from_millis(50)) {
                        Ok(true) => event::read(),
                        Ok(false) => continue,
                        Err(error) => Err(error),
                    };
                    let Ok(input) = input.map(interpret) else { break };
                    if let Some(input) = input
                        && send.blocking_send(input).is_err()
                    {
                        break;
                    }
                }
            })?;
        Ok(Self { inputs, end, thread: Some(thread) })
    }

    /// Returns the next event, or `None` if the terminal is gone.
    pub(crate) async fn next(&mut self) -> Option<Input> {
        self.inputs.recv().await
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.inputs.close();
        let Some(thread) = self.thread.take() else { return };
        // If the terminal is gone, the thread may be blocked forever in the library that reads it. Then it ends
        // with the process.
        for _ in 0..20 {
            if thread.is_finished() {
                // A panic was printed when it happened.
                let _ = thread.join();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn interpret(event: Event) -> Option<Input> {
    match event {
        // In raw mode the terminal sends no signal for it.
        Event::Key(key)
            if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) =>
        {
            Some(Input::Key(KeyCode::Char('q')))
        }
        Event::Key(key) if key.kind != KeyEventKind::Release => Some(Input::Key(key.code)),
        Event::Resize(..) => Some(Input::Resized),
        _ => None,
    }
}
