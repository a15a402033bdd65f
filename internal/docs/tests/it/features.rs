//! The README's table of features is complete, with the number of crates of each.

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
    let readme = read("README.md");
    let mut listed = BTreeSet::new();
    for row in table(&readme, "| feature | what it adds | crates |") {
        let feature = quoted(row[0])[0];
        let counted = match feature {
            "default-features = false" => crates(&["--no-default-features"]),
            "default" => {
                // In one row, because they are enabled together.
                listed.extend(["runtime".to_owned(), "sqlite".to_owned()]);
                crates(&[])
            }
            feature => crates(&["--features", feature]),
        };
        assert_eq!(row[2], counted.to_string(), "{feature}");
        listed.insert(feature.to_owned());
    }
    listed.remove("default-features = false");
    let manifest = read("crates/pillarbox/Cargo.toml");
    let (_, features) = manifest.split_once("[features]\n").unwrap();
    let features = features.lines().take_while(|line| !line.starts_with('['));
    let features = features.filter(|line| !line.starts_with('#'));
    let names = features.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned()));
    assert_eq!(listed, names.collect());
}
