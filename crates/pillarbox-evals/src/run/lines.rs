//! Lines that are added to and never changed, in memory or in a file.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{EvalError, Result};

/// Lines, each known by its place.
#[derive(Debug)]
pub(crate) enum Lines {
    /// A place is an index.
    Memory(Vec<Box<str>>),
    /// A place is where the line begins.
    File { file: Arc<Mutex<File>>, path: PathBuf },
}

impl Lines {
    pub(crate) const fn in_memory() -> Self {
        Self::Memory(Vec::new())
    }

    /// Opens a file, which is made if it is not there, and reads its lines. What was being written when a process
    /// was killed, a line without its end, is cut off: nobody was told that it is there.
    pub(crate) fn open(
        path: &Path,
        mut each: impl FnMut(u64, &str) -> Result<(), String>,
    ) -> Result<Self> {
        let opened = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = opened.map_err(EvalError::file("open", path))?;
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
        if !line.is_empty() {
            tracing::warn!(path = %path.display(), bytes = line.len(), "the last line is cut off, for it has no end");
            file.set_len(end).map_err(EvalError::file("shorten", path))?;
        }
        Ok(Self::File { file: Arc::new(Mutex::new(file)), path: path.to_owned() })
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
            Self::File { file, path } => {
                let file = file.clone();
                // It is finished even if nobody waits for it any more.
                let writing = tokio::task::spawn_blocking(move || write(&locked(&file), &lines));
                let written = writing.await;
                let places = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
                places.map_err(EvalError::file("write", &*path))
            }
        }
    }

    /// The line at a place.
    pub(crate) fn get(&self, place: u64) -> Result<String> {
        match self {
            Self::Memory(all) => {
                let line = usize::try_from(place).ok().and_then(|place| all.get(place));
                Ok(line.map(|line| line.to_string()).unwrap_or_default())
            }
            Self::File { file, path } => {
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

/// Adds lines to the end of a file, all or none, and says where they are.
fn write(mut file: &File, lines: &[String]) -> std::io::Result<Vec<u64>> {
    let end = file.metadata()?.len();
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
        let lines = Lines::open(path, |place, line| {
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
        let (mut lines, found) = all(&path);
        assert_eq!(found.len(), 1);
        lines.append(vec!["next".to_owned()]).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\nnext\n");
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
            let error = Lines::open(&path, each).unwrap_err().to_string();
            assert!(error.starts_with("line 2 of ") && error.ends_with(reason), "{error}");
        }
    }
}
