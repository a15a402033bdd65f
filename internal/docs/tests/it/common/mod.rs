//! Reads the pages of the documentation.

use std::fs;
use std::path::{Path, PathBuf};

/// A page of the documentation.
#[derive(Debug)]
pub(crate) struct Page {
    /// Path from the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A block of code.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    /// Text after the opening backticks.
    pub(crate) language: &'a str,
    pub(crate) lines: Vec<&'a str>,
    /// Number of its first line.
    pub(crate) line: usize,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the paths of all files under a directory, from the root, in order.
pub(crate) fn files_in(directory: &str) -> Vec<String> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{directory}/{}", entry.file_name().to_str().unwrap());
            if !entry.file_type().unwrap().is_dir() {
                files.push(path);
            } else if entry.file_name() != "target" {
                // `target` is build output of a separate workspace.
                directories.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Returns the README and all pages of docs/.
pub(crate) fn pages() -> Vec<Page> {
    let docs = files_in("docs").into_iter().filter(|path| path.ends_with(".md"));
    ["README.md".to_owned()].into_iter().chain(docs).map(|path| page(&path)).collect()
}

pub(crate) fn page(path: &str) -> Page {
    Page { path: path.to_owned(), text: read(path) }
}

impl Page {
    /// Returns the blocks of code, in order.
    pub(crate) fn blocks(&self) -> Vec<Block<'_>> {
        let mut blocks = Vec::new();
        let mut open: Option<Block<'_>> = None;
        for (line, text) in self.text.lines().enumerate() {
            match (&mut open, text.trim_start().strip_prefix("```")) {
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(block), None) => block.lines.push(text),
                (None, Some(language)) => {
                    open = Some(Block { language, lines: Vec::new(), line: line + 1 });
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block has no end", self.path);
        blocks
    }

    /// Returns the lines outside of blocks, with their numbers.
    pub(crate) fn prose(&self) -> Vec<(usize, &str)> {
        let mut inside = false;
        let lines = self.text.lines().enumerate().map(|(line, text)| (line + 1, text));
        let outside = lines.filter(|(_, text)| {
            let fence = text.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        });
        outside.collect()
    }

    /// Returns the anchors of its headings, as GitHub and mdBook generate them.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let headings = self.prose().into_iter().filter_map(|(_, line)| {
            let heading = line.trim_start_matches('#');
            (heading.len() < line.len() && heading.starts_with(' ')).then(|| heading.trim())
        });
        headings.map(anchor).collect()
    }
}

impl Block<'_> {
    pub(crate) fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }
}

fn anchor(heading: &str) -> String {
    let heading = heading.to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the texts in backticks of a line.
pub(crate) fn quoted(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Returns the targets of the links of a line. Text in backticks is not a link.
pub(crate) fn links(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (index, _) in line.match_indices("](") {
        // In code, if the number of backticks before it is odd.
        if line[..index].matches('`').count().is_multiple_of(2) {
            found.extend(line[index + 2..].split(')').next());
        }
    }
    found
}

/// Returns the cells of a row of a table.
pub(crate) fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split(" |").map(str::trim).collect()
}

/// Returns the rows of the table with this head, each as its cells.
pub(crate) fn table<'a>(text: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let from = text.lines().skip_while(|line| *line != head).skip(2);
    from.take_while(|line| line.starts_with('|')).map(cells).collect()
}

/// Head of the table of metrics in docs/metrics.md.
pub(crate) const METRICS: &str = "| metric | type | labels | description |";

/// Returns all Rust files of the repository: path from the root, and text.
pub(crate) fn rust_files() -> Vec<(String, String)> {
    let files = ["crates", "internal"].into_iter().flat_map(files_in);
    files.filter(|path| path.ends_with(".rs")).map(|path| (path.clone(), read(&path))).collect()
}
