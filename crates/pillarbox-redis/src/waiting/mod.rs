//! Receives that wait for a message: their order, and the subscriptions that wake them.

mod poll_interval;
mod shared_waiters;
mod subscriptions;
mod wait;
mod waiters;

pub(crate) use self::poll_interval::{POLL_INTERVAL, WaitedPartitions};
pub(crate) use self::shared_waiters::SharedWaiters;
pub(crate) use self::subscriptions::{Channel, Subscriptions};
pub(crate) use self::wait::Wait;
pub(crate) use self::waiters::Query;
