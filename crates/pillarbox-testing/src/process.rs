//! Tests that run in processes of their own, and can be killed.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::campaign::Record;

/// What the parent tells the child: what to work on, and what to do with it.
const PLACE: &str = "PILLARBOX_CHILD_PLACE";
const TASK: &str = "PILLARBOX_TASK";

/// A test of this binary that runs in a process of its own, killed when dropped.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Child {
    /// Starts the ignored test `role` of this binary, which calls [`told`].
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start(role: &str, place: impl AsRef<OsStr>, task: &str) -> Self {
        Self::start_by(Command::new(std::env::current_exe().expect("this test")), role, place, task)
    }

    /// Starts it by a command that takes the program's arguments as its own.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start_by(
        mut command: Command,
        role: &str,
        place: impl AsRef<OsStr>,
        task: &str,
    ) -> Self {
        let mut process = command
            .args(["--exact", role, "--ignored", "--nocapture"])
            .env(PLACE, place)
            .env(TASK, task)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let output = process.stdout.take().expect("its output");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let reader = std::thread::spawn({
            let lines = lines.clone();
            move || Record::read_each(output, |line| lines.lock().expect("lines").push(line))
        });
        Self { process, lines, reader: Some(reader) }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// How many lines of a [record](crate::campaign::Record) it has said that begin so.
    pub fn said(&self, start: &str) -> usize {
        self.lines.lock().expect("lines").iter().filter(|line| line.starts_with(start)).count()
    }

    /// Waits until it has said more than `count` lines that begin so.
    ///
    /// # Panics
    ///
    /// When it does not within a minute.
    #[track_caller]
    pub fn wait_for(&self, start: &str, count: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.said(start) <= count {
            assert!(Instant::now() < end, "the child did not say {start:?} {count} times");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until it ends by itself, and gives all that it said.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn finish(mut self) -> Vec<String> {
        let status = self.process.wait().expect("the child ends");
        assert!(status.success(), "the child failed: {status}");
        self.take_lines()
    }

    /// Sends it a signal, such as `TERM`.
    ///
    /// # Panics
    ///
    /// When it has ended and that is known.
    #[track_caller]
    pub fn signal(&self, name: &str) {
        // Nobody else has its number until it was waited for.
        let kill = format!("kill -{name} {}", self.id());
        let status = Command::new("sh").args(["-c", &kill]).status().expect("a shell");
        assert!(status.success(), "{kill}: {status}");
    }

    /// How it has ended, if it has.
    ///
    /// # Panics
    ///
    /// When the operating system does not tell.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("the state of the child")
    }

    /// Waits until it ends by itself, well or not, and gives how it did and all that it said.
    ///
    /// # Panics
    ///
    /// When it takes longer than this; it is killed then.
    #[track_caller]
    pub fn end_within(mut self, time: Duration) -> (ExitStatus, Vec<String>) {
        let end = Instant::now() + time;
        loop {
            if let Some(status) = self.ended() {
                return (status, self.take_lines());
            }
            assert!(Instant::now() < end, "the child did not end within {time:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills it by SIGKILL, and gives all that it said.
    pub fn kill(mut self) -> Vec<String> {
        self.end();
        self.take_lines()
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn take_lines(&mut self) -> Vec<String> {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader ends");
        }
        std::mem::take(&mut *self.lines.lock().expect("lines"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
        self.take_lines();
    }
}

/// Inside a child: the place and the task that the parent named. `None` in a process that is no child.
pub fn told() -> Option<(String, String)> {
    Some((std::env::var(PLACE).ok()?, std::env::var(TASK).ok()?))
}

/// Inside a child: a line to the parent, by one write, which no kill can cut.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The test harness may have left a line unfinished.
    let said = out.write_all(format!("\n@ {line}\n").as_bytes()).and_then(|()| out.flush());
    if said.is_err() {
        std::process::exit(1);
    }
}

/// Inside a child: a parent that is killed must not leave it behind.
#[cfg(unix)]
pub fn end_with_the_parent() {
    let parent = std::os::unix::process::parent_id();
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(500));
        }
        std::process::exit(1);
    });
}

/// A number from the environment, or this one.
///
/// # Panics
///
/// When there is something else.
pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}
