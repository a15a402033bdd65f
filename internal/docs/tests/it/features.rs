//! The README's table of features is complete, with the number of crates of each.

#![cfg(target_os = "linux")]
use std::collections::BTreeSet;
use std::process::Command;

use crate::common::{quoted, read};

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
    let (_, table) = readme.split_once("| feature | what it adds | crates |\n").unwrap();
    let mut listed = BTreeSet::new();
    for row in table.lines().skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let feature = quoted(cells[1])[0];
        let counted = match feature {
            "default-features = false" => crates(&["--no-default-features"]),
            "default" => {
                // In one row, because they are enabled together.
                listed.extend(["runtime".to_owned(), "sqlite".to_owned()]);
                crates(&[])
            }
            feature => crates(&["--features", feature]),
        };
        assert_eq!(cells[3], counted.to_string(), "{row}");
        listed.insert(feature.to_owned());
    }
    listed.remove("default-features = false");
    let manifest = read("crates/pillarbox/Cargo.toml");
    let (_, features) = manifest.split_once("[features]\n").unwrap();
    let features = features.lines().take_while(|line| !line.starts_with('['));
    let features =
        features.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
    assert_eq!(listed, features.map(|(name, _)| name.to_owned()).collect::<BTreeSet<_>>());
}
