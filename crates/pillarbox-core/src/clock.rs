//! Timestamps and the clocks of backends.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::future::BoxFuture;

/// Point in time, in nanoseconds since 1970 (UTC), from the year 1677 to 2262.
///
/// Its text, also in JSON, is RFC 3339 in UTC. Arithmetic saturates.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use pillarbox_core::Timestamp;
///
/// let at: Timestamp = "2026-11-15T10:30:00Z".parse()?;
/// assert_eq!((at + Duration::from_millis(250)).to_string(), "2026-11-15T10:30:00.25Z");
/// assert!(SystemTime::from(at) > SystemTime::UNIX_EPOCH);
/// # Ok::<(), pillarbox_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest timestamp.
    pub const MIN: Self = Self(i64::MIN);
    /// The latest timestamp.
    pub const MAX: Self = Self(i64::MAX);

    /// Returns the current time of the machine's wall clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Creates a timestamp from nanoseconds since 1970.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Creates a timestamp from microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Creates a timestamp from seconds since 1970.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds since 1970.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Returns the microseconds since 1970, rounded down.
    pub const fn as_micros(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// Returns the time from `earlier` to this timestamp, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        let nanos = self.0 as i128 - earlier.0 as i128;
        if nanos <= 0 {
            Duration::ZERO
        } else {
            Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32)
        }
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        // The whole range of timestamps is 64 bits long, and a `Duration` may be longer.
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add_unsigned(by))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(0) + after,
            Err(before) => {
                Self(i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos))
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(at: Timestamp) -> Self {
        let distance = Duration::from_nanos(at.0.unsigned_abs());
        if at.0 < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Cannot fail: jiff covers the years -9999 to 9999.
        let at = jiff::Timestamp::from_nanosecond(self.0.into()).map_err(|_| fmt::Error)?;
        fmt::Display::fmt(&at, f)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Timestamp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse::<jiff::Timestamp>()
            .ok()
            .and_then(|at| i64::try_from(at.as_nanosecond()).ok())
            .map(Self)
            .ok_or_else(|| {
                let allowed = "RFC 3339 from 1677 to 2262, such as 2026-11-15T10:30:00Z";
                Error::invalid(None, "time", format!("{text:?}"), allowed)
            })
    }
}

/// Clock of a backend that runs in this process.
///
/// A backend judges deadlines by a single clock: that of its server if it has one, and a `Clock` otherwise.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time. Never goes backwards.
    fn now(&self) -> Timestamp;

    /// Completes when [`now`](Self::now) has reached `deadline`.
    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'_, ()>;
}

/// Monotonic clock of the machine.
///
/// Reads the wall clock once, when it is created, and advances with tokio's clock from there. So a step of the
/// wall clock neither expires nor extends a lease, and `tokio::time::pause` pauses this clock, too.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Timestamp,
    origin: Instant,
}

impl SystemClock {
    /// Creates a clock that starts at the machine's current time.
    pub fn new() -> Self {
        Self { start: Timestamp::now(), origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.start + self.origin.elapsed()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(deadline.since(self.now())))
    }
}

/// Returns the instant `wait` from now by tokio's clock, at most 30 years ahead.
///
/// For timeouts that a backend's clock does not judge, such as the maximum wait of a receive.
pub fn after(wait: Duration) -> Instant {
    later(Instant::now(), wait)
}

/// Adds `by` to `now`, at most 30 years, so that [`Duration::MAX`] does not overflow.
pub fn later(now: Instant, by: Duration) -> Instant {
    const MAX: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    now + by.min(MAX)
}

/// Clock for tests that moves only by [`advance`](Self::advance).
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.now().since(before).as_secs(), 30);
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: watch::Sender<Timestamp>,
}

impl ManualClock {
    /// Creates a clock that stands at the machine's current time.
    pub fn new() -> Self {
        Self::at(Timestamp::now())
    }

    /// Creates a clock that stands at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self { now: watch::Sender::new(now) }
    }

    /// Moves the clock and its clones forward, and wakes the sleepers whose deadline has come.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = *now + by);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'_, ()> {
        let mut now = self.now.subscribe();
        Box::pin(async move {
            // The sender is a field of `self`, which this future borrows.
            let _ = now.wait_for(|now| *now >= deadline).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_follows_tokios_paused_time() {
        let clock = SystemClock::new();
        let start = clock.now();
        clock.sleep_until(start + Duration::from_secs(3600)).await;
        assert_eq!(clock.now().since(start).as_secs(), 3600);
    }

    #[tokio::test(start_paused = true)]
    async fn a_manual_clock_wakes_sleepers_at_their_deadline() {
        let clock = ManualClock::new();
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(clock.now() + Duration::from_secs(2)).await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_of_any_length_has_an_end() {
        let now = Instant::now();
        assert_eq!(after(Duration::ZERO), now);
        assert_eq!(after(Duration::from_millis(1500)), now + Duration::from_millis(1500));
        let years = after(Duration::MAX).duration_since(now).as_secs() / (365 * 24 * 3600);
        assert_eq!(years, 30);
    }

    #[test]
    fn time_saturates_instead_of_overflowing() {
        assert_eq!(Timestamp::now() + Duration::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::MIN + Duration::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::MIN.since(Timestamp::MAX), Duration::ZERO);
        assert_eq!(Timestamp::MAX.since(Timestamp::MIN).as_nanos(), u128::from(u64::MAX));
        assert_eq!(Timestamp::from_secs(i64::MAX), Timestamp::MAX);
    }

    #[test]
    fn a_timestamp_survives_text_and_system_time() {
        let timestamps = [0, 1, -1, i64::MAX, i64::MIN, 1_763_200_000_123_456_789];
        for at in timestamps.map(Timestamp::from_nanos) {
            assert_eq!(at.to_string().parse::<Timestamp>().unwrap(), at, "{at}");
            assert_eq!(Timestamp::from(SystemTime::from(at)), at, "{at}");
            let json = serde_json::to_string(&at).unwrap();
            assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), at, "{json}");
        }
        assert_eq!(Timestamp::from_nanos(-1).as_micros(), -1);
        for bad in ["", "yesterday", "9999-01-01T00:00:00Z"] {
            assert!(matches!(bad.parse::<Timestamp>(), Err(Error::InvalidParameter { .. })));
        }
    }
}
