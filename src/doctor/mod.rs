//! The doctor: reads the JSON lines that gates wrote and answers the questions that one asks when calls go wrong.
//! One pass, memory bounded whatever the size of the log.

mod breakers;
mod double_retries;
mod finding;
mod idempotency_keys;
mod jitter;
mod reader;
mod record;
mod resends;
mod sample;
mod tools;
mod upstream_errors;

use std::path::PathBuf;

use serde::Serialize;

pub use self::finding::{Finding, Verdict};
pub use self::reader::{FileCount, Unreadable};

use self::breakers::Breakers;
use self::idempotency_keys::IdempotencyKeys;
use self::jitter::Jitter;
use self::reader::Reader;
use self::record::{Kind, Record};
use self::resends::Resends;
use self::tools::Tools;
use self::upstream_errors::UpstreamErrors;

/// A log in the course of being read.
#[derive(Debug)]
pub struct Diagnosis {
    reader: Reader,
    totals: Totals,
    upstream_errors: UpstreamErrors,
    resends: Resends,
    keys: IdempotencyKeys,
    jitter: Jitter,
    breakers: Breakers,
    tools: Tools,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Totals {
    pub records: u64,
    pub calls: u64,
    pub calls_failed: u64,
    pub attempts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ts: Option<f64>,
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub schema: u32,
    /// No finding is a problem.
    pub healthy: bool,
    #[serde(flatten)]
    pub totals: Totals,
    pub files: Vec<FileCount>,
    pub findings: Vec<Finding>,
}

/// Version of the report's fields.
pub const SCHEMA: u32 = 1;

impl Diagnosis {
    /// Opens the files of one log: those of several processes, and rotated ones, in any order. Records later than
    /// `latest` (Unix seconds) are broken.
    pub fn open(paths: &[PathBuf], latest: f64) -> Result<Self, Unreadable> {
        Ok(Self {
            reader: Reader::open(paths, latest)?,
            totals: Totals::default(),
            upstream_errors: UpstreamErrors::default(),
            resends: Resends::default(),
            keys: IdempotencyKeys::default(),
            jitter: Jitter::default(),
            breakers: Breakers::default(),
            tools: Tools::default(),
        })
    }

    pub fn bytes_read(&self) -> u64 {
        self.reader.bytes_read()
    }

    pub fn bytes_in_all(&self) -> u64 {
        self.reader.bytes_in_all()
    }

    /// Reads on, for about as many bytes. `false` at the end.
    pub fn advance(&mut self, bytes: u64) -> Result<bool, Unreadable> {
        let until = self.reader.bytes_read().saturating_add(bytes);
        // Summing over many files for each record would cost more than reading it.
        let mut records = 0u32;
        while let Some(record) = self.reader.read()? {
            self.hear(&record);
            records += 1;
            if records.is_multiple_of(1024) && self.reader.bytes_read() >= until {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn hear(&mut self, record: &Record) {
        let totals = &mut self.totals;
        totals.records += 1;
        totals.first_ts.get_or_insert(record.ts);
        totals.last_ts = Some(totals.last_ts.map_or(record.ts, |last| last.max(record.ts)));
        match record.kind {
            Kind::Attempt => totals.attempts += 1,
            Kind::Call => {
                totals.calls += 1;
                totals.calls_failed += u64::from(!record.ok);
            }
            Kind::Retry | Kind::Breaker | Kind::Tool | Kind::Other => {}
        }
        self.upstream_errors.hear(record);
        self.resends.hear(record);
        self.keys.hear(record);
        self.jitter.hear(record);
        self.breakers.hear(record, self.reader.names());
        self.tools.hear(record);
    }

    pub fn report(self) -> Report {
        let names = self.reader.names();
        let tally = self.resends.tally();
        let findings = vec![
            self.upstream_errors.finding(),
            double_retries::finding(&tally),
            self.keys.finding(&tally, &self.tools),
            self.jitter.finding(&tally),
            self.breakers.finding(names),
            self.tools.finding(),
        ];
        Report {
            schema: SCHEMA,
            healthy: findings.iter().all(|finding| finding.verdict != Verdict::Problem),
            totals: self.totals,
            files: self.reader.counts().cloned().collect(),
            findings,
        }
    }
}
