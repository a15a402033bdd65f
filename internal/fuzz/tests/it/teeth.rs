//! A fuzzer that finds nothing shows nothing: here is something to be found.

use std::fs;

use pillarbox_fuzz::Target;
use pillarbox_fuzz::driver::{Campaign, Failure, saw};

const CAMPAIGN: Campaign = Campaign { inputs: 200_000, seed: 1 };

fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run, words: &["key=", "value;"], inputs: 0 }
}

fn found(target: Target, seed: &str) -> Box<Failure> {
    CAMPAIGN.run(&target, &[seed.as_bytes().to_vec()]).expect_err("it is found")
}

/// Panics on a key that is there twice, the second time without a value.
fn forgets_a_value(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let keys: Vec<_> = text.split("key=").collect();
    saw(if keys.len() > 2 { "two keys" } else { "one" });
    if keys.len() > 2 && keys[2].is_empty() {
        panic!("no value");
    }
}

#[test]
fn a_planted_panic_is_found_made_small_kept_and_told() {
    let failure = found(target("planted", forgets_a_value), "key=value;");
    assert_eq!(failure.input.escape_ascii().to_string(), "key=key=", "nothing can be taken out");
    assert!(failure.found.len() >= failure.input.len());
    let told = failure.to_string();
    for part in ["planted fails: no value, at ", "teeth.rs", "PILLARBOX_SEED=1", "key=key="] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let path = failure.keep().expect("it can be kept");
    assert_eq!(fs::read(&path).expect("it is there"), failure.input);
    let again = format!("cargo run -p pillarbox-fuzz -- planted {}", path.display());
    assert!(told.contains(&again), "{told}");
}

#[test]
fn the_same_seed_finds_the_same_and_another_seed_something_else() {
    let target = target("planted", forgets_a_value);
    let corpus = [b"key=value;".to_vec()];
    let numbers = [1, 1, 2].map(|seed| {
        let failure = Campaign { seed, ..CAMPAIGN }.run(&target, &corpus).expect_err("it is found");
        (failure.number, failure.found)
    });
    assert_eq!(numbers[0], numbers[1]);
    assert_ne!(numbers[1], numbers[2]);
}

/// Takes what an input says for how much there will be.
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

/// Needs three steps in the right order, each of which shows.
fn has_three_doors(input: &[u8]) {
    let doors = ["key=", "value;", "key="];
    let mut rest = input;
    for (door, name) in doors.iter().zip(["first door", "second door", "third door"]) {
        let Some(after) = rest.strip_prefix(door.as_bytes()) else { return };
        saw(name);
        rest = after;
    }
    assert!(rest.first() != Some(&0xff), "behind the third door");
}

#[test]
fn what_is_behind_several_doors_is_found_since_each_is_noticed() {
    let failure = found(target("planted-doors", has_three_doors), "a");
    assert_eq!(failure.input, b"key=value;key=\xff");
}
