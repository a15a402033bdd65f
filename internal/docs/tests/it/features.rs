//! The table of features in docs/urls.md is complete, with the number of crates of each.

#![cfg(target_os = "linux")]
use std::collections::BTreeSet;
use std::process::Command;

use crate::common::{quoted, read, table};

/// Returns the number of crates that a program with only the facade compiles.
fn crates(options: &[&str]) -> usize {
    let tree = ["tree", "--locked", "--offline", "-p", "pillarbox", "-e", "normal,build"];
    let output = Command::new(env!("CARGO"))
        .args(tree)
        .args(["--prefix", "none", "--format", "{p}"])
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // Name and version; then a mark for repetitions and macros, or a path.
    let names = text.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>());
    names.filter(|name| name.len() == 2).collect::<BTreeSet<_>>().len()
}

#[test]
fn every_feature_has_a_row_with_the_crates_that_it_takes() {
    let page = read("docs/urls.md");
    let mut listed = BTreeSet::new();
    for row in table(&page, "| feature | adds | crates |") {
        let feature = quoted(row[0])[0];
        assert_eq!(row[2], crates(&["--features", feature]).to_string(), "{feature}");
        listed.insert(feature.to_owned());
    }
    let least = format!("in `{}` crates", crates(&["--no-default-features"]));
    assert!(page.contains(&least), "{least}");
    let manifest: toml::Table = read("crates/pillarbox/Cargo.toml").parse().unwrap();
    assert_eq!(listed, manifest["features"].as_table().unwrap().keys().cloned().collect());
}
