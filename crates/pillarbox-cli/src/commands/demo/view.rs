//! The demo as it is seen: live on a terminal, a line per event elsewhere.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::tally::{News, Tally, What};
use crate::context::Context;
use crate::failure::Result;
use crate::output::{Part, Style, time};

/// A bar for the whole, and a line for each worker.
pub(crate) struct View {
    /// `None`: plain lines.
    live: Option<Live>,
    quiet: bool,
}

struct Live {
    bars: MultiProgress,
    whole: ProgressBar,
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

    pub(crate) fn show(&mut self, context: &mut Context, news: &News, tally: &Tally) -> Result<()> {
        match &mut self.live {
            Some(live) => {
                live.show(news, tally);
                Ok(())
            }
            None if self.quiet || matches!(news.what, What::Started) => Ok(()),
            None => {
                let News { worker, task, attempt, what } = news;
                let mut parts = vec![format!("worker {worker}  task {task:>3}  ").into()];
                parts.extend(describe(what, *attempt, context.out.style()));
                context.out.parts(&parts)?;
                context.out.flush()
            }
        }
    }

    /// Says what is good to know for the moment.
    pub(crate) fn say(&self, text: &str) {
        if let Some(live) = &self.live {
            live.whole.set_message(text.to_owned());
        }
    }

    /// Says what must not be missed.
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
        let whole = bars.add(ProgressBar::new(tasks as u64));
        set_template(&whole, "{bar:40} {pos} of {len} tasks  {elapsed}  {msg}");
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
        whole.enable_steady_tick(Duration::from_millis(200));
        Self { bars, whole, workers, style }
    }

    fn show(&self, news: &News, tally: &Tally) {
        let News { worker, task, attempt, what } = news;
        let what_happened = describe(what, *attempt, self.style).map(|part| part.to_string());
        let text = format!("task {task:>3}  {}", what_happened.concat());
        if matches!(what, What::Dead { .. }) {
            // Stays to be seen, above all that moves.
            let _ = self.bars.println(format!("  worker {worker}  {text}"));
        }
        if let Some(line) = self.workers.get(worker - 1) {
            line.set_message(text);
        }
        self.whole.set_position(tally.finished());
        let Tally { succeeded, retried, dead_lettered, .. } = tally;
        self.whole
            .set_message(format!("{succeeded} done, {retried} retried, {dead_lettered} dead"));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        for line in &self.workers {
            line.finish_and_clear();
        }
        self.whole.finish();
    }
}

fn set_template(bar: &ProgressBar, template: &str) {
    // The templates are ours and well formed; a plain bar would do as well.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

fn describe(what: &What, attempt: u32, style: Style) -> [Part; 2] {
    let (what, more) = match what {
        What::Started if attempt == 1 => ("running".into(), String::new()),
        What::Started => ("running".into(), format!(", attempt {attempt}")),
        What::Succeeded { took } => (style.good("done"), format!(" in {}", time::measured(*took))),
        What::Failed { error, again_in } => (
            style.warn("failed"),
            format!(" attempt {attempt}: {error}; again in {}", time::show(*again_in)),
        ),
        What::Dead { error } => {
            (style.bad("dead letter"), format!(" after attempt {attempt}: {error}"))
        }
        What::Lost => (style.warn("lost"), format!(" attempt {attempt}: its lease ended")),
        What::Unconfirmed => {
            (style.warn("unconfirmed"), format!(" attempt {attempt}: the backend did not answer"))
        }
    };
    [what, more.into()]
}
