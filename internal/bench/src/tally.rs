//! How a run knows that every message arrived, and none twice.

use serde::{Deserialize, Serialize};

use crate::measure::{Result, expect_eq};

/// What arrived, whatever the order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    count: u64,
    sum: u64,
}

impl Tally {
    /// Builds a tally from a count and a sum that were taken elsewhere.
    pub(crate) fn of(count: u64, sum: u64) -> Self {
        Self { count, sum }
    }

    /// Counts a message in.
    pub(crate) fn add(&mut self, seq: u64) {
        self.count += 1;
        self.sum += seq;
    }

    /// Counts in what another has counted.
    pub(crate) fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.sum += other.sum;
    }

    /// Fails unless each of the numbers from 0 up to `n` was counted.
    ///
    /// Count and sum together tell every single loss and every single double delivery.
    pub(crate) fn expect_all(self, n: u64) -> Result<()> {
        let all = Self::of(n, (0..n).sum());
        expect_eq("messages that arrived", self, all)
    }
}
