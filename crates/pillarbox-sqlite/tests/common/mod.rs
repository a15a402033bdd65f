//! Processes that use a file, and can be killed.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pillarbox_core::{Mailboxes, Queue, QueueOptions};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions};
use pillarbox_testing::campaign::Record;

/// What the parent tells the child: the file, and what to do with it.
pub(crate) const CHILD_FILE: &str = "PILLARBOX_CHILD_FILE";
pub(crate) const CHILD_TASK: &str = "PILLARBOX_CHILD_TASK";

/// A test of this binary that runs in a process of its own.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Child {
    /// Starts the ignored test `role` of this binary.
    pub(crate) fn start(role: &str, file: &Path, task: &str) -> Self {
        Self::start_by(Command::new(std::env::current_exe().expect("this test")), role, file, task)
    }

    /// Starts it by a command that takes the program's arguments as its own.
    pub(crate) fn start_by(mut command: Command, role: &str, file: &Path, task: &str) -> Self {
        let mut process = command
            .args(["--exact", role, "--ignored", "--nocapture"])
            .env(CHILD_FILE, file)
            .env(CHILD_TASK, task)
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

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// How many lines it has said that begin so.
    pub(crate) fn said(&self, start: &str) -> usize {
        self.lines.lock().expect("lines").iter().filter(|line| line.starts_with(start)).count()
    }

    /// Waits until it has said more than `count` lines that begin so.
    #[track_caller]
    pub(crate) fn wait_for(&self, start: &str, count: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.said(start) <= count {
            assert!(Instant::now() < end, "the child did not say {start:?} {count} times");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until it ends by itself, and gives all that it said.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Vec<String> {
        let status = self.process.wait().expect("the child ends");
        assert!(status.success(), "the child failed: {status}");
        self.take_lines()
    }

    /// Kills it by SIGKILL, and gives all that it said.
    pub(crate) fn kill(mut self) -> Vec<String> {
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

/// Inside a child: the file and the task that the parent named.
pub(crate) fn told() -> Option<(String, String)> {
    Some((std::env::var(CHILD_FILE).ok()?, std::env::var(CHILD_TASK).ok()?))
}

pub(crate) async fn open(file: impl AsRef<Path>) -> Mailboxes {
    let backend = SqliteBackend::open(SqliteOptions::new(file)).await;
    Mailboxes::new(backend.unwrap_or_else(|error| panic!("{error}")))
}

pub(crate) fn queue(backend: &Mailboxes, name: &str) -> Arc<dyn Queue> {
    backend.queue(name, QueueOptions::new()).expect("a queue")
}

/// A number from the environment, or this one.
pub(crate) fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}
