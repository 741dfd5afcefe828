//! The only file that reads a clock. Mechanisms take `now` as an argument, so that tests and the simulator
//! can run them in virtual time and a step of the wall clock cannot touch them.

use std::fmt;
use std::future::Future;
use std::ops::Add;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// A point of monotonic time in nanoseconds since an arbitrary origin.
///
/// All arithmetic saturates: the far future is [`Instant::FAR_FUTURE`], and the time since a later instant is
/// zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    pub const ZERO: Self = Self(0);
    /// Later than any time that is ever reached; stands for "no limit".
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is the later one.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::FAR_FUTURE {
            return f.write_str("never");
        }
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

fn origin() -> std::time::Instant {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    #[allow(clippy::disallowed_methods, reason = "this is the one clock")]
    *ORIGIN.get_or_init(std::time::Instant::now)
}

/// Monotonic now. The origin lies one hour back, so that "an hour ago" is representable from the start.
#[allow(clippy::disallowed_methods, reason = "this is the one clock")]
pub fn now() -> Instant {
    const HEAD_START: u64 = 3_600_000_000_000;
    Instant(
        u64::try_from(origin().elapsed().as_nanos())
            .unwrap_or(u64::MAX - HEAD_START)
            .saturating_add(HEAD_START),
    )
}

/// Wall time, for dates that servers name and for time stamps people read.
#[allow(clippy::disallowed_methods, reason = "this is the one clock")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Completes at `deadline`; never, for [`Instant::FAR_FUTURE`].
#[allow(clippy::disallowed_methods, reason = "this is the one clock")]
pub async fn sleep_until(deadline: Instant) {
    if deadline == Instant::FAR_FUTURE {
        return std::future::pending().await;
    }
    tokio::time::sleep(deadline.since(now())).await;
}

/// The future's output, or `None` if `deadline` passes first. A future that is ready at once costs no timer.
pub async fn until<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    if deadline == Instant::FAR_FUTURE {
        return Some(future.await);
    }
    tokio::time::timeout(deadline.since(now()), future).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant::FAR_FUTURE + Duration::from_secs(1), Instant::FAR_FUTURE);
        assert_eq!(Instant::ZERO + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(Instant::ZERO.since(Instant::FAR_FUTURE), Duration::ZERO);
        assert_eq!(Instant::from_nanos(7).since(Instant::from_nanos(3)), Duration::from_nanos(4));
    }

    #[test]
    fn monotonic_now_does_not_go_back() {
        let first = now();
        assert!(now() >= first);
    }
}
