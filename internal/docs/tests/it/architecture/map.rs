//! Compares the map of docs/design.md with the files that are there.
//!
//! Below `Inside CRATE:` or `Inside CRATE/src:` a table has a row for each file or directory. The first
//! cell names it; the second names the files of a directory, in backticks. A subdirectory that the second
//! cell names holds the files that follow it, if they are there. `one file per …` stands for all files of a
//! directory, whose names then say enough.

use std::collections::BTreeSet;

use super::modules::Files;
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
    files: impl Fn(&str) -> Files,
) -> Vec<String> {
    let mut problems = Vec::new();
    for name in crates {
        let in_src = format!("Inside `{name}/src`:");
        let section =
            page.split_once(&in_src).or_else(|| page.split_once(&format!("Inside `{name}`:")));
        let Some((_, section)) = section else {
            problems.push(format!("{name} has no table"));
            continue;
        };
        let there: BTreeSet<_> = files(&format!("crates/{name}")).into_keys().collect();
        let base = if page.contains(&in_src) { "src/" } else { "" };
        let map = read_table(section, base, &there);
        problems.extend(map.dangling.iter().map(|path| format!("{name}: there is no {path}")));
        let sources = there.iter().filter(|path| {
            let is_ours = path.starts_with("src/") || path.starts_with("scripts/");
            is_ours && is_source(path)
        });
        let missing = sources.filter(|path| {
            let (_, file) = path.rsplit_once('/').expect("within src/ or scripts/");
            !UNNAMED.contains(&file) && !path.contains("/tests/") && !map.named.contains(*path)
        });
        problems.extend(missing.map(|path| format!("{name}: {path} is not on the map")));
    }
    problems
}

#[derive(Default)]
struct Map {
    /// Files that have a place on the map.
    named: BTreeSet<String>,
    /// Names without a file.
    dangling: Vec<String>,
}

fn read_table(section: &str, base: &str, there: &BTreeSet<String>) -> Map {
    let mut map = Map::default();
    let has = |path: &str| there.contains(path) || there.iter().any(|file| is_below(file, path));
    for row in table(section, "| file | subject |") {
        let entries: Vec<_> =
            quoted(row[0]).into_iter().map(|entry| format!("{base}{entry}")).collect();
        let (named, dangling) = entries.iter().cloned().partition::<Vec<_>, _>(|entry| has(entry));
        map.named.extend(named);
        map.dangling.extend(dangling);
        let Some(directory) = entries.iter().find(|entry| entry.ends_with('/')) else { continue };
        if row[1].contains("one file per ") {
            let direct = |file: &&String| {
                file.rsplit_once('/')
                    .is_some_and(|(parent, _)| directory.strip_suffix('/') == Some(parent))
            };
            map.named.extend(there.iter().filter(direct).cloned());
        }
        let mut inside = directory.clone();
        for name in quoted(row[1]) {
            if !is_source(name) && !name.ends_with('/') {
                continue;
            }
            let places = [format!("{inside}{name}"), format!("{directory}{name}")];
            match places.into_iter().find(|place| has(place)) {
                Some(place) if place.ends_with('/') => inside = place,
                Some(place) => drop(map.named.insert(place)),
                // A file of another directory, which the subject refers to.
                None if there.iter().any(|file| file.ends_with(&format!("/{name}"))) => {}
                None => map.dangling.push(format!("{directory}{name}")),
            }
        }
    }
    map
}

fn is_below(file: &str, directory: &str) -> bool {
    directory.ends_with('/') && file.starts_with(directory)
}

#[test]
fn a_file_that_is_missing_on_either_side_is_found() {
    let page = "Inside `one/src`:\n\n| file | subject |\n|---|---|\n\
                | `a.rs`, `gone.rs` | some |\n\
                | `all/` | one file per thing |\n\
                | `dir/` | this (`b.rs`), that (`lost.rs`), and more in `sub/` (`c.rs`); not `Type` |\n";
    let paths = [
        "src/lib.rs",
        "src/a.rs",
        "src/all/x.rs",
        "src/all/deep/y.rs",
        "src/dir/mod.rs",
        "src/dir/b.rs",
        "src/dir/d.rs",
        "src/dir/sub/c.rs",
        "src/dir/sub/tests.rs",
        "tests/it/main.rs",
    ];
    let files = |_: &str| paths.iter().map(|path| ((*path).to_owned(), String::new())).collect();
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
