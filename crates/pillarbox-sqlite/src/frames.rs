//! Compares the pages of a database with the frames of its write-ahead log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

const HEADER_BYTES: u64 = 32;
const FRAME_HEADER_BYTES: u64 = 24;

/// Returns the salt in the header of a log. `None` if there is no header.
pub(crate) fn salt(log: &File) -> Option<u64> {
    Header::read(log).ok().flatten().map(|header| header.salt)
}

/// Returns whether the database matches its log: it has the last content of each page all of whose frames are among
/// the first `copied` ones, and of other pages some that a checkpoint has begun to copy. The log must have this
/// `salt`.
///
/// A checkpoint writes pages to the database, syncs it, and only then records that. If it is interrupted before, the
/// database has changed and is still intact.
pub(crate) fn matches_log(path: &Path, log: &File, salt: u64, copied: u64) -> bool {
    let compared = match Frames::read(log) {
        Ok(Some(frames)) if frames.header.salt == salt => {
            with_database(path, |database| frames.are_in(database, log, copied))
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
        // The last bit is the byte order of the checksums.
        let is_log = word(0) >> 1 == 0x377f_0682 >> 1;
        let salt = u64::from(word(4)) << 32 | u64::from(word(5));
        Ok(is_log.then_some(Self { page_bytes: word(2).into(), salt }))
    }

    /// Returns the offset of a frame; the first has index 0.
    const fn frame(&self, index: u64) -> u64 {
        HEADER_BYTES + index * (FRAME_HEADER_BYTES + self.page_bytes)
    }
}

/// The committed frames of a log.
struct Frames {
    header: Header,
    /// The indices of the frames of each page, in the order of the log.
    of_page: BTreeMap<u32, Vec<u64>>,
}

impl Frames {
    fn read(log: &File) -> io::Result<Option<Self>> {
        let Some(header) = Header::read(log)? else { return Ok(None) };
        if !header.page_bytes.is_power_of_two() || !(512..=65536).contains(&header.page_bytes) {
            return Ok(None);
        }
        let mut pages = Vec::new();
        // Number of committed frames, and the size of the database after them.
        let (mut committed, mut size) = (0, 0);
        let mut words = [[0; 4]; 4];
        while read_at(log, header.frame(pages.len() as u64), words.as_flattened_mut())? {
            let [page, commit, salt_1, salt_2] = words.map(u32::from_be_bytes);
            // The remaining frames are from before the log was restarted.
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
            // A page that was truncated since is not copied.
            if *page <= size {
                of_page.entry(*page).or_default().push(index);
            }
        }
        Ok(Some(Self { header, of_page }))
    }

    /// Returns whether the first `copied` frames of the log, and perhaps some more, are in the database.
    fn are_in(&self, database: &File, log: &File, copied: u64) -> bool {
        let mut page = vec![0; self.header.page_bytes as usize];
        let mut frame = page.clone();
        let (mut distinctive, mut all) = (0, true);
        for (&number, frames) in &self.of_page {
            let start = u64::from(number - 1) * self.header.page_bytes;
            let is_read = matches!(read_at(database, start, &mut page), Ok(true));
            // SQLite no longer reads it from the log. A page with a later frame may not have been copied.
            let is_needed = frames.last().is_some_and(|index| *index < copied);
            let candidates = if is_needed { &frames[frames.len() - 1..] } else { &frames[..] };
            let is_copied = is_read
                && candidates.iter().rev().any(|index| {
                    let content = self.header.frame(*index) + FRAME_HEADER_BYTES;
                    matches!(read_at(log, content, &mut frame), Ok(true)) && frame == page
                });
            if is_needed && !is_copied {
                return false;
            }
            all &= is_copied;
            distinctive += usize::from(is_copied && number > 1 && !is_empty_tree(&page));
        }
        // One page may be equal in another file by chance: that of the queues holds little more than counters.
        distinctive >= 2 || (all && !self.of_page.is_empty())
    }
}

/// Returns whether this is the page of a table or index without rows, which is equal in many files.
fn is_empty_tree(page: &[u8]) -> bool {
    matches!(page, [2 | 5 | 10 | 13, _, _, 0, 0, ..])
}

/// Fills the bytes from the file. Returns whether there were enough.
fn read_at(mut file: &File, start: u64, bytes: &mut [u8]) -> io::Result<bool> {
    match file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(bytes)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the database itself through a handle that is never closed: closing any handle of a file drops the locks that
/// SQLite has on it in this process. There is one handle for each file that was ever in doubt.
#[cfg(unix)]
fn with_database<T>(path: &Path, read: impl FnOnce(&File) -> T) -> io::Result<T> {
    use std::os::unix::fs::MetadataExt;
    use std::sync::Mutex;

    use pillarbox_core::internal::lock;

    static OPEN: Mutex<Vec<((u64, u64), File)>> = Mutex::new(Vec::new());
    let identity = |file: &std::fs::Metadata| (file.dev(), file.ino());
    // Held while reading, since the handle has one position.
    let mut open = lock(&OPEN);
    let found = identity(&std::fs::metadata(path)?);
    let known = open.iter().position(|(other, _)| *other == found);
    let index = match known {
        Some(index) => index,
        None => {
            let file = File::open(path)?;
            // It must not be closed even if this fails.
            let opened = file.metadata().map_or(found, |file| identity(&file));
            open.push((opened, file));
            open.len() - 1
        }
    };
    Ok(read(&open[index].1))
}

/// On other systems each handle has its own locks.
#[cfg(not(unix))]
fn with_database<T>(path: &Path, read: impl FnOnce(&File) -> T) -> io::Result<T> {
    Ok(read(&File::open(path)?))
}
