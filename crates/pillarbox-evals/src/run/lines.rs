//! Lines that are added to and never changed, in memory or in a file.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mode::Mode;
use crate::error::{EvalError, Result};

/// Lines, each known by its place.
#[derive(Debug)]
pub(crate) enum Lines {
    /// A place is an index.
    Memory(Vec<Box<str>>),
    /// A place is where the line begins.
    File { file: Arc<Mutex<File>>, path: PathBuf, access: Access },
}

/// Who may do what with the files of a run.
#[derive(Debug, Clone)]
pub(crate) enum Access {
    /// Reads and adds, with the lock of the run. A file that is not there is made, unless it must be there.
    Write { lock: Arc<File>, must_be_there: bool, mode: Mode },
    /// Only reads. One that is not there is empty.
    Look,
}

impl Lines {
    pub(crate) const fn in_memory() -> Self {
        Self::Memory(Vec::new())
    }

    /// Opens a file, which is made if it is not there, and reads its lines. What was being written when a process
    /// was killed, a line without its end, is cut off: nobody was told that it is there.
    pub(crate) fn open(
        path: &Path,
        access: &Access,
        mut each: impl FnMut(u64, &str) -> Result<(), String>,
    ) -> Result<Self> {
        let mut options = match access {
            Access::Write { must_be_there, mode, .. } => {
                let mut options = mode.options();
                options.append(true).create(!must_be_there);
                options
            }
            Access::Look if !path.exists() => return Ok(Self::in_memory()),
            Access::Look => OpenOptions::new(),
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
        if !line.is_empty() && !matches!(access, Access::Look) {
            tracing::warn!(path = %path.display(), bytes = line.len(), "the last line is cut off, for it has no end");
            file.set_len(end).map_err(EvalError::file("shorten", path))?;
        }
        let (file, access) = (Arc::new(Mutex::new(file)), access.clone());
        Ok(Self::File { file, path: path.to_owned(), access })
    }

    /// Adds lines, none of which has a line break in it. When this returns they are on the disk.
    pub(crate) async fn append(&mut self, lines: Vec<String>) -> Result<Vec<u64>> {
        debug_assert!(lines.iter().all(|line| !line.contains('\n')));
        match self {
            Self::Memory(all) => {
                let first = all.len() as u64;
                all.extend(lines.into_iter().map(String::into_boxed_str));
                Ok((first..all.len() as u64).collect())
            }
            Self::File { file, path, access } => {
                let (file, place, access) = (file.clone(), path.clone(), access.clone());
                // It is finished even if nobody waits for it any more, and nobody else has the run before.
                let writing = tokio::task::spawn_blocking(move || {
                    let file = locked(&file);
                    let written = write(&file, &lines);
                    let written = match is_at(&file, &place) {
                        Ok(true) => written,
                        Ok(false) => Err(gone()),
                        Err(error) => Err(error),
                    };
                    if let Access::Write { lock, .. } = access {
                        drop(lock);
                    }
                    written
                });
                let written = writing.await;
                let places = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
                places.map_err(EvalError::file("write", &*path))
            }
        }
    }

    /// Whether nothing can be added.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::File { access: Access::Look, .. })
    }

    /// Takes all lines out.
    pub(crate) fn clear(&mut self) -> Result<()> {
        match self {
            Self::Memory(all) => all.clear(),
            Self::File { file, path, .. } => {
                locked(file).set_len(0).map_err(EvalError::file("empty", &*path))?;
            }
        }
        Ok(())
    }

    /// The line at a place.
    pub(crate) fn get(&self, place: u64) -> Result<String> {
        match self {
            Self::Memory(all) => {
                let line = usize::try_from(place).ok().and_then(|place| all.get(place));
                Ok(line.map(|line| line.to_string()).unwrap_or_default())
            }
            Self::File { file, path, .. } => {
                let read = || {
                    let mut file = &*locked(file);
                    file.seek(SeekFrom::Start(place))?;
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

/// Held by whoever reads a line or adds some, on a thread that may wait.
fn locked(file: &Mutex<File>) -> MutexGuard<'_, File> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a file is still where it was opened: a directory may have been deleted, and nobody would find what is
/// written then.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let (here, there) = (file.metadata()?, std::fs::metadata(path));
        Ok(there.is_ok_and(|there| (here.dev(), here.ino()) == (there.dev(), there.ino())))
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        Ok(path.exists())
    }
}

fn gone() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::NotFound, "it was removed in the meantime")
}

/// Adds lines to the end of a file, all or none, and says where they are.
fn write(mut file: &File, lines: &[String]) -> std::io::Result<Vec<u64>> {
    let end = file.metadata()?.len();
    if end > 0 {
        // What could not be taken back when a disk was full would be the beginning of the next line.
        let mut last = [0];
        file.seek(SeekFrom::Start(end - 1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            return Err(std::io::Error::other("its last line has no end: open the run anew"));
        }
    }
    let mut text = String::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
    let mut places = Vec::with_capacity(lines.len());
    for line in lines {
        places.push(end + text.len() as u64);
        text.push_str(line);
        text.push('\n');
    }
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
    if let Err(error) = written {
        // A disk that is full has taken a part of it.
        file.set_len(end)?;
        return Err(error);
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(path: &Path) -> (Lines, Vec<(u64, String)>) {
        let mut found = Vec::new();
        let lock = Arc::new(File::open(path.parent().unwrap()).unwrap());
        let mode = crate::FilePermissions::Private.into();
        let lock = Access::Write { lock, must_be_there: false, mode };
        let lines = Lines::open(path, &lock, |place, line| {
            found.push((place, line.to_owned()));
            if line == "bad" { Err("it is bad".to_owned()) } else { Ok(()) }
        });
        (lines.unwrap(), found)
    }

    #[tokio::test]
    async fn lines_are_found_where_they_were_put_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let mut memory = Lines::in_memory();
        let (mut file, none) = all(&path);
        assert!(none.is_empty());
        let texts = ["one", "", "drei: äöü", "{\"x\": 1}"].map(str::to_owned);
        for lines in [&mut memory, &mut file] {
            let mut places = lines.append(texts[..2].to_vec()).await.unwrap();
            places.extend(lines.append(texts[2..].to_vec()).await.unwrap());
            for (text, place) in texts.iter().zip(places) {
                assert_eq!(&lines.get(place).unwrap(), text);
            }
        }
        let (again, found) = all(&path);
        assert_eq!(found.len(), 4);
        for (text, (place, line)) in texts.iter().zip(found) {
            assert_eq!((text, &again.get(place).unwrap()), (&line, text));
        }
    }

    #[tokio::test]
    async fn a_line_that_was_being_written_is_cut_off_and_the_rest_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        std::fs::write(&path, "whole\nhal").unwrap();
        // Who only looks leaves it alone: another process may be at it.
        let mut seen = 0;
        let each = |_: u64, _: &str| {
            seen += 1;
            Ok(())
        };
        Lines::open(&path, &Access::Look, each).unwrap();
        assert_eq!((seen, &*std::fs::read_to_string(&path).unwrap()), (1, "whole\nhal"));
        let (mut lines, found) = all(&path);
        assert_eq!(found.len(), 1);
        lines.append(vec!["next".to_owned()]).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\nnext\n");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn what_is_written_to_a_file_that_was_removed_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let (mut lines, _) = all(&path);
        lines.append(vec!["one".to_owned()]).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = lines.append(vec!["two".to_owned()]).await.unwrap_err();
        assert!(error.to_string().contains("removed in the meantime"), "{error}");
    }

    #[test]
    fn a_line_that_makes_no_sense_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        for (text, reason) in [("good\nbad\n", "it is bad"), ("good\n\u{FF}\n", "")] {
            std::fs::write(&path, text).unwrap();
            let each = |_: u64, line: &str| {
                if line == "good" { Ok(()) } else { Err("it is bad".to_owned()) }
            };
            let error = Lines::open(&path, &Access::Look, each).unwrap_err().to_string();
            assert!(error.starts_with("line 2 of ") && error.ends_with(reason), "{error}");
        }
    }
}
