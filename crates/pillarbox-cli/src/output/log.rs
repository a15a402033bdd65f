//! Log output.

use std::io::{self, Write};

use super::text::printable;

/// Writer of log lines to stderr. It escapes control characters, since texts may come from messages and servers.
#[derive(Debug)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(printable_line(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns one line without control characters.
pub(crate) fn printable_line(text: &str) -> String {
    match text.strip_suffix('\n') {
        Some(line) => format!("{}\n", printable(line)),
        None => printable(text).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_entry_is_one_line_without_control_characters() {
        assert_eq!(printable_line("WARN a\x1b[2J\nb\n"), "WARN a\\u{1b}[2J\\nb\n");
        assert_eq!(printable_line("\u{9b}"), "\\u{9b}");
    }
}
