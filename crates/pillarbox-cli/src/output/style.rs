//! Colours, on a terminal only.

use std::fmt;

use super::text::printable;

/// Styles text by its meaning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    enabled: bool,
}

/// Part of a line, with an optional colour. Control characters in its text are escaped.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    code: Option<&'static str>,
    text: String,
}

impl Style {
    /// Enables colours on a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    pub(crate) fn on_terminal(terminal: bool) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { enabled: terminal && !refused && !dumb }
    }

    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { enabled: false }
    }

    pub(crate) fn heading(self, text: impl Into<String>) -> Part {
        self.mark("1", text.into())
    }

    pub(crate) fn faint(self, text: impl Into<String>) -> Part {
        self.mark("2", text.into())
    }

    pub(crate) fn good(self, text: impl Into<String>) -> Part {
        self.mark("32", text.into())
    }

    pub(crate) fn warn(self, text: impl Into<String>) -> Part {
        self.mark("33", text.into())
    }

    pub(crate) fn bad(self, text: impl Into<String>) -> Part {
        self.mark("31", text.into())
    }

    fn mark(self, code: &'static str, text: String) -> Part {
        Part { code: self.enabled.then_some(code), text }
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Self { code: None, text }
    }
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = printable(&self.text);
        match self.code {
            Some(code) => write!(f, "\x1b[{code}m{text}\x1b[0m"),
            None => f.write_str(&text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_style_of_a_text_is_a_control_sequence() {
        let style = Style { enabled: true };
        assert_eq!(style.bad("a\x1b[2Jb\n").to_string(), "\x1b[31ma\\u{1b}[2Jb\\n\x1b[0m");
        assert_eq!(Style::plain().bad("x").to_string(), "x");
        assert_eq!(Part::from("\u{9b}1m").to_string(), "\\u{9b}1m");
    }
}
