//! Helpers of several tests: backends that processes share, and the processes.

pub(crate) mod crash;
pub(crate) mod group_process;
pub(crate) mod memory;
pub(crate) mod shared_backend;
pub(crate) mod worker_process;
