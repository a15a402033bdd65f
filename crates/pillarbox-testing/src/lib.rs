//! Test doubles, fault injection and the conformance suite: for Pillarbox itself and for its users.
//!
//! | to | use |
//! |---|---|
//! | drop everything that is sent | [`NullMailbox`] |
//! | see what was sent | [`CollectingMailbox`] |
//! | expire receipts, fail calls and move the clock by hand | [`FakeMailbox`] |
//! | make a queue fail at random, by a seed | [`FaultQueue`] |
//! | write a queue that wraps another one | [`forward_queue!`] |
//! | show that a backend keeps the contract | [`conformance!`] |
//! | compare a backend with the ledger over random commands | [`property`] |
//! | use a queue from many tasks at once and check what happened | [`stress`], [`history`] |
//! | kill processes that use a queue and check the results they saw | [`campaign`] |
//! | run a test in a process of its own | [`process`] |
//! | start a private Redis server, cluster or set of sentinels | [`server`] |
//!
//! Test doubles are queues like any other, behind the one [`Mailbox`](pillarbox_core::Mailbox)
//! type: code under test cannot distinguish them from real ones.

pub mod campaign;
pub mod conformance;
mod doubles;
pub mod fault;
mod forward;
pub mod history;
pub mod process;
pub mod property;
pub mod server;
pub mod stress;
mod subject;

pub use doubles::{CollectingMailbox, FakeMailbox, Injected, NullMailbox};
pub use fault::{Fault, FaultQueue, Faults, Operation};
pub use subject::{Expected, Subject, block_on, on_threads};

#[doc(hidden)]
pub use pillarbox_core as __core;
