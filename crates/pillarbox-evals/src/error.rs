//! Errors of eval runs.

use std::path::PathBuf;

use crate::DatasetError;

/// Error of an eval run. Everything done before the error is kept, and the run can be continued.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The dataset is invalid.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A call of the backend failed.
    #[error(transparent)]
    Backend(#[from] pillarbox_core::Error),
    /// The queue did not take all samples.
    #[error("{sent} samples were sent, {unsent} were not: {error}. Submit again to send the rest")]
    Unsent {
        /// Number of samples that this submission sent.
        sent: usize,
        /// Number of samples that were not sent.
        unsent: usize,
        /// Error of the first of them.
        #[source]
        error: pillarbox_core::Error,
    },
    /// Access to a file of the run failed.
    #[error("cannot {what} {}: {error}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        error: std::io::Error,
    },
    /// The call is not valid for this run.
    #[error("{0}")]
    Invalid(String),
}

pillarbox_core::__error_debug!(enum EvalError {
    Dataset(error),
    Backend(error),
    Unsent { sent, unsent, error },
    File { what, path, error },
    Invalid(text),
});

impl EvalError {
    /// Returns a function for `map_err` that adds the operation and the file.
    pub(crate) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { what, path, error }
    }
}

/// Result with an [`EvalError`].
pub type Result<T, E = EvalError> = std::result::Result<T, E>;
