//! Compares the map of docs/design.md with the files that are there.
//!
//! Below `Inside CRATE:` or `Inside CRATE/src:` a table has a row for each file or directory. The first
//! cell names it; the second names the files of a directory, in backticks. A subdirectory that the second
//! cell names holds the files that follow it, if they are there. `one file per …` stands for all files of a
//! directory, whose names then say enough.

use std::collections::BTreeSet;

use crate::common::{quoted, table};

/// Files whose subject is that of the directory or crate that they are in, or is always the same.
const UNNAMED: [&str; 5] = ["lib.rs", "main.rs", "mod.rs", "tests.rs", "fuzzing.rs"];

fn is_source(path: &str) -> bool {
    [".rs", ".lua", ".sql"].iter().any(|end| path.ends_with(end))
}

/// Lists files that the map lacks, and names on the map without a file.
pub(super) fn problems(
    page: &str,
    crates: &[String],
    files: impl Fn(&str) -> BTreeSet<String>,
) -> Vec<String> {
    let mut problems = Vec::new();
    for name in crates {
        let section = |base| Some((base, page.split_once(&format!("Inside `{name}{base}`:"))?.1));
        let Some((base, section)) = section("/src").or_else(|| section("")) else {
            problems.push(format!("{name} has no table"));
            continue;
        };
        let there = files(name);
        let (named, dangling) = read_table(section, base, &there);
        problems.extend(dangling.iter().map(|path| format!("{name}: there is no {path}")));
        let missing = there.difference(&named).filter(|path| {
            let file = path.rsplit('/').next().unwrap_or_default();
            let is_ours = path.starts_with("src/") || path.starts_with("scripts/");
            is_ours && is_source(path) && !UNNAMED.contains(&file) && !path.contains("/tests/")
        });
        problems.extend(missing.map(|path| format!("{name}: {path} is not on the map")));
    }
    problems
}

/// Returns the files that have a place in a table, and names without a file.
fn read_table(
    section: &str,
    base: &str,
    there: &BTreeSet<String>,
) -> (BTreeSet<String>, Vec<String>) {
    let (mut named, mut dangling) = (BTreeSet::new(), Vec::new());
    let has = |path: &str| {
        let is_below = |file: &String| path.ends_with('/') && file.starts_with(path);
        there.contains(path) || there.iter().any(is_below)
    };
    for row in table(section, "| file | subject |") {
        let entries = quoted(row[0]).into_iter();
        let entries = entries.map(|entry| format!("{base}/{entry}").trim_start_matches('/').into());
        let (files, missing): (Vec<String>, Vec<_>) =
            entries.partition(|entry: &String| has(entry));
        dangling.extend(missing);
        named.extend(files.iter().cloned());
        let Some(directory) = files.iter().find(|entry| entry.ends_with('/')) else { continue };
        if row[1].contains("one file per ") {
            let is_direct = |file: &&String| {
                file.strip_prefix(directory).is_some_and(|name| !name.contains('/'))
            };
            named.extend(there.iter().filter(is_direct).cloned());
        }
        let mut inside = directory.clone();
        for name in quoted(row[1]) {
            if !is_source(name) && !name.ends_with('/') {
                continue;
            }
            let places = [format!("{inside}{name}"), format!("{directory}{name}")];
            match places.into_iter().find(|place| has(place)) {
                Some(place) if place.ends_with('/') => inside = place,
                Some(place) => drop(named.insert(place)),
                // A file of another directory, which the subject refers to.
                None if there.iter().any(|file| file.ends_with(&format!("/{name}"))) => {}
                None => dangling.push(format!("{directory}{name}")),
            }
        }
    }
    (named, dangling)
}

#[test]
fn a_file_that_is_missing_on_either_side_is_found() {
    let page = "Inside `one/src`:\n\n| file | subject |\n|---|---|\n\
                | `a.rs`, `gone.rs` | some |\n\
                | `all/` | one file per thing |\n\
                | `dir/` | this (`b.rs`), that (`lost.rs`), and more in `sub/` (`c.rs`); not `Type` |\n";
    let paths = "src/lib.rs src/a.rs src/all/x.rs src/all/deep/y.rs src/dir/mod.rs src/dir/b.rs \
                 src/dir/d.rs src/dir/sub/c.rs src/dir/sub/tests.rs tests/it/main.rs";
    let files = |_: &str| paths.split(' ').map(str::to_owned).collect();
    assert_eq!(
        problems(page, &["one".to_owned(), "two".to_owned()], files),
        [
            "one: there is no src/gone.rs",
            "one: there is no src/dir/lost.rs",
            "one: src/all/deep/y.rs is not on the map",
            "one: src/dir/d.rs is not on the map",
            "two has no table",
        ]
    );
}
