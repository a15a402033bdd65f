//! Generates the documentation of a file of results: `benchmarks.md` with its charts, `benchmarks.json` with all
//! medians, a block of the README, and the figures that other pages quote. All of their text is here and in the suites.

mod readme;
mod svg;

use std::fs;
use std::path::Path;

use crate::chart::{Chart, Line, Role};
use crate::figures::Figures;
use crate::measure::Result;
use crate::report::{Row, three_digits};
use crate::results::Results;

pub(crate) use self::readme::summarise;

/// Writes the page and its charts, and removes the charts of earlier runs.
pub(crate) fn write(results: &Results, to: &Path) -> Result<()> {
    let pictures = to.join("pictures");
    fs::create_dir_all(&pictures)?;
    for entry in fs::read_dir(&pictures)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with("bench-") && name.ends_with(".svg")) {
            fs::remove_file(path)?;
        }
    }
    for chart in &results.charts {
        fs::write(pictures.join(picture(chart)), svg::plot(chart))?;
    }
    let page = to.join("benchmarks.md");
    fs::write(&page, document(results))?;
    Figures::of(results).write(results, &to.join("benchmarks.json"))?;
    eprintln!("written: {} and {} charts", page.display(), results.charts.len());
    Ok(())
}

/// Replaces the figures that the pages of a directory quote. Changes nothing if a figure is missing.
pub(crate) fn requote(results: &Results, directory: &Path) -> Result<()> {
    let figures = Figures::of(results);
    let mut updated = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let failed = |error| format!("{}: {error}", path.display());
            let text = figures.with_quotes(&fs::read_to_string(&path)?).map_err(failed)?;
            updated.push((path, text));
        }
    }
    for (path, text) in updated {
        fs::write(path, text)?;
    }
    Ok(())
}

fn picture(chart: &Chart) -> String {
    format!("bench-{}.svg", chart.id)
}

fn document(results: &Results) -> String {
    let mut text = head(results);
    text += "\n## Where others are better\n\n";
    text += &others_are_better(results);
    for chart in &results.charts {
        text += &section(chart);
    }
    let mut suites: Vec<&str> = Vec::new();
    for row in &results.rows {
        if !suites.contains(&&row.suite[..]) {
            suites.push(&row.suite);
        }
    }
    for suite in suites {
        let rows: Vec<_> = results.rows.iter().filter(|row| row.suite == suite).collect();
        text += &table_of_rows(suite, &rows);
    }
    text
}

fn head(results: &Results) -> String {
    let machine = &results.machine;
    let (processors, memory, sync) = (machine.processors, machine.memory_gib, machine.sync_us);
    let (day, redis, version) = (&machine.day, &machine.redis, &machine.pillarbox);
    let rounds = results.rounds;
    let quick = if results.quick {
        "\n**This was a quick run with small counts. The figures mean little.**\n"
    } else {
        ""
    };
    format!(
        "# Benchmarks\n\
         {quick}\n\
         Throughput, latency and cost of Pillarbox compared with other queues, and with the least work that could do the same job.\n\n\
         | | |\n|---|---|\n\
         | date | {day} |\n\
         | Pillarbox | {version} |\n\
         | machine | {processors} cores, {memory} GiB of memory |\n\
         | disk | 4 KiB write + fsync: {sync:.0} µs |\n\
         | Redis | {redis} |\n\
         | figures | medians of {rounds} rounds |\n\n\
         `make bench` runs all benchmarks in about half an hour and rewrites this page. `make bench-quick` checks in a \
         few minutes that they work. All medians are in [benchmarks.json](benchmarks.json).\n\n\
         How to read the figures:\n\n\
         - **Compare within a table only.** Clients, servers and workers share the cores of one machine. Figures from another \
         machine are not comparable.\n\
         - **Everything in a table ran together**: in the same run, in turns, and each round started with another contestant. \
         Every run checks that each message was handled exactly once and that the queue is empty at the end. If a peer fails this check, its \
         row says so.\n\
         - **Defaults.** The row *Pillarbox* has default settings. Rows of Pillarbox with other settings name them, and peers with settings \
         for throughput are marked *tuned*.\n\
         - **The limit** does the same job without the guarantees of a queue, and shows what the guarantees cost. Pillarbox can be \
         faster than a limit that does not coalesce concurrent calls.\n\
         - **No two peers do the same.** The settings of each row say how a peer stores messages. The source of each benchmark says what the \
         peer does more or less than Pillarbox: `internal/bench/peers` and `internal/bench/src`.\n"
    )
}

/// The peers and the limits that are better than ours, first of all.
fn others_are_better(results: &Results) -> String {
    let header = |who: &str| format!("| {who} | where | better by |\n|---|---|---|\n");
    let peers = better_in_charts(results, Role::Peer) + &better_in_suites(results, Role::Peer);
    let mut text = if peers.is_empty() {
        "No peer is better in any table.\n".to_owned()
    } else {
        let header = header("peer");
        format!(
            "Every figure on this page in which a peer is better than Pillarbox. Of the latencies in charts, p50 and p99 are listed.\n\n{header}{peers}"
        )
    };
    let limits = better_in_charts(results, Role::Limit);
    if !limits.is_empty() {
        let header = header("limit");
        text += &format!(
            "\nThe limits are better where the guarantees of a queue cost something. In the charts:\n\n{header}{limits}"
        );
    }
    let ratios = results.rows.iter().filter(|row| row.role == Role::Limit);
    let ratios: Vec<_> = ratios.filter_map(|row| row.ratio).collect();
    let better = ratios.iter().filter(|ratio| is_behind(**ratio)).count();
    if better > 0 {
        let all = ratios.len();
        text += &format!(
            "\nIn the tables of the suites, the limits are better in {better} of {all} comparisons: their ratios are bold.\n"
        );
    }
    text
}

/// Whether a ratio, as it is shown, says that the other is better.
fn is_behind(ratio: f64) -> bool {
    ratio < 0.995
}

/// Where contestants of a role are better than ours in charts: a row for each contestant and chart.
fn better_in_charts(results: &Results, role: Role) -> String {
    let mut text = String::new();
    for chart in results.charts.iter().filter(|chart| is_comparison(chart)) {
        for line in chart.lines.iter().filter(|line| line.role == role) {
            let better: Vec<_> = (0..chart.at.len())
                .filter(|place| is_listed(chart, *place))
                .filter_map(|place| Some((place, chart.ratio(line, place)?)))
                .filter(|(_, ratio)| is_behind(*ratio))
                .map(|(place, ratio)| {
                    format!("{}x at {}", three_digits(1.0 / ratio), chart.at[place])
                })
                .collect();
            if !better.is_empty() {
                let unit = match (&chart.along[..], &better[..]) {
                    ("percentile", _) => String::new(),
                    ("callers", [one]) if one.ends_with(" at 1") => " caller".to_owned(),
                    (along, _) => format!(" {along}"),
                };
                let (name, title, anchor) = (cell(&line.name), &chart.title, anchor(&chart.title));
                text +=
                    &format!("| {name} | [{title}](#{anchor}) | {}{unit} |\n", better.join(", "));
            }
        }
    }
    text
}

/// Where contestants of a role are better than ours in suites: a row for each contestant and case.
fn better_in_suites(results: &Results, role: Role) -> String {
    let mut text = String::new();
    for row in results.rows.iter().filter(|row| row.role == role) {
        if let Some(ratio) = row.ratio.filter(|ratio| is_behind(*ratio)) {
            let (suite, by) = (&row.suite, three_digits(1.0 / ratio));
            let (name, case) = (cell(&row.other_name), cell(&row.case));
            text += &format!("| {name} | [{suite}](#suite-{suite}): {case} | {by}x |\n");
        }
    }
    text
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Whether a place is listed in the summary: all places of a throughput, p50 and p99 of a latency.
fn is_listed(chart: &Chart, place: usize) -> bool {
    !chart.id.starts_with("latency-") || ["p50", "p99"].contains(&&chart.at[place][..])
}

/// Whether a chart has a contestant other than ours.
fn is_comparison(chart: &Chart) -> bool {
    chart.lines.iter().any(|line| line.role != Role::Ours)
}

fn section(chart: &Chart) -> String {
    let (title, about, picture) = (&chart.title, &chart.about, picture(chart));
    let mut text = format!("\n## {title}\n\n{about}\n\n![{title}](pictures/{picture})\n\n");
    let drawn = svg::drawn(chart).len();
    if drawn < chart.lines.len() {
        text += "The chart shows the three best peers. The table lists all of them.\n\n";
    }
    text += &format!("| {} | settings |", chart.along);
    chart.at.iter().for_each(|at| text += &format!(" {at} |"));
    text += "\n|---|---|";
    chart.at.iter().for_each(|_| text += "---:|");
    text += "\n";
    for line in &chart.lines {
        let name = match line.role {
            Role::Ours => format!("**{}**", line.name),
            role => role.title(&line.name),
        };
        text += &format!("| {name} | {} |", cell(&line.settings));
        for (place, spot) in line.spots.iter().enumerate() {
            let figure = spot.map_or("failed".to_owned(), |spot| chart.unit.human(spot.median));
            text += &format!(" {figure}{} |", against(chart, line, place));
        }
        text += "\n";
    }
    for line in &chart.lines {
        for failure in &line.failures {
            text += &format!("\n{} failed. {}\n", line.name, cell(failure));
        }
    }
    if chart.lines.iter().any(|line| line.role != Role::Ours && chart.ratio(line, 0).is_some()) {
        text += "\nIn brackets: how many times better Pillarbox is. Bold: the other is better.\n";
    }
    text
}

/// The ratio behind the figure of another.
fn against(chart: &Chart, line: &Line, place: usize) -> String {
    match chart.ratio(line, place) {
        _ if line.role == Role::Ours => String::new(),
        Some(ratio) if is_behind(ratio) => format!(" (**{}x**)", three_digits(ratio)),
        Some(ratio) => format!(" ({}x)", three_digits(ratio)),
        None => String::new(),
    }
}

/// What a suite measures.
fn about_suite(suite: &str) -> &'static str {
    match suite {
        "memory" => {
            "The memory backend compared with capp-queue, apalis and a Tokio channel. *One thread* measures the calls alone: one task on one thread, where the chart above has tasks on two threads. "
        }
        "sqlite" => {
            "The SQLite backend compared with an append-only log, and with itself under easier conditions. "
        }
        "redis" => {
            "The Redis backend compared with plain Redis commands and with peers. AOF everysec, unless a case says otherwise. "
        }
        "runtime" => {
            "The worker runtime compared with plain receive loops, capp's runtime and apalis workers. Pillarbox is a default `Worker`; rows with `prefetch(n)` fix what it would choose itself. A process *holds* a delivery from its receipt until its handler has ended. "
        }
        "loops" => {
            "Requests to a main loop compared with the mailbox operations that they consist of. Default settings, but as many workers as callers. "
        }
        "evals" => {
            "Eval runs, from samples to a report, compared with the main loop that they run on. Default settings. "
        }
        "cluster" => {
            "Queues with partitions on a Redis Cluster compared with queues on one server. "
        }
        _ => "",
    }
}

fn table_of_rows(suite: &str, rows: &[&Row]) -> String {
    let about = about_suite(suite);
    let mut text = format!(
        "\n## Suite: {suite}\n\n{about}The ratio says how many times better Pillarbox is. Bold: the other is better.\n\n\
         | case | Pillarbox | other | ratio | compared with |\n|---|---:|---:|---:|---|\n"
    );
    let mut last = None;
    for row in rows {
        let is_first = last.replace(&row.case) != Some(&row.case);
        let case = if is_first { cell(&row.case) } else { String::new() };
        let ratio = match row.ratio {
            Some(ratio) if is_behind(ratio) => format!("**{}x**", three_digits(ratio)),
            Some(ratio) => format!("{}x", three_digits(ratio)),
            None => String::new(),
        };
        let (ours, other) = (row.unit.human(row.ours), row.other_human());
        text +=
            &format!("| {case} | {ours} | {other} | {ratio} | {} |\n", cell(&row.other_title()));
    }
    let mut failures: Vec<_> = rows.iter().filter_map(|row| row.failure.as_ref()).collect();
    // A failed run has several rows.
    failures.dedup();
    for failure in failures {
        text += &format!("\nFailed: {}\n", cell(failure));
    }
    text
}

/// Escapes a text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::chart::Spot;
    use crate::report::Unit;

    pub(crate) fn line(name: &str, role: Role, figures: [Option<f64>; 2]) -> Line {
        let spot = |figure| Spot { median: figure, least: figure, most: figure };
        Line {
            name: name.to_owned(),
            role,
            settings: "a | b".to_owned(),
            spots: figures.map(|figure| figure.map(spot)).to_vec(),
            failures: Vec::new(),
        }
    }

    pub(crate) fn chart() -> Chart {
        let mut failing = line("slow", Role::Peer, [Some(100.0), None]);
        failing.failures.push("256 callers: lost 3".to_owned());
        Chart {
            id: "cycles-x".to_owned(),
            title: "Cycles".to_owned(),
            about: "About it.".to_owned(),
            along: "callers".to_owned(),
            at: vec!["1".to_owned(), "256".to_owned()],
            unit: Unit::MessagesPerSecond,
            lines: vec![
                line("Pillarbox", Role::Ours, [Some(1000.0), Some(50_000.0)]),
                line("bare <&>", Role::Limit, [Some(2000.0), Some(40_000.0)]),
                failing,
            ],
        }
    }

    #[test]
    fn better_peers_come_before_limits_and_latencies_are_listed_at_p50_and_p99() {
        let mut cycles = chart();
        cycles.lines.push(line("quick", Role::Peer, [Some(1500.0), Some(60_000.0)]));
        let mut latency = chart();
        (latency.id, latency.title) = ("latency-x".to_owned(), "Latency, 1 caller".to_owned());
        (latency.along, latency.at) =
            ("percentile".to_owned(), vec!["p1".to_owned(), "p50".to_owned()]);
        latency.lines.push(line("prompt", Role::Peer, [Some(1100.0), Some(55_000.0)]));
        let mut results = Results::of(vec![cycles, latency]);
        let row = |other_name: &str, role, ratio| Row {
            suite: "redis".to_owned(),
            case: "cycle".to_owned(),
            unit: Unit::MessagesPerSecond,
            ours: 1.0,
            other: Some(1.0 / ratio),
            other_name: other_name.to_owned(),
            role,
            ratio: Some(ratio),
            failure: None,
        };
        results.rows.push(row("slower", Role::Peer, 2.0));
        results.rows.push(row("ahead", Role::Peer, 0.5));
        results.rows.push(row("Pillarbox, other", Role::Variant, 0.5));
        results.rows.push(row("bare", Role::Limit, 0.5));
        results.rows.push(row("barely", Role::Limit, 0.998));
        let text = others_are_better(&results);
        let peers = "| quick | [Cycles](#cycles) | 1.50x at 1, 1.20x at 256 callers |\n\
             | prompt | [Latency, 1 caller](#latency-1-caller) | 1.10x at p50 |\n\
             | ahead | [redis](#suite-redis): cycle | 2.00x |\n\n";
        let limits = "| bare &lt;&> | [Cycles](#cycles) | 2.00x at 1 caller |\n";
        assert!(text.contains(peers) && text.contains(limits), "{text}");
        assert!(text.contains("the limits are better in 1 of 2 comparisons"), "{text}");
    }

    #[test]
    fn a_section_has_ratios_and_failures() {
        let section = section(&chart());
        assert!(section.contains("| **Pillarbox** | a \\| b | 1.00 k/s | 50.0 k/s |"), "{section}");
        assert!(section.contains("| 2.00 k/s (**0.50x**) | 40.0 k/s (1.25x) |"), "{section}");
        assert!(section.contains("| 100/s (10.0x) | failed |"), "{section}");
        assert!(section.contains("slow failed. 256 callers: lost 3"), "{section}");
    }
}
