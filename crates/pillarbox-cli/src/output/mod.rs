//! Output for people and scripts.
//!
//! Messages, names and texts of servers may contain control characters. All output for people goes through this module,
//! which escapes them: `text::printable`.

pub(crate) mod file;
pub(crate) mod json;
pub(crate) mod log;
mod progress;
mod style;
mod table;
pub(crate) mod text;
pub(crate) mod time;

pub(crate) use progress::Progress;
pub(crate) use style::{Part, Style};
pub(crate) use table::Table;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use self::file::Permissions;
use crate::failure::{Failure, Result};

/// Output of a command: results go to stdout, everything else to stderr.
#[derive(Debug)]
pub(crate) struct Out {
    results: BufWriter<Sink>,
    /// File for the results, if one was given.
    path: Option<PathBuf>,
    json: bool,
    terminal: bool,
}

/// Destination of results.
#[derive(Debug)]
enum Sink {
    Stdout(Stdout),
    File(File),
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self { results: buffered(Sink::Stdout(stdout)), path: None, json, terminal }
    }

    /// Redirects results to a new file.
    pub(crate) fn write_to(&mut self, path: &Path, permissions: Permissions) -> Result<()> {
        let file = file::create(path, permissions).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::Other(format!(
                "{} exists already and is not overwritten: choose another name, or remove it",
                path.display()
            )),
            _ => Failure::Other(format!("cannot create {}: {error}", path.display())),
        })?;
        self.results = buffered(Sink::File(file));
        self.path = Some(path.to_owned());
        self.terminal = false;
        Ok(())
    }

    /// Returns whether stdout is /dev/null, as it is for a process that was started without a stdout.
    pub(crate) fn is_discarded(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::{FileTypeExt, MetadataExt};
            let nowhere = std::fs::metadata("/dev/null");
            let here = self.results.get_ref().file().and_then(|file| file.metadata());
            matches!((here, nowhere), (Ok(here), Ok(nowhere))
                if here.file_type().is_char_device() && here.rdev() == nowhere.rdev())
        }
        #[cfg(not(unix))]
        false
    }

    /// Returns whether the process was started without a stdout: then it is /dev/null, and also open for reading, which
    /// no redirection does.
    pub(crate) fn is_closed(&self) -> bool {
        let Ok(about) = std::fs::read_to_string("/proc/self/fdinfo/1") else { return false };
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
        let access = flags.and_then(|flags| flags.trim().chars().next_back());
        self.is_discarded() && access == Some('2')
    }

    /// Returns whether results are JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Returns whether results go to a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Returns the style for results.
    pub(crate) fn style(&self) -> Style {
        Style::on_terminal(self.terminal)
    }

    /// Writes a line of text.
    pub(crate) fn line(&mut self, line: &str) -> Result<()> {
        self.parts(&[line.into()])
    }

    /// Writes a line of styled parts.
    pub(crate) fn parts(&mut self, parts: &[Part]) -> Result<()> {
        let written = parts.iter().try_for_each(|part| write!(self.results, "{part}"));
        written.and_then(|()| self.results.write_all(b"\n")).map_err(|error| self.failed(error))
    }

    /// Writes several lines of text.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        text.lines().try_for_each(|line| self.line(line))
    }

    /// Writes a value as a line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(value).map_err(|error| self.failed(error.into()))?;
        self.json_line(&line)
    }

    /// Writes a line that is JSON.
    pub(crate) fn json_line(&mut self, line: &str) -> Result<()> {
        // Scripts get all characters unchanged.
        let line = if self.terminal { text::printable_json(line) } else { line.into() };
        self.bytes(line.as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes bytes unchanged.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.results.write_all(bytes).map_err(|error| self.failed(error))
    }

    pub(crate) fn table(&mut self, table: &Table) -> Result<()> {
        let size = ratatui::crossterm::terminal::size().ok();
        let width = size.filter(|_| self.terminal).map(|(columns, _)| columns.into());
        let text = table.render(width, self.style());
        self.bytes(text.as_bytes())
    }

    /// Flushes the results.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.results.flush().map_err(|error| self.failed(error))
    }

    /// Flushes the results, to disk if they go to a file.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let kept = self.results.get_ref().file().and_then(|file| {
            let is_file = file.metadata().is_ok_and(|file| file.is_file());
            if is_file { file.sync_data() } else { Ok(()) }
        });
        kept.map_err(|error| self.failed(error))
    }

    /// Prints an error to stderr.
    pub(crate) fn error(&self, text: &str) {
        print(&Style::on_terminal(io::stderr().is_terminal()).bad("error:"), text);
    }

    /// Prints a note to stderr.
    pub(crate) fn note(&self, text: &str) {
        print(&Style::on_terminal(io::stderr().is_terminal()).faint("note:"), text);
    }

    /// Shows a progress bar on stderr if that is a terminal that results do not go to.
    pub(crate) fn progress(&self, total: u64, unit: &'static str) -> Progress {
        let alone = self.json || !self.terminal;
        Progress::new(io::stderr().is_terminal() && alone, total, unit)
    }

    /// Shows a progress bar on stderr, for a command that writes no results meanwhile.
    pub(crate) fn progress_alone(&self, total: u64, unit: &'static str) -> Progress {
        Progress::new(io::stderr().is_terminal(), total, unit)
    }

    fn failed(&self, error: io::Error) -> Failure {
        match &self.path {
            Some(path) => Failure::Other(format!("cannot write {}: {error}", path.display())),
            None => Failure::Output(error),
        }
    }
}

fn buffered(sink: Sink) -> BufWriter<Sink> {
    BufWriter::with_capacity(64 << 10, sink)
}

impl Sink {
    /// Returns the underlying file.
    fn file(&self) -> io::Result<File> {
        match self {
            #[cfg(unix)]
            Self::Stdout(stdout) => {
                use std::os::fd::AsFd;
                Ok(stdout.as_fd().try_clone_to_owned()?.into())
            }
            #[cfg(windows)]
            Self::Stdout(stdout) => {
                use std::os::windows::io::AsHandle;
                Ok(stdout.as_handle().try_clone_to_owned()?.into())
            }
            #[cfg(not(any(unix, windows)))]
            Self::Stdout(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::File(file) => file.try_clone(),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stdout) => stdout.write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.flush(),
            Self::File(file) => file.flush(),
        }
    }
}

/// Prints to stderr, which may be closed.
fn print(label: &Part, text: &str) {
    let _ = io::stderr().write_all(labelled(label, text).as_bytes());
}

/// Returns a text after its label. Further lines are indented, so that they cannot look like a label.
fn labelled(label: &Part, text: &str) -> String {
    let mut labelled = label.to_string();
    for (index, line) in text.lines().enumerate() {
        labelled.push_str(match index {
            0 => " ",
            _ if line.starts_with(' ') => "\n",
            _ => "\n  ",
        });
        labelled.push_str(&text::printable(line));
    }
    labelled.push('\n');
    labelled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_lines_of_an_error_are_indented() {
        let text = "no\x1b[2J\rthing\nnote: all is well\n    line 2";
        let shown = "error: no\\u{1b}[2J\\rthing\n  note: all is well\n    line 2\n";
        assert_eq!(labelled(&Style::plain().bad("error:"), text), shown);
    }
}
