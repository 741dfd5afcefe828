//! Operations, answers and records as Redis carries them.

use std::borrow::Cow;
use std::time::Duration;

use redis::{FromRedisValue, Value};

use crate::idempotency::fingerprint::Fingerprint;
use crate::idempotency::protocol::{Answer, Failure, Operation, Resolution};
use crate::idempotency::record::{Claim, Effect, NEVER, Outcome, Owner, Record, State};

pub(super) type Argument<'a> = Cow<'a, [u8]>;

fn text(text: impl Into<String>) -> Argument<'static> {
    Cow::Owned(text.into().into_bytes())
}

fn millis(duration: Duration) -> Argument<'static> {
    text(duration.as_millis().to_string())
}

fn flag(flag: bool) -> Argument<'static> {
    text(if flag { "1" } else { "0" })
}

/// The script's arguments after the time.
pub(super) fn arguments(operation: &Operation) -> Vec<Argument<'_>> {
    let claimed = |name: &str, claim: &Claim| {
        vec![text(name), text(claim.owner.to_string()), text(claim.fence.to_string())]
    };
    let ended =
        |outcome: &'_ Outcome| [flag(outcome.ok), text(&*outcome.codec), Cow::Owned(outcome.bytes.to_vec())];
    match operation {
        Operation::Begin(begin) => vec![
            text("begin"),
            text(begin.owner.to_string()),
            Cow::Owned(begin.fingerprint.0.to_vec()),
            text(begin.effect.as_str()),
            text(&*begin.tool),
            millis(begin.lease),
            millis(begin.retention),
            flag(begin.start),
        ],
        Operation::Start { claim, lease } => {
            let mut all = claimed("start", claim);
            all.push(millis(*lease));
            all
        }
        Operation::Heartbeat { claim, lease, note } => {
            let mut all = claimed("heartbeat", claim);
            all.extend([millis(*lease), text(note.as_deref().unwrap_or_default())]);
            all
        }
        Operation::Complete { claim, outcome } => {
            let mut all = claimed("complete", claim);
            all.extend(ended(outcome));
            all
        }
        Operation::Fail { claim, failure } => {
            let mut all = claimed("fail", claim);
            all.push(text(match failure {
                Failure::NoEffect => "no_effect",
                Failure::Unknown => "unknown",
            }));
            all
        }
        Operation::Resolve { fence, resolution } => {
            let mut all =
                vec![text("resolve"), text(fence.map(|fence| fence.to_string()).unwrap_or_default())];
            match resolution {
                Resolution::NotDone => all.push(text("not_done")),
                Resolution::Done(outcome) => {
                    all.push(text("done"));
                    all.extend(ended(outcome));
                }
            }
            all
        }
    }
}

pub(super) fn parse_answer(answer: Value) -> Option<Answer> {
    let Value::Array(values) = answer else { return None };
    let mut values = values.into_iter();
    let mut next = || values.next();
    let bytes = |value: Option<Value>| Vec::<u8>::from_redis_value(value?).ok();
    let number = |value: Option<Value>| u64::from_redis_value(value?).ok();
    Some(match bytes(next())?.as_slice() {
        b"acquired" => Answer::Acquired {
            fence: number(next())?,
            attempts: u32::try_from(number(next())?).unwrap_or(u32::MAX),
        },
        b"replay" => {
            let (ok, codec, result) = (bytes(next())?, bytes(next())?, bytes(next())?);
            Answer::Replay(outcome(&ok, &codec, &result)?)
        }
        b"in_progress" => Answer::InProgress { lease_left: Duration::from_millis(number(next())?) },
        b"mismatch" => Answer::Mismatch,
        b"in_doubt" => Answer::InDoubt { fence: number(next())?, started: number(next())? },
        b"held" => Answer::Held,
        b"stale" => Answer::Stale,
        _ => return None,
    })
}

fn outcome(ok: &[u8], codec: &[u8], bytes: &[u8]) -> Option<Outcome> {
    Some(Outcome { ok: ok == b"1", codec: str::from_utf8(codec).ok()?.into(), bytes: bytes.into() })
}

/// A record that was just made, as the script packs records: the values of [`parse_record`], in `MessagePack`.
pub(super) fn pack(record: &Record) -> Vec<u8> {
    let mut packed = Vec::with_capacity(256);
    put_text(&mut packed, record.state.as_str().as_bytes());
    put_text(&mut packed, record.owner.to_string().as_bytes());
    put_number(&mut packed, record.fence);
    put_text(&mut packed, &record.fingerprint.0);
    put_text(&mut packed, record.effect.as_str().as_bytes());
    put_text(&mut packed, record.tool.as_bytes());
    for number in
        [record.attempts.into(), record.lease_until, record.retention, record.created, record.updated]
    {
        put_number(&mut packed, number);
    }
    for time in [record.started, Some(record.expires).filter(|time| *time != NEVER)] {
        match time {
            Some(time) => put_number(&mut packed, time),
            None => put_text(&mut packed, b""),
        }
    }
    // Its note, and the three of its outcome, come later.
    for _ in 0..4 {
        put_text(&mut packed, b"");
    }
    packed
}

/// Of one width, as of texts: the next operation packs them anew, each in as little as it needs.
fn put_number(packed: &mut Vec<u8>, number: u64) {
    packed.push(0xcf);
    packed.extend_from_slice(&number.to_be_bytes());
}

fn put_text(packed: &mut Vec<u8>, text: &[u8]) {
    packed.push(0xdb);
    packed.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    packed.extend_from_slice(text);
}

/// The values of a record in the script's order.
pub(super) fn parse_record(values: Vec<Value>) -> Option<Record> {
    let mut values = values.into_iter();
    let mut next = || values.next();
    // '' stands for none.
    let bytes = |value: Option<Value>| Vec::<u8>::from_redis_value(value?).ok();
    let text = |value: Option<Value>| String::from_redis_value(value?).ok();
    let number = |value: Option<Value>| u64::from_redis_value(value?).ok();
    let state = State::parse(&text(next())?)?;
    let owner = Owner::parse(&text(next())?)?;
    let fence = number(next())?;
    let fingerprint = Fingerprint(bytes(next())?.try_into().ok()?);
    let effect = Effect::parse(&text(next())?)?;
    let tool = text(next())?.into();
    let attempts = u32::try_from(number(next())?).ok()?;
    let (lease_until, retention) = (number(next())?, number(next())?);
    let (created, updated) = (number(next())?, number(next())?);
    let started = number(next());
    let expires = number(next()).unwrap_or(NEVER);
    let note = text(next()).filter(|note| !note.is_empty()).map(Into::into);
    let (ok, codec, result) = (bytes(next())?, bytes(next())?, bytes(next())?);
    Some(Record {
        fingerprint,
        state,
        effect,
        tool,
        owner,
        fence,
        attempts,
        lease_until,
        retention,
        created,
        updated,
        started,
        expires,
        outcome: if codec.is_empty() { None } else { Some(outcome(&ok, &codec, &result)?) },
        note,
    })
}
