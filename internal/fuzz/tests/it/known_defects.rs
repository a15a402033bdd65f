//! The fuzzer finds defects: targets with known ones.

use std::fs;

use pillarbox_fuzz::Target;
use pillarbox_fuzz::driver::{Campaign, Failure, record_outcome};

const CAMPAIGN: Campaign = Campaign { inputs: 200_000, seed: 1 };

fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run, words: &["key=", "value;"], inputs: 0 }
}

fn found(target: Target, seed: &str) -> Box<Failure> {
    CAMPAIGN.run(&target, &[seed.as_bytes().to_vec()]).expect_err("it is found")
}

/// Panics on a repeated key without a value the second time.
fn forgets_a_value(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let keys: Vec<_> = text.split("key=").collect();
    record_outcome(if keys.len() > 2 { "two keys" } else { "one" });
    if keys.len() > 2 && keys[2].is_empty() {
        panic!("no value");
    }
}

#[test]
fn a_planted_panic_is_found_shrunk_saved_and_reported() {
    let failure = found(target("planted", forgets_a_value), "key=value;");
    assert_eq!(failure.input.escape_ascii().to_string(), "key=key=", "nothing can be taken out");
    assert!(failure.found.len() >= failure.input.len());
    let text = failure.to_string();
    for part in ["planted fails: no value, at ", "known_defects.rs", "PILLARBOX_SEED=1", "key=key="]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let path = failure.keep().expect("the input is saved");
    assert_eq!(fs::read(&path).expect("the file is readable"), failure.input);
    let again = format!("cargo run -p pillarbox-fuzz -- planted {}", path.display());
    assert!(text.contains(&again), "{text}");
}

#[test]
fn the_same_seed_finds_the_same_input_and_another_seed_another() {
    let target = target("planted", forgets_a_value);
    let corpus = [b"key=value;".to_vec()];
    let numbers = [1, 1, 2].map(|seed| {
        let failure = Campaign { seed, ..CAMPAIGN }.run(&target, &corpus).expect_err("it is found");
        (failure.number, failure.found)
    });
    assert_eq!(numbers[0], numbers[1]);
    assert_ne!(numbers[1], numbers[2]);
}

/// Allocates as much as the input claims.
fn believes_a_number(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let number =
        text.split(|c: char| !c.is_ascii_digit()).find_map(|word| word.parse::<u32>().ok());
    let room: Vec<u8> = Vec::with_capacity(number.unwrap_or_default() as usize / 64);
    assert!(room.is_empty());
}

#[test]
fn planted_memory_is_found() {
    let failure = found(target("planted-memory", believes_a_number), "7 things");
    assert!(failure.reason.contains("of memory"), "{failure}");
    assert!(failure.input.len() <= 10, "{failure}");
}

/// Fails after three steps in the right order, each with a new outcome.
fn needs_three_steps(input: &[u8]) {
    let doors = ["key=", "value;", "key="];
    let mut rest = input;
    for (door, name) in doors.iter().zip(["first door", "second door", "third door"]) {
        let Some(after) = rest.strip_prefix(door.as_bytes()) else { return };
        record_outcome(name);
        rest = after;
    }
    assert!(rest.first() != Some(&0xff), "behind the third door");
}

#[test]
fn a_defect_behind_several_steps_is_found_because_each_is_an_outcome() {
    let failure = found(target("planted-doors", needs_three_steps), "a");
    assert_eq!(failure.input, b"key=value;key=\xff");
}
