//! Durations and sizes as people write them: `1h30m`, `500ms`, `128MiB`. What is printed can be
//! typed again.
//!
//! Used by the command line, the effective configuration and the remarks of refused sends, so that
//! all of them show one number in one form.

use std::fmt;
use std::time::Duration;

use super::Invalid;

const DURATION_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Reads `366d`, `1h30m`, `500ms`: whole numbers with units, larger units first. Only zero may stand
/// without a unit.
///
/// Years and months have no fixed length, and `M` for a month is one key away from `m`: there are
/// no such units.
pub fn parse_duration(text: &str) -> Result<Duration, Invalid> {
    let expected = || {
        Invalid("a duration is a number with a unit, such as 500ms, 90s, 1h30m or 366d".to_owned())
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total_ms: u64 = 0;
    let mut finer_than = u64::MAX;
    while !rest.is_empty() {
        let (number, after) = take_number(rest).ok_or_else(expected)?;
        let unit_len = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_len);
        let (_, unit_ms) = DURATION_UNITS
            .into_iter()
            .find(|(name, unit_ms)| *name == unit && *unit_ms < finer_than)
            .ok_or_else(expected)?;
        total_ms = number
            .checked_mul(unit_ms)
            .and_then(|part| total_ms.checked_add(part))
            .ok_or_else(|| Invalid("longer than can be counted".to_owned()))?;
        finer_than = unit_ms;
        rest = next;
    }
    if finer_than == u64::MAX {
        return Err(expected());
    }
    Ok(Duration::from_millis(total_ms))
}

/// Reads `128MiB`, `2GB`, `4096B`: one whole number with one unit, in any case.
pub fn parse_size(text: &str) -> Result<u64, Invalid> {
    let expected = || {
        Invalid(
            "a size is a number with a unit, such as 64KiB, 128MiB or 2GB (B, KB, MB, GB, TB, KiB, \
             MiB, GiB, TiB)"
                .to_owned(),
        )
    };
    let (number, unit) = take_number(text).ok_or_else(expected)?;
    let (_, bytes) = SIZE_UNITS
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .ok_or_else(expected)?;
    number.checked_mul(bytes).ok_or_else(|| Invalid("larger than can be counted".to_owned()))
}

/// Digits from the front, and what follows them.
fn take_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    Some((number.parse().ok()?, rest))
}

/// Prints milliseconds as [`parse_duration`] reads them; negative ones with a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Millis(pub i128);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let mut rest = self.0.unsigned_abs();
        for (unit, unit_ms) in DURATION_UNITS {
            let count = rest / u128::from(unit_ms);
            if count > 0 {
                write!(f, "{count}{unit}")?;
                rest %= u128::from(unit_ms);
            }
        }
        Ok(())
    }
}

impl From<Duration> for Millis {
    fn from(duration: Duration) -> Self {
        Self(i128::try_from(duration.as_millis()).unwrap_or(i128::MAX))
    }
}

/// Prints bytes as the smallest number that says it exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = SIZE_UNITS
            .into_iter()
            .filter(|(_, bytes)| self.0 != 0 && self.0.is_multiple_of(*bytes))
            .min_by_key(|(_, bytes)| self.0 / bytes);
        let (unit, bytes) = fitting.unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed_alike() {
        for (text, ms) in [
            ("500ms", 500),
            ("1s", 1_000),
            ("1h30m", 5_400_000),
            ("24d20h31m23s647ms", (1 << 31) - 1),
            ("366d", 31_622_400_000),
            ("36500d", 3_153_600_000_000),
        ] {
            let read = parse_duration(text).unwrap();
            assert_eq!(read, Duration::from_millis(ms), "{text}");
            assert_eq!(Millis::from(read).to_string(), text);
        }
        assert_eq!(parse_duration("0").unwrap(), Duration::ZERO);
        assert_eq!(parse_duration("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(Millis(90_000).to_string(), "1m30s");
        assert_eq!(Millis(0).to_string(), "0s");
        assert_eq!(Millis(-1_500).to_string(), "-1s500ms");
    }

    #[test]
    fn senseless_durations_are_refused() {
        for text in [
            "",
            " ",
            "5",
            "-1",
            "-1s",
            "+1s",
            "1x",
            "1M",
            "1y",
            "1S",
            "1.5h",
            "1h 30m",
            "30m1h",
            "1h1h",
            "s",
            "1s5",
            "99999999999999999999s",
            "18446744073709551615d",
            "１s",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes_are_read_and_printed_alike() {
        for (text, bytes) in [
            ("1B", 1),
            ("64KiB", 65_536),
            ("128MiB", 134_217_728),
            ("2GB", 2_000_000_000),
            ("3TiB", 3_298_534_883_328),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(parse_size("128mib").unwrap(), 134_217_728);
        assert_eq!(Bytes(0).to_string(), "0B");
        for text in ["", "1", "MiB", "1M", "1.5GB", "-1B", "1 GB", "20000000TiB"] {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }
}
