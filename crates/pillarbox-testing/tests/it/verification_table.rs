//! The tables of docs/design.md and docs/verification.md say which rule of the contract is shown by
//! what. These tests fail if a rule has no row, or a row names something that is not there.

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

/// The text of all files of a directory that end so.
fn read_all(directory: &str, end: &str) -> String {
    let entries = fs::read_dir(root().join(directory)).expect("the directory is there");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let wanted = names.filter(|name| name.ends_with(end));
    wanted.map(|name| read(&format!("{directory}/{name}"))).collect()
}

/// Code without its line breaks: the name of a property may begin a line of its own.
fn in_one_line(code: &str) -> String {
    code.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(")
}

/// The cells of the table that has this head.
fn table(text: &str, head: &str) -> Vec<Vec<String>> {
    let from = text.lines().skip_while(|line| *line != head);
    let rows = from.skip(2).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        inner.split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    rows.map(cells).collect()
}

/// What a cell names: all that is in backticks.
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

/// What the tables may name.
struct Sources {
    conformance: String,
    ledger: String,
    /// What TLC is told to check.
    checked: BTreeSet<String>,
}

impl Sources {
    fn here() -> Self {
        let cfgs = read_all("specs/tla/cfg", ".cfg") + &read("specs/tla/checks.toml");
        let words = cfgs.split(|c: char| !c.is_ascii_alphanumeric());
        Self {
            conformance: read_all("crates/pillarbox-testing/src/conformance", ".rs"),
            ledger: in_one_line(
                &(read("crates/pillarbox-core/src/lease/tests.rs")
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

    /// An operator of a module, which TLC is told to check: `Module!Operator`.
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
            // What has nothing to name says why.
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

/// The text with one thing changed, which must be there.
fn with(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old}");
    text.replacen(old, new, 1)
}

#[test]
fn whatever_is_wrong_with_a_table_is_found() {
    let (design, verification) = (read("docs/design.md"), read("docs/verification.md"));
    let sources = Sources::here();
    let find = |design: &str, verification: &str| problems(design, verification, &sources);

    let row = verification.lines().find(|line| line.starts_with("| `fifo` ")).unwrap();
    let found = |old: &str, new: &str| find(&design, &with(&verification, old, new));
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
