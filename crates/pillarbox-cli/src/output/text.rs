//! Formatting of bodies, sizes and rates.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar;

/// Returns a body on one line: text with control characters escaped, or the size and first few bytes of other bodies.
pub(crate) fn preview(body: &[u8]) -> String {
    // No terminal is wider, and a body may be very long.
    const MAX_TEXT: usize = 4096;
    const MAX_BYTES: usize = 24;
    let start = &body[..body.len().min(MAX_TEXT)];
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The cut is within a character.
        Err(error) if start.len() < body.len() && error.valid_up_to() + 4 > start.len() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => {
            let hex: Vec<_> =
                body.iter().take(MAX_BYTES).map(|byte| format!("{byte:02x}")).collect();
            let more = if body.len() > MAX_BYTES { " …" } else { "" };
            return format!("({}) {}{more}", bytes(body.len() as u64), hex.join(" "));
        }
    };
    let mut line = printable(text).into_owned();
    if text.len() < body.len() {
        line.push('…');
    }
    line
}

/// Returns text on one line, with control characters escaped. All output for people goes through this: messages, names
/// and texts of servers are untrusted and must not control the terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unprintable(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    Cow::Owned(line)
}

/// Returns equivalent JSON without control characters. Except for tabs, they occur within strings only.
pub(crate) fn printable_json(line: &str) -> Cow<'_, str> {
    let is_bad = |c: char| is_unprintable(c) && c != '\t';
    if !line.contains(is_bad) {
        return Cow::Borrowed(line);
    }
    let mut printable = String::with_capacity(line.len());
    for c in line.chars() {
        if is_bad(c) {
            printable.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            printable.push(c);
        }
    }
    Cow::Owned(printable)
}

/// Returns at most the first 16 KiB of a text.
pub(crate) fn beginning(text: &str) -> Cow<'_, str> {
    const MAX_BYTES: usize = 16 << 10;
    if text.len() <= MAX_BYTES {
        return Cow::Borrowed(text);
    }
    let end = (0..=MAX_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..end]))
}

fn is_unprintable(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Characters that are invisible or change the direction of text.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Cuts a text to a width in columns.
pub(crate) fn shorten(text: &str, width: Option<usize>) -> Cow<'_, str> {
    let Some(width) = width else { return Cow::Borrowed(text) };
    let mut used = 0;
    let mut fits = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > width {
            return Cow::Owned(format!("{}…", &text[..fits]));
        }
        // Leaves space for the ellipsis.
        if used < width {
            fits = at + c.len_utf8();
        }
    }
    Cow::Borrowed(text)
}

/// Formats a number of bytes.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a number with its unit: `1 message`, `2 messages`.
pub(crate) fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// Formats a rate with about three digits.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{:.2}M/s", rate / 1e6),
        rate if rate >= 10_000.0 => format!("{:.1}k/s", rate / 1e3),
        rate if rate >= 100.0 => format!("{rate:.0}/s"),
        rate if rate > 0.0 => format!("{rate:.1}/s"),
        _ => "0/s".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_one_line_without_control_characters() {
        assert_eq!(preview(b"{\"n\": 1}"), "{\"n\": 1}");
        assert_eq!(preview(b"a\nb\x1b[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(preview("x\u{202e}y".as_bytes()), "x\\u{202e}y");
        assert_eq!(preview(b""), "");
        assert_eq!(preview(&[0xff, 0x00, 0x41]), "(3 B) ff 00 41");
        let long = preview(&[0xff; 100]);
        assert!(long.starts_with("(100 B) ff ") && long.ends_with(" …"), "{long}");
    }

    #[test]
    fn json_for_a_terminal_is_equivalent() {
        let line = "{\"a\":\t\"\u{9b}2J\u{7f}\u{202e}é\"}";
        assert_eq!(printable_json(line), "{\"a\":\t\"\\u009b2J\\u007f\\u202eé\"}");
        let value = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        assert_eq!(value(line), value(&printable_json(line)));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let long = "é".repeat(10_000);
        assert!(beginning(&format!("x{long}")).ends_with("é…"));
        assert_eq!(beginning("short"), "short");
        let text = "é".repeat(5000);
        let shown = preview(&text.as_bytes()[1..]);
        assert!(shown.starts_with('('), "{shown}");
        let odd = format!("x{text}");
        assert!(preview(odd.as_bytes()).ends_with("é…"));
    }

    #[test]
    fn a_shortened_text_fits_its_width() {
        assert_eq!(shorten("abcdef", Some(6)), "abcdef");
        assert_eq!(shorten("abcdefg", Some(6)), "abcde…");
        assert_eq!(shorten("日本語", Some(5)), "日本…");
        assert_eq!(shorten("日本語", Some(4)), "日…");
        assert_eq!(shorten("abc", None), "abc");
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!([bytes(0), bytes(1023), bytes(1536)], ["0 B", "1023 B", "1.5 KiB"]);
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!([count(1, "message"), count(2, "message")], ["1 message", "2 messages"]);
        assert_eq!([rate(0.0), rate(0.26), rate(99.0)], ["0/s", "0.3/s", "99.0/s"]);
        assert_eq!([rate(1234.5), rate(45_678.0), rate(2.5e6)], ["1234/s", "45.7k/s", "2.50M/s"]);
    }
}
