//! Append-only log of lines, in memory or in a file.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pillarbox_core::internal::lock;

use super::permissions::Mode;
use crate::error::{EvalError, Result};

/// Append-only log of lines, each identified by its position.
#[derive(Debug)]
pub(crate) enum LineLog {
    /// The position of a line is its index.
    Memory(Vec<Box<str>>),
    /// The position of a line is its offset.
    File { file: Arc<Mutex<File>>, path: PathBuf, access: Access },
}

/// Access to the files of a run.
#[derive(Debug, Clone)]
pub(crate) enum Access {
    /// Reads and appends, holding the lock of the run. A missing file is created, unless it must exist.
    Write { lock: Arc<File>, must_exist: bool, mode: Mode },
    /// Reads only. A missing file is empty.
    ReadOnly,
}

impl LineLog {
    pub(crate) const fn in_memory() -> Self {
        Self::Memory(Vec::new())
    }

    /// Opens a file, and calls `each` with the position and text of every line. An incomplete last line, left by a
    /// process that was killed, is cut off: its write was never confirmed.
    pub(crate) fn open(
        path: &Path,
        access: &Access,
        mut each: impl FnMut(u64, &str) -> Result<(), String>,
    ) -> Result<Self> {
        let mut options = match access {
            Access::Write { must_exist, mode, .. } => {
                let mut options = mode.options();
                options.append(true).create(!must_exist);
                options
            }
            Access::ReadOnly if !path.exists() => return Ok(Self::in_memory()),
            Access::ReadOnly => OpenOptions::new(),
        };
        let file = options.read(true).open(path).map_err(EvalError::file("open", path))?;
        let mut reader = BufReader::new(&file);
        let (mut line, mut end) = (Vec::new(), 0);
        for number in 1.. {
            line.clear();
            let read =
                reader.read_until(b'\n', &mut line).map_err(EvalError::file("read", path))?;
            if !line.ends_with(b"\n") {
                break;
            }
            let text = std::str::from_utf8(&line).map_err(|error| error.to_string());
            text.and_then(|text| each(end, text.trim_end())).map_err(|reason| {
                EvalError::Invalid(format!(
                    "line {number} of {} is damaged: {reason}",
                    path.display()
                ))
            })?;
            end += read as u64;
        }
        if !line.is_empty() && !matches!(access, Access::ReadOnly) {
            tracing::warn!(path = %path.display(), bytes = line.len(), "cut off an incomplete last line");
            file.set_len(end).map_err(EvalError::file("truncate", path))?;
        }
        let (file, access) = (Arc::new(Mutex::new(file)), access.clone());
        Ok(Self::File { file, path: path.to_owned(), access })
    }

    /// Appends lines, none of which contains a line break, and returns their positions. They are on disk when this
    /// returns.
    pub(crate) async fn append(&mut self, lines: Vec<String>) -> Result<Vec<u64>> {
        debug_assert!(lines.iter().all(|line| !line.contains('\n')));
        match self {
            Self::Memory(all) => {
                let first = all.len() as u64;
                all.extend(lines.into_iter().map(String::into_boxed_str));
                Ok((first..all.len() as u64).collect())
            }
            Self::File { file, path, access } => {
                let (file, target, access) = (file.clone(), path.clone(), access.clone());
                // The write completes even if this future is dropped, and holds the lock of the run until then.
                let writing = tokio::task::spawn_blocking(move || {
                    let file = lock(&file);
                    let written = write(&file, &lines);
                    let written = check_is_at(&file, &target).and(written);
                    if let Access::Write { lock, .. } = access {
                        drop(lock);
                    }
                    written
                });
                let written = writing.await;
                let positions = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
                positions.map_err(EvalError::file("write", &*path))
            }
        }
    }

    /// Returns whether nothing can be appended.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::File { access: Access::ReadOnly, .. })
    }

    /// Removes all lines.
    pub(crate) fn clear(&mut self) -> Result<()> {
        match self {
            Self::Memory(all) => all.clear(),
            Self::File { file, path, .. } => {
                lock(file).set_len(0).map_err(EvalError::file("truncate", &*path))?;
            }
        }
        Ok(())
    }

    /// Returns the line at a position.
    pub(crate) fn get(&self, position: u64) -> Result<String> {
        match self {
            Self::Memory(all) => {
                let line = usize::try_from(position).ok().and_then(|position| all.get(position));
                Ok(line.map(|line| line.to_string()).unwrap_or_default())
            }
            Self::File { file, path, .. } => {
                let read = || {
                    let mut file = &*lock(file);
                    file.seek(SeekFrom::Start(position))?;
                    let mut line = String::new();
                    BufReader::with_capacity(4096, file).read_line(&mut line)?;
                    line.truncate(line.trim_end().len());
                    Ok(line)
                };
                read().map_err(EvalError::file("read", path))
            }
        }
    }
}

/// Fails if the file is no longer at its path. Its directory may have been deleted, and what is written then would be
/// lost.
fn check_is_at(file: &File, path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    let is_at = {
        use std::os::unix::fs::MetadataExt;
        let (here, there) = (file.metadata()?, std::fs::metadata(path));
        there.is_ok_and(|there| (here.dev(), here.ino()) == (there.dev(), there.ino()))
    };
    #[cfg(not(unix))]
    let (is_at, _) = (path.exists(), file);
    if is_at {
        return Ok(());
    }
    Err(std::io::Error::new(std::io::ErrorKind::NotFound, "it was removed in the meantime"))
}

/// Appends lines to a file, all or none, and returns their positions.
fn write(mut file: &File, lines: &[String]) -> std::io::Result<Vec<u64>> {
    let end = file.metadata()?.len();
    if end > 0 {
        // A partial line that could not be removed when the disk was full would become part of the next line.
        let mut last = [0];
        file.seek(SeekFrom::Start(end - 1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            return Err(std::io::Error::other("its last line is incomplete: open the run again"));
        }
    }
    let mut text = String::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
    let mut positions = Vec::with_capacity(lines.len());
    for line in lines {
        positions.push(end + text.len() as u64);
        text.push_str(line);
        text.push('\n');
    }
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
    if let Err(error) = written {
        // A full disk may have stored a part of it.
        file.set_len(end)?;
        return Err(error);
    }
    Ok(positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(path: &Path) -> (LineLog, Vec<(u64, String)>) {
        let mut found = Vec::new();
        let lock_file = Arc::new(File::open(path.parent().unwrap()).unwrap());
        let mode = crate::FilePermissions::Private.into();
        let access = Access::Write { lock: lock_file, must_exist: false, mode };
        let lines = LineLog::open(path, &access, |position, line| {
            found.push((position, line.to_owned()));
            if line == "bad" { Err("it is bad".to_owned()) } else { Ok(()) }
        });
        (lines.unwrap(), found)
    }

    #[tokio::test]
    async fn lines_are_found_by_their_positions_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let mut memory = LineLog::in_memory();
        let (mut file, none) = all(&path);
        assert!(none.is_empty());
        let texts = ["one", "", "drei: äöü", "{\"x\": 1}"].map(str::to_owned);
        for lines in [&mut memory, &mut file] {
            let mut positions = lines.append(texts[..2].to_vec()).await.unwrap();
            positions.extend(lines.append(texts[2..].to_vec()).await.unwrap());
            for (text, position) in texts.iter().zip(positions) {
                assert_eq!(&lines.get(position).unwrap(), text);
            }
        }
        let (again, found) = all(&path);
        assert_eq!(found.len(), 4);
        for (text, (position, line)) in texts.iter().zip(found) {
            assert_eq!((text, &again.get(position).unwrap()), (&line, text));
        }
    }

    #[tokio::test]
    async fn an_incomplete_last_line_is_cut_off_and_appending_continues() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        std::fs::write(&path, "whole\nhal").unwrap();
        // A reader leaves it alone: another process may be writing it.
        let mut seen = 0;
        let each = |_: u64, _: &str| {
            seen += 1;
            Ok(())
        };
        LineLog::open(&path, &Access::ReadOnly, each).unwrap();
        assert_eq!((seen, &*std::fs::read_to_string(&path).unwrap()), (1, "whole\nhal"));
        let (mut lines, found) = all(&path);
        assert_eq!(found.len(), 1);
        lines.append(vec!["next".to_owned()]).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\nnext\n");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn writing_to_a_removed_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let (mut lines, _) = all(&path);
        lines.append(vec!["one".to_owned()]).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = lines.append(vec!["two".to_owned()]).await.unwrap_err();
        assert!(error.to_string().contains("removed in the meantime"), "{error}");
    }

    #[test]
    fn an_invalid_line_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        for (text, reason) in [("good\nbad\n", "it is bad"), ("good\n\u{FF}\n", "")] {
            std::fs::write(&path, text).unwrap();
            let each = |_: u64, line: &str| {
                if line == "good" { Ok(()) } else { Err("it is bad".to_owned()) }
            };
            let error = LineLog::open(&path, &Access::ReadOnly, each).unwrap_err().to_string();
            assert!(error.starts_with("line 2 of ") && error.ends_with(reason), "{error}");
        }
    }
}
