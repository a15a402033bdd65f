//! Text format of server replies that survives mutation: one value per line, the kind first.
//!
//! ```text
//! *        a list begins        $text    bytes, with \n, \\ and \xff
//! .        it ends              +text    a simple text
//! %        a map begins         =text    a verbatim text
//! _        nothing              :7       a whole number
//! #        true                 ,1.5     a number
//! ```
//!
//! Every text is a value: a line without a kind is bytes, and an unclosed list ends with the text.

use pillarbox_redis::redis::{Value, VerbatimFormat};

/// Lines of a text.
pub(super) type Lines<'a> = std::slice::Split<'a, u8, fn(&u8) -> bool>;

pub(super) fn lines(text: &[u8]) -> Lines<'_> {
    text.split(|byte| *byte == b'\n')
}

/// Depth limit of the client.
const DEEPEST: usize = 100;

/// Returns the next value, or `None` at the end of a list or of the text.
pub(super) fn value(lines: &mut Lines<'_>) -> Option<Value> {
    at_depth(lines, 0)
}

fn at_depth(lines: &mut Lines<'_>, depth: usize) -> Option<Value> {
    let line = lines.next()?;
    let Some((kind, rest)) = line.split_first() else { return Some(Value::BulkString(Vec::new())) };
    let text = || String::from_utf8_lossy(&unescaped(rest)).into_owned();
    let number = || std::str::from_utf8(rest).unwrap_or_default();
    Some(match kind {
        b'.' => return None,
        b'*' | b'%' if depth == DEEPEST => Value::Nil,
        b'*' => Value::Array(list(lines, depth)),
        b'%' => {
            let mut words = list(lines, depth).into_iter();
            let mut pairs = Vec::new();
            while let (Some(name), Some(value)) = (words.next(), words.next()) {
                pairs.push((name, value));
            }
            Value::Map(pairs)
        }
        b'_' => Value::Nil,
        b'#' => Value::Boolean(true),
        b':' => Value::Int(number().parse().unwrap_or_default()),
        b',' => Value::Double(number().parse().unwrap_or_default()),
        b'+' => Value::SimpleString(text()),
        b'=' => Value::VerbatimString { format: VerbatimFormat::Text, text: text() },
        b'$' => Value::BulkString(unescaped(rest)),
        _ => Value::BulkString(unescaped(line)),
    })
}

fn list(lines: &mut Lines<'_>, depth: usize) -> Vec<Value> {
    std::iter::from_fn(|| at_depth(lines, depth + 1)).collect()
}

/// Unescapes the bytes of a line.
pub(super) fn unescaped(line: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'\\', [b'n', after @ ..]) => {
                bytes.push(b'\n');
                rest = after;
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |digit: u8| (digit as char).to_digit(16).unwrap_or_default() as u8;
                bytes.push(digit(*high) << 4 | digit(*low));
                rest = after;
            }
            (b'\\', [b'\\', after @ ..]) => {
                bytes.push(b'\\');
                rest = after;
            }
            _ => bytes.push(*byte),
        }
    }
    bytes
}
