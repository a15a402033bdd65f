//! How a command ends when it does not end well.

use std::io;
use std::process::ExitCode;

use pillarbox::Error;

use crate::url::BackendUrl;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command did not do what it was told.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The contract said no.
    Pillarbox(Error),
    /// What was asked for makes no sense; nothing was done.
    Usage(String),
    /// Anything else, in words that say what to do.
    Other(String),
    /// What was found out could not be written.
    Output(io::Error),
    /// There was nothing to receive. Not an error, but scripts ask.
    NothingReceived,
    /// The user has had enough.
    Interrupted,
    /// It was said already.
    Reported,
}

impl Failure {
    /// What to say on stderr.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Pillarbox(error) => Some(error.to_string()),
            Self::Usage(text) | Self::Other(text) => Some(text.clone()),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Self::Output(error) => {
                Some(format!("cannot write to stdout: {error}. What was asked for may be done"))
            }
            Self::NothingReceived | Self::Interrupted | Self::Reported => None,
        }
    }

    /// The same, without what a URL keeps to itself.
    pub(crate) fn without_secrets_of(self, url: &BackendUrl) -> Self {
        match self {
            Self::Pillarbox(error @ Error::InvalidParameter { .. }) => {
                Self::Usage(url.hide_secrets_in(&error.to_string()))
            }
            Self::Pillarbox(error) => Self::Other(url.hide_secrets_in(&error.to_string())),
            other => other,
        }
    }

    /// The exit codes that the help promises.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            // Whoever reads our output has seen enough, as `head` does.
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
