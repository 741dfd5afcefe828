//! What a store remembers of one key.

use std::fmt;
use std::sync::Arc;

use super::fingerprint::Fingerprint;

/// Stands for "is kept until somebody decides". Times are milliseconds since the Unix epoch.
pub const NEVER: u64 = u64::MAX;

/// What happens to an execution that was started and has no known outcome. The tool declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Changes nothing: may be repeated.
    Read,
    /// Whoever acts downstream knows our key and acts once: may be repeated with the same key.
    Idempotent,
    /// Is never repeated by itself; its record is in doubt until somebody decides.
    AtMostOnce,
    /// Effect and outcome are committed together: without an outcome there was no effect.
    Transactional,
}

impl Effect {
    pub const ALL: [Self; 4] = [Self::Read, Self::Idempotent, Self::AtMostOnce, Self::Transactional];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Idempotent => "idempotent",
            Self::AtMostOnce => "at_most_once",
            Self::Transactional => "transactional",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.as_str() == text)
    }

    /// Whether an execution that was started may be started again by somebody else.
    pub const fn may_repeat(self) -> bool {
        !matches!(self, Self::AtMostOnce)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Somebody holds it, and has not begun.
    Claimed,
    /// The effect may have happened.
    Started,
    /// It may have happened, and nobody will say: a person or a look downstream must decide.
    InDoubt,
    /// The outcome is known.
    Done,
}

impl State {
    pub const ALL: [Self; 4] = [Self::Claimed, Self::Started, Self::InDoubt, Self::Done];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Started => "started",
            Self::InDoubt => "in_doubt",
            Self::Done => "done",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// 128 random bits that name one caller's execution. A call that is sent again, because its answer was lost, has
/// the same owner and gets the same answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u128);

impl Owner {
    /// From bytes that the operating system drew: a process's own generator may be shared with its forks.
    pub const fn from_bytes(random: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(random))
    }

    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Accepts what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32).map(Self)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Proof of being the current owner. Each acquisition of a record has a higher fence than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub owner: Owner,
    pub fence: u64,
}

/// How an execution ended: with a result, or with an error that every repetition would meet again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub ok: bool,
    /// How `bytes` are read; the store does not look into them.
    pub codec: Arc<str>,
    pub bytes: Arc<[u8]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub fingerprint: Fingerprint,
    pub state: State,
    pub effect: Effect,
    /// For people who look at the record.
    pub tool: Arc<str>,
    pub owner: Owner,
    pub fence: u64,
    /// Acquisitions so far.
    pub attempts: u32,
    pub lease_until: u64,
    /// How long an outcome is kept, and what needs no decision beyond its lease.
    pub retention: u64,
    pub created: u64,
    pub updated: u64,
    /// When the effect became possible; the latest acquisition's.
    pub started: Option<u64>,
    /// When the store may forget it; [`NEVER`] for what only a decision may end.
    pub expires: u64,
    pub outcome: Option<Outcome>,
    /// What the owner said of its progress.
    pub note: Option<Arc<str>>,
}

impl Record {
    pub fn claim(&self) -> Claim {
        Claim { owner: self.owner, fence: self.fence }
    }
}
