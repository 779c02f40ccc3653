//! Numbers as Java reads them, since the values come from Java programs and the brokers that read
//! them are Java.
//!
//! The rule is that of `Long.parseLong`: an optional `+` or `-`, then decimal digits of any script
//! that fits one UTF-16 unit, `５０００` (full width) as well as `5000`, and nothing else: no blanks,
//! separators, suffixes, exponents or prefixes. Leading zeros are fine, however many. Bytes that are
//! not UTF-8 reach a Java program as replacement characters, so they are no number either.
//!
//! Used by [`super::delay`] alone.

/// What text says, if it is a number at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// A number that `Long.parseLong` reads.
    Is(i64),
    /// Digits all right, but above the largest `long`.
    TooLarge,
    /// Digits all right, but below the smallest `long`.
    TooSmall,
    /// No number.
    Not,
}

/// Reads a `long`.
pub(super) fn long(text: &[u8]) -> Number {
    let Ok(text) = std::str::from_utf8(text) else {
        return Number::Not;
    };
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() {
        return Number::Not;
    }
    // Counted below zero, where there is one number more; `None` once it does not fit.
    let mut below = Some(0_i64);
    for c in digits.chars() {
        let Some(digit) = digit(c) else {
            return Number::Not;
        };
        below = below.and_then(|so_far| so_far.checked_mul(10)?.checked_sub(digit));
    }
    let fits = if negative { below } else { below.and_then(i64::checked_neg) };
    match fits {
        Some(number) => Number::Is(number),
        None if negative => Number::TooSmall,
        None => Number::TooLarge,
    }
}

/// Reads an `int`: `None` for what `Integer.parseInt` refuses.
pub(super) fn int(text: &[u8]) -> Option<i32> {
    match long(text) {
        Number::Is(number) => i32::try_from(number).ok(),
        Number::TooLarge | Number::TooSmall | Number::Not => None,
    }
}

/// `Character.digit(c, 10)` of one UTF-16 unit.
fn digit(c: char) -> Option<i64> {
    if c.is_ascii_digit() {
        return Some(i64::from(u32::from(c) - u32::from('0')));
    }
    let unit = u16::try_from(u32::from(c)).ok()?;
    let after = ZEROS.partition_point(|zero| *zero <= unit);
    let zero = ZEROS.get(after.checked_sub(1)?)?;
    let value = unit - zero;
    (value < 10).then_some(i64::from(value))
}

/// The zeros of all scripts with decimal digits below U+10000; each is followed by 1 to 9. As listed
/// by `Character.digit` of Java 17.
const ZEROS: [u16; 37] = [
    0x0030, 0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6,
    0x0D66, 0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80,
    0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0,
    0xFF10,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_java_reads() {
        for (text, number) in [
            ("0", 0),
            ("-0", 0),
            ("+5000", 5_000),
            ("-5000", -5_000),
            ("\u{ff15}\u{ff10}\u{ff10}\u{ff10}", 5_000),
            ("-\u{0665}0", -50),
            ("\u{abf9}", 9),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(long(text.as_bytes()), Number::Is(number), "{text}");
        }
        let zeros = format!("{}5", "0".repeat(65_536));
        assert_eq!(long(zeros.as_bytes()), Number::Is(5));
        assert_eq!(int(b"+3"), Some(3));
        assert_eq!(int(b"-2147483648"), Some(i32::MIN));
    }

    #[test]
    fn what_java_refuses() {
        for text in [
            "",
            " ",
            "+",
            "-",
            "--5",
            "+-5",
            " 5",
            "5 ",
            "5e3",
            "5000L",
            "0x10",
            "1,000",
            "5.0",
            "5_0",
            "2026-01-01 00:00:00",
            "TIMER_DELAY_MS",
            "5\0",
            "\0",
            "\u{ff0b}5",
            "\u{ff21}",
            // One digit, but two UTF-16 units.
            "\u{1d7d8}",
            "\u{00b2}",
            "\u{2155}",
        ] {
            assert_eq!(long(text.as_bytes()), Number::Not, "{text:?}");
            assert_eq!(int(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(long(b"5\xff"), Number::Not);
        assert_eq!(long(b"9223372036854775808"), Number::TooLarge);
        assert_eq!(long(b"-9223372036854775809"), Number::TooSmall);
        assert_eq!(long(&[b'9'; 65_536]), Number::TooLarge);
        let mut spoilt = vec![b'9'; 65_536];
        spoilt.push(b'x');
        assert_eq!(long(&spoilt), Number::Not, "text, not a large number");
        assert_eq!(int(b"2147483648"), None);
    }
}
