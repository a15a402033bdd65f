//! Colours, on a terminal only.

/// Marks text by what it means.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    enabled: bool,
}

impl Style {
    /// Colours if it is a terminal that has them, and the user has not said no (`NO_COLOR`).
    pub(crate) fn on_terminal(terminal: bool) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { enabled: terminal && !refused && !dumb }
    }

    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { enabled: false }
    }

    pub(crate) fn heading(self, text: &str) -> String {
        self.mark("1", text)
    }

    pub(crate) fn faint(self, text: &str) -> String {
        self.mark("2", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.mark("32", text)
    }

    pub(crate) fn warn(self, text: &str) -> String {
        self.mark("33", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.mark("31", text)
    }

    fn mark(self, code: &str, text: &str) -> String {
        if self.enabled { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
