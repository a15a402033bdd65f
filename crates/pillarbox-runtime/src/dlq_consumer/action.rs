//! The result of a handler of dead letters.

use std::time::Duration;

use crate::outcome::{BoxError, Failure};

/// What a handler does with a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct DlqAction(pub(super) DlqActionKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DlqActionKind {
    Done,
    Replay,
    Discard,
    Keep(Duration),
    Leave,
}

impl DlqAction {
    /// Deletes the dead letter, which is handled.
    pub const fn done() -> Self {
        Self(DlqActionKind::Done)
    }

    /// Sends the message back to its source queue, and deletes the dead letter.
    pub const fn replay() -> Self {
        Self(DlqActionKind::Replay)
    }

    /// Deletes the dead letter, and counts it as discarded.
    pub const fn discard() -> Self {
        Self(DlqActionKind::Discard)
    }

    /// Keeps the dead letter, which is delivered again after this time. Until then it is delayed: others can only
    /// peek at it, or [wait](crate::dead_letters::Pass::delayed) until they can replay or discard it.
    pub const fn keep_for(time: Duration) -> Self {
        Self(DlqActionKind::Keep(time))
    }

    /// Leaves the dead letter ready for `pillarbox dlq replay`, for a [`Dlq`](crate::dead_letters::Dlq) and for other consumers.
    /// This consumer does not handle it again while it runs; one that is started later does.
    ///
    /// This is for a handler that only alerts. While nothing but left dead letters is ready, the consumer
    /// receives none of them: it counts the messages once a second, and receives again when there are more. It
    /// remembers the last 100,000 dead letters that it has left.
    pub const fn leave() -> Self {
        Self(DlqActionKind::Leave)
    }

    pub(super) const fn name(self) -> &'static str {
        match self.0 {
            DlqActionKind::Done => "done",
            DlqActionKind::Replay => "replay",
            DlqActionKind::Discard => "discard",
            DlqActionKind::Keep(_) => "keep",
            DlqActionKind::Leave => "leave",
        }
    }
}

impl From<()> for DlqAction {
    fn from((): ()) -> Self {
        Self::done()
    }
}

/// Return types of a handler of dead letters: `()`, a [`DlqAction`], or a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "a handler of dead letters cannot return `{Self}`",
    note = "it returns `()`, `DlqAction`, `Result<(), E>` or `Result<DlqAction, E>`, \
            where `E` is an error, an `anyhow::Error`, a `String` or a `&str`"
)]
pub trait IntoDlqAction {
    /// Returns the action, or the error of the handler.
    fn into_dlq_action(self) -> std::result::Result<DlqAction, BoxError>;
}

impl IntoDlqAction for () {
    fn into_dlq_action(self) -> std::result::Result<DlqAction, BoxError> {
        Ok(DlqAction::done())
    }
}

impl IntoDlqAction for DlqAction {
    fn into_dlq_action(self) -> std::result::Result<DlqAction, BoxError> {
        Ok(self)
    }
}

impl<O: Into<DlqAction>, E: Into<BoxError> + 'static> IntoDlqAction for std::result::Result<O, E> {
    fn into_dlq_action(self) -> std::result::Result<DlqAction, BoxError> {
        self.map(Into::into).map_err(|error| Failure::of(error).into())
    }
}
