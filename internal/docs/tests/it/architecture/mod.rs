//! The crates keep the shape that docs/design.md describes: no cycles between modules, and every source
//! file on the map.

mod map;
mod modules;

use std::fs;

use self::modules::Files;
use crate::common::root;

/// The names of the crates in crates/.
fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() > 5, "{names:?}");
    names
}

/// The files under a directory, by their path from there.
fn files(directory: &str) -> Files {
    let mut files = Files::new();
    let mut left = vec![String::new()];
    while let Some(inside) = left.pop() {
        for entry in fs::read_dir(root().join(directory).join(&inside)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{inside}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                left.push(format!("{path}/"));
            } else {
                let bytes = fs::read(entry.path()).unwrap();
                files.insert(path, String::from_utf8_lossy(&bytes).into_owned());
            }
        }
    }
    files
}

#[test]
fn no_modules_of_a_crate_depend_on_each_other_in_a_cycle() {
    let cycles: Vec<_> = crates()
        .iter()
        .flat_map(|name| {
            let cycles = modules::cycles(&files(&format!("crates/{name}/src")));
            cycles.into_iter().map(move |cycle| format!("{name}: {cycle}"))
        })
        .collect();
    assert!(cycles.is_empty(), "\n{}", cycles.join("\n"));
}

#[test]
fn every_source_file_is_on_the_map() {
    let problems = map::problems(&crate::common::read("docs/design.md"), &crates(), files);
    assert!(problems.is_empty(), "docs/design.md:\n{}", problems.join("\n"));
}
