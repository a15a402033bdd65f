//! Directories for files: a new one for each run, on a disk where an fsync is real.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::measure::{Result, micros, percentile};
use crate::progress;

/// Names the directory in which all others are made, in place of the system's for temporary files.
const VARIABLE: &str = "PILLARBOX_BENCH_DIR";

/// A new directory, deleted with all that is in it when dropped.
pub(crate) fn fresh() -> Result<TempDir> {
    let root = root();
    let made = tempfile::Builder::new().prefix("pillarbox-bench-").tempdir_in(&root);
    made.map_err(|error| format!("cannot make a directory in {}: {error}", root.display()).into())
}

/// Warns if the files would be in memory, where a sync costs nothing and protects nothing.
pub(crate) fn warn_if_in_memory() {
    let root = root();
    if file_system(&root).is_some_and(|kind| kind == "tmpfs" || kind == "ramfs") {
        progress::say(format_args!(
            "warning: {} is in memory, where an fsync costs nothing; set {VARIABLE} to a \
             directory on a disk",
            root.display()
        ));
    }
}

/// Prints the duration of an fsync, which most figures depend on.
pub(crate) fn tell_sync_time(suite: &str) -> Result<()> {
    let micros = micros(sync_time()?);
    progress::say(format_args!("{suite}: 4 KiB write + fsync: {micros:.0} µs"));
    Ok(())
}

/// Measures the duration of an fsync: the median of 32.
pub(crate) fn sync_time() -> Result<Duration> {
    let directory = fresh()?;
    let file = File::create(directory.path().join("probe"))?;
    let mut times = Vec::new();
    for _ in 0..32 {
        file.write_all_at(&[1; 4096], 0)?;
        let start = Instant::now();
        file.sync_data()?;
        times.push(start.elapsed());
    }
    percentile(&mut times, 50)
}

/// Where all directories are made.
pub(crate) fn root() -> PathBuf {
    env::var_os(VARIABLE).map_or_else(env::temp_dir, PathBuf::from)
}

/// The kind of file system that holds a path, as Linux tells it.
fn file_system(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    holder(&fs::read_to_string("/proc/mounts").ok()?, &path)
}

/// The kind of the last of the longest mount points above a path.
fn holder(mounts: &str, path: &Path) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = Path::new(fields.next()?);
        path.starts_with(point).then_some((point.components().count(), fields.next()?))
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_point_holds_a_path() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\nproc /proc proc rw 0 0\n";
        let kind = |path: &str| holder(mounts, Path::new(path));
        assert_eq!(kind("/tmp/bench").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/var/tmp").as_deref(), Some("ext4"));
        assert_eq!(kind("/tmpfiles").as_deref(), Some("ext4"));
    }

    #[test]
    fn a_directory_is_gone_when_dropped() {
        let directory = fresh().unwrap();
        let path = directory.path().to_owned();
        assert!(path.is_dir());
        drop(directory);
        assert!(!path.exists());
    }
}
