//! The figures as a table, and as JSON for whoever compares them.

use serde_json::{Map, Number, Value};
use tidegate::config::BreakerPolicy;

use crate::simulation::{
    brownout, detection, fleet, harmless, metastable, recovery, recovery::SHORT, single,
};

#[derive(Default)]
struct Table {
    json: Map<String, Value>,
}

impl Table {
    fn title(title: &str) {
        println!("\n{title}");
    }

    /// A row, with the bound that the tests hold it to.
    fn row(&mut self, name: &str, value: f64, unit: &str, what: &str, bound: &str) {
        let shown = if value.is_finite() { format!("{value:.3} {unit}") } else { String::from("never") };
        println!("  {what:<42} {shown:<12} {bound}");
        // JSON knows no infinity: what never happens is null.
        let rounded = Number::from_f64((value * 1e4).round() / 1e4).map_or(Value::Null, Value::Number);
        self.json.insert(name.to_owned(), rounded);
    }
}

pub(crate) fn print() {
    let mut table = Table::default();
    storms(&mut table);
    metastability(&mut table);
    scattered(&mut table);
    breaker(&mut table);
    println!("\n{}", Value::Object(table.json));
}

fn storms(table: &mut Table) {
    let fleet = fleet::measure();
    Table::title("100 processes, 1 request/s each, upstream down for 30 s: attempts per request");
    table.row("fleet_outage", fleet.outage, "x", "tidegate, in the outage", "≤ 1.20");
    table.row("fleet_outage_worst", fleet.outage_worst, "x", "  of all seeds the worst", "≤ 1.20");
    table.row("fleet_overall", fleet.overall, "x", "tidegate, over 150 s", "≤ 1.05");
    table.row(
        "four_attempts_control",
        fleet.four_attempts,
        "x",
        "4 attempts, full jitter, no budget",
        "≥ 3.9",
    );
    table.row(
        "deposit_budget_control",
        fleet.deposit_budget,
        "x",
        "  with a budget as Finagle's or tower's",
        "≥ 3.9",
    );
    table.row("nested_control", fleet.nested, "x", "two layers of 3 attempts, fixed interval", "≥ 8");

    let single = single::measure();
    Table::title("One process, 100 requests/s, upstream down for 30 s; the worst of the seeds");
    table.row("single_outage", single.outage, "x", "attempts per request in the outage", "≤ 0.50");
    table.row("single_overall", single.overall, "x", "attempts per request over 150 s", "< 1");
    table.row("single_first_trip_s", single.first_trip, "s", "until the breaker opens", "≤ 14");
    table.row("single_peak", single.peak, "x", "busiest second, of the usual", "≤ 1.5");
    table.row(
        "single_peak_control",
        single.peak_four_attempts,
        "x",
        "  4 attempts, no budget, the best",
        "≥ 4",
    );
}

fn metastability(table: &mut Table) {
    let figures = metastable::measure();
    Table::title(
        "200 processes, 100 requests/s, capacity 120 → 20 → 120/s: until goodput is back, after the dip",
    );
    table.row("metastable_recovery_s", figures.ours, "s", "tidegate", "≤ 60");
    table.row("metastable_recovery_worst_s", figures.ours_worst, "s", "  of all seeds the worst", "≤ 60");
    table.row("metastable_shared_recovery_s", figures.shared, "s", "tidegate, all in one process", "≤ 15");
    table.row("metastable_no_retry_s", figures.no_retry, "s", "no retry", "");
    table.row(
        "metastable_four_attempts_s",
        figures.four_attempts,
        "s",
        "4 attempts, full jitter, no budget",
        "never",
    );
    table.row(
        "metastable_deposit_budget_s",
        figures.deposit_budget,
        "s",
        "  with a budget as Finagle's",
        "never",
    );
}

fn scattered(table: &mut Table) {
    Table::title("20 requests/s, each attempt fails by chance: calls that succeed");
    for (concurrency, suffix, bound) in [(20, "", "≥ 99.8"), (5, "_concurrency_5", "")] {
        for figure in harmless::measure(concurrency) {
            let percent = (figure.share * 100.0).round();
            let key = |name: &str| format!("scattered_{percent:02}_{name}{suffix}");
            let (success, without) = (100.0 * figure.success, 100.0 * figure.success_without_budget);
            let what = format!("{percent} % fail, concurrency {concurrency}");
            table.row(&key("success"), success, "%", &what, bound);
            table.row(&key("unbudgeted"), without, "%", "  without its budget", "");
            table.row(&key("attempts"), figure.attempts, "x", "  attempts per request", "");
        }
    }
    for (share, at_least, at_most) in [(0.25, "≥ 99", "≤ 50"), (0.3, "≥ 90", "≤ 20")] {
        let figure = brownout::measure(share);
        let percent = share * 100.0;
        let key = |name: &str| format!("brownout_{percent:.0}_{name}");
        let (call, attempt) = (100.0 * figure.per_call, 100.0 * figure.per_attempt);
        table.row(&key("per_call"), call, "%", &format!("{percent} % fail, breaker told of calls"), at_least);
        table.row(&key("per_attempt"), attempt, "%", "  breaker told of attempts", at_most);
    }
}

fn breaker(table: &mut Table) {
    Table::title("Breaker: from the start of an outage until it opens");
    for (rate, p95) in detection::RATES.into_iter().zip(["≤ 19", "≤ 14.5", "≤ 14.5", "≤ 14.5"]) {
        let figure = detection::errors(rate);
        let key = |name: &str| format!("breaker_detect_{rate}_rps_{name}_s");
        table.row(&key("median"), figure.median, "s", &format!("{rate} requests/s, median"), "11.5 to 13.5");
        table.row(&key("p95"), figure.p95, "s", "  95th percentile", p95);
    }
    // The one that others quote.
    table.json.insert("breaker_detect_median_s".into(), table.json["breaker_detect_20_rps_median_s"].clone());
    let policy = BreakerPolicy::default();
    let hang = detection::hang(policy.slow_after);
    table.row("breaker_detect_hang_median_s", hang.median, "s", "upstream hangs, 5 requests/s", "≤ 25");
    table.row("breaker_detect_hang_last_s", hang.last, "s", "  of all seeds the last", "≤ 27");
    let control = detection::hang(None);
    table.row("breaker_detect_hang_control_s", control.median, "s", "  counted only when they end", "never");

    Table::title("Breaker: after an outage");
    for length in SHORT {
        let trips = recovery::trips(&policy, length) as f64;
        let what = format!("{length} s: trips in 12 phases");
        table.row(&format!("breaker_trips_after_{length}_s"), trips, "", &what, "0");
        let control = recovery::trips(&recovery::without_recency(), length) as f64;
        let bound = if length >= 8.0 { "12" } else { "" };
        table.row(
            &format!("breaker_trips_after_{length}_s_control"),
            control,
            "",
            "  by the window alone",
            bound,
        );
    }
    let extra = recovery::extra(&policy, 30.0);
    table.row("breaker_extra_after_30_s", extra, "s", "30 s: open longer than the outage", "≤ 4");
    let extra = recovery::extra(&policy, 60.0);
    table.row("breaker_reopen_extra_s", extra, "s", "60 s: open longer than the outage", "≤ 4");
    let control = recovery::extra(&recovery::slow_reopen(), 60.0);
    table.row("breaker_reopen_extra_control_s", control, "s", "  reopened for 20 s", "≥ 8");
}
