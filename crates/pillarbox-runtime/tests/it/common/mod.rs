//! What several tests share: places with queues, and processes that work there.

pub(crate) mod crash;
pub(crate) mod crew;
pub(crate) mod employee;
pub(crate) mod place;
