//! Progress bars.

use std::fmt;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::text;

/// Progress bar on stderr, or nothing if that is not a terminal. Removed when dropped.
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
        // The template is valid.
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style.with_key("rate", rate));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    pub(crate) fn add(&self, number: u64) {
        // More may have arrived since the total was counted.
        let position = self.bar.position() + number;
        if self.bar.length().is_some_and(|total| total < position) {
            self.bar.set_length(position);
        }
        self.bar.inc(number);
    }

    /// Raises the total by `number`, to at most `max`.
    pub(crate) fn expect_more(&self, number: u64, max: u64) {
        if let Some(total) = self.bar.length().filter(|_| number > 0) {
            self.bar.set_length(total.saturating_add(number).min(max));
        }
    }

    /// Sets the message beside the bar.
    pub(crate) fn set_message(&self, text: impl AsRef<str>) {
        self.bar.set_message(text::printable(text.as_ref()).into_owned());
    }
}

fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    // Writing to the bar does not fail.
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
    fn a_message_of_a_bar_has_no_control_characters() {
        let progress = Progress::new(false, 1, "messages");
        progress.set_message("moved \x1b[2J");
        assert_eq!(progress.bar.message(), "moved \\u{1b}[2J");
    }
}
