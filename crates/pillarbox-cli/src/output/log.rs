//! What is logged.

use std::io::{self, Write};

use super::text::printable;

/// Lines of the log on stderr, each of which is written at once. What is logged may be of messages and servers.
#[derive(Debug)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(line(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line, whatever is in it.
fn line(text: &str) -> String {
    match text.strip_suffix('\n') {
        Some(line) => format!("{}\n", printable(line)),
        None => printable(text).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_is_one_line_that_says_nothing_to_the_terminal() {
        assert_eq!(line("WARN a\x1b[2J\nb\n"), "WARN a\\u{1b}[2J\\nb\n");
        assert_eq!(line("\u{9b}"), "\\u{9b}");
    }
}
