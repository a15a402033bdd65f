//! What can go wrong around a run.

use std::path::PathBuf;

use crate::DatasetError;

/// Why something of an eval run could not be done. What was done before stays done: the run can be gone on with.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The dataset is none.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A queue said no.
    #[error(transparent)]
    Backend(#[from] pillarbox_core::Error),
    /// A queue did not take all samples.
    #[error(
        "{sent} samples were sent, {left} were not: {error}. Submit again to send the rest, and only that"
    )]
    Unsent {
        /// How many were sent by this submission.
        sent: usize,
        /// How many were not.
        left: usize,
        /// What the queue said to the first of them.
        #[source]
        error: pillarbox_core::Error,
    },
    /// A file of the run cannot be used.
    #[error("cannot {what} {}: {error}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What happened.
        #[source]
        error: std::io::Error,
    },
    /// What is asked for makes no sense for this run.
    #[error("{0}")]
    Invalid(String),
}

pillarbox_core::__error_debug!(enum EvalError {
    Dataset(error),
    Backend(error),
    Unsent { sent, left, error },
    File { what, path, error },
    Invalid(text),
});

impl EvalError {
    /// For `map_err`: what was tried with which file.
    pub(crate) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { what, path, error }
    }
}

/// What comes of it, or why nothing does.
pub type Result<T, E = EvalError> = std::result::Result<T, E>;
