//! `docs/seeds.md` maps every item of the specification to code. Every pointer is valid, every row has a pointer
//! or a reason, and no row is open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::rc::Rc;

use crate::common::{METRICS, cells, links, quoted, read, root, rust_files, table};

const PAGE: &str = "docs/seeds.md";
const ITEMS: &str = "| item | here | difference |";
const COUNTS: &str = "| document | items | the same | different |";
/// Marks a row that is not filled in yet.
const OPEN: &str = "OPEN";

/// A row of the page.
struct Row<'a> {
    /// Its document.
    document: &'a str,
    line: usize,
    item: &'a str,
    here: &'a str,
    difference: &'a str,
}

/// Returns all rows, and errors of their form.
fn rows(text: &str) -> (Vec<Row<'_>>, Vec<String>) {
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    let (mut document, mut is_items) = ("", false);
    for (line, text) in text.lines().enumerate() {
        let line = line + 1;
        document = text.strip_prefix("## ").unwrap_or(document);
        is_items = text == ITEMS || is_items && text.starts_with('|');
        if !is_items || text == ITEMS || text.starts_with("|---") {
            continue;
        }
        match cells(text)[..] {
            [item, here, difference] => {
                rows.push(Row { document, line, item, here, difference });
            }
            ref other => problems.push(format!("{PAGE}:{line}: {} cells, not 3", other.len())),
        }
    }
    (rows, problems)
}

/// Valid targets of pointers.
struct Sources {
    /// Public type name → files that define it or have an `impl` of it.
    types: BTreeMap<String, Vec<Rc<str>>>,
    functions: BTreeSet<String>,
    tests: BTreeSet<String>,
    targets: BTreeSet<String>,
    metrics: BTreeSet<String>,
}

impl Sources {
    fn here() -> Self {
        let mut types = BTreeMap::<_, Vec<_>>::new();
        let (mut functions, mut tests) = (BTreeSet::new(), BTreeSet::new());
        for (path, text) in rust_files() {
            tests.extend(tests_of(&path, &text));
            if path.starts_with("crates/") && path.contains("/src/") {
                functions.extend(words_after(&text, &["pub fn", "pub async fn", "pub const fn"]));
                let kinds = ["pub struct", "pub enum", "pub trait", "pub type"];
                let mut names = words_after(&text, &kinds);
                names.extend(text.lines().filter_map(inherent_impl));
                let text: Rc<str> = text.into();
                for name in names {
                    types.entry(name).or_default().push(text.clone());
                }
            }
        }
        let first = |line: &str, end: &str| line.split_once(end).map(|(first, _)| first.to_owned());
        let metrics = read("docs/metrics.md");
        Self {
            types,
            functions,
            tests,
            targets: read("Makefile").lines().filter_map(|line| first(line, ":")).collect(),
            metrics: table(&metrics, METRICS).into_iter().map(|row| row[0].to_owned()).collect(),
        }
    }

    /// Returns what is wrong with a pointer.
    fn check(&self, pointer: &str) -> Result<(), String> {
        let found = |is_found: bool, what: &str| {
            if is_found { Ok(()) } else { Err(format!("no {what} '{pointer}'")) }
        };
        if let Some(target) = pointer.strip_prefix("make ") {
            found(self.targets.contains(target), "target")
        } else if let Some((path, text)) = pointer.split_once(": ") {
            let places = [root().join(path), root().join("crates").join(path)];
            let file = places.iter().find_map(|place| fs::read_to_string(place).ok());
            let file = file.ok_or_else(|| format!("no file '{path}'"))?;
            if file.contains(text) { Ok(()) } else { Err(format!("no '{text}' in '{path}'")) }
        } else if pointer.starts_with(|c: char| c.is_ascii_uppercase()) {
            let (owner, item) = pointer.split_once("::").unwrap_or((pointer, ""));
            let mut files = self.types.get(owner).into_iter().flatten();
            found(files.any(|text| has_item(text, item)), "public item")
        } else if let Some(name) = pointer.strip_suffix("()") {
            found(self.functions.contains(name), "public function")
        } else if pointer.chars().all(is_word) {
            found(self.tests.contains(pointer), "test")
        } else {
            found(self.metrics.contains(&format!("`{pointer}`")), "metric")
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the type of an inherent `impl` that starts in this line.
fn inherent_impl(line: &str) -> Option<String> {
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0
        })?;
        rest = &rest[end + 1..];
    }
    let name = rest.trim_start().split(|c| !is_word(c)).next()?;
    (!rest.contains(" for ")).then(|| name.to_owned())
}

/// Returns the words that follow one of these.
fn words_after(text: &str, starts: &[&str]) -> Vec<String> {
    let after = |line: &str| {
        let rest = starts.iter().find_map(|start| line.trim_start().strip_prefix(start))?;
        rest.trim_start().split(|c| !is_word(c)).next().map(str::to_owned)
    };
    text.lines().filter_map(after).collect()
}

/// Whether a file has a method, field, constant or variant of this name. False for an empty name.
fn has_item(text: &str, name: &str) -> bool {
    let is_it = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub ").unwrap_or(line);
        let rest = ["const fn ", "async fn ", "fn ", "const ", ""]
            .iter()
            .find_map(|start| line.strip_prefix(start)?.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with([',', '(', ' ', '{', ':', '<']))
    };
    name.is_empty() || text.lines().any(is_it)
}

/// Returns the names of test functions, of those that a macro defines from a list, and of the rules of the
/// conformance suite.
fn tests_of(path: &str, text: &str) -> Vec<String> {
    let mut tests = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else if let Some((before, after)) = line.split_once("fn ") {
            let is_rule = path.contains("/conformance/") && before == "pub async ";
            if is_test || is_rule {
                tests.extend(after.split('(').next().map(str::to_owned));
            }
            is_test = false;
        } else if let Some(name) = line.strip_suffix(';').filter(|name| name.chars().all(is_word))
            && path.contains("/tests/")
        {
            tests.push(name.to_owned());
        } else if !line.starts_with("//") {
            is_test = false;
        }
    }
    tests
}

/// Returns what is wrong with the page.
fn problems(text: &str, sources: &Sources) -> Vec<String> {
    let (rows, mut problems) = rows(text);
    for Row { line, item, here, difference, .. } in &rows {
        let mut problem = |what: &str| problems.push(format!("{PAGE}:{line}: {item}: {what}"));
        if item.is_empty() {
            problem("nothing is named");
        }
        if here.contains(OPEN) || difference.contains(OPEN) {
            problem("open");
            continue;
        }
        let pointers = quoted(here);
        if pointers.is_empty() && links(here).is_empty() && difference.is_empty() {
            problem("neither a pointer nor a reason");
        }
        for pointer in pointers {
            if let Err(what) = sources.check(pointer) {
                problem(&what);
            }
        }
    }
    problems.extend(wrong_counts(text, &rows));
    problems
}

/// Compares the counts at the end of the page with the rows.
fn wrong_counts(text: &str, rows: &[Row<'_>]) -> Vec<String> {
    let counts = |name: &str| {
        let its = rows.iter().filter(|row| name == "all" || row.document == name);
        let (same, other): (Vec<_>, Vec<_>) = its.partition(|row| row.difference.is_empty());
        let numbers = [same.len() + other.len(), same.len(), other.len()];
        let numbers = numbers.map(|number| number.to_string());
        [name.to_owned()].into_iter().chain(numbers).collect()
    };
    let documents: BTreeSet<_> = rows.iter().map(|row| row.document).collect();
    let counted: Vec<Vec<_>> = documents.into_iter().chain(["all"]).map(counts).collect();
    if table(text, COUNTS) == counted {
        return Vec::new();
    }
    let rows: Vec<_> = counted.iter().map(|row| format!("| {} |", row.join(" | "))).collect();
    vec![format!("{PAGE}: the counts should be\n{}", rows.join("\n"))]
}

#[test]
fn every_item_of_the_specification_is_somewhere_or_has_a_reason() {
    let text = read(PAGE);
    assert!(rows(&text).0.len() > 300, "the tables were not found");
    let problems = problems(&text, &Sources::here());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn whatever_is_wrong_with_a_row_is_found() {
    let sources = Sources::here();
    let found = |row: &str| {
        let text = format!("## A\n\n{ITEMS}\n|---|---|---|\n{row}\n");
        let problems = problems(&text, &sources);
        // The missing counts are reported in any case.
        problems.into_iter().filter(|problem| !problem.contains("counts")).collect::<Vec<_>>()
    };
    for right in [
        "| x | `Mailbox`, `Mailbox::send`, `Receive::visibility`, `Error::MailboxFull` | |",
        "| x | `Capabilities::MAX_VISIBILITY`, `build_service_stack()`, `make demo` | |",
        "| x | `a_receipt_settles_once`, `redis_agrees_with_the_ledger`, `dlq.queue.depth` | |",
        "| x | `pillarbox-core/src/lib.rs: pub mod`, `Makefile: demo:` | y |",
        "| x | [page](faq.md) | |",
        "| x | | none: y |",
    ] {
        assert_eq!(found(right), [""; 0], "{right}");
    }
    for wrong in [
        "| x | | |",
        "| | `Mailbox` | |",
        "| x | `Mailbox` |",
        "| x | `Mailbox` | OPEN |",
        "| x | `Postbox` | |",
        "| x | `Mail` | |",
        "| x | `Mailbox::dispatch` | |",
        "| x | `Mailbox::sen` | |",
        "| x | `Error::MailboxEmpty` | |",
        "| x | `unbuild_service_stack()` | |",
        "| x | `a_receipt_settles_twice` | |",
        "| x | `build_service_stack` | |",
        "| x | `make trouble` | |",
        "| x | `make dem` | |",
        "| x | `dlq.queue.width` | |",
        "| x | `pillarbox-core/src/lib.rs: not there` | |",
        "| x | `pillarbox-core/src/nowhere.rs: pub mod` | |",
    ] {
        assert_eq!(found(wrong).len(), 1, "{wrong}: {:?}", found(wrong));
    }
}

#[test]
fn wrong_counts_are_found() {
    let items = format!("## A\n\n{ITEMS}\n|---|---|---|\n| x | `Mailbox` | |\n| y | | z |\n\n");
    let counts = format!("{COUNTS}\n|---|---|---|---|\n| A | 2 | 1 | 1 |\n| all | 2 | 1 | 1 |\n");
    let sources = Sources::here();
    assert_eq!(problems(&(items.clone() + &counts), &sources), [""; 0]);
    let wrong = items + &counts.replace("| A | 2 | 1 |", "| A | 2 | 2 |");
    assert_eq!(problems(&wrong, &sources).len(), 1);
}
