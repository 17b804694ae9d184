//! One timestamp type: milliseconds since the Unix epoch, UTC. Formats and parses RFC 3339.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A moment, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(i64);

/// Smallest number that is read as epoch milliseconds; below it lie seconds (see [`TimeError::Unit`]).
const MIN_MILLIS: f64 = 1e11;
/// Largest number that is read as epoch milliseconds; above it lie micro- and nanoseconds.
const MAX_MILLIS: f64 = 1e14;

/// Why a time was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// A number outside 1e11..=1e14: seconds, microseconds or nanoseconds instead of milliseconds.
    #[error("time is not in epoch milliseconds")]
    Unit,
    /// Text that is not RFC 3339.
    #[error("time is not RFC 3339")]
    Format,
}

// === impl Timestamp ===

impl Timestamp {
    /// From milliseconds since the Unix epoch.
    pub const fn from_millis(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Seconds since the Unix epoch, the base unit of metrics.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// This moment plus `ms` milliseconds.
    pub const fn plus(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this moment, negative where it lies later.
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Reads a number of epoch milliseconds, refusing what can only be another unit.
    ///
    /// # Errors
    /// [`TimeError::Unit`] below 1e11, above 1e14 or not finite.
    pub fn from_number(n: f64) -> Result<Self, TimeError> {
        if !n.is_finite() || !(MIN_MILLIS..=MAX_MILLIS).contains(&n) {
            return Err(TimeError::Unit);
        }
        Ok(Self(n as i64))
    }

    /// Reads RFC 3339.
    ///
    /// # Errors
    /// [`TimeError::Format`] for anything else.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        if let Some(ms) = parse_utc(text.as_bytes()) {
            return Ok(Self(ms));
        }
        let parsed: jiff::Timestamp = text.parse().map_err(|_| TimeError::Format)?;
        Ok(Self(parsed.as_millisecond()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) => write!(f, "{t:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

/// The form nearly every record has, `YYYY-MM-DDTHH:MM:SS[.fraction]Z`, without the general parser: it is the
/// most frequent piece of text there is.
fn parse_utc(b: &[u8]) -> Option<i64> {
    let shape = b.len() >= 20
        && b.len() <= 30
        && b[4] == b'-'
        && b[7] == b'-'
        && matches!(b[10], b'T' | b't')
        && b[13] == b':'
        && b[16] == b':'
        && matches!(b[b.len() - 1], b'Z' | b'z');
    if !shape {
        return None;
    }
    let number = |from: usize, to: usize| {
        b[from..to].iter().try_fold(0i64, |n, c| c.is_ascii_digit().then(|| n * 10 + i64::from(c - b'0')))
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let month_days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => return None,
    };
    if !(1..=month_days).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut millis = 0;
    if b.len() > 20 {
        if b[19] != b'.' || b.len() == 21 {
            return None;
        }
        let digits = b.len() - 21;
        number(20, 20 + digits)?;
        millis = number(20, 20 + digits.min(3))? * [100, 10, 1][digits.min(3) - 1];
    }
    // Days since 1970-01-01 of a proleptic Gregorian date, with March as the first month of a shifted year.
    let shifted_year = if month <= 2 { year - 1 } else { year };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_and_general_parser_agree() {
        for text in [
            "2026-11-29T15:34:34.638Z",
            "1970-01-01T00:00:00Z",
            "2024-02-29T23:59:59.9Z",
            "2000-03-01T00:00:00.123456789Z",
            "2100-12-31T23:59:59.05Z",
            "1969-12-31T23:59:59.999Z",
        ] {
            let general: jiff::Timestamp = text.parse().unwrap();
            assert_eq!(parse_utc(text.as_bytes()), Some(general.as_millisecond()), "{text}");
        }
    }

    #[test]
    fn offsets_go_to_the_general_parser() {
        assert_eq!(
            Timestamp::parse("2026-11-29T10:34:34.638-05:00"),
            Timestamp::parse("2026-11-29T15:34:34.638Z")
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-01-01T25:00:00Z",
            "2026-01-01",
        ] {
            assert_eq!(Timestamp::parse(text), Err(TimeError::Format), "{text}");
        }
    }

    #[test]
    fn other_units_are_refused() {
        for n in [0.0, 1_795_966_474.0, 1_795_966_474_000_000.0, f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(Timestamp::from_number(n), Err(TimeError::Unit), "{n}");
        }
        assert_eq!(Timestamp::from_number(1_795_966_474_638.0), Ok(Timestamp(1_795_966_474_638)));
    }

    #[test]
    fn shown_as_rfc3339_with_milliseconds() {
        assert_eq!(Timestamp(1_795_966_474_638).to_string(), "2026-11-29T15:34:34.638Z");
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
    }
}
