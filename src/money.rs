//! Money in whole pico-dollars: exact where floats are not.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount in 10⁻¹² US dollars.
///
/// One token at 1 dollar per million costs 1,000,000 of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pico(u128);

impl Pico {
    pub const ZERO: Self = Self(0);
    pub const PER_DOLLAR: u128 = 1_000_000_000_000;

    pub const fn new(picos: u128) -> Self {
        Self(picos)
    }

    pub const fn get(self) -> u128 {
        self.0
    }

    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Dollars as a decimal number (`0.05`, `4.2e-4`), rounded half up to the pico-dollar.
    pub fn from_dollars(text: &str) -> Option<Self> {
        scaled(text, 12).ok().map(|amount| Self(amount.units))
    }
}

/// Dollars in plain decimals: `0.000144`.
impl fmt::Display for Pico {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dollars, rest) = (self.0 / Self::PER_DOLLAR, self.0 % Self::PER_DOLLAR);
        if rest == 0 {
            return write!(f, "{dollars}");
        }
        let decimals = format!("{rest:012}");
        write!(f, "{dollars}.{}", decimals.trim_end_matches('0'))
    }
}

impl fmt::Debug for Pico {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${self}")
    }
}

/// As the decimal number that people write; floats would not keep it.
impl Serialize for Pico {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pico {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_dollars(&text).ok_or_else(|| D::Error::custom("an amount of US dollars is expected"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scaled {
    pub(crate) units: u128,
    /// False if digits were rounded away.
    pub(crate) exact: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAnAmount {
    NotANumber,
    Negative,
    TooLarge,
}

/// A decimal number in units of 10^-`places`, rounded half up.
pub(crate) fn scaled(text: &str, places: i32) -> Result<Scaled, NotAnAmount> {
    // One digit fewer than u128 can hold, so that rounding cannot overflow.
    const MOST_DIGITS: u32 = 37;
    let text = text.trim();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            (mantissa, exponent.parse::<i32>().map_err(|_| NotAnAmount::NotANumber)?)
        }
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || whole.bytes().chain(fraction.bytes());
    if digits().next().is_none() || !digits().all(|digit| digit.is_ascii_digit()) {
        return Err(NotAnAmount::NotANumber);
    }
    let (mut value, mut kept, mut dropped, mut exact) = (0u128, 0u32, 0i32, true);
    for digit in digits().map(|digit| u128::from(digit - b'0')) {
        if kept == MOST_DIGITS {
            dropped = dropped.saturating_add(1);
            exact &= digit == 0;
            continue;
        }
        value = value * 10 + digit;
        kept += u32::from(value > 0);
    }
    if value == 0 {
        return Ok(Scaled { units: 0, exact: true });
    }
    if text.starts_with('-') {
        return Err(NotAnAmount::Negative);
    }
    let fraction_digits = i32::try_from(fraction.len()).map_err(|_| NotAnAmount::NotANumber)?;
    let shift = exponent.saturating_add(places).saturating_add(dropped).saturating_sub(fraction_digits);
    let power = 10u128.checked_pow(shift.unsigned_abs());
    if shift >= 0 {
        let units = power.and_then(|power| value.checked_mul(power)).ok_or(NotAnAmount::TooLarge)?;
        return Ok(Scaled { units, exact });
    }
    let Some(power) = power else {
        return Ok(Scaled { units: 0, exact: false });
    };
    let rest = value % power;
    let units = value / power + u128::from(rest >= power - rest);
    Ok(Scaled { units, exact: exact && rest == 0 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shown_as_plain_decimals() {
        assert_eq!(Pico::new(144_000_000).to_string(), "0.000144");
        assert_eq!(Pico::new(0).to_string(), "0");
        assert_eq!(Pico::new(1).to_string(), "0.000000000001");
        assert_eq!(Pico::new(19 * Pico::PER_DOLLAR).to_string(), "19");
        assert_eq!(format!("{:?}", Pico::new(500_000_000_000)), "$0.5");
    }

    #[test]
    fn decimals() {
        let exact = |text| scaled(text, 12).ok().filter(|amount| amount.exact).map(|amount| amount.units);
        assert_eq!(exact("2.00"), Some(2_000_000_000_000));
        assert_eq!(exact("4e-06"), Some(4_000_000));
        assert_eq!(exact(".5"), Some(500_000_000_000));
        assert_eq!(exact("-0.0"), Some(0));
        assert_eq!(exact("1e-13"), None);
        assert_eq!(scaled("5e-13", 12), Ok(Scaled { units: 1, exact: false }));
        assert_eq!(scaled("4.9e-13", 12), Ok(Scaled { units: 0, exact: false }));
        assert_eq!(scaled("1e-999999999", 12), Ok(Scaled { units: 0, exact: false }));
        assert_eq!(scaled("1e30", 12), Err(NotAnAmount::TooLarge));
        assert_eq!(scaled("-1", 12), Err(NotAnAmount::Negative));
        for text in ["", ".", "nan", "inf", "1_000", "0x1", "1e", "1e1.5", "--1", "1,5", "٣"] {
            assert_eq!(scaled(text, 12), Err(NotAnAmount::NotANumber), "{text}");
        }
    }

    proptest! {
        #[test]
        fn shown_and_read_again_is_the_same(picos in 0u128..u128::from(u64::MAX) * 1_000_000) {
            prop_assert_eq!(Pico::from_dollars(&Pico::new(picos).to_string()), Some(Pico::new(picos)));
        }

        #[test]
        fn no_text_panics(text in any::<String>(), number in "[-+]?[0-9]{0,50}[.]?[0-9]{0,50}([eE][-+]?[0-9]{1,12})?") {
            let _ = (scaled(&text, 12), scaled(&number, 12));
        }
    }
}
