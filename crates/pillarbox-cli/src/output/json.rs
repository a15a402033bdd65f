//! JSON for people.

use std::iter::Peekable;
use std::str::Chars;

/// Lays out over lines what is known to be JSON. Numbers and texts stay as they are, digit by digit.
pub(crate) fn pretty(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth: usize = 0;
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => copy_text(&mut chars, &mut out),
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
    out
}

/// Copies a text whose first quote was read, to its last.
fn copy_text(chars: &mut Peekable<Chars<'_>>, out: &mut String) {
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
    fn json_is_laid_out_and_nothing_else_changes() {
        let text = "{\"a\" : 1.10,\"b\":[ ], \"c\":[1,{\"d\":\"x, {\\\"y\\\\\"}],\"e\":{}}";
        assert_eq!(
            pretty(text),
            "{\n  \"a\": 1.10,\n  \"b\": [],\n  \"c\": [\n    1,\n    {\n      \
             \"d\": \"x, {\\\"y\\\\\"\n    }\n  ],\n  \"e\": {}\n}"
        );
        assert_eq!([pretty(" 7 "), pretty("\" a \"")], ["7", "\" a \""]);
    }
}
