//! Indented JSON.

use std::iter::Peekable;
use std::str::Chars;

use pillarbox::ReadableBody;

/// Maximum length of the output.
const MAX_BYTES: usize = 16 << 20;

/// Indents valid JSON. Numbers and strings are copied unchanged. Returns `None` if it is nested too deeply, or the result
/// would be too long because of the indents.
pub(crate) fn pretty(json: &str) -> Option<String> {
    let mut out = String::with_capacity(json.len().min(MAX_BYTES));
    let mut depth: usize = 0;
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        if depth > ReadableBody::MAX_DEPTH || out.len() > MAX_BYTES {
            return None;
        }
        match c {
            '"' => copy_string(&mut chars, &mut out),
            '{' | '[' => {
                out.push(c);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                match chars.next_if(|c| matches!(c, '}' | ']')) {
                    Some(end) => out.push(end),
                    None => {
                        depth += 1;
                        new_line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            _ if c.is_ascii_whitespace() => {}
            _ => out.push(c),
        }
    }
    Some(out)
}

/// Copies the rest of a string whose first quote was read.
fn copy_string(chars: &mut Peekable<Chars<'_>>, out: &mut String) {
    out.push('"');
    let mut is_escaped = false;
    for c in chars {
        out.push(c);
        if c == '"' && !is_escaped {
            return;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_otherwise_unchanged() {
        let text = "{\"a\" : 1.10,\"b\":[ ], \"c\":[1,{\"d\":\"x, {\\\"y\\\\\"}],\"e\":{}}";
        assert_eq!(
            pretty(text).unwrap(),
            "{\n  \"a\": 1.10,\n  \"b\": [],\n  \"c\": [\n    1,\n    {\n      \
             \"d\": \"x, {\\\"y\\\\\"\n    }\n  ],\n  \"e\": {}\n}"
        );
        assert_eq!([pretty(" 7 "), pretty("\" a \"")].map(Option::unwrap), ["7", "\" a \""]);
    }

    #[test]
    fn json_that_is_too_deep_or_too_long_is_not_indented() {
        let nested = |depth: usize, items: usize| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            format!("{open}{}0{close}", "0,".repeat(items))
        };
        assert!(pretty(&nested(ReadableBody::MAX_DEPTH, 10)).is_some());
        assert_eq!(pretty(&nested(ReadableBody::MAX_DEPTH + 1, 0)), None);
        assert_eq!(pretty(&nested(1_000_000, 0)), None);
        assert!(pretty(&nested(1, 1_000_000)).is_some());
        assert_eq!(pretty(&nested(ReadableBody::MAX_DEPTH, 1_000_000)), None);
    }
}
