//! Measurements of a whole process, made by a child that does nothing else.
//!
//! A child is this program again, with a hidden subcommand; it prints its figure and nothing
//! else. Linux only: the figures come from `/proc`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::measure::Result;

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

/// The resident set of this process in bytes.
///
/// `VmRSS` of `/proc/self/status` is the second number of `/proc/self/statm` in kB instead of
/// pages, so that the size of a page need not be known.
pub(crate) fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"))
        .ok_or("/proc/self/status has no line VmRSS in kB")?;
    Ok(kilobytes.trim().parse::<u64>()? * 1024)
}

/// The CPU time of the threads that this process had when the clock was made.
///
/// The first number of each thread's `schedstat`, in nanoseconds; `/proc/self/stat` counts in
/// steps of 10 ms, which is more than an idle process uses. The files stay open so that looking
/// costs little, for looking is paid by the process that is looked at.
#[derive(Debug)]
pub(crate) struct CpuClock {
    threads: Vec<File>,
}

impl CpuClock {
    pub(crate) fn new() -> Result<Self> {
        let mut threads = Vec::new();
        for thread in fs::read_dir("/proc/self/task")? {
            let path = thread?.path().join("schedstat");
            let file = File::open(&path)
                .map_err(|error| format!("cannot open {}: {error}", path.display()))?;
            threads.push(file);
        }
        Ok(Self { threads })
    }

    /// The CPU time used so far.
    pub(crate) fn read(&self) -> Result<Duration> {
        let mut nanos = 0;
        for thread in &self.threads {
            let mut text = [0; 128];
            let length = thread.read_at(&mut text, 0)?;
            let text = str::from_utf8(&text[..length])?;
            let first = text.split_whitespace().next().ok_or("a schedstat is empty")?;
            nanos += first.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_has_used_time() {
        assert!(resident_bytes().unwrap() > 100_000);
        assert!(CpuClock::new().unwrap().read().unwrap() > Duration::ZERO);
    }
}
