//! Noticing that another file was copied over a database that is in use.
//!
//! A copy keeps the inode: the path still leads to the file that is open, and to go on would mix the
//! log of one database with the pages of another. But with a write-ahead log, the file itself changes
//! only when pages of the log are moved into it. Whoever does so notes the size and the time of the file
//! afterwards, in the lock file, which all processes share and write while it is their turn. Where the
//! file is not as noted, either a connection of another program has moved pages, which its log shows, or
//! has begun to, which the pages show ([`frames`]), or the file was written by something else.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rusqlite::Connection;

use crate::checkpoint;
use crate::failure::Failure;
use crate::file::beside;
use crate::frames;

/// How long to wait for a connection of another program to say that it is done with moving pages.
const GRACE: Duration = Duration::from_secs(3);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(5);
/// The length of a note, so that each covers the last one and needs no further room on the disk.
const NOTE_BYTES: usize = 128;

/// The size of a file and when it was last written, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    len: u64,
    written: i128,
}

impl Stamp {
    pub(crate) fn of(file: &std::fs::Metadata) -> Self {
        let written = file.modified().map_or(0, |time| match time.duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_nanos() as i128,
            Err(before) => -(before.duration().as_nanos() as i128),
        });
        Self { len: file.len(), written }
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.len == 0
    }

    fn at(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().as_ref().map(Self::of)
    }
}

/// How much of the log was moved into the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moved {
    /// The salt of the log, which is another each time that it is started again. `None`: it is empty.
    salt: Option<u64>,
    pages: i64,
    /// Whether that was all.
    whole: bool,
    /// When the log was last written.
    written: i128,
}

impl Moved {
    fn now(connection: &Connection, log: &File) -> Option<Self> {
        let (pages, moved) = checkpoint::length(connection)?;
        let written = Stamp::of(&log.metadata().ok()?).written;
        Some(Self { salt: frames::salt(log), pages: moved, whole: pages == moved, written })
    }

    /// Whether pages may have been moved between this and what is `now`.
    fn may_have_advanced(self, now: Self) -> bool {
        match (self.salt, now.salt) {
            (Some(then), Some(same)) if then == same => self.pages != now.pages,
            // It was written, moved and cut down to nothing; or never written.
            (None, None) => self.written != now.written,
            // It is started again when all of it was moved.
            _ => true,
        }
    }

    /// Whether a checkpoint that did not end, or has not yet, is all that has happened to the file.
    fn explains(self, path: &Path, log: &File) -> bool {
        let pages = self.pages.try_into().unwrap_or(0);
        self.salt.is_some_and(|salt| frames::belongs(path, log, salt, pages))
    }

    /// Whether the log is started again by the next commit, which moves nothing.
    const fn is_at_end(self) -> bool {
        self.whole || self.salt.is_none()
    }
}

/// What the lock file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Note {
    /// Nothing: pages are being moved, or an older program has made the lock file.
    Nothing,
    /// The file as of when its log was last moved.
    Is(Stamp, Moved),
    /// The same, and since then it was written by something else.
    CopiedOver(Stamp, Moved),
}

impl Note {
    fn read(mut lock: &File) -> Self {
        let mut bytes = Vec::new();
        let read = lock.seek(SeekFrom::Start(0)).and_then(|_| {
            let mut note = lock.take(NOTE_BYTES as u64);
            note.read_to_end(&mut bytes)
        });
        let text = read.ok().and_then(|_| std::str::from_utf8(&bytes).ok());
        text.and_then(Self::parse).unwrap_or(Self::Nothing)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let kind = words.next()?;
        let stamp =
            Stamp { len: words.next()?.parse().ok()?, written: words.next()?.parse().ok()? };
        let salt = match words.next()? {
            "-" => None,
            number => Some(number.parse().ok()?),
        };
        let pages = words.next()?.parse().ok()?;
        let whole = words.next()? == "whole";
        let moved = Moved { salt, pages, whole, written: words.next()?.parse().ok()? };
        match kind {
            "is" => Some(Self::Is(stamp, moved)),
            "copied-over" => Some(Self::CopiedOver(stamp, moved)),
            _ => None,
        }
    }

    /// Writes the note. Where that fails, the worst is that a later change cannot be explained, or
    /// seems to be: no reason not to go on.
    fn write(self, mut lock: &File) {
        let (kind, stamp, moved) = match self {
            Self::Nothing => ("nothing", None, None),
            Self::Is(stamp, moved) => ("is", Some(stamp), Some(moved)),
            Self::CopiedOver(stamp, moved) => ("copied-over", Some(stamp), Some(moved)),
        };
        let mut text = kind.to_owned();
        if let (Some(Stamp { len, written }), Some(moved)) = (stamp, moved) {
            let salt = moved.salt.map_or("-".to_owned(), |number| number.to_string());
            let (pages, whole) = (moved.pages, if moved.whole { "whole" } else { "part" });
            text = format!("{kind} {len} {written} {salt} {pages} {whole} {}", moved.written);
        }
        let line = format!("{text:width$}\n", width = NOTE_BYTES - 1);
        let written = lock.seek(SeekFrom::Start(0)).and_then(|_| lock.write_all(line.as_bytes()));
        if let Err(error) = written {
            tracing::debug!(%error, "cannot write to the lock file");
        }
    }
}

/// What a process knows of the file that it has open.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The file as it was when nothing was wrong with it.
    seen: Cell<Option<Stamp>>,
    /// The next commit starts the log again, and that must be noted: nothing is moved by it.
    is_at_end: Cell<bool>,
    is_copied_over: Cell<bool>,
}

/// The files that are looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    pub(crate) path: &'a Path,
    pub(crate) lock: &'a File,
    pub(crate) log: &'a File,
}

impl Watch {
    /// Takes the file for what it should be: nobody else has it open. To be called when it is this
    /// process's turn.
    pub(crate) fn begin(&self, files: Files<'_>, connection: &Connection) {
        let now = Moved::now(connection, files.log);
        if let Some(found) = Stamp::at(files.path) {
            self.accept(found, now, Note::Nothing, files);
        }
    }

    /// Whether the file is not as it was.
    pub(crate) fn is_changed(&self, found: Stamp) -> bool {
        self.seen.get() != Some(found)
    }

    /// Fails if the file was written by something that is not SQLite. To be called when it is this
    /// process's turn, and for nothing where the file is as it was.
    pub(crate) fn check(
        &self,
        found: Stamp,
        files: Files<'_>,
        connection: &Connection,
    ) -> Result<(), Failure> {
        if !self.is_changed(found) {
            return Ok(());
        }
        let end = Instant::now() + GRACE;
        loop {
            // Before the file: what is moved in between then explains that the file changes later.
            let now = Moved::now(connection, files.log);
            let Some(found) = Stamp::at(files.path) else { return Err(Failure::Replaced) };
            let note = Note::read(files.lock);
            let (stamp, moved, told) = match note {
                Note::Nothing => {
                    self.accept(found, now, note, files);
                    return Ok(());
                }
                Note::Is(stamp, moved) => (stamp, moved, false),
                Note::CopiedOver(stamp, moved) => (stamp, moved, true),
            };
            let is_explained =
                stamp == found || now.is_some_and(|now| moved.may_have_advanced(now));
            let is_late = told || Instant::now() >= end;
            if is_explained || (is_late && moved.explains(files.path, files.log)) {
                self.accept(found, now, note, files);
                return Ok(());
            }
            if is_late {
                self.is_copied_over.set(true);
                Note::CopiedOver(stamp, moved).write(files.lock);
                return Err(Failure::CopiedOver(files.path.to_owned()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Moves pages of the log into the file. To be called when it is this process's turn: if it is killed
    /// meanwhile, the next one finds no note.
    pub(crate) fn while_moving<T>(
        &self,
        files: Files<'_>,
        connection: &Connection,
        shift: impl FnOnce() -> T,
    ) -> T {
        Note::Nothing.write(files.lock);
        let done = shift();
        self.begin(files, connection);
        done
    }

    /// Notes that the log was started again, if it was. To be called after each commit, while it is still this
    /// process's turn.
    pub(crate) fn committed(&self, files: Files<'_>, connection: &Connection) {
        if !self.is_at_end.get() {
            return;
        }
        let now = Moved::now(connection, files.log);
        if let Some(found) = Stamp::at(files.path).filter(|found| !self.is_changed(*found)) {
            self.accept(found, now, Note::Nothing, files);
        }
    }

    /// Whether the file was found to be another.
    pub(crate) fn is_copied_over(&self) -> bool {
        self.is_copied_over.get()
    }

    /// Takes the file for what it should be, as it was `found` after the log was as it is `now`.
    fn accept(&self, found: Stamp, now: Option<Moved>, note: Note, files: Files<'_>) {
        self.seen.set(Some(found));
        self.is_copied_over.set(false);
        let note = match note {
            Note::Is(stamp, _) if stamp == found => note,
            _ => {
                let note = now.map_or(Note::Nothing, |now| Note::Is(found, now));
                note.write(files.lock);
                note
            }
        };
        self.is_at_end.set(!matches!(note, Note::Is(_, moved) if !moved.is_at_end()));
    }
}

/// Fails if a program has found that a file was copied over this one, and its log is still here:
/// SQLite would move it into the file, which it does not belong to.
pub(crate) fn check_note(path: &Path) -> Result<(), Failure> {
    let Ok(lock) = File::open(beside(path, "-lock")) else { return Ok(()) };
    let Note::CopiedOver(stamp, moved) = Note::read(&lock) else { return Ok(()) };
    let name = beside(path, "-wal");
    let has_log = std::fs::metadata(&name).is_ok_and(|log| log.len() > 0);
    if !has_log || Stamp::at(path) == Some(stamp) {
        return Ok(());
    }
    // They may have been wrong, or the former file is back.
    if File::open(name).is_ok_and(|log| moved.explains(path, &log)) {
        return Ok(());
    }
    Err(Failure::CopiedOver(path.to_owned()))
}

/// Whether the file of this name is a log that was written.
pub(crate) fn is_written_log(log: &Path) -> bool {
    File::open(log).is_ok_and(|log| frames::salt(&log).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(salt: Option<u64>, pages: i64, whole: bool) -> Moved {
        Moved { salt, pages, whole, written: 1_700_000_000_000_000_000 }
    }

    #[test]
    fn a_note_is_read_as_it_was_written_over_a_longer_one() {
        let lock = tempfile::tempfile().unwrap();
        assert_eq!(Note::read(&lock), Note::Nothing);
        let stamp = Stamp { len: 1 << 40, written: 1_700_000_000_000_000_000 };
        for note in [
            Note::CopiedOver(stamp, moved(Some(u64::MAX), 1 << 31, false)),
            Note::Is(Stamp { len: 0, written: -1 }, moved(None, 0, true)),
            Note::Nothing,
        ] {
            note.write(&lock);
            assert_eq!(Note::read(&lock), note);
            assert_eq!(lock.metadata().unwrap().len(), NOTE_BYTES as u64);
        }
    }

    #[test]
    fn pages_may_have_been_moved_if_more_are_or_the_log_is_another() {
        let (part, all) = (moved(Some(7), 5, false), moved(Some(7), 9, true));
        assert!(!part.may_have_advanced(part) && !all.may_have_advanced(all));
        assert!(part.may_have_advanced(all));
        assert!(part.may_have_advanced(moved(Some(8), 0, false)));
        let empty = moved(None, 0, true);
        assert!(!empty.may_have_advanced(empty));
        assert!(empty.may_have_advanced(Moved { written: 0, ..empty }), "it was cut down again");
        assert!(empty.may_have_advanced(part) && part.may_have_advanced(empty));
    }
}
