//! docs/stability.md and docs/upgrading.md have the versions of the code, and the tests that they name exist.

use crate::common::{files_in, quoted, read, rust_files, table};

const INTERFACES: &str = "| interface | what is covered | checked by |";
const FORMATS: &str = "| format | version | recorded in | older | newer, or unknown | tests |";

/// Returns the number that follows the first occurrence of a text in a file.
fn number_after(path: &str, text: &str) -> String {
    let file = read(path);
    let (_, rest) = file.split_once(text).unwrap_or_else(|| panic!("{path}: no '{text}'"));
    rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect()
}

#[test]
fn the_versions_of_stored_formats_are_those_of_the_code() {
    let is_schema = |path: &&String| path.contains("/src/schema") && path.ends_with(".sql");
    let schemas = files_in("crates/pillarbox-sqlite/src").iter().filter(is_schema).count();
    let redis = number_after("crates/pillarbox-redis/scripts/send.lua", "pillarbox queue, format ");
    let evals = number_after("crates/pillarbox-evals/src/run/manifest.rs", "const FORMAT: u32 = ");
    let (stability, upgrading) = (read("docs/stability.md"), read("docs/upgrading.md"));
    let formats = table(&stability, FORMATS);
    for (format, version) in [
        ("SQLite schema", schemas.to_string()),
        ("Redis keys", redis),
        ("eval run directory", evals),
    ] {
        let row = formats.iter().find(|row| row[0] == format).expect(format);
        assert_eq!(row[1], version, "{format}");
        let known = upgrading.lines().find(|line| line.starts_with(&format!("| {format} |")));
        assert!(known.is_some_and(|row| row.ends_with(&format!("{version} |"))), "{format}");
    }
}

#[test]
fn the_minimum_rust_version_is_that_of_the_manifest() {
    let version = number_after("Cargo.toml", "rust-version = \"");
    let text = format!("minimum supported Rust version (MSRV) is {version}, ");
    assert!(read("docs/stability.md").contains(&text), "{text}");
}

#[test]
fn the_tests_that_show_stability_exist() {
    let stability = read("docs/stability.md");
    let sources: String = rust_files().into_iter().map(|(_, text)| text).collect();
    let (interfaces, formats) = (table(&stability, INTERFACES), table(&stability, FORMATS));
    let mut tests = 0;
    for row in interfaces.iter().chain(&formats) {
        let last = row.last().expect("a cell");
        for test in quoted(last).into_iter().filter(|name| name.contains('_')) {
            assert!(sources.contains(&format!("fn {test}(")), "{}: no test '{test}'", row[0]);
            tests += 1;
        }
    }
    assert!(tests > 20, "{tests} tests");
}
