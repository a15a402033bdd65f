//! The crates keep the shape that docs/design.md describes: no cycles between modules, and every source
//! file on the map.

mod map;
mod modules;

use std::collections::BTreeSet;
use std::fs;

use crate::common::{files_in, read, root};

/// The names of the crates in crates/.
fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert!(names.len() > 5, "{names:?}");
    names
}

/// The paths of the files of a crate, from its directory.
fn files(name: &str) -> BTreeSet<String> {
    let directory = format!("crates/{name}");
    let paths = files_in(&directory).into_iter();
    paths.map(|path| path[directory.len() + 1..].to_owned()).collect()
}

#[test]
fn no_modules_of_a_crate_depend_on_each_other_in_a_cycle() {
    for name in crates() {
        let sources = files(&name).into_iter().filter(|path| path.ends_with(".rs"));
        let sources = sources.filter_map(|path| {
            let text = read(&format!("crates/{name}/{path}"));
            Some((path.strip_prefix("src/")?.to_owned(), text))
        });
        let cycles = modules::cycles(&sources.collect());
        assert!(cycles.is_empty(), "{name}:\n{}", cycles.join("\n"));
    }
}

#[test]
fn every_source_file_is_on_the_map() {
    let problems = map::problems(&read("docs/design.md"), &crates(), files);
    assert!(problems.is_empty(), "docs/design.md:\n{}", problems.join("\n"));
}
