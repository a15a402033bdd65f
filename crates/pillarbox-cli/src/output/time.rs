//! Parsing and formatting of durations and times.

use std::time::Duration;

use pillarbox::Timestamp;

const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Parses `1500ms`, `30s`, `5m`, `1h`, `2d` or a combination such as `1h30m`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a duration such as 1500ms, 30s, 5m, 1h, 2d or 1h30m".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let (number, unit) = (&rest[..digits], &rest[digits..digits + letters]);
        if digits > 0 && unit.is_empty() && digits == rest.len() {
            return Err(format!("the unit is missing: {text}s, {text}m or {text}h?"));
        }
        let (_, milliseconds) = UNITS.iter().find(|(known, _)| *known == unit).ok_or_else(wrong)?;
        let part = number.parse().ok().and_then(|number: u64| number.checked_mul(*milliseconds));
        let sum = part.and_then(|part| total.checked_add(part));
        total = sum.ok_or_else(|| if digits == 0 { wrong() } else { "too long".to_owned() })?;
        rest = &rest[digits + letters..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::from_millis(total)) }
}

/// Formats a duration in its two largest units: `1h5m`, `30s`, `250ms`.
pub(crate) fn show(duration: Duration) -> String {
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let first = UNITS.iter().position(|(_, unit)| milliseconds >= *unit);
    let Some(first) = first else {
        return if duration.is_zero() { "0s".to_owned() } else { "<1ms".to_owned() };
    };
    let (unit, size) = UNITS[first];
    let mut text = format!("{}{unit}", milliseconds / size);
    // Seconds are shown without milliseconds.
    if let Some((unit, smaller)) = UNITS[..4].get(first + 1) {
        let rest = milliseconds % size / smaller;
        if rest > 0 {
            text.push_str(&format!("{rest}{unit}"));
        }
    }
    text
}

/// Formats a measured duration with about three digits.
pub(crate) fn measured(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        _ if seconds >= 10.0 => format!("{seconds:.1} s"),
        _ if seconds >= 1.0 => format!("{seconds:.2} s"),
        _ if seconds >= 0.01 => format!("{:.0} ms", seconds * 1e3),
        _ if seconds >= 0.001 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{:.0} µs", seconds * 1e6),
    }
}

/// Formats a time relative to `now`.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        format!("in {}", show(at.since(now)))
    } else {
        format!("{} ago", show(now.since(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("1500ms", 1500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("2d", 172_800_000),
            ("1h30m", 5_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_rejected_with_an_example() {
        assert_eq!(parse("30").unwrap_err(), "the unit is missing: 30s, 30m or 30h?");
        for text in ["", "s", "1x", "-1s", "1.5s", "5 m", "1h30", "ü"] {
            let error = parse(text).unwrap_err();
            assert!(
                error.contains("expected a duration") || error.contains("unit"),
                "{text}: {error}"
            );
        }
        assert_eq!(parse("99999999999999999999s").unwrap_err(), "too long");
        assert_eq!(parse("9999999999999999999d").unwrap_err(), "too long");
    }

    #[test]
    fn durations_are_shown_in_two_units() {
        for (milliseconds, text) in [
            (0, "0s"),
            (250, "250ms"),
            (1500, "1s"),
            (90_000, "1m30s"),
            (3_600_000, "1h"),
            (3_900_000, "1h5m"),
            (90_061_001, "1d1h"),
        ] {
            assert_eq!(show(Duration::from_millis(milliseconds)), text);
        }
        assert_eq!(show(Duration::from_micros(5)), "<1ms");
        assert_eq!(measured(Duration::from_micros(1234)), "1.2 ms");
    }

    #[test]
    fn times_are_shown_relative_to_now() {
        let now = Timestamp::from_secs(1000);
        assert_eq!(ago(Timestamp::from_secs(910), now), "1m30s ago");
        assert_eq!(ago(Timestamp::from_secs(1030), now), "in 30s");
    }
}
