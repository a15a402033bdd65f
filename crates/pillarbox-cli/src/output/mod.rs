//! What people and scripts read.

pub(crate) mod json;
mod progress;
mod style;
mod table;
pub(crate) mod text;
pub(crate) mod time;

pub(crate) use progress::Progress;
pub(crate) use style::Style;
pub(crate) use table::Table;

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// Where a command writes: results to stdout, everything else to stderr.
#[derive(Debug)]
pub(crate) struct Out {
    stdout: BufWriter<Stdout>,
    json: bool,
    terminal: bool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self { stdout: BufWriter::with_capacity(64 << 10, stdout), json, terminal }
    }

    /// Whether a script reads it.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a person sees it as it comes.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// How wide a line may be. `None`: as wide as it gets.
    pub(crate) fn width(&self) -> Option<usize> {
        let size = ratatui::crossterm::terminal::size().ok();
        size.filter(|_| self.terminal).map(|(columns, _)| columns.into())
    }

    /// How text is marked for people.
    pub(crate) fn style(&self) -> Style {
        Style::on_terminal(self.terminal)
    }

    /// Writes a line for people, or for whoever reads lines.
    pub(crate) fn line(&mut self, line: &str) -> Result<()> {
        writeln!(self.stdout, "{line}").map_err(Failure::Output)
    }

    /// Writes a line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        serde_json::to_writer(&mut self.stdout, value)
            .map_err(io::Error::from)
            .and_then(|()| self.stdout.write_all(b"\n"))
            .map_err(Failure::Output)
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.stdout.write_all(bytes).map_err(Failure::Output)
    }

    pub(crate) fn table(&mut self, table: &Table) -> Result<()> {
        let text = table.render(self.width(), self.style());
        self.stdout.write_all(text.as_bytes()).map_err(Failure::Output)
    }

    /// Sees to it that what was written has left the process.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.stdout.flush().map_err(Failure::Output)
    }

    /// Sees to it that what was written is on the disk, where stdout is a file.
    pub(crate) fn keep(&mut self) -> Result<()> {
        self.flush()?;
        #[cfg(unix)]
        {
            use std::os::fd::AsFd;
            let stdout = self.stdout.get_ref().as_fd().try_clone_to_owned();
            let stdout = std::fs::File::from(stdout.map_err(Failure::Output)?);
            if stdout.metadata().is_ok_and(|stdout| stdout.is_file()) {
                stdout.sync_data().map_err(Failure::Output)?;
            }
        }
        Ok(())
    }

    /// Says on stderr what went wrong.
    pub(crate) fn error(&self, text: &str) {
        let style = Style::on_terminal(io::stderr().is_terminal());
        say(&format!("{} {text}", style.bad("error:")));
    }

    /// Says on stderr what is good to know.
    pub(crate) fn note(&self, text: &str) {
        let style = Style::on_terminal(io::stderr().is_terminal());
        say(&format!("{} {text}", style.faint("note:")));
    }

    /// Shows how far a command is, on stderr, if a person sees it and nothing else is there.
    pub(crate) fn progress(&self, total: u64, unit: &'static str) -> Progress {
        let alone = self.json || !self.terminal;
        Progress::new(io::stderr().is_terminal() && alone, total, unit)
    }

    /// The same for a command that writes nothing to stdout while it shows it.
    pub(crate) fn progress_alone(&self, total: u64, unit: &'static str) -> Progress {
        Progress::new(io::stderr().is_terminal(), total, unit)
    }
}

/// Writes to stderr. That it may be closed is nobody's concern.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
