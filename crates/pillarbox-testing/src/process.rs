//! Tests that run in child processes, which can be killed.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::campaign::Record;

/// Environment variables by which the parent passes the place of work (a URL or path) and the task to the child.
const PLACE: &str = "PILLARBOX_CHILD_PLACE";
const TASK: &str = "PILLARBOX_TASK";

/// A test of this binary that runs in a child process, which is killed on drop.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Child {
    /// Starts the ignored test `role` of this binary, which reads its assignment with [`assignment`].
    ///
    /// # Panics
    ///
    /// If the process does not start.
    pub fn start(role: &str, place: impl AsRef<OsStr>, task: &str) -> Self {
        Self::start_by(Command::new(std::env::current_exe().expect("this test")), role, place, task)
    }

    /// Starts it with a command that takes the arguments of the test binary.
    ///
    /// # Panics
    ///
    /// If the process does not start.
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

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the number of lines it has [reported](report) that start with `start`.
    pub fn reported(&self, start: &str) -> usize {
        self.lines.lock().expect("lines").iter().filter(|line| line.starts_with(start)).count()
    }

    /// Waits until it has [reported](report) more than `count` lines that start with `start`.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    #[track_caller]
    pub fn wait_for(&self, start: &str, count: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.reported(start) <= count {
            assert!(
                Instant::now() < end,
                "the child did not report more than {count} lines {start:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until it exits, and returns all lines it reported.
    ///
    /// # Panics
    ///
    /// If it fails.
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
    /// If it has exited and was waited for.
    #[track_caller]
    pub fn signal(&self, name: &str) {
        // Its id is not reused until it was waited for.
        send_signal(self.id(), name);
    }

    /// Returns its exit status if it has exited.
    ///
    /// # Panics
    ///
    /// If the operating system does not report it.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("the state of the child")
    }

    /// Waits until it exits, and returns its status and all lines it reported.
    ///
    /// # Panics
    ///
    /// If it takes longer than `time`; it is killed then.
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

    /// Kills it with SIGKILL, and returns all lines it reported.
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

/// Sends a signal to a process.
#[track_caller]
pub(crate) fn send_signal(pid: u32, name: &str) {
    let kill = format!("kill -{name} {pid}");
    let status = Command::new("sh").args(["-c", &kill]).status().expect("a shell");
    assert!(status.success(), "{kill}: {status}");
}

/// Returns the place and the task that the parent assigned to this child, or `None` if this process is
/// not a child.
pub fn assignment() -> Option<(String, String)> {
    Some((std::env::var(PLACE).ok()?, std::env::var(TASK).ok()?))
}

/// Reports a line to the parent, in one write, so that a kill does not cut it.
pub fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    // The test harness may have left a line unfinished.
    let written = out.write_all(format!("\n@ {line}\n").as_bytes()).and_then(|()| out.flush());
    if written.is_err() {
        std::process::exit(1);
    }
}

/// Exits this child as soon as its parent is gone.
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

/// Returns a number from the environment, or `default` if it is not set.
///
/// # Panics
///
/// If the variable is not a number.
pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}
