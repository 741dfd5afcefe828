//! The table of everything that is counted.

/// Upper bounds of the buckets of durations, in nanoseconds: 0.01 s to 81.92 s, each twice the one before, as
/// OpenTelemetry's conventions for generative AI advise.
const CALL_BOUNDS: &[u64] = &[
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
    320_000_000,
    640_000_000,
    1_280_000_000,
    2_560_000_000,
    5_120_000_000,
    10_240_000_000,
    20_480_000_000,
    40_960_000_000,
    81_920_000_000,
];

/// The same for queues, where most waits are far shorter.
const WAIT_BOUNDS: &[u64] = &[
    1_000_000,
    5_000_000,
    25_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    15_000_000_000,
    60_000_000_000,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows. Money where the unit is [`Unit::Usd`], else a count.
    Counter,
    /// A state that goes up and down.
    Gauge,
    /// Durations by buckets, with these upper bounds in nanoseconds.
    Histogram(&'static [u64]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    None,
    Tokens,
    Usd,
    Seconds,
    Milliseconds,
}

/// A dimension by which a metric is split. Never an id, a key or a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    Model,
    Tool,
    Route,
    Scope,
    Cap,
    Outcome,
    Status,
    Reason,
    Direction,
    Kind,
    Estimated,
    State,
}

impl Label {
    pub(super) const COUNT: usize = 12;

    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Tool => "tool",
            Self::Route => "route",
            Self::Scope => "scope",
            Self::Cap => "cap",
            Self::Outcome => "outcome",
            Self::Status => "status",
            Self::Reason => "reason",
            Self::Direction => "direction",
            Self::Kind => "kind",
            Self::Estimated => "estimated",
            Self::State => "state",
        }
    }

    /// True if callers name the values; the others are words of this project.
    pub(super) const fn is_free(self) -> bool {
        matches!(self, Self::Model | Self::Tool | Self::Route | Self::Scope | Self::Cap)
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    /// In the order in which a sample gives its values.
    pub labels: &'static [Label],
    pub help: &'static str,
}

macro_rules! table {
    ($($metric:ident $name:literal $kind:expr, $unit:ident [$($label:ident),*] $help:literal;)*) => {
        /// A metric by its row in the table; [`Metric::describe`] tells name, kind, unit, labels and help.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Metric {
            $(#[doc = concat!("`", $name, "`: ", $help)] $metric,)*
        }

        impl Metric {
            /// Every metric, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$metric,)*];
            pub(super) const COUNT: usize = Self::ALL.len();

            pub const fn describe(self) -> Description {
                match self {
                    $(Self::$metric => Description {
                        name: $name,
                        kind: $kind,
                        unit: Unit::$unit,
                        labels: &[$(Label::$label,)*],
                        help: $help,
                    },)*
                }
            }
        }
    };
}

use Kind::{Counter, Gauge, Histogram};

table! {
    ToolCalls "tool_call_total" Counter, None [Tool, Status]
        "Calls of tools, by how they ended.";
    Retries "retry_total" Counter, None [Reason]
        "Attempts after the first, by what made them necessary.";
    IdempotencySuppressed "idempotency_suppressed_total" Counter, None []
        "Executions of a tool that did not happen because an equal one had.";
    BreakerOpened "breaker_open_total" Counter, None []
        "Times that a breaker opened.";
    LatencyP95 "llm_latency_ms_p95" Gauge, Milliseconds []
        "95th percentile of the duration of recent calls; absent while they are too few.";
    Cost "cost_usd_total" Counter, Usd []
        "Cost of all calls in US dollars.";
    Calls "tidegate_calls_total" Counter, None [Model, Outcome]
        "Logical calls, by how they ended.";
    Attempts "tidegate_attempts_total" Counter, None [Model, Outcome]
        "Requests put on the wire, by how they ended.";
    RequestDuration "tidegate_request_duration_seconds" Histogram(CALL_BOUNDS), Seconds [Model, Outcome]
        "Duration of logical calls, queues and retries included.";
    TimeToFirstChunk "tidegate_time_to_first_chunk_seconds" Histogram(CALL_BOUNDS), Seconds [Model]
        "Time from the call to the first chunk of a stream.";
    Tokens "tidegate_tokens_total" Counter, Tokens [Model, Direction, Kind]
        "Tokens; the kinds of a direction do not overlap.";
    CostByModel "tidegate_cost_usd_total" Counter, Usd [Model, Route, Estimated]
        "Cost in US dollars, by model, route and whether it rests on an estimate.";
    CallsUnpriced "tidegate_calls_unpriced_total" Counter, None [Model]
        "Calls whose cost is unknown because the model has no price.";
    AnswersWithoutUsage "tidegate_answers_without_usage_total" Counter, None [Model]
        "Answers that did not report their usage.";
    AdmissionWait "tidegate_admission_wait_seconds" Histogram(WAIT_BOUNDS), Seconds []
        "Time in the queue of admission.";
    AdmissionRefused "tidegate_admission_refused_total" Counter, None [Reason]
        "Calls that admission refused.";
    InFlight "tidegate_in_flight" Gauge, None []
        "Attempts in flight.";
    AdmissionQueued "tidegate_admission_queued" Gauge, None []
        "Attempts in the queue of admission.";
    BreakerState "tidegate_breaker_state" Gauge, None [Scope, State]
        "1 for the state that the breaker of a scope is in, 0 for the others.";
    BreakerRejections "tidegate_breaker_rejections_total" Counter, None []
        "Calls that an open breaker turned away.";
    BreakerLate "tidegate_breaker_late_total" Counter, None []
        "Results that a breaker ignored because they belong to an earlier state.";
    RetryBudgetBalance "tidegate_retry_budget_balance" Gauge, None [Scope]
        "Retries that may be taken at once.";
    Spend "tidegate_spend_usd" Gauge, Usd [Cap]
        "Spent and reserved in the current period of a cap, in US dollars.";
    SpendLimit "tidegate_spend_limit_usd" Gauge, Usd [Cap]
        "Limit of a cap in its current period, in US dollars.";
    StackedRetries "tidegate_stacked_retries_total" Counter, None []
        "Calls that repeat a request which failed just before: a layer around the gate retries too.";
    Degraded "tidegate_degraded_total" Counter, None [Kind]
        "Calls answered by less than was asked for.";
    Idempotency "tidegate_idempotency_total" Counter, None [Outcome]
        "Tool executions asked for, by what became of them.";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let mut seen = HashSet::new();
        for metric in Metric::ALL {
            let row = metric.describe();
            let name = row.name;
            assert!(seen.insert(name), "{name} stands twice");
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{name}"
            );
            assert_eq!(row.kind == Counter, name.ends_with("_total"), "{name}");
            assert!(!matches!(row.kind, Histogram(_)) || name.ends_with("_seconds"), "{name}");
            assert!(row.labels.len() <= 3, "{name}");
            assert!(!row.help.contains(['\n', '\\']), "{name}");
        }
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [CALL_BOUNDS, WAIT_BOUNDS] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn each_label_has_its_own_place() {
        assert_eq!(Label::State as usize + 1, Label::COUNT);
    }
}
