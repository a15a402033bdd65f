//! The restart policy of a group, pure.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// Policy that decides whether and when a failed loop is restarted.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_runtime::Backoff;
/// use pillarbox_runtime::group::Restart;
///
/// let policy = Restart::on_failure()
///     .at_most(20, Duration::from_secs(3600))
///     .backoff(Backoff::exponential(Duration::from_secs(1), Duration::from_secs(300)));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Restart {
    at_most: u32,
    within: Duration,
    backoff: Backoff,
}

impl Restart {
    /// Creates a policy that restarts after each failure, at most 5 times within a minute, after 1, 2, 4, 8 and 16 seconds.
    pub const fn on_failure() -> Self {
        let backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(30));
        Self { at_most: 5, within: Duration::from_secs(60), backoff }
    }

    /// Creates a policy that never restarts: the first failure ends the group.
    pub const fn never() -> Self {
        Self::on_failure().at_most(0, Duration::from_secs(60))
    }

    /// Sets the maximum number of restarts within a time; one more failure ends the group. Defaults to 5 within a
    /// minute.
    pub const fn at_most(mut self, times: u32, within: Duration) -> Self {
        (self.at_most, self.within) = (times, within);
        self
    }

    /// Sets the delay before a restart, by the number of restarts within the time. Defaults to 1 second, doubling
    /// up to 30 seconds.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
}

impl Default for Restart {
    /// [`on_failure`](Self::on_failure).
    fn default() -> Self {
        Self::on_failure()
    }
}

/// The restarts of one loop.
#[derive(Debug)]
pub(super) struct Restarts {
    policy: Restart,
    recent: VecDeque<Instant>,
}

impl Restarts {
    pub(super) const fn new(policy: Restart) -> Self {
        Self { policy, recent: VecDeque::new() }
    }

    /// Records a failure, and returns the delay before the restart. `None` if the loop is not restarted.
    pub(super) fn failed(&mut self, now: Instant) -> Option<Duration> {
        while self.recent.front().is_some_and(|at| now - *at >= self.policy.within) {
            self.recent.pop_front();
        }
        if self.recent.len() >= self.policy.at_most as usize {
            return None;
        }
        self.recent.push_back(now);
        Some(self.policy.backoff.delay(self.recent.len() as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_loop_that_fails_too_often_is_not_restarted() {
        let start = Instant::now();
        let mut restarts = Restarts::new(Restart::on_failure());
        let mut after = |seconds| restarts.failed(start + seconds * SECOND).map(|d| d.as_secs());
        let delays = [after(0), after(1), after(2), after(3), after(4), after(59)];
        assert_eq!(delays, [Some(1), Some(2), Some(4), Some(8), Some(16), None]);
    }

    #[test]
    fn old_restarts_do_not_count() {
        let start = Instant::now();
        let mut restarts = Restarts::new(Restart::on_failure().at_most(2, 10 * SECOND));
        for round in 0..5 {
            let now = start + round * 10 * SECOND;
            let delays = [restarts.failed(now), restarts.failed(now), restarts.failed(now)];
            assert_eq!(delays, [Some(SECOND), Some(2 * SECOND), None], "in round {round}");
        }
    }

    #[test]
    fn the_policy_never_does_not_restart() {
        assert_eq!(Restarts::new(Restart::never()).failed(Instant::now()), None);
    }
}
