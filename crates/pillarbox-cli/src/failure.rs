//! Errors of commands, and exit codes.

use std::io;
use std::process::ExitCode;

use pillarbox::Error;

use crate::url::BackendUrl;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Error of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Error of the backend.
    Pillarbox(Error),
    /// Invalid use; nothing was done.
    Usage(String),
    /// Any other error.
    Other(String),
    /// The output could not be written.
    Output(io::Error),
    /// There was nothing to receive. Not an error, but it has its own exit code.
    NothingReceived,
    /// Interrupted by the user.
    Interrupted,
    /// The error was printed already.
    Reported,
}

impl Failure {
    /// Returns the text for stderr.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Pillarbox(error) => Some(error.to_string()),
            Self::Usage(text) | Self::Other(text) => Some(text.clone()),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Self::Output(error) => {
                Some(not_written(error, "The command itself may have succeeded"))
            }
            Self::NothingReceived | Self::Interrupted | Self::Reported => None,
        }
    }

    /// Replaces the text of a failed output by one that says what happened to the messages.
    pub(crate) fn with_messages_released(self) -> Self {
        match self {
            Self::Output(error) if error.kind() != io::ErrorKind::BrokenPipe => Self::Other(
                not_written(&error, "Messages that were not written are back in the queue"),
            ),
            other => other,
        }
    }

    /// Removes the secrets of a URL from the text.
    pub(crate) fn without_secrets_of(self, url: &BackendUrl) -> Self {
        match self {
            Self::Pillarbox(error @ Error::InvalidParameter { .. }) => {
                Self::Usage(url.hide_secrets_in(&error.to_string()))
            }
            Self::Pillarbox(error) => Self::Other(url.hide_secrets_in(&error.to_string())),
            other => other,
        }
    }

    /// Returns the exit code, as documented in the help.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            // The reader closed the pipe early, as `head` does.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Pillarbox(Error::InvalidParameter { .. }) | Self::Usage(_) => 2,
            Self::Pillarbox(_) | Self::Other(_) | Self::Output(_) | Self::Reported => 1,
            Self::NothingReceived => 3,
            Self::Interrupted => 130,
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Pillarbox(error)
    }
}

/// Returns the text of a failed output, with what became of the command.
fn not_written(error: &io::Error, effect: &str) -> String {
    format!("cannot write to stdout: {error}. {effect}")
}
