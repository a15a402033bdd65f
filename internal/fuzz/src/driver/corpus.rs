//! Reads and saves inputs.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// Returns the directory of a target's corpus.
pub fn corpus_directory(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// Reads the corpus of a target, with which every campaign begins, in the order of file names.
pub fn corpus(target: &str) -> io::Result<Vec<Vec<u8>>> {
    let mut paths = fs::read_dir(corpus_directory(target))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    paths.iter().map(fs::read).collect()
}

/// Saves an input that failed.
pub(super) fn keep(target: &str, input: &[u8]) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    keep_as(target, &format!("failed-{:016x}", hasher.finish()), input)
}

pub(super) fn keep_as(target: &str, name: &str, input: &[u8]) -> io::Result<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fuzz").join(target);
    fs::create_dir_all(&directory)?;
    let path = directory.canonicalize()?.join(name);
    fs::write(&path, input)?;
    Ok(path)
}
