//! Time as a backend sees it.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::queue::BoxFuture;

/// A moment in time, in nanoseconds since 1970 (UTC): from the year 1677 to 2262.
///
/// As text, and so in JSON, it is RFC 3339 in UTC. Arithmetic saturates at the ends.
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
    /// The earliest moment there is.
    pub const MIN: Self = Self(i64::MIN);
    /// The latest moment there is.
    pub const MAX: Self = Self(i64::MAX);

    /// The present moment by the machine's wall clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// The moment so many nanoseconds after the beginning of 1970.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The moment so many microseconds after the beginning of 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// The moment so many seconds after the beginning of 1970.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the beginning of 1970.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Microseconds since the beginning of 1970, rounded down.
    pub const fn as_micros(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// How long it is from `earlier` to this moment: nothing when `earlier` is later.
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
        // The span from end to end is 64 bits long, and a `Duration` may be longer still.
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
        // Cannot fail: jiff reaches from the year -9999 to 9999.
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

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The clock of a backend that lives in this process.
///
/// A backend judges deadlines by one clock only, its own: the server's where there is a server,
/// one of these where there is none.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present moment. Never earlier than an answer given before.
    fn now(&self) -> Timestamp;

    /// Waits until [`now`](Self::now) has reached `deadline`.
    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'_, ()>;
}

/// The clock of the machine, made monotonic.
///
/// It reads the wall clock once, when it is made, and counts on from there with tokio's clock.
/// A step of the wall clock therefore neither expires a lease nor prolongs one, and under
/// `tokio::time::pause` the clock stands still and moves with tokio's.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Timestamp,
    origin: Instant,
}

impl SystemClock {
    /// Makes a clock that starts at the machine's present time.
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

/// The moment so much later by tokio's clock, until which a caller waits; in some decades where that
/// is out of reach.
///
/// For waits that no clock of a backend judges, such as how long a receive may take.
pub fn after(wait: Duration) -> Instant {
    later(Instant::now(), wait)
}

/// So long after a moment, and within decades of it: a caller may say [`Duration::MAX`].
pub fn later(now: Instant, by: Duration) -> Instant {
    const DECADES: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    now + by.min(DECADES)
}

/// A clock that moves only when told to, for tests.
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
    /// Makes a clock that stands at the machine's present time.
    pub fn new() -> Self {
        Self::at(Timestamp::now())
    }

    /// Makes a clock that stands at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self { now: watch::Sender::new(now) }
    }

    /// Moves the clock forward and wakes whoever slept until then. Clones move along.
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
            // The sender lives as long as `self`, which this future borrows.
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
    async fn a_manual_clock_wakes_sleepers_when_it_gets_there() {
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
    async fn a_wait_has_an_end_however_long_it_is() {
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
    fn a_moment_survives_text_and_system_time() {
        let moments = [0, 1, -1, i64::MAX, i64::MIN, 1_763_200_000_123_456_789];
        for at in moments.map(Timestamp::from_nanos) {
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
