//! What the server was asked, what it sent, and what it would bill.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::bill::{Usage, usd};
use crate::clock::Instant;

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Finish {
    /// The client was sent a complete message.
    Complete,
    /// The server stopped short and closed with a FIN.
    Cut,
    /// The server closed with a RST.
    Reset,
    /// The client closed before the end.
    ClientClosed,
    /// The server was stopped.
    Stopped,
}

/// What is said of a credential: never the credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Credential {
    None,
    /// There was one, and none is configured to compare it with.
    Present,
    Right,
    Wrong,
}

#[derive(Debug, Serialize)]
pub(super) struct Entry {
    pub(super) connection: u64,
    pub(super) arrived_s: f64,
    pub(super) ended_s: Option<f64>,
    pub(super) method: Box<str>,
    pub(super) path: Box<str>,
    pub(super) headers: BTreeMap<Box<str>, String>,
    pub(super) credential: Credential,
    pub(super) body_bytes: usize,
    /// Equal for equal bodies, within one build of the server.
    #[serde(serialize_with = "hex")]
    pub(super) body_hash: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<String>,
    #[serde(serialize_with = "text")]
    pub(super) model: Option<Arc<str>>,
    pub(super) stream: bool,
    pub(super) status: Option<u16>,
    /// The name of what the script, the quota or a fault played; `null` for a default answer.
    #[serde(serialize_with = "text")]
    pub(super) played: Option<Arc<str>>,
    pub(super) usage: Usage,
    pub(super) finish: Option<Finish>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn hex<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:016x}"))
}

#[allow(clippy::ref_option, reason = "the signature that serde calls")]
fn text<S: Serializer>(text: &Option<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_deref().serialize(serializer)
}

/// The end of an exchange, as it is written into its entry and the totals.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) ended: Instant,
    pub(super) status: Option<u16>,
    pub(super) played: Option<Arc<str>>,
    pub(super) usage: Usage,
    /// `None` for a model without a price.
    pub(super) pico_usd: Option<u64>,
    pub(super) finish: Finish,
}

/// Names an exchange. A reset of the ledger makes older ones void.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    epoch: u64,
    number: u64,
}

#[derive(Debug, Serialize)]
struct ConnectionEntry {
    id: u64,
    opened_s: f64,
    closed_s: Option<f64>,
    closed_by: Option<&'static str>,
    requests: u64,
}

#[derive(Debug, Default)]
struct Totals {
    requests: u64,
    streams: u64,
    max_in_flight: u64,
    by_status: BTreeMap<u16, u64>,
    by_finish: BTreeMap<&'static str, u64>,
    usage: Usage,
    pico_usd: u64,
    unpriced: u64,
    opened: u64,
    max_open: u64,
    closed_by_client: u64,
    closed_by_server: u64,
}

#[derive(Debug)]
pub(super) struct Ledger {
    origin: Instant,
    /// Entries kept, of exchanges and of connections alike; the newest stay.
    kept: usize,
    epoch: u64,
    totals: Totals,
    in_flight: u64,
    open: u64,
    connections_ever: u64,
    entries: VecDeque<Entry>,
    connections: VecDeque<ConnectionEntry>,
}

impl Ledger {
    pub(super) fn new(origin: Instant, kept: usize) -> Self {
        Self {
            origin,
            kept,
            epoch: 0,
            totals: Totals::default(),
            in_flight: 0,
            open: 0,
            connections_ever: 0,
            entries: VecDeque::new(),
            connections: VecDeque::new(),
        }
    }

    /// Seconds since the server started, as all times of the ledger.
    pub(super) fn seconds(&self, at: Instant) -> f64 {
        at.since(self.origin).as_secs_f64()
    }

    pub(super) fn begin(&mut self, entry: Entry) -> Ticket {
        let ticket = Ticket { epoch: self.epoch, number: self.totals.requests };
        self.totals.requests += 1;
        self.totals.streams += u64::from(entry.stream);
        self.in_flight += 1;
        self.totals.max_in_flight = self.totals.max_in_flight.max(self.in_flight);
        let connection = self.connection(entry.connection);
        if let Some(connection) = connection {
            connection.requests += 1;
        }
        push(&mut self.entries, entry, self.kept);
        ticket
    }

    pub(super) fn finish(&mut self, ticket: Ticket, outcome: Outcome) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if ticket.epoch != self.epoch {
            return;
        }
        let finish = match outcome.finish {
            Finish::Complete => "complete",
            Finish::Cut => "cut",
            Finish::Reset => "reset",
            Finish::ClientClosed => "client_closed",
            Finish::Stopped => "stopped",
        };
        *self.totals.by_finish.entry(finish).or_default() += 1;
        if let Some(status) = outcome.status {
            *self.totals.by_status.entry(status).or_default() += 1;
        }
        self.totals.usage.add(&outcome.usage);
        if outcome.usage != Usage::default() {
            match outcome.pico_usd {
                Some(pico) => self.totals.pico_usd = self.totals.pico_usd.saturating_add(pico),
                None => self.totals.unpriced += 1,
            }
        }
        let ended = self.seconds(outcome.ended);
        let first = self.totals.requests - self.entries.len() as u64;
        let place = ticket.number.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        if let Some(entry) = place.and_then(|place| self.entries.get_mut(place)) {
            entry.ended_s = Some(ended);
            entry.status = outcome.status;
            entry.played = outcome.played;
            entry.usage = outcome.usage;
            entry.finish = Some(outcome.finish);
        }
    }

    /// Numbers connections from 1.
    pub(super) fn opened(&mut self, now: Instant) -> u64 {
        self.connections_ever += 1;
        self.totals.opened += 1;
        self.open += 1;
        self.totals.max_open = self.totals.max_open.max(self.open);
        let id = self.connections_ever;
        let entry =
            ConnectionEntry { id, opened_s: self.seconds(now), closed_s: None, closed_by: None, requests: 0 };
        push(&mut self.connections, entry, self.kept);
        id
    }

    pub(super) fn closed(&mut self, id: u64, by_client: bool, now: Instant) {
        self.open = self.open.saturating_sub(1);
        let seconds = self.seconds(now);
        let by = if by_client {
            self.totals.closed_by_client += 1;
            "client"
        } else {
            self.totals.closed_by_server += 1;
            "server"
        };
        if let Some(entry) = self.connection(id) {
            entry.closed_s = Some(seconds);
            entry.closed_by = Some(by);
        }
    }

    fn connection(&mut self, id: u64) -> Option<&mut ConnectionEntry> {
        let first = self.connections.front()?.id;
        self.connections.get_mut(usize::try_from(id.checked_sub(first)?).ok()?)
    }

    /// Forgets what was served; connections that are open stay open and counted.
    pub(super) fn reset(&mut self) {
        self.epoch += 1;
        self.totals = Totals { max_in_flight: self.in_flight, max_open: self.open, ..Totals::default() };
        self.entries.clear();
        self.connections.clear();
    }

    pub(super) fn snapshot(&self, now: Instant) -> Value {
        let totals = &self.totals;
        json!({
            "elapsed_s": self.seconds(now),
            "requests": {
                "total": totals.requests,
                "streams": totals.streams,
                "in_flight": self.in_flight,
                "max_in_flight": totals.max_in_flight,
                "by_status": totals.by_status.iter()
                    .map(|(status, count)| (status.to_string(), Value::from(*count)))
                    .collect::<serde_json::Map<_, _>>(),
                "by_finish": totals.by_finish,
            },
            "usage": totals.usage,
            "bill": {
                "pico_usd": totals.pico_usd,
                "usd": usd(totals.pico_usd),
                "unpriced_requests": totals.unpriced,
            },
            "connections": {
                "opened": totals.opened,
                "open": self.open,
                "max_open": totals.max_open,
                "closed_by_client": totals.closed_by_client,
                "closed_by_server": totals.closed_by_server,
                "entries": self.connections,
            },
            "entries_dropped": totals.requests - self.entries.len() as u64,
            "entries": self.entries,
        })
    }
}

fn push<T>(list: &mut VecDeque<T>, item: T, kept: usize) {
    if kept == 0 {
        return;
    }
    if list.len() == kept {
        list.pop_front();
    }
    list.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(connection: u64) -> Entry {
        Entry {
            connection,
            arrived_s: 0.0,
            ended_s: None,
            method: "POST".into(),
            path: "/".into(),
            headers: BTreeMap::new(),
            credential: Credential::None,
            body_bytes: 0,
            body_hash: 0,
            body: None,
            model: None,
            stream: false,
            status: None,
            played: None,
            usage: Usage::default(),
            finish: None,
        }
    }

    fn outcome(tokens: u64) -> Outcome {
        Outcome {
            ended: Instant::from_nanos(2_000_000_000),
            status: Some(200),
            played: None,
            usage: Usage { completion_tokens: tokens, ..Usage::default() },
            pico_usd: Some(tokens * 7),
            finish: Finish::Complete,
        }
    }

    #[test]
    fn the_newest_entries_stay_and_totals_count_all() {
        let mut ledger = Ledger::new(Instant::ZERO, 2);
        let connection = ledger.opened(Instant::ZERO);
        let tickets: Vec<_> = (0..3).map(|_| ledger.begin(entry(connection))).collect();
        for (ticket, tokens) in tickets.into_iter().zip(1..) {
            ledger.finish(ticket, outcome(tokens));
        }
        let seen = ledger.snapshot(Instant::ZERO);
        assert_eq!(seen["requests"]["total"], 3);
        assert_eq!(seen["requests"]["max_in_flight"], 3);
        assert_eq!(seen["entries_dropped"], 1);
        assert_eq!(seen["entries"][0]["usage"]["completion_tokens"], 2);
        assert_eq!(seen["entries"][1]["ended_s"], 2.0);
        assert_eq!(seen["bill"]["pico_usd"], 42);
        assert_eq!(seen["connections"]["entries"][0]["requests"], 3);
    }

    #[test]
    fn an_exchange_from_before_a_reset_counts_nowhere() {
        let mut ledger = Ledger::new(Instant::ZERO, 10);
        let connection = ledger.opened(Instant::ZERO);
        let old = ledger.begin(entry(connection));
        ledger.reset();
        let new = ledger.begin(entry(connection));
        ledger.finish(old, outcome(1));
        let seen = ledger.snapshot(Instant::ZERO);
        assert_eq!(seen["requests"]["in_flight"], 1);
        assert_eq!(seen["usage"]["completion_tokens"], 0);
        assert!(seen["entries"][0]["finish"].is_null());
        ledger.finish(new, outcome(1));
        assert_eq!(ledger.snapshot(Instant::ZERO)["requests"]["by_finish"]["complete"], 1);
    }
}
