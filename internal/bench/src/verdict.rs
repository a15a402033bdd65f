//! Whether a run meets the targets of the project, as a table.

use crate::figures::Figures;
use crate::report::three_digits;

/// A figure or a ratio that should be at least or at most something.
struct Target {
    what: String,
    /// None if the run does not have the figures.
    value: Option<f64>,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

use Bound::{AtLeast, AtMost};

impl Bound {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

/// The targets, as a table.
pub(crate) fn table(figures: &Figures) -> String {
    let targets = targets(figures);
    let width = targets.iter().map(|target| target.what.chars().count()).max().unwrap_or_default();
    let mut text = format!("{:<width$}  {:>8}  {:>9}\n", "target", "measured", "bound");
    for Target { what, value, bound } in &targets {
        let measured = value.map_or("-".to_owned(), three_digits);
        let shown = match bound {
            AtLeast(bound) => format!(">= {bound}"),
            AtMost(bound) => format!("<= {bound}"),
        };
        let verdict = match value {
            Some(value) if bound.is_met(*value) => "met",
            Some(_) => "MISSED",
            None => "not measured",
        };
        text += &format!("{what:<width$}  {measured:>8}  {shown:>9}  {verdict}\n");
    }
    text
}

fn targets(figures: &Figures) -> Vec<Target> {
    let mut all = Vec::new();
    let mut add = |what: &str, value: Option<f64>, bound: Bound| {
        all.push(Target { what: what.to_owned(), value, bound });
    };
    let of = |name: &str| figures.median(name);
    let over = |one: &str, other: &str| Some(of(one)? / of(other)?);
    // Ours against another of the same case or place.
    let ours =
        |case: &str, other: &str| over(&format!("{case}/Pillarbox"), &format!("{case}/{other}"));

    for kind in ["memory", "SQLite", "Redis"] {
        let case = format!("runtime/no-op handlers, 4 workers, {kind}");
        let fixed = largest(figures, &case, |name| name.starts_with("Pillarbox, prefetch"));
        let value = fixed.and_then(|(_, fixed)| Some(of(&format!("{case}/Pillarbox"))? / fixed));
        add(&format!("default worker / best fixed prefetch, {kind}"), value, AtLeast(0.8));
        let peers = match kind {
            "memory" => "capp",
            _ => "apalis",
        };
        let peer = largest(figures, &case, |name| name.starts_with(peers));
        let value = peer.and_then(|(_, peer)| Some(of(&format!("{case}/Pillarbox"))? / peer));
        let bound = if kind == "memory" { 5.0 } else { 2.0 };
        add(&format!("default worker / {peers}, tuned or not, {kind}"), value, AtLeast(bound));
    }
    for kind in ["SQLite", "Redis"] {
        let case = format!("runtime/handlers of 100 ms, 2 processes of 4 workers, {kind}");
        let held = of(&format!("{case}, held by one/Pillarbox"));
        add(&format!("deliveries held by one of two processes, {kind}"), held, AtMost(5.0));
        let share = of(&format!("{case}, share of one/Pillarbox"));
        let uneven = share.map(|share| share / (100.0 - share));
        add(&format!("work of one of two processes / the other, {kind}"), uneven, AtMost(1.1));
    }
    let log = "append-only log";
    for (callers, bound) in [(1, 0.85), (16, 0.8), (64, 0.75), (256, 0.6)] {
        let value = ours(&format!("cycles-sqlite/{callers}"), log);
        add(&format!("SQLite cycle / log, {callers} callers"), value, AtLeast(bound));
    }
    add("SQLite cycle / litequeue, 1 caller", ours("cycles-sqlite/1", "litequeue"), AtLeast(1.3));
    for callers in [1, 4, 16] {
        let place = format!("cycles-redis/{callers}");
        let plain = "plain Redis commands";
        let value = ours(&place, plain);
        add(&format!("Redis cycle / plain commands, {callers} callers"), value, AtLeast(1.0));
        let is_peer = |name: &str| !name.starts_with("Pillarbox") && name != plain;
        let best = largest(figures, &place, is_peer);
        let value = best.and_then(|(_, best)| Some(of(&format!("{place}/Pillarbox"))? / best));
        let peer = best.map_or("best peer", |(name, _)| name);
        add(&format!("Redis cycle / {peer}, {callers} callers"), value, AtLeast(1.0));
    }
    let p99 = ours("sqlite/durable send, 64 callers, p99", log);
    add("SQLite durable send / log, 64 callers, p99", p99, AtMost(2.0));
    let wake = of("sqlite/wake-up latency, waiter in another process, p50/Pillarbox");
    add("SQLite wake-up of another process, p50, ms", wake, AtMost(2.0));
    let idle = of("sqlite/idle CPU, 100 waiters, empty queue/Pillarbox");
    add("SQLite idle CPU of 100 waiters, us/s", idle, AtMost(300.0));
    let processes =
        ours("sqlite/cycle, 4 processes, 16 callers each", "Pillarbox, 1 process, 64 callers");
    add("SQLite 4 processes of 16 callers / 1 of 64", processes, AtLeast(0.7));
    let bodies = ours("sqlite/cycle, 16 callers, 256 KiB bodies", log);
    add("SQLite cycle / log, 256 KiB bodies", bodies, AtLeast(0.7));
    let wake = ours("redis/wake-up latency, 1 waiter, p50", "BLPOP");
    add("Redis wake-up / BLPOP, p50", wake, AtMost(2.2));
    let new = "redis/cycle, 1 caller, batch 10, each on another of 10,000 new queues";
    add("Redis 10,000 new queues / one", ours(new, "Pillarbox, one queue"), AtMost(1.3));
    let used = over("queues/10,000/Redis", "queues/1/Redis");
    add("Redis 10,000 used queues in turn / one", used, AtMost(1.3));
    let memory = of("memory/one thread, batch 1/Pillarbox").map(|rate| rate / 1e6);
    add("memory cycles one by one, M/s", memory, AtLeast(2.0));
    let calls = ours("loops/requests, 1 caller, memory", "mailbox operations only");
    add("bare operations / calls of a client, memory", calls.map(|ratio| 1.0 / ratio), AtMost(1.5));
    all
}

/// The contestant of a case or a place with the largest figure, of those that are wanted.
fn largest<'a>(
    figures: &'a Figures,
    case: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Option<(&'a str, f64)> {
    let start = format!("{case}/");
    let all = figures.starting_with(&start);
    let all = all.map(|(name, median)| (&name[start.len()..], median));
    all.filter(|(name, _)| is_wanted(name)).max_by(|a, b| a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Role;
    use crate::page::tests::{chart, line};
    use crate::results::Results;

    #[test]
    fn a_target_is_met_missed_or_not_measured() {
        let mut cycles = chart();
        cycles.id = "cycles-redis".to_owned();
        cycles.at = ["1", "4"].map(str::to_owned).to_vec();
        cycles.lines = vec![
            line("Pillarbox", Role::Ours, [Some(1000.0), Some(2000.0)]),
            line("plain Redis commands", Role::Limit, [Some(900.0), Some(3000.0)]),
            line("quick", Role::Peer, [Some(500.0), Some(1.0)]),
            line("quicker", Role::Peer, [Some(800.0), Some(1.0)]),
        ];
        let table = table(&Figures::of(&Results::of(vec![cycles])));
        let row = |what: &str| {
            let row = table.lines().find(|row| row.starts_with(what));
            row.unwrap_or_else(|| panic!("{what} is not in\n{table}")).to_owned()
        };
        assert!(row("Redis cycle / plain commands, 1 callers").ends_with(" met"), "{table}");
        assert!(row("Redis cycle / plain commands, 4 callers").ends_with(" MISSED"), "{table}");
        assert!(row("Redis cycle / quicker, 1 callers").contains(" 1.25 "), "{table}");
        assert!(row("SQLite idle CPU").ends_with(" not measured"), "{table}");
    }
}
