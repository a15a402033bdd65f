//! The tables of docs/design.md and docs/verification.md map rules of the contract to tests and models, and
//! invariants to numbers. These tests fail if a rule has no row, a row names something that does not exist, or a
//! number has two meanings.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text of all files of a directory with this suffix.
fn read_all(directory: &str, end: &str) -> String {
    let entries = fs::read_dir(root().join(directory)).expect("the directory is there");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let wanted = names.filter(|name| name.ends_with(end));
    wanted.map(|name| read(&format!("{directory}/{name}"))).collect()
}

/// Returns code without line breaks: the name of a property may be on a line of its own.
fn in_one_line(code: &str) -> String {
    code.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(")
}

/// Returns the rows of the table with this head, each as its cells.
fn table(text: &str, head: &str) -> Vec<Vec<String>> {
    let from = text.lines().skip_while(|line| *line != head);
    let rows = from.skip(2).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        inner.split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    rows.map(cells).collect()
}

/// Returns the texts in backticks of a cell.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[derive(Clone, Copy)]
enum Column {
    Model,
    Ledger,
    Conformance,
    Scripts,
}

impl Column {
    const fn what(self) -> &'static str {
        match self {
            Self::Model => "operator that TLC checks",
            Self::Ledger => "ledger check",
            Self::Conformance => "conformance test",
            Self::Scripts => "place in a script",
        }
    }
}

/// Items that the tables may name.
struct Sources {
    conformance: String,
    ledger: String,
    /// Names that TLC checks.
    checked: BTreeSet<String>,
}

impl Sources {
    fn here() -> Self {
        let cfgs = read_all("specs/tla/cfg", ".cfg") + &read("specs/tla/checks.toml");
        let words = cfgs.split(|c: char| !c.is_ascii_alphanumeric());
        Self {
            conformance: read_all("crates/pillarbox-testing/src/conformance", ".rs"),
            ledger: in_one_line(
                &(read("crates/pillarbox-core/src/ledger/tests.rs")
                    + &read("crates/pillarbox-testing/tests/it/ledger_exhaustive.rs")),
            ),
            checked: words.map(str::to_owned).collect(),
        }
    }

    fn has(&self, column: Column, name: &str) -> bool {
        match column {
            Column::Model => self.has_model(name),
            Column::Ledger => self.has_ledger(name),
            Column::Conformance => self.has_test(name),
            Column::Scripts => has_script(name),
        }
    }

    fn has_test(&self, name: &str) -> bool {
        self.conformance.contains(&format!("pub async fn {name}("))
    }

    /// A test of the ledger, or a property of its exhaustive check.
    fn has_ledger(&self, name: &str) -> bool {
        self.ledger.contains(&format!("fn {name}("))
            || self.ledger.contains(&format!("Property::always(\"{name}\""))
    }

    /// An operator of a module that TLC checks: `Module!Operator`.
    fn has_model(&self, name: &str) -> bool {
        let Some((module, operator)) = name.split_once('!') else { return false };
        let Ok(text) = fs::read_to_string(root().join(format!("specs/tla/{module}.tla"))) else {
            return false;
        };
        let is_defined = text.lines().any(|line| line.starts_with(&format!("{operator} ==")));
        is_defined && self.checked.contains(operator)
    }
}

/// A place in a script: `script.lua: text that is in it`.
fn has_script(name: &str) -> bool {
    let Some((file, text)) = name.split_once(": ") else { return false };
    let path = root().join("crates/pillarbox-redis/scripts").join(file);
    fs::read_to_string(path).is_ok_and(|script| script.contains(text))
}

const RULES: &str = "| id | rule | tests |";
const ROWS: &str = "| rule | TLA+ | ledger | conformance | scripts |";

fn problems(design: &str, verification: &str, sources: &Sources) -> Vec<String> {
    let mut problems = Vec::new();
    let (rules, rows) = (table(design, RULES), table(verification, ROWS));
    let ids: BTreeSet<_> = rules.iter().flat_map(|rule| names(&rule[0])).collect();
    let shown: Vec<_> = rows.iter().flat_map(|row| names(&row[0])).collect();
    for id in &ids {
        match shown.iter().filter(|other| *other == id).count() {
            1 => {}
            0 => problems.push(format!("the rule '{id}' has no row")),
            count => problems.push(format!("the rule '{id}' has {count} rows")),
        }
    }
    for id in shown.iter().filter(|id| !ids.contains(*id)) {
        problems.push(format!("the row '{id}' is of no rule"));
    }
    for rule in &rules {
        let is_test = |name: &&str| name.contains('_') && !name.contains(['.', '…', ' ']);
        for name in names(&rule[2]).into_iter().filter(is_test) {
            if !sources.has_test(name) {
                problems.push(format!("{}: no conformance test '{name}'", rule[0]));
            }
        }
    }
    for row in &rows {
        let [id, model, ledger, conformance, scripts] = &row[..] else {
            problems.push(format!("a row has {} cells: {row:?}", row.len()));
            continue;
        };
        let columns = [
            (Column::Model, model),
            (Column::Ledger, ledger),
            (Column::Conformance, conformance),
            (Column::Scripts, scripts),
        ];
        for (column, cell) in columns {
            let what = column.what();
            for name in names(cell).into_iter().filter(|name| !sources.has(column, name)) {
                problems.push(format!("{id}: no {what} '{name}'"));
            }
            // A cell without a name must give a reason.
            if cell.len() < 3 {
                problems.push(format!("{id}: the column of the {what} is empty"));
            }
        }
        if names(conformance).is_empty() {
            problems.push(format!("{id}: no conformance test is named"));
        }
    }
    problems
}

#[test]
fn every_rule_has_a_row_and_every_row_names_what_is_there() {
    let (design, verification) = (read("docs/design.md"), read("docs/verification.md"));
    assert!(table(&design, RULES).len() > 20, "the table of rules was not found");
    let problems = problems(&design, &verification, &Sources::here());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Replaces a part of a text, which must exist.
fn with(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old}");
    text.replacen(old, new, 1)
}

#[test]
fn every_defect_of_a_table_is_found() {
    let (design, verification) = (read("docs/design.md"), read("docs/verification.md"));
    let sources = Sources::here();
    let find = |design: &str, verification: &str| problems(design, verification, &sources);

    let row = verification.lines().find(|line| line.starts_with("| `fifo` ")).unwrap();
    let (before, rows) = verification.split_once(ROWS).unwrap();
    let found =
        |old: &str, new: &str| find(&design, &format!("{before}{ROWS}{}", with(rows, old, new)));
    assert_eq!(found(&format!("{row}\n"), "").len(), 1);
    assert_eq!(found(&format!("{row}\n"), &format!("{row}\n{row}\n")).len(), 1);
    assert_eq!(found("PillarboxRedis!Fifo", "PillarboxRedis!Lifo").len(), 1);
    assert_eq!(found("PillarboxRedis!Fifo", "PillarboxRedis!Init").len(), 1);
    assert_eq!(found("PillarboxRedis!Fifo", "Nowhere!Fifo").len(), 1);
    assert_eq!(found("`INV-3 a stale", "`INV-3 no stale").len(), 1);
    assert_eq!(found("`settle.lua: ", "`settled.lua: ").len(), 1);
    assert_eq!(found("| `fifo` ", "| `lifo` ").len(), 2);
    let test = "`a_receipt_settles_once`";
    assert_eq!(found(test, "`a_receipt_settles_twice`").len(), 1);
    assert_eq!(find(&with(&design, test, "`a_receipt_settles_twice`"), &verification).len(), 1);
    let rule = "| `purge` | purge";
    assert_eq!(find(&with(&design, rule, "| `expunge` | purge"), &verification).len(), 2);
}

/// A check of TLC in specs/tla/checks.toml.
struct Check {
    name: String,
    shows: String,
    expect: Option<String>,
}

fn checks() -> Vec<Check> {
    let file = read("specs/tla/checks.toml");
    let checks = file.split("\n[[check]]\n").skip(1).map(|text| {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")));
            line.map(|rest| rest.trim_end_matches('"').to_owned())
        };
        let (name, shows) = (value("name"), value("shows"));
        Check {
            name: name.expect("a name"),
            shows: shows.expect("what it shows"),
            expect: value("expect"),
        }
    });
    checks.collect()
}

/// Returns what is wrong with the tables of checks: each check has a row with what it shows and its result.
fn misreported(verification: &str, checks: &[Check]) -> Vec<String> {
    let mut problems = Vec::new();
    let from = verification.find("## TLA+ models").expect("the section is there");
    let to = verification.find("### Defects found by the models").expect("it ends");
    let models = &verification[from..to];
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim_start_matches('|').trim_end_matches('|');
        inner.split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let rows: Vec<_> = models.lines().filter(|line| line.starts_with("| `")).map(cells).collect();
    let is_model = |row: &&Vec<String>| !row[0].starts_with("`Pillarbox");
    for row in rows.iter().filter(is_model) {
        if !checks.iter().any(|check| row[0] == format!("`{}`", check.name)) {
            problems.push(format!("there is no check {}", row[0]));
        }
    }
    for Check { name, shows, expect } in checks {
        let own: Vec<_> = rows.iter().filter(|row| row[0] == format!("`{name}`")).collect();
        let [row] = own[..] else {
            problems.push(format!("the check '{name}' has {} rows", own.len()));
            continue;
        };
        if row[1] != *shows {
            problems.push(format!("'{name}' shows: {shows}; and in the table: {}", row[1]));
        }
        let is_reported = match expect {
            Some(expected) => row.last().is_some_and(|cell| names(cell) == [expected]),
            None => row[2..]
                .iter()
                .all(|cell| cell == "holds" || cell.starts_with(|c: char| c.is_ascii_digit())),
        };
        if !is_reported {
            problems.push(format!("'{name}': not what came of it: {:?}", &row[2..]));
        }
    }
    problems
}

#[test]
fn every_check_of_the_models_has_a_row_with_what_came_of_it() {
    let checks = checks();
    assert!(checks.len() > 70, "{} checks were found", checks.len());
    let problems = misreported(&read("docs/verification.md"), &checks);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_defect_of_a_row_of_a_check_is_found() {
    let (verification, checks) = (read("docs/verification.md"), checks());
    let found = |old: &str, new: &str| misreported(&with(&verification, old, new), &checks);
    assert_eq!(found("| `redis-full` |", "| `redis-fuller` |").len(), 2);
    assert_eq!(found("| max_size of 2 with 3 messages", "| max_size of 2").len(), 1);
    assert_eq!(found("| 6,271 |", "| not yet |").len(), 1);
    assert_eq!(found("at the tail | `Fifo` |", "at the tail | `OneState` |").len(), 1);
}

const INVARIANTS: &str = "| number | what holds | TLA+ | ledger | real servers |";

/// Returns the numbers of invariants that a text names: 3 of `INV-3`.
fn numbers(text: &str) -> impl Iterator<Item = usize> {
    text.split("INV-").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    })
}

/// Returns every hand-written file of the repository: path and text.
fn all_texts() -> Vec<(String, String)> {
    let places = [".github", "crates", "deploy", "docs", "scripts", "specs"];
    let mut directories: Vec<_> = places.iter().map(|place| root().join(place)).collect();
    let files = ["CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "README.md"];
    let mut paths: Vec<_> = files.iter().map(|file| root().join(file)).collect();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("the directory is there") {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() { directories.push(path) } else { paths.push(path) }
        }
    }
    // Binary files name nothing.
    let texts = paths.into_iter().filter_map(|path| {
        let text = fs::read_to_string(&path).ok()?;
        Some((path.display().to_string(), text))
    });
    texts.collect()
}

/// Returns what is wrong with the table of invariants and with references to them.
fn misnumbered(verification: &str, texts: &[(String, String)], sources: &Sources) -> Vec<String> {
    let rows = table(verification, INVARIANTS);
    let mut problems = Vec::new();
    let model = read("specs/tla/PillarboxRedis.tla");
    let tests = read("crates/pillarbox-redis/tests/it/invariants.rs");
    for (at, row) in rows.iter().enumerate() {
        let number = format!("INV-{}", at + 1);
        let [named, _, operators, properties, tested] = &row[..] else {
            problems.push(format!("a row has {} cells: {row:?}", row.len()));
            continue;
        };
        if *named != number {
            problems.push(format!("the row of {number} is called {named}"));
        }
        let operators = names(operators);
        for name in operators.iter().filter(|name| !sources.has_model(name)) {
            problems.push(format!("{number}: TLC checks no '{name}'"));
        }
        // The comment with the number precedes the first operator of the row.
        let after = model.split_once(&format!("\n\\* {number}: ")).map_or("", |(_, after)| after);
        let defined = after.lines().find_map(|line| line.split_once(" ==")).map(|(name, _)| name);
        let first = operators.first().and_then(|name| name.split_once('!')).map(|(_, name)| name);
        if defined.is_none() || defined != first {
            problems.push(format!("{number} is {first:?}, and {defined:?} in the model"));
        }
        for name in names(properties) {
            if !sources.has_ledger(name) || !name.starts_with(&format!("{number} ")) {
                problems.push(format!("{number}: no property '{name}' of the ledger"));
            }
        }
        for name in names(tested) {
            if !tests.contains(&format!("fn {name}(")) {
                problems.push(format!("{number}: no test '{name}'"));
            }
        }
        if names(properties).len() != 1 || names(tested).is_empty() {
            problems.push(format!("{number}: has no property, or no test"));
        }
    }
    // The ledger uses numbers only as in the table.
    let numbered = sources.ledger.matches("Property::always(\"INV-").count();
    if numbered != rows.len() {
        problems.push(format!("the ledger has {numbered} properties with a number"));
    }
    for (path, text) in texts {
        for number in numbers(text).filter(|number| !(1..=rows.len()).contains(number)) {
            problems.push(format!("{path}: INV-{number} is not in the table"));
        }
    }
    problems
}

#[test]
fn the_number_of_an_invariant_means_one_thing_everywhere() {
    let verification = read("docs/verification.md");
    assert!(table(&verification, INVARIANTS).len() >= 9, "the table of invariants was not found");
    let here = file!().rsplit('/').next().unwrap();
    let texts: Vec<_> = all_texts().into_iter().filter(|(path, _)| !path.ends_with(here)).collect();
    let problems = misnumbered(&verification, &texts, &Sources::here());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_defect_of_a_number_is_found() {
    let verification = read("docs/verification.md");
    let sources = Sources::here();
    let found = |old: &str, new: &str| misnumbered(&with(&verification, old, new), &[], &sources);
    assert_eq!(found("| INV-8 |", "| INV-9 |").len(), 1);
    assert_eq!(found("`PillarboxRedis!NoDuplicates` |", "`PillarboxRedis!NoOrphans` |").len(), 1);
    assert_eq!(found("`INV-8 no message", "`INV-9 no message").len(), 1);
    assert_eq!(found("`an_acknowledged_message_leaves", "`an_orphan_leaves").len(), 1);
    let text = "what INV-1 to INV-10 say of INV-n";
    assert_eq!(numbers(text).collect::<Vec<_>>(), [1, 10]);
    let texts = [("some.md".to_owned(), text.to_owned())];
    let problems = misnumbered(&verification, &texts, &sources);
    assert_eq!(problems, ["some.md: INV-10 is not in the table"]);
}
