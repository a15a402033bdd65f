//! Comparing a database with its write-ahead log: whether pages of the one are in the other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

const HEADER_BYTES: u64 = 32;
const FRAME_HEADER_BYTES: u64 = 24;

/// The salt in the header of a log. `None`: it has none.
pub(crate) fn salt(log: &File) -> Option<u64> {
    Header::read(log).ok().flatten().map(|header| header.salt)
}

/// Whether the file has the pages of its log that it must have by now, of which `salt` and the number of
/// frames `moved` into it are known, and some of those that a checkpoint has begun to move.
///
/// A checkpoint writes pages into the file, syncs it, and only then says so. Where it is ended before that, the
/// file has changed and is as good as it was.
pub(crate) fn matches_log(path: &Path, log: &File, salt: u64, moved: u64) -> bool {
    let compared = match Frames::read(log) {
        Ok(Some(frames)) if frames.header.salt == salt => {
            with_database(path, |database| frames.explain(database, log, moved))
        }
        Ok(_) => Ok(false),
        Err(error) => Err(error),
    };
    compared.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot compare the database with its log");
        false
    })
}

struct Header {
    page_bytes: u64,
    salt: u64,
}

impl Header {
    fn read(log: &File) -> io::Result<Option<Self>> {
        let mut words = [[0; 4]; 8];
        if !read_at(log, 0, words.as_flattened_mut())? {
            return Ok(None);
        }
        let word = |index: usize| u32::from_be_bytes(words[index]);
        // The last bit says in which order of bytes its checksums are.
        let is_log = word(0) >> 1 == 0x377f_0682 >> 1;
        let salt = u64::from(word(4)) << 32 | u64::from(word(5));
        Ok(is_log.then_some(Self { page_bytes: word(2).into(), salt }))
    }

    /// Where a frame begins, the first being number 0.
    const fn frame(&self, index: u64) -> u64 {
        HEADER_BYTES + index * (FRAME_HEADER_BYTES + self.page_bytes)
    }
}

/// The frames of a log that were committed.
struct Frames {
    header: Header,
    /// The frames of each page, in the order of the log.
    of_page: BTreeMap<u32, Vec<u64>>,
}

impl Frames {
    fn read(log: &File) -> io::Result<Option<Self>> {
        let Some(header) = Header::read(log)? else { return Ok(None) };
        if !header.page_bytes.is_power_of_two() || !(512..=65536).contains(&header.page_bytes) {
            return Ok(None);
        }
        let mut pages = Vec::new();
        // How many frames were committed, and the size of the database then.
        let (mut committed, mut size) = (0, 0);
        let mut words = [[0; 4]; 4];
        while read_at(log, header.frame(pages.len() as u64), words.as_flattened_mut())? {
            let [page, commit, salt_1, salt_2] = words.map(u32::from_be_bytes);
            // What follows is of before the log was started again.
            if u64::from(salt_1) << 32 | u64::from(salt_2) != header.salt || page == 0 {
                break;
            }
            pages.push(page);
            if commit > 0 {
                (committed, size) = (pages.len(), commit);
            }
        }
        let mut of_page = BTreeMap::<u32, Vec<u64>>::new();
        for (index, page) in (0..).zip(&pages[..committed]) {
            // A page that was cut off since then is not moved.
            if *page <= size {
                of_page.entry(*page).or_default().push(index);
            }
        }
        Ok(Some(Self { header, of_page }))
    }

    /// Whether the database is one into which `moved` frames of the log were moved, and some more.
    fn explain(&self, database: &File, log: &File, moved: u64) -> bool {
        let mut page = vec![0; self.header.page_bytes as usize];
        let mut frame = page.clone();
        let (mut telling, mut all) = (0, true);
        for (&number, frames) in &self.of_page {
            let start = u64::from(number - 1) * self.header.page_bytes;
            let is_read = matches!(read_at(database, start, &mut page), Ok(true));
            // SQLite no longer looks for it in the log. A page with a frame past those may not have been moved.
            let is_needed = frames.last().is_some_and(|index| *index < moved);
            let candidates = if is_needed { &frames[frames.len() - 1..] } else { &frames[..] };
            let is_moved = is_read
                && candidates.iter().rev().any(|index| {
                    let content = self.header.frame(*index) + FRAME_HEADER_BYTES;
                    matches!(read_at(log, content, &mut frame), Ok(true)) && frame == page
                });
            if is_needed && !is_moved {
                return false;
            }
            all &= is_moved;
            telling += usize::from(is_moved && number > 1 && !is_empty_tree(&page));
        }
        // One page may be the same in another file by chance: that of the queues holds little more than counters.
        telling >= 2 || (all && !self.of_page.is_empty())
    }
}

/// Whether the page is that of a table or index without rows, which is the same in many files.
fn is_empty_tree(page: &[u8]) -> bool {
    matches!(page, [2 | 5 | 10 | 13, _, _, 0, 0, ..])
}

/// Fills the bytes with what is there in the file. Says whether there was enough.
fn read_at(mut file: &File, start: u64, bytes: &mut [u8]) -> io::Result<bool> {
    match file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(bytes)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the database itself, and never closes it: to close any handle of a file drops the locks that SQLite
/// has on it in this process. So there is one for each file that was ever in doubt.
#[cfg(unix)]
fn with_database<T>(path: &Path, read: impl FnOnce(&File) -> T) -> io::Result<T> {
    use std::os::unix::fs::MetadataExt;
    use std::sync::{Mutex, PoisonError};

    static OPEN: Mutex<Vec<((u64, u64), File)>> = Mutex::new(Vec::new());
    let identity = |file: &std::fs::Metadata| (file.dev(), file.ino());
    // Also because it is read at one place at a time.
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = identity(&std::fs::metadata(path)?);
    let known = open.iter().position(|(other, _)| *other == found);
    let index = match known {
        Some(index) => index,
        None => {
            let file = File::open(path)?;
            // If even this fails, it still must not be closed.
            let opened = file.metadata().map_or(found, |file| identity(&file));
            open.push((opened, file));
            open.len() - 1
        }
    };
    Ok(read(&open[index].1))
}

/// Elsewhere a handle has locks of its own.
#[cfg(not(unix))]
fn with_database<T>(path: &Path, read: impl FnOnce(&File) -> T) -> io::Result<T> {
    Ok(read(&File::open(path)?))
}
