//! The document of a file of results: `benchmarks.md`, with a plot and a table for each chart, and a table
//! for each suite. Nothing in it is written by hand but what is here.

mod svg;

use std::fs;
use std::path::Path;

use crate::chart::{Chart, Line, Role};
use crate::measure::Result;
use crate::report::{Row, three_digits};
use crate::results::Results;

/// Writes the document and its plots, and takes away plots of charts that are no more.
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
    eprintln!("written: {} and {} plots", page.display(), results.charts.len());
    Ok(())
}

/// Where the summary stands in a README.
const SUMMARY: (&str, &str) = ("<!-- what make bench has measured -->\n", "<!-- until here -->");

/// Writes the summary into a README, in place of the one that is there.
pub(crate) fn summarise(results: &Results, readme: &Path) -> Result<()> {
    let text = fs::read_to_string(readme)?;
    let (begin, end) = SUMMARY;
    let parts = text.split_once(begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(end)?;
        Some((before, after))
    });
    let place = readme.display();
    let (before, after) = parts.ok_or_else(|| format!("{place} has no place for a summary"))?;
    fs::write(readme, format!("{before}{begin}{}{end}{after}", summary(results)))?;
    Ok(())
}

/// The cycles of ours, of the quickest peer and of the limit, by callers.
fn summary(results: &Results) -> String {
    let machine = &results.machine;
    let mut text = format!(
        "\nMeasured on {}, {} processors, a sync in {:.0} µs, Redis {}; medians of {} rounds.\n\n\
         | send, receive and acknowledge | callers | Pillarbox | the quickest peer | | the limit |\n\
         |---|---:|---:|---:|---|---:|\n",
        machine.day, machine.processors, machine.sync_us, machine.redis, results.rounds
    );
    for chart in results.charts.iter().filter(|chart| chart.id.starts_with("cycles-")) {
        let backend = chart.title.rsplit(", ").next().unwrap_or_default();
        for (place, callers) in chart.at.iter().enumerate() {
            let best = |role: Role| {
                let figure = |line: &&Line| Some((*line.spots.get(place)?)?.median);
                let lines = chart.lines.iter().filter(|line| line.role == role);
                let best = lines
                    .filter_map(|line| Some((figure(&line)?, &line.name)))
                    .max_by(|a, b| a.0.total_cmp(&b.0));
                best.map_or((String::new(), ""), |(rate, name)| (chart.unit.human(rate), name))
            };
            let [(ours, _), (peer, name), (limit, _)] =
                [Role::Ours, Role::Peer, Role::Limit].map(best);
            let backend = if place == 0 { backend } else { "" };
            text +=
                &format!("| {backend} | {callers} | **{ours}** | {peer} | {name} | {limit} |\n");
        }
    }
    text + "\n"
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
        "\n**This was a quick run, with small counts: the figures mean little.**\n"
    } else {
        ""
    };
    format!(
        "# Benchmarks\n\
         {quick}\n\
         Measured on {day}: Pillarbox {version}, {processors} processors, {memory} GiB, a disk that has a write of 4 KiB after \
         {sync:.0} µs, Redis {redis}. `make bench` measures all of it anew and writes this page; `make bench-quick` shows in a few \
         minutes that it works.\n\n\
         How to read it:\n\n\
         - Clients, servers and workers share the processors of one machine, so that rates are those of all together. Compare \
         within a table, not with figures from elsewhere.\n\
         - All contestants of a table ran in the same run and in turn, each round beginning with another; a figure is the median of \
         {rounds} rounds. Every run checks that each message was handled, none twice, and that nothing is \
         left; where a peer fails, its row says so.\n\
         - A *limit* is the least that could do the job, with what makes a queue safe left out. It says what safety costs. Where \
         it does not put callers' calls together and ours does, ours can be quicker all the same.\n\
         - No peer does the same as ours or as another. What each keeps, and how, is in its row; what it leaves out and does more, in \
         its source: `internal/bench/peers` and the modules of `internal/bench/src`.\n"
    )
}

/// The peers and limits that are better somewhere, told first.
fn others_are_better(results: &Results) -> String {
    let peers = better_of(results, Role::Peer);
    let peers = if peers.is_empty() { "- No peer.\n" } else { &peers };
    let mut text =
        format!("In the charts; of how long a cycle takes, the middle and 99 percent:\n\n{peers}");
    let limits = better_of(results, Role::Limit);
    if !limits.is_empty() {
        text += &format!("\nAnd the limits, as they should be:\n\n{limits}");
    }
    let rows = results.rows.iter().filter(|row| row.ratio.is_some_and(|ratio| ratio < 1.0)).count();
    let all = results.rows.iter().filter(|row| row.ratio.is_some()).count();
    if rows > 0 {
        text += &format!(
            "\nIn the tables of the suites, {rows} of {all} comparisons, with limits and with ours under other conditions \
             among them: their ratios are bold.\n"
        );
    }
    text
}

/// Where those of a role are better than ours, a line for each of them and each chart.
fn better_of(results: &Results, role: Role) -> String {
    let mut text = String::new();
    for chart in results.charts.iter().filter(|chart| is_comparison(chart)) {
        for line in chart.lines.iter().filter(|line| line.role == role) {
            let better: Vec<_> = (0..chart.at.len())
                .filter(|place| is_telling(chart, *place))
                .filter_map(|place| Some((place, chart.ratio(line, place)?)))
                .filter(|(_, ratio)| *ratio < 1.0)
                .map(|(place, ratio)| {
                    format!("{} times at {}", three_digits(1.0 / ratio), chart.at[place])
                })
                .collect();
            if !better.is_empty() {
                let (name, title, along) = (&line.name, &chart.title, &chart.along);
                text += &format!("- **{name}**, {title}: {} ({along}).\n", better.join(", "));
            }
        }
    }
    text
}

/// Whether a place of a chart is worth a word before all others: of a distribution, the middle and the tail.
fn is_telling(chart: &Chart, place: usize) -> bool {
    !chart.id.starts_with("latency-") || ["50", "99"].contains(&&chart.at[place][..])
}

/// Whether a chart has others beside ours.
fn is_comparison(chart: &Chart) -> bool {
    chart.lines.iter().any(|line| line.role != Role::Ours)
}

fn section(chart: &Chart) -> String {
    let (title, about, picture) = (&chart.title, &chart.about, picture(chart));
    let mut text = format!("\n## {title}\n\n{about}\n\n![{title}](pictures/{picture})\n\n");
    text += &format!("| {} | |", chart.along);
    chart.at.iter().for_each(|at| text += &format!(" {at} |"));
    text += "\n|---|---|";
    chart.at.iter().for_each(|_| text += "---:|");
    text += "\n";
    for line in &chart.lines {
        let name = match line.role {
            Role::Ours => format!("**{}**", line.name),
            Role::Limit => format!("{} (limit)", line.name),
            Role::Peer => line.name.clone(),
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
        text += "\nIn brackets: how many times better ours is; bold where the other is better.\n";
    }
    text
}

/// How we compare, behind a figure of somebody else.
fn against(chart: &Chart, line: &Line, place: usize) -> String {
    match chart.ratio(line, place) {
        _ if line.role == Role::Ours => String::new(),
        Some(ratio) if ratio < 1.0 => format!(" (**{}x**)", three_digits(ratio)),
        Some(ratio) => format!(" ({}x)", three_digits(ratio)),
        None => String::new(),
    }
}

fn table_of_rows(suite: &str, rows: &[&Row]) -> String {
    let mut text = format!(
        "\n## Suite: {suite}\n\nThe ratio says how many times better ours is; bold where the other is better.\n\n\
         | case | ours | other | ratio | against |\n|---|---:|---:|---:|---|\n"
    );
    let mut last = None;
    for row in rows {
        let is_first = last.replace(&row.case) != Some(&row.case);
        let case = if is_first { cell(&row.case) } else { String::new() };
        let ratio = match row.ratio {
            Some(ratio) if ratio < 1.0 => format!("**{}x**", three_digits(ratio)),
            Some(ratio) => format!("{}x", three_digits(ratio)),
            None => String::new(),
        };
        let (ours, other) = (row.unit.human(row.ours), row.other_for_people());
        text += &format!("| {case} | {ours} | {other} | {ratio} | {} |\n", cell(&row.other_name));
    }
    let mut failures: Vec<_> = rows.iter().filter_map(|row| row.failure.as_ref()).collect();
    // One run may have several figures.
    failures.dedup();
    for failure in failures {
        text += &format!("\nFailed: {}\n", cell(failure));
    }
    text
}

/// Text that fits into a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Spot;
    use crate::report::Unit;

    fn line(name: &str, role: Role, figures: [Option<f64>; 2]) -> Line {
        let spot = |figure| Spot { median: figure, least: figure, most: figure };
        Line {
            name: name.to_owned(),
            role,
            settings: "a | b".to_owned(),
            spots: figures.map(|figure| figure.map(spot)).to_vec(),
            failures: Vec::new(),
        }
    }

    pub(super) fn chart() -> Chart {
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
    fn a_summary_takes_the_place_of_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let readme = directory.path().join("README.md");
        let results = Results::of(vec![chart()]);
        fs::write(&readme, "no place").unwrap();
        assert!(summarise(&results, &readme).is_err());
        fs::write(&readme, format!("a\n{}old{}\nb\n", SUMMARY.0, SUMMARY.1)).unwrap();
        summarise(&results, &readme).unwrap();
        summarise(&results, &readme).unwrap();
        let text = fs::read_to_string(&readme).unwrap();
        assert!(
            text.starts_with("a\n") && text.ends_with("\nb\n") && !text.contains("old"),
            "{text}"
        );
        let row = "| Cycles | 1 | **1.00 k/s** | 100/s | slow | 2.00 k/s |\n|  | 256 | **50.0 k/s** |  |  | 40.0 k/s |\n";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn peers_that_are_better_are_told_before_limits_and_of_distributions_the_middle() {
        let mut cycles = chart();
        cycles.lines.push(line("quick", Role::Peer, [Some(1500.0), Some(60_000.0)]));
        let mut latency = chart();
        (latency.id, latency.at) = ("latency-x".to_owned(), vec!["1".to_owned(), "50".to_owned()]);
        latency.lines.push(line("prompt", Role::Peer, [Some(1100.0), Some(55_000.0)]));
        let told = others_are_better(&Results::of(vec![cycles, latency]));
        let expected = "In the charts; of how long a cycle takes, the middle and 99 percent:\n\n\
             - **quick**, Cycles: 1.50 times at 1, 1.20 times at 256 (callers).\n\
             - **prompt**, Cycles: 1.10 times at 50 (callers).\n\n\
             And the limits, as they should be:\n\n\
             - **bare <&>**, Cycles: 2.00 times at 1 (callers).\n";
        assert_eq!(told, expected);
    }

    #[test]
    fn a_section_tells_who_is_better_and_who_has_failed() {
        let section = section(&chart());
        assert!(section.contains("| **Pillarbox** | a \\| b | 1.00 k/s | 50.0 k/s |"), "{section}");
        assert!(section.contains("| 2.00 k/s (**0.50x**) | 40.0 k/s (1.25x) |"), "{section}");
        assert!(section.contains("| 100/s (10.0x) | failed |"), "{section}");
        assert!(section.contains("slow failed. 256 callers: lost 3"), "{section}");
    }
}
