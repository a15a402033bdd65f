//! Measurements of a whole process, made by a child that does nothing else.
//!
//! A child is this program again, with a hidden subcommand; it prints its figure and nothing
//! else. A [`Companion`] is one that works beside its parent, and talks with it line by line; it may
//! be another program. Linux only: the figures come from `/proc`.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::measure::{Result, expect_eq};

/// Runs this program again with `args` and reads the figure that it prints.
pub(crate) fn in_child(args: &[&str]) -> Result<f64> {
    let output = Command::new(std::env::current_exe()?)
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start a child for {args:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("the child for {args:?} failed: {}", output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let figure = text.trim().parse();
    figure.map_err(|error| format!("the child for {args:?} said {text:?}: {error}").into())
}

/// The longest wait for the next line of a companion. A program that has lost a message may never print one.
const PATIENCE: Duration = Duration::from_secs(180);

/// A child that is talked to, and killed when dropped.
#[derive(Debug)]
pub(crate) struct Companion {
    child: Child,
    to: ChildStdin,
    lines: Receiver<String>,
    /// What it says of its errors, once it has ended.
    errors: Option<JoinHandle<String>>,
}

impl Companion {
    /// Runs this program again with `args`.
    pub(crate) fn start(args: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args);
        Self::run(command)
    }

    /// Runs another program.
    pub(crate) fn run(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let to = child.stdin.take().ok_or("a child has no input")?;
        let from = BufReader::new(child.stdout.take().ok_or("a child has no output")?);
        let mut errors = child.stderr.take().ok_or("a child has no errors")?;
        let (say, lines) = channel();
        // Both end with the child.
        std::thread::spawn(move || {
            from.lines().map_while(|line| line.ok()).try_for_each(|line| say.send(line))
        });
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { child, to, lines, errors: Some(errors) })
    }

    /// Says a line to it.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.to, "{line}")?)
    }

    /// Waits for the next line that it says.
    pub(crate) fn hear(&mut self) -> Result<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line.trim_end().to_owned()),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("a child says nothing within {PATIENCE:?}").into())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                let errors = self.errors.take().and_then(|errors| errors.join().ok());
                let errors = errors.unwrap_or_default();
                let last = errors.lines().last().unwrap_or("it does not say why");
                Err(format!("a child has ended early: {status}: {last}").into())
            }
        }
    }

    /// Waits until it has said this line.
    pub(crate) fn expect(&mut self, line: &str) -> Result<()> {
        expect_eq("a child says", &self.hear()?[..], line)
    }

    /// Ends it by SIGKILL, wherever it is.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a companion says to its parent.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Waits until the parent has said this line.
pub(crate) fn expect(line: &str) -> Result<()> {
    let mut said = String::new();
    std::io::stdin().read_line(&mut said)?;
    expect_eq("the parent says", said.trim_end(), line)
}

/// The resident set of this process in bytes.
///
/// `VmRSS` of `/proc/self/status` is the second number of `/proc/self/statm` in kB instead of
/// pages, so that the size of a page need not be known.
pub(crate) fn resident_bytes() -> Result<u64> {
    status_bytes("VmRSS:")
}

/// The most bytes of memory that this process has had resident.
pub(crate) fn peak_bytes() -> Result<u64> {
    status_bytes("VmHWM:")
}

/// The memory of this machine.
pub(crate) fn machine_bytes() -> Result<u64> {
    read_bytes("/proc/meminfo", "MemTotal:")
}

fn status_bytes(name: &str) -> Result<u64> {
    read_bytes("/proc/self/status", name)
}

fn read_bytes(file: &str, name: &str) -> Result<u64> {
    let kilobytes = fs::read_to_string(file)?
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok())
        .ok_or_else(|| format!("{file} has no line {name} in kB"))?;
    let kilobytes: u64 = kilobytes;
    Ok(kilobytes * 1024)
}

/// The CPU time of the threads that this process had when the clock was made.
///
/// The first number of each thread's `schedstat`, in nanoseconds; `/proc/self/stat` counts in
/// steps of 10 ms, which is more than an idle process uses. The files stay open so that looking
/// costs little, for looking is paid by the process that is looked at.
///
/// A thread that has ended, as those do that a runtime keeps for what blocks, counts with what it had used
/// when it was last looked at.
#[derive(Debug)]
pub(crate) struct CpuClock {
    /// With the nanoseconds of each.
    threads: Vec<(File, AtomicU64)>,
}

impl CpuClock {
    pub(crate) fn new() -> Result<Self> {
        let mut threads = Vec::new();
        for thread in fs::read_dir("/proc/self/task")? {
            let path = thread?.path().join("schedstat");
            match File::open(&path) {
                Ok(file) => threads.push((file, AtomicU64::new(0))),
                Err(error) if has_ended(&error) => {}
                Err(error) => {
                    return Err(format!("cannot open {}: {error}", path.display()).into());
                }
            }
        }
        let clock = Self { threads };
        clock.read()?;
        Ok(clock)
    }

    /// The CPU time used so far.
    pub(crate) fn read(&self) -> Result<Duration> {
        let mut nanos = 0;
        for (thread, known) in &self.threads {
            let mut text = [0; 128];
            match thread.read_at(&mut text, 0) {
                Ok(length) => {
                    let text = str::from_utf8(&text[..length])?;
                    let first = text.split_whitespace().next().ok_or("a schedstat is empty")?;
                    known.store(first.parse()?, Ordering::Relaxed);
                }
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(error.into()),
            }
            nanos += known.load(Ordering::Relaxed);
        }
        Ok(Duration::from_nanos(nanos))
    }
}

/// Whether an error about a thread says that there is no such thread any more.
fn has_ended(error: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_has_used_time() {
        assert!(resident_bytes().unwrap() > 100_000);
        assert!(CpuClock::new().unwrap().read().unwrap() > Duration::ZERO);
    }

    #[test]
    fn a_thread_that_has_ended_counts_with_what_it_had_used() {
        let (end, ending) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ending.recv());
        let clock = CpuClock::new().unwrap();
        let before = clock.read().unwrap();
        drop(end);
        thread.join().unwrap().unwrap_err();
        assert!(clock.read().unwrap() >= before);
    }
}
