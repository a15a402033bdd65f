//! The performance figures that pages quote are medians of docs/benchmarks.json, the results of the last run.
//!
//! A quote is `<!-- bench: NAME -->33.9 k/s<!-- /bench -->`. `make bench` replaces all of them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::common::{Page, pages, read};

/// A quote: the name of its figure, or of two with the word between them, and its text.
type Quote<'a> = (&'a str, &'a str);

const BEGIN: &str = "<!-- bench: ";
const END: &str = "<!-- /bench -->";
/// Between two names: how many times as large the first is.
const OVER: &str = " over ";
/// What is between the comments of the README is generated, and has figures of the machine too.
const BLOCK: (&str, &str) = ("<!-- benchmarks: ", "<!-- end of benchmarks -->");

/// Sections, by page and heading, whose figures are not of `make bench`: of the page of benchmarks itself and of
/// experiments behind decisions, all; of capacity planning, examples, the model, and the cluster suite.
const OTHERS: [(&str, &str); 8] = [
    ("docs/benchmarks.md", ""),
    ("docs/design.md", ""),
    ("docs/capacity-planning.md", "Workers"),
    ("docs/capacity-planning.md", "Redis"),
    ("docs/capacity-planning.md", "Plan a Redis cluster"),
    ("docs/capacity-planning.md", "The model"),
    ("docs/capacity-planning.md", "Cost per message as servers are added"),
    ("docs/capacity-planning.md", "Limits of the measurements"),
];

fn figures() -> BTreeMap<String, String> {
    let results: Value = serde_json::from_str(&read("docs/benchmarks.json")).unwrap();
    assert_eq!(results["quick"], false, "these are figures of a quick run");
    let figures = results["figures"].as_object().unwrap().iter();
    figures.map(|(name, figure)| (name.clone(), figure.as_str().unwrap().to_owned())).collect()
}

/// Returns the quotes of a text.
fn quotes(text: &str) -> Vec<Quote<'_>> {
    let quotes = text.split(BEGIN).skip(1).map(|part| {
        let (name, rest) = part.split_once(" -->").unwrap_or_else(|| panic!("no name: {part}"));
        let (shown, _) = rest.split_once(END).unwrap_or_else(|| panic!("no end: {name}"));
        (name, shown)
    });
    quotes.collect()
}

/// Returns a figure in base units: messages per second, seconds, bytes, a number.
fn value(figure: &str) -> f64 {
    let at = figure.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(figure.len());
    let (number, unit) = figure.split_at(at);
    let scale = match unit.trim() {
        "/s" | "messages/s" | "bytes" | "B" | "s" | "times" | "%" => 1.0,
        "k/s" => 1e3,
        "M/s" | "MB" => 1e6,
        "G/s" => 1e9,
        "ms" => 1e-3,
        "us" | "us/message" | "µs" | "us CPU/s" | "µs/s" | "us CPU/message" | "µs CPU" => 1e-6,
        "ns/cycle" | "ns" => 1e-9,
        "commands/s" | "cmd/s" | "deliveries" | "" => 1.0,
        other => panic!("{figure}: unknown unit '{other}'"),
    };
    number.parse::<f64>().unwrap_or_else(|_| panic!("{figure}: no number")) * scale
}

/// Returns what is wrong with a quote.
fn mistake(figures: &BTreeMap<String, String>, (name, shown): Quote<'_>) -> Option<String> {
    let find = |name: &str| figures.get(name).map(|figure| value(figure));
    let expected = match name.split_once(OVER) {
        Some((one, other)) => find(one).zip(find(other)).map(|(one, other)| one / other),
        None => find(name),
    };
    let Some(expected) = expected else { return Some(format!("there is no figure '{name}'")) };
    // Three digits are shown, and four are in the file.
    let is_right = (value(shown) / expected - 1.0).abs() < 0.01;
    (!is_right).then(|| format!("{name}: {shown}, measured {expected}"))
}

#[test]
fn quoted_figures_are_those_of_the_last_run() {
    let figures = figures();
    let mut count = 0;
    for page in pages() {
        for quote in quotes(&page.text) {
            let mistake = mistake(&figures, quote);
            assert!(mistake.is_none(), "{}: {}", page.path, mistake.unwrap_or_default());
            count += 1;
        }
        // There it would end the paragraph.
        let at_start = page.text.lines().find(|line| line.trim_start().starts_with(BEGIN));
        assert!(at_start.is_none(), "{}: a line starts with a quote: {at_start:?}", page.path);
    }
    assert!(count > 25, "{count} quotes");
}

/// Returns the rates and times of a page that should be quotes and are not: rates and microseconds anywhere, and other
/// times in lines that refer to the benchmarks.
fn unquoted(page: &Page) -> Vec<String> {
    let (mut section, mut in_block) = (String::new(), false);
    let mut found = Vec::new();
    for (number, line) in page.prose() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.to_owned();
        }
        in_block = line.starts_with(BLOCK.0) || in_block && line != BLOCK.1;
        let is_other = |(path, heading): &(&str, &str)| {
            *path == page.path && (heading.is_empty() || *heading == section)
        };
        if in_block || OTHERS.iter().any(is_other) {
            continue;
        }
        let line = without_quotes_and_code(line);
        let units: &[&str] = match line.contains("benchmarks.md") {
            true => &["k/s", "M/s", "messages per second", "µs", "ms", "times"],
            false => &["k/s", "M/s", "messages per second", "µs"],
        };
        let after_numbers = line
            .match_indices(|c: char| c.is_ascii_digit())
            .map(|(at, _)| line[at + 1..].trim_start_matches(' '));
        let is_figure = |rest: &str| units.iter().any(|unit| rest.starts_with(unit));
        if after_numbers.into_iter().any(is_figure) {
            found.push(format!("{}:{number}: {}", page.path, line.trim()));
        }
    }
    found
}

fn without_quotes_and_code(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, quote)) = rest.split_once(BEGIN) {
        text += before;
        rest = quote.split_once(END).map_or("", |(_, after)| after);
    }
    text += rest;
    text.split('`').step_by(2).collect()
}

#[test]
fn every_performance_figure_is_a_quote() {
    let found: Vec<_> = pages().iter().flat_map(unquoted).collect();
    assert!(found.is_empty(), "not quoted from docs/benchmarks.json:\n{}", found.join("\n"));
}

#[test]
fn a_wrong_figure_and_one_without_a_quote_are_found() {
    let measured =
        [("cycles/1/Pillarbox", "33900 messages/s"), ("cycles/1/log", "67800 messages/s")];
    let measured = measured.map(|(name, figure)| (name.to_owned(), figure.to_owned())).into();
    let text = "<!-- bench: cycles/1/Pillarbox -->33.9 k/s<!-- /bench -->, \
                <!-- bench: cycles/1/Pillarbox -->34.9 k/s<!-- /bench --> and \
                <!-- bench: cycles/1/log over cycles/1/Pillarbox -->2.00 times<!-- /bench -->; \
                <!-- bench: cycles/4/log -->1/s<!-- /bench -->";
    let mistakes: Vec<_> =
        quotes(text).into_iter().map(|quote| mistake(&measured, quote)).collect();
    assert!(mistakes[0].is_none() && mistakes[2].is_none(), "{mistakes:?}");
    assert!(mistakes[1].is_some() && mistakes[3].is_some(), "{mistakes:?}");

    let text =
        format!("{text}\n\nIt does `50 k/s`.\nIt does 50 k/s.\nAfter 9 ms ([b](benchmarks.md)).\n");
    let page = Page { path: "docs/faq.md".to_owned(), text };
    let found =
        ["docs/faq.md:4: It does 50 k/s.", "docs/faq.md:5: After 9 ms ([b](benchmarks.md))."];
    assert_eq!(unquoted(&page), found);
}
