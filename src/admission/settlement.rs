//! How a request ended, and how much of what requests reserve they use.

/// What a granted request used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Nothing left this process, or the server proved that it did not process it: all is given back.
    NeverSent,
    /// The answer told: the difference to the reservation is given back or taken, if need be as a debt.
    Used { tokens: u64 },
    /// As [`Self::Used`], but nobody told: an estimate, from which nothing is learnt.
    Estimated { tokens: u64 },
    /// It failed without telling what it used. The request itself stays counted, as providers count failed ones
    /// too (help.openai.com, article 5955604).
    Failed { charge: Charge },
}

/// What becomes of the tokens that a failed request reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// They are spent: after a 429, which says that the quota is.
    Keep,
    /// They are given back: after any other answer that is an error.
    Refund,
}

/// Share of the reserved tokens that requests use, from the recent ones. A reservation covers the longest answer,
/// so the queue moves faster than reservations alone would tell.
#[derive(Debug, Default)]
pub(super) struct UsageRatio {
    requests: u32,
    reserved: u128,
    used: u128,
}

/// Requests after which the older ones count half.
const MEMORY: u32 = 64;

impl UsageRatio {
    pub(super) fn record(&mut self, reserved: u64, used: u64) {
        self.requests += 1;
        self.reserved += u128::from(reserved);
        self.used += u128::from(used.min(reserved));
        if self.requests >= MEMORY {
            self.requests /= 2;
            self.reserved /= 2;
            self.used /= 2;
        }
    }

    /// Tokens that requests which reserve `reserved` will have used in the end; without experience, all.
    pub(super) fn expected(&self, reserved: u128) -> i128 {
        let used = reserved.saturating_mul(self.used).checked_div(self.reserved).unwrap_or(reserved);
        i128::try_from(used).unwrap_or(i128::MAX)
    }

    pub(super) fn refund(&self, reserved: u128) -> i128 {
        i128::try_from(reserved).unwrap_or(i128::MAX) - self.expected(reserved)
    }
}
