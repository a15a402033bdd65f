//! The words that the glossary retires are in no text that users read.

use crate::common::{files_in, read};

/// Words and phrases with a plainer replacement in the glossary of docs/concepts.md.
const RETIRED: [&str; 31] = [
    "all the same",
    "anew",
    "bear repetition",
    "burial",
    "ears",
    "farewell",
    "for ever",
    "grave",
    "graves",
    "how often",
    "hub",
    "lane",
    "lanes",
    "mend",
    "mended",
    "mending",
    "mends",
    "no longer than",
    "out of reach",
    "put together",
    "seat",
    "seats",
    "so many",
    "so manieth",
    "somebody",
    "spared",
    "staff",
    "suspects",
    "told",
    "what is said",
    "whoever",
];

/// Returns the retired words of a text, with the number of each line.
fn retired_words(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // Words in a row, each after one space, so that a phrase is found as a whole.
        let words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let words = format!(" {} ", words.collect::<Vec<_>>().join(" ").to_lowercase());
        let is_found = |phrase: &&&str| words.contains(&format!(" {phrase} "));
        found.extend(RETIRED.iter().filter(is_found).map(|phrase| (number + 1, *phrase)));
    }
    found
}

#[test]
fn no_text_for_users_has_a_retired_word() {
    let files = ["docs", "deploy", "crates", "internal", ".github"].into_iter().flat_map(files_in);
    let texts = files.filter(|path| {
        let is_text = [".md", ".yml", ".yaml", ".service", ".conf", ".lua", ".sql", ".rs"]
            .iter()
            .any(|end| path.ends_with(end));
        // This list.
        is_text && !path.ends_with("tests/it/words.rs")
    });
    let root = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile"];
    let mut found = Vec::new();
    for path in texts.chain(root.map(str::to_owned)) {
        let retired = retired_words(&read(&path)).into_iter();
        found.extend(retired.map(|(line, word)| format!("{path}:{line}: {word}")));
    }
    assert!(found.is_empty(), "{} retired words:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_retired_word_is_found_in_any_case_and_across_spaces() {
    let text = "Seats are fine in `seat_map`?\nThe bears  are put\ttogether, forever.\nA seating.";
    assert_eq!(retired_words(text), [(1, "seat"), (1, "seats"), (2, "put together")]);
}
