//! Reads the lines of a file or a pipe in batches.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek};
use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

/// Maximum size of a batch, unless a single line is longer.
const MAX_BYTES: usize = 4 << 20;
/// Time to wait for the rest of a pipe after an interrupt.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of lines of a pipe that are read ahead.
const READ_AHEAD: usize = 1000;

/// Values parsed from the lines of a file or a pipe. Empty lines are skipped.
///
/// A file is checked as a whole before its first line is returned, so that an invalid line is found before anything is
/// done. The lines of a pipe are returned as they arrive.
pub(crate) struct InputLines<R> {
    source: Source,
    name: String,
    number: usize,
    total: u64,
    /// Error of the line after the last batch.
    failure: Option<Failure>,
    read: R,
}

enum Source {
    File(BufReader<File>),
    Pipe(mpsc::Receiver<io::Result<String>>),
}

impl<T, R: Fn(&str) -> Result<T, String>> InputLines<R> {
    /// Opens a file, or standard input for `-`.
    pub(crate) fn open(path: &Path, read: R) -> Result<Self> {
        if path == Path::new("-") {
            let source = Source::Pipe(read_in_thread(BufReader::new(io::stdin()))?);
            return Ok(Self::new(source, "standard input".to_owned(), read));
        }
        let name = path.display().to_string();
        let failed = |error| Failure::Other(format!("cannot read {name}: {error}"));
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        if !metadata.is_file() {
            let source = Source::Pipe(read_in_thread(BufReader::new(file))?);
            return Ok(Self::new(source, name, read));
        }
        let second = file.try_clone().map_err(failed)?;
        let mut lines = Self::new(Source::File(BufReader::new(file)), name.clone(), read);
        let total = lines.count().map_err(|failure| match failure {
            Failure::Other(text) => Failure::Other(format!("{text}; nothing was sent")),
            other => other,
        })?;
        // Both handles share one file position.
        let mut second = BufReader::new(second);
        second.rewind().map_err(failed)?;
        Ok(Self { total, ..Self::new(Source::File(second), name, lines.read) })
    }

    fn new(source: Source, name: String, read: R) -> Self {
        Self { source, name, number: 0, total: 0, failure: None, read }
    }

    /// Returns the number of lines of a file, or 0 for a pipe.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns whether the lines come from a pipe, and cannot be read again.
    pub(crate) fn is_pipe(&self) -> bool {
        matches!(self.source, Source::Pipe(_))
    }

    /// Returns up to `max` lines, fewer if they are long or no more have arrived, or `None` at the end. An invalid line
    /// is an error of its own, after the lines before it; the next call continues after it.
    ///
    /// An interrupt ends it at once, or with `to_the_end` when a pipe has been silent for a while.
    pub(crate) async fn next_batch(
        &mut self,
        max: usize,
        interrupt: &Interrupt,
        to_the_end: bool,
    ) -> Result<Option<Vec<T>>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if interrupt.is_interrupted() && !to_the_end {
            return Err(Failure::Interrupted);
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < max && bytes < MAX_BYTES {
            let line = match &mut self.source {
                Source::File(reader) => read_line(reader),
                // Waits for the first line; others are taken if they have arrived.
                Source::Pipe(lines) if batch.is_empty() => match interrupt.or(lines.recv()).await {
                    Err(_) if to_the_end => {
                        let last = tokio::time::timeout(DRAIN_TIMEOUT, lines.recv()).await;
                        last.map_err(|_| Failure::Interrupted)?
                    }
                    line => line?,
                },
                Source::Pipe(lines) => lines.try_recv().ok(),
            };
            let Some(line) = line else { break };
            bytes += line.as_ref().map_or(0, String::len);
            match self.parse(line) {
                Ok(line) => batch.extend(line),
                Err(failure) if batch.is_empty() => return Err(failure),
                Err(failure) => {
                    self.failure = Some(failure);
                    break;
                }
            }
        }
        Ok(Some(batch).filter(|batch| !batch.is_empty()))
    }

    /// Returns the next line of a pipe unparsed, or `None` at the end, or if there was an interrupt and the pipe is
    /// silent.
    pub(crate) async fn next_raw(&mut self, interrupt: &Interrupt) -> Option<String> {
        let Source::Pipe(lines) = &mut self.source else { return None };
        let line = match interrupt.or(lines.recv()).await {
            Ok(line) => line,
            Err(_) => tokio::time::timeout(DRAIN_TIMEOUT, lines.recv()).await.ok()?,
        };
        line?.ok()
    }

    /// Reads a file to its end and counts its lines.
    fn count(&mut self) -> Result<u64> {
        let mut total = 0;
        while let Source::File(reader) = &mut self.source
            && let Some(line) = read_line(reader)
        {
            total += u64::from(self.parse(line)?.is_some());
        }
        Ok(total)
    }

    /// Parses a line, unless it is empty.
    fn parse(&mut self, line: io::Result<String>) -> Result<Option<T>> {
        self.number += 1;
        let (number, name) = (self.number, &self.name);
        let failed = |text: String| Failure::Other(format!("line {number} of {name}: {text}"));
        let line = line.map_err(|error| failed(error.to_string()))?;
        if line.trim().is_empty() {
            return Ok(None);
        }
        (self.read)(&line).map(Some).map_err(failed)
    }
}

/// Parses all lines of a buffer, for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_all<T>(
    mut bytes: &[u8],
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>> {
    let (_, pipe) = mpsc::channel(1);
    let mut lines = InputLines::new(Source::Pipe(pipe), "standard input".to_owned(), read);
    let mut all = Vec::new();
    while let Some(line) = read_line(&mut bytes) {
        all.extend(lines.parse(line)?);
    }
    Ok(all)
}

fn read_line(reader: &mut impl BufRead) -> Option<io::Result<String>> {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(0) => None,
        Ok(_) => Some(Ok(line)),
        Err(error) => Some(Err(error)),
    }
}

/// Reads a pipe in a thread, since a blocking read cannot be cancelled: the thread ends with the process.
fn read_in_thread(
    mut reader: impl BufRead + Send + 'static,
) -> Result<mpsc::Receiver<io::Result<String>>> {
    let (send, lines) = mpsc::channel(READ_AHEAD);
    let read = move || {
        while let Some(line) = read_line(&mut reader) {
            let failed = line.is_err();
            if send.blocking_send(line).is_err() || failed {
                break;
            }
        }
    };
    let thread = std::thread::Builder::new().name("pillarbox-lines".into());
    let started = thread.spawn(read);
    started.map_err(|error| Failure::Other(format!("cannot start a thread: {error}")))?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn numbers(line: &str) -> Result<String, String> {
        let number = line.trim().parse::<u32>();
        number.map(|_| line.to_owned()).map_err(|error| error.to_string())
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[tokio::test]
    async fn a_file_is_checked_before_its_first_line_is_returned() {
        let interrupt = Interrupt::listen().unwrap();
        let good = file("1\n\n2\n3");
        let mut lines = InputLines::open(good.path(), numbers).unwrap();
        assert_eq!(lines.total(), 3);
        let first = lines.next_batch(2, &interrupt, false).await.unwrap().unwrap();
        assert_eq!(first, ["1\n", "2\n"]);
        let last = lines.next_batch(2, &interrupt, false).await.unwrap().unwrap();
        assert_eq!(last, ["3"]);
        assert!(lines.next_batch(2, &interrupt, false).await.unwrap().is_none());

        let bad = file("1\n\nx\n");
        let Err(Failure::Other(text)) = InputLines::open(bad.path(), numbers) else {
            panic!("the line is invalid")
        };
        assert!(text.starts_with("line 3 of ") && text.ends_with("nothing was sent"), "{text}");
    }

    #[tokio::test]
    async fn a_pipe_returns_the_lines_that_have_arrived() {
        let interrupt = Interrupt::listen().unwrap();
        let (send, pipe) = mpsc::channel(READ_AHEAD);
        let mut lines = InputLines::new(Source::Pipe(pipe), "pipe".to_owned(), numbers);
        for line in ["1\n", "2\n"] {
            send.send(Ok(line.to_owned())).await.unwrap();
        }
        let batch = lines.next_batch(100, &interrupt, false).await.unwrap().unwrap();
        assert_eq!(batch.len(), 2, "it does not wait to fill the batch");
        send.send(Ok("x\n".to_owned())).await.unwrap();
        let Err(Failure::Other(text)) = lines.next_batch(100, &interrupt, false).await else {
            panic!("the line is invalid")
        };
        assert!(text.starts_with("line 3 of pipe: "), "{text}");
        drop(send);
        assert!(lines.next_batch(100, &interrupt, false).await.unwrap().is_none());
    }
}
