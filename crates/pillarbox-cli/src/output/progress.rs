//! How far a command is.

use std::fmt;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::text;

/// A bar on stderr, or nothing where nobody would see it. Removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new(visible: bool, total: u64, unit: &'static str) -> Self {
        if !visible {
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let template =
            format!("{{bar:32}} {{pos}} of {{len}} {unit}  {{rate}}  {{eta}} left  {{msg}}");
        // The template is ours and well formed; a plain bar would do as well.
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style.with_key("rate", rate));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    pub(crate) fn add(&self, number: u64) {
        // More may have come since the total was taken.
        let position = self.bar.position() + number;
        if self.bar.length().is_some_and(|total| total < position) {
            self.bar.set_length(position);
        }
        self.bar.inc(number);
    }

    /// Expects so many more than before, and no more than `most` in all.
    pub(crate) fn expect_more(&self, number: u64, most: u64) {
        if let Some(total) = self.bar.length().filter(|_| number > 0) {
            self.bar.set_length(total.saturating_add(number).min(most));
        }
    }

    /// Says what is going on.
    pub(crate) fn say(&self, text: impl AsRef<str>) {
        self.bar.set_message(text::printable(text.as_ref()).into_owned());
    }
}

fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    // A bar that cannot be drawn is not drawn.
    let _ = out.write_str(&text::rate(state.per_sec()));
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_nothing_to_the_terminal() {
        let progress = Progress::new(false, 1, "messages");
        progress.say("moved \x1b[2J");
        assert_eq!(progress.bar.message(), "moved \\u{1b}[2J");
    }
}
