//! Output of the demo: live on a terminal, one line per event otherwise.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::tally::{Tally, TaskState, TaskUpdate};
use crate::context::Context;
use crate::failure::Result;
use crate::output::{Part, Style, time};

/// View with a progress bar and one line per worker.
pub(crate) struct View {
    /// `None`: plain lines.
    live: Option<Live>,
    quiet: bool,
}

struct Live {
    bars: MultiProgress,
    total: ProgressBar,
    workers: Vec<ProgressBar>,
    style: Style,
}

impl View {
    pub(crate) fn new(context: &Context, tasks: usize, workers: usize) -> Self {
        let out = &context.out;
        let live = out.is_terminal() && !out.is_json();
        let live = live.then(|| Live::new(tasks, workers, out.style()));
        Self { live, quiet: out.is_json() }
    }

    pub(crate) fn show(
        &mut self,
        context: &mut Context,
        update: &TaskUpdate,
        tally: &Tally,
    ) -> Result<()> {
        match &mut self.live {
            Some(live) => {
                live.show(update, tally);
                Ok(())
            }
            None if self.quiet || matches!(update.state, TaskState::Started) => Ok(()),
            None => {
                let TaskUpdate { worker, task, attempt, state } = update;
                let mut parts = vec![format!("worker {worker}  task {task:>3}  ").into()];
                parts.extend(describe(state, *attempt, context.out.style()));
                context.out.parts(&parts)?;
                context.out.flush()
            }
        }
    }

    /// Sets the message of the progress bar.
    pub(crate) fn set_message(&self, text: &str) {
        if let Some(live) = &self.live {
            live.total.set_message(text.to_owned());
        }
    }

    /// Prints a note.
    pub(crate) fn note(&self, context: &Context, text: &str) {
        match &self.live {
            Some(live) => live.bars.suspend(|| context.out.note(text)),
            None => context.out.note(text),
        }
    }
}

impl Live {
    fn new(tasks: usize, workers: usize, style: Style) -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let total = bars.add(ProgressBar::new(tasks as u64));
        set_template(&total, "{bar:40} {pos} of {len} tasks  {elapsed}  {msg}");
        let workers = (1..=workers)
            .map(|number| {
                let line = bars.add(ProgressBar::new_spinner());
                set_template(&line, "  {spinner} {prefix}  {msg}");
                line.set_prefix(format!("worker {number}"));
                line.set_message("idle");
                line.enable_steady_tick(Duration::from_millis(120));
                line
            })
            .collect();
        total.enable_steady_tick(Duration::from_millis(200));
        Self { bars, total, workers, style }
    }

    fn show(&self, update: &TaskUpdate, tally: &Tally) {
        let TaskUpdate { worker, task, attempt, state } = update;
        let description = describe(state, *attempt, self.style).map(|part| part.to_string());
        let text = format!("task {task:>3}  {}", description.concat());
        if matches!(state, TaskState::Dead { .. }) {
            // Stays visible above the live lines.
            let _ = self.bars.println(format!("  worker {worker}  {text}"));
        }
        if let Some(line) = self.workers.get(worker - 1) {
            line.set_message(text);
        }
        self.total.set_position(tally.finished());
        let Tally { succeeded, retried, dead_lettered, .. } = tally;
        self.total
            .set_message(format!("{succeeded} done, {retried} retried, {dead_lettered} dead"));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        for line in &self.workers {
            line.finish_and_clear();
        }
        self.total.finish();
    }
}

fn set_template(bar: &ProgressBar, template: &str) {
    // The templates are constants and valid.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

fn describe(state: &TaskState, attempt: u32, style: Style) -> [Part; 2] {
    let (label, details) = match state {
        TaskState::Started if attempt == 1 => ("running".into(), String::new()),
        TaskState::Started => ("running".into(), format!(", attempt {attempt}")),
        TaskState::Succeeded { took } => {
            (style.good("done"), format!(" in {}", time::measured(*took)))
        }
        TaskState::Failed { error, retry_in } => (
            style.warn("failed"),
            format!(" attempt {attempt}: {error}; retry in {}", time::show(*retry_in)),
        ),
        TaskState::Dead { error } => {
            (style.bad("dead letter"), format!(" after attempt {attempt}: {error}"))
        }
        TaskState::Lost => (style.warn("lost"), format!(" attempt {attempt}: its lease expired")),
        TaskState::Unconfirmed => (
            style.warn("unconfirmed"),
            format!(" attempt {attempt}: the backend did not confirm it"),
        ),
    };
    [label, details.into()]
}
