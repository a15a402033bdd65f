//! The identity under which the server remembers calls.

/// A caller: the server remembers the number and the answer of its last call.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: String,
    pub(crate) number: u64,
    /// Whether an earlier call got no answer and may still be on its way to the server.
    pub(crate) has_unanswered: bool,
}

impl Caller {
    /// Creates a caller that has made no call. No other caller may have had the key.
    pub(crate) fn new(key: String) -> Self {
        Self { key, number: 0, has_unanswered: false }
    }
}
