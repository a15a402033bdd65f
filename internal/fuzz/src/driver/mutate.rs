//! Mutates inputs.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use super::MAX_LEN;

/// Numbers and bytes that often break readers.
const ODD: &[&str] = &[
    "0",
    "-1",
    "1",
    "4294967295",
    "4294967296",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "-0",
    "0.1",
    "NaN",
    "inf",
    "\0",
    "\n",
    "\r\n",
    "\t",
    " ",
    "\"",
    "\\",
    "'",
    "%",
    "=",
    "&",
    "?",
    "#",
    "/",
    ":",
    ".",
    ",",
    "@",
    "{",
    "}",
    "[",
    "]",
    "ü",
    "\u{feff}",
    "\u{202e}",
    "\u{ffff}",
    "\u{10ffff}",
    "é",
    "İ",
    "ß",
    "%00",
    "%ff",
    "%2",
    "\\u0000",
    "\\ud800",
    "null",
];

/// Bytes that are not UTF-8.
const BYTES: &[u8] = &[0x00, 0x7f, 0x80, 0xc0, 0xc3, 0xed, 0xf5, 0xff];

/// Mutates inputs.
#[derive(Debug)]
pub(super) struct Mutator {
    /// Words to insert.
    pub(super) words: &'static [&'static str],
}

impl Mutator {
    /// Applies a few mutations to an input, with pieces of another.
    pub(super) fn change(&self, one: &[u8], other: &[u8], rng: &mut StdRng) -> Vec<u8> {
        let mut input = one.to_vec();
        // Most bugs need one change, some need several.
        let changes = 1 + rng.random_range(0..4_u32) * rng.random_range(0..4);
        for _ in 0..changes {
            self.change_once(&mut input, other, rng);
        }
        input.truncate(MAX_LEN);
        input
    }

    fn change_once(&self, input: &mut Vec<u8>, other: &[u8], rng: &mut StdRng) {
        match rng.random_range(0..14_u32) {
            0 => at(input, rng, |byte, rng| *byte ^= 1 << rng.random_range(0..8)),
            1 => at(input, rng, |byte, rng| *byte = rng.next_u32() as u8),
            2 => at(input, rng, |byte, rng| *byte = BYTES[rng.random_range(0..BYTES.len())]),
            3 => at(input, rng, |byte, rng| {
                *byte = if rng.random() { byte.wrapping_add(1) } else { byte.wrapping_sub(1) };
            }),
            // Removes a piece.
            4 => drop(input.drain(piece(input.len(), rng))),
            5 => input.truncate(rng.random_range(0..=input.len())),
            // Repeats a piece.
            6 => {
                let again = input[piece(input.len(), rng)].to_vec();
                let times = if rng.random_ratio(1, 8) { 64 } else { 1 };
                insert(input, &again.repeat(times), rng);
            }
            // Inserts or overwrites a piece.
            7 | 8 => {
                let word = self.word(rng);
                insert(input, word.as_bytes(), rng);
            }
            9 => {
                let word = self.word(rng);
                replace(input, piece(input.len(), rng), word.as_bytes());
            }
            10 => {
                let (number, word) = (number(input, rng), self.word(rng));
                replace(input, number, word.as_bytes());
            }
            // Splices pieces of the other input.
            11 => insert(input, &other[piece(other.len(), rng)], rng),
            12 => replace(input, piece(input.len(), rng), &other[piece(other.len(), rng)]),
            _ => {
                input.truncate(rng.random_range(0..=input.len()));
                input.extend_from_slice(&other[rng.random_range(0..=other.len())..]);
            }
        }
    }

    fn word(&self, rng: &mut StdRng) -> &'static str {
        let words = if rng.random_ratio(1, 3) || self.words.is_empty() { ODD } else { self.words };
        words[rng.random_range(0..words.len())]
    }
}

fn at(input: &mut [u8], rng: &mut StdRng, change: impl FnOnce(&mut u8, &mut StdRng)) {
    if !input.is_empty() {
        let place = rng.random_range(0..input.len());
        change(&mut input[place], rng);
    }
}

/// Returns a random range within a length, mostly a short one.
fn piece(len: usize, rng: &mut StdRng) -> std::ops::Range<usize> {
    let start = rng.random_range(0..=len);
    let longest = if rng.random() { 16.min(len - start) } else { len - start };
    start..start + rng.random_range(0..=longest)
}

/// Returns a run of digits, if there is any.
fn number(input: &[u8], rng: &mut StdRng) -> std::ops::Range<usize> {
    let from = rng.random_range(0..=input.len());
    let Some(start) = input[from..].iter().position(u8::is_ascii_digit) else { return from..from };
    let start = from + start;
    start..start + input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn insert(input: &mut Vec<u8>, piece: &[u8], rng: &mut StdRng) {
    let place = rng.random_range(0..=input.len());
    replace(input, place..place, piece);
}

fn replace(input: &mut Vec<u8>, place: std::ops::Range<usize>, piece: &[u8]) {
    let piece = &piece[..piece.len().min(MAX_LEN)];
    drop(input.splice(place, piece.iter().copied()));
}
