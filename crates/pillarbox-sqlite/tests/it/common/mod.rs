//! Files that processes share.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pillarbox_core::{Mailboxes, Queue, QueueOptions};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions};

pub(crate) async fn open(file: impl AsRef<Path>) -> Mailboxes {
    let backend = SqliteBackend::open(SqliteOptions::new(file)).await;
    Mailboxes::new(backend.unwrap_or_else(|error| panic!("{error}")))
}

pub(crate) fn queue(backend: &Mailboxes, name: &str) -> Arc<dyn Queue> {
    backend.queue(name, QueueOptions::new()).expect("a queue")
}

/// A file system of 16 MiB.
pub(crate) struct SmallDisk<'a>(pub(crate) &'a Path);

impl<'a> SmallDisk<'a> {
    pub(crate) fn mount(path: &'a Path) -> Option<Self> {
        let options = ["-t", "tmpfs", "-o", "size=16m", "tmpfs"];
        let mounted = Command::new("mount").args(options).arg(path).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // The child's last file may take a moment to be closed.
        let end = Instant::now() + Duration::from_secs(5);
        let unmounted = || Command::new("umount").arg(self.0).output();
        while !unmounted().is_ok_and(|output| output.status.success()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
