//! The errors of the tasks of `pillarbox demo`. At the root of the crate, because dead letters show the path of a type.

#[derive(Debug, thiserror::Error)]
#[error("connection reset by peer")]
pub(crate) struct Disconnected;

#[derive(Debug, thiserror::Error)]
#[error("rate limit exceeded")]
pub(crate) struct RateLimited;

#[derive(Debug, thiserror::Error)]
#[error("no answer in time")]
pub(crate) struct Timeout;
