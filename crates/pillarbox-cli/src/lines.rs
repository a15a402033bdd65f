//! The lines of a file or a pipe, some at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek};
use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

/// A batch is no longer than this, unless one line is.
const ENOUGH_BYTES: usize = 4 << 20;
/// After an interrupt, how long to wait for what is on its way through a pipe.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How many lines of a pipe are read ahead.
const READ_AHEAD: usize = 1000;

/// What is read from each line. Empty ones are passed over.
///
/// A file is read from end to end before its first line is given, so that a bad one is found before
/// anything is done. A pipe cannot be: its lines are given as they come.
pub(crate) struct Lines<R> {
    source: Source,
    name: String,
    number: usize,
    total: u64,
    /// Why the line after the last batch cannot be read.
    failure: Option<Failure>,
    read: R,
}

enum Source {
    File(BufReader<File>),
    Pipe(mpsc::Receiver<io::Result<String>>),
}

impl<T, R: Fn(&str) -> Result<T, String>> Lines<R> {
    /// Opens a file, or standard input if it is called `-`.
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
        let again = file.try_clone().map_err(failed)?;
        let mut lines = Self::new(Source::File(BufReader::new(file)), name.clone(), read);
        let total = lines.count().map_err(|failure| match failure {
            Failure::Other(text) => Failure::Other(format!("{text}; nothing was sent")),
            other => other,
        })?;
        // Both have one place in the file.
        let mut again = BufReader::new(again);
        again.rewind().map_err(failed)?;
        Ok(Self { total, ..Self::new(Source::File(again), name, lines.read) })
    }

    fn new(source: Source, name: String, read: R) -> Self {
        Self { source, name, number: 0, total: 0, failure: None, read }
    }

    /// How many there are, where it is known.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Whether the lines are gone once they are read.
    pub(crate) fn is_pipe(&self) -> bool {
        matches!(self.source, Source::Pipe(_))
    }

    /// Up to `max` lines, fewer if they are long or no more have come. `None`: there are no more. A line that
    /// cannot be read is an error of its own, after those before it; the next call goes on behind it.
    ///
    /// An interrupt ends it at once; or `to_the_end`, once a pipe has nothing more to give for a while.
    pub(crate) async fn next_batch(
        &mut self,
        max: usize,
        interrupt: &Interrupt,
        to_the_end: bool,
    ) -> Result<Option<Vec<T>>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if interrupt.is_told() && !to_the_end {
            return Err(Failure::Interrupted);
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < max && bytes < ENOUGH_BYTES {
            let line = match &mut self.source {
                Source::File(reader) => read_line(reader),
                // Waits for the first; others are taken if they are here.
                Source::Pipe(lines) if batch.is_empty() => match interrupt.or(lines.recv()).await {
                    Err(_) if to_the_end => {
                        let last = tokio::time::timeout(LAST_LINES, lines.recv()).await;
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

    /// The next line of a pipe as it is, for whoever cannot go on with it. `None`: there are no more, or there
    /// was an interrupt and none comes.
    pub(crate) async fn next_unread(&mut self, interrupt: &Interrupt) -> Option<String> {
        let Source::Pipe(lines) = &mut self.source else { return None };
        let line = match interrupt.or(lines.recv()).await {
            Ok(line) => line,
            Err(_) => tokio::time::timeout(LAST_LINES, lines.recv()).await.ok()?,
        };
        line?.ok()
    }

    /// Reads a file from here to its end, and counts its lines.
    fn count(&mut self) -> Result<u64> {
        let mut total = 0;
        while let Source::File(reader) = &mut self.source
            && let Some(line) = read_line(reader)
        {
            total += u64::from(self.parse(line)?.is_some());
        }
        Ok(total)
    }

    /// What a line says, unless it is empty.
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

/// What is read from each line of all that a pipe has given, for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_all<T>(
    mut bytes: &[u8],
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>> {
    let (_, pipe) = mpsc::channel(1);
    let mut lines = Lines::new(Source::Pipe(pipe), "standard input".to_owned(), read);
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

/// Reads a pipe in a thread of its own, for a read that waits cannot be ended otherwise: the thread
/// then ends with the process.
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
    async fn a_file_is_checked_before_its_first_line_is_given() {
        let interrupt = Interrupt::listen().unwrap();
        let good = file("1\n\n2\n3");
        let mut lines = Lines::open(good.path(), numbers).unwrap();
        assert_eq!(lines.total(), 3);
        let first = lines.next_batch(2, &interrupt, false).await.unwrap().unwrap();
        assert_eq!(first, ["1\n", "2\n"]);
        let last = lines.next_batch(2, &interrupt, false).await.unwrap().unwrap();
        assert_eq!(last, ["3"]);
        assert!(lines.next_batch(2, &interrupt, false).await.unwrap().is_none());

        let bad = file("1\n\nx\n");
        let Err(Failure::Other(text)) = Lines::open(bad.path(), numbers) else {
            panic!("it is bad")
        };
        assert!(text.starts_with("line 3 of ") && text.ends_with("nothing was sent"), "{text}");
    }

    #[tokio::test]
    async fn a_pipe_gives_what_has_come() {
        let interrupt = Interrupt::listen().unwrap();
        let (send, pipe) = mpsc::channel(READ_AHEAD);
        let mut lines = Lines::new(Source::Pipe(pipe), "pipe".to_owned(), numbers);
        for line in ["1\n", "2\n"] {
            send.send(Ok(line.to_owned())).await.unwrap();
        }
        let batch = lines.next_batch(100, &interrupt, false).await.unwrap().unwrap();
        assert_eq!(batch.len(), 2, "it does not wait to fill the batch");
        send.send(Ok("x\n".to_owned())).await.unwrap();
        let Err(Failure::Other(text)) = lines.next_batch(100, &interrupt, false).await else {
            panic!("it is bad")
        };
        assert!(text.starts_with("line 3 of pipe: "), "{text}");
        drop(send);
        assert!(lines.next_batch(100, &interrupt, false).await.unwrap().is_none());
    }
}
