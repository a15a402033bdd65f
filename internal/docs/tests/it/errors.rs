//! docs/errors.md lists every error type, and every variant of those that are enums.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{Error, MessageId, QueueName, Receipt};
use syn::Item;

use crate::common::{quoted, read, rust_files, table};

const PAGE: &str = "docs/errors.md";

/// Heads of the tables of variants.
const HEADS: [&str; 5] = [
    "| variant | transient | when | what to do |",
    "| variant | when | retry | what to do |",
    "| variant | when | what to do |",
    "| kind | when | retry |",
    "| kind | when | class |",
];

/// Enums of the page, each with its file. The section of an enum has its name in backticks as its heading.
const ENUMS: [(&str, &str); 8] = [
    ("Error", "crates/pillarbox-core/src/error.rs"),
    ("CallError", "crates/pillarbox-runtime/src/loops/client/mod.rs"),
    ("RemoteErrorKind", "crates/pillarbox-runtime/src/loops/message.rs"),
    ("GroupError", "crates/pillarbox-runtime/src/group/report.rs"),
    ("LoopFailure", "crates/pillarbox-runtime/src/runnable.rs"),
    ("FailureKind", "crates/pillarbox-runtime/src/outcome.rs"),
    ("EvalError", "crates/pillarbox-evals/src/error.rs"),
    ("DatasetError", "crates/pillarbox-evals/src/dataset.rs"),
];

/// Returns the variants of an enum.
fn variants(name: &str, path: &str) -> BTreeSet<String> {
    let file = syn::parse_file(&read(path)).unwrap();
    let found = file.items.into_iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == name => Some(item),
        _ => None,
    });
    let found = found.unwrap_or_else(|| panic!("{path} has no enum {name}"));
    found.variants.iter().map(|variant| variant.ident.to_string()).collect()
}

/// Returns the rows of the first table below the heading of an enum.
fn rows<'a>(page: &'a str, name: &str) -> Vec<Vec<&'a str>> {
    let (_, section) = page
        .split_once(&format!("# `{name}`\n"))
        .unwrap_or_else(|| panic!("{PAGE} has no section {name}"));
    let head = section.lines().find(|line| HEADS.contains(line));
    table(section, head.unwrap_or_else(|| panic!("{name} has no table")))
}

#[test]
fn every_variant_of_an_error_is_documented() {
    let page = read(PAGE);
    for (name, path) in ENUMS {
        let rows = rows(&page, name);
        let documented: BTreeSet<_> = rows.iter().map(|row| quoted(row[0])[0].to_owned()).collect();
        assert_eq!(documented.len(), rows.len(), "{name}");
        assert_eq!(documented, variants(name, path), "{name}");
    }
}

/// All error types of the crates define their `Debug` form by one macro.
#[test]
fn every_error_type_is_documented() {
    let page = read(PAGE);
    let mut found = BTreeSet::new();
    for (path, text) in rust_files() {
        if !path.starts_with("crates/") || !path.contains("/src/") {
            continue;
        }
        for after in text.split("__error_debug!(").skip(1) {
            let after = after.trim_start();
            let name = after.strip_prefix("enum ").or_else(|| after.strip_prefix("struct "));
            let end = |c: char| !c.is_alphanumeric();
            found.extend(name.and_then(|name| name.split(end).next()).map(str::to_owned));
        }
    }
    assert!(found.len() >= 12 && found.contains("Error"), "{found:?}");
    for name in found {
        let is_documented = [format!("`{name}`"), format!("::{name}`")];
        assert!(is_documented.iter().any(|form| page.contains(form)), "{name} is not documented");
    }
}

/// Returns an error of each variant.
fn errors() -> Vec<(&'static str, Error)> {
    let queue: QueueName = "orders".parse().unwrap();
    let id = MessageId::new();
    let cause = || -> pillarbox::Cause { Arc::new(std::io::Error::other("because")) };
    let receipt: Receipt = "some".parse().unwrap();
    let (action, codec, cooldown) = ("decode", "JSON", Duration::from_secs(60));
    vec![
        ("ReceiptHandleExpired", Error::ReceiptHandleExpired { queue: queue.clone(), receipt }),
        ("MailboxFull", Error::MailboxFull { queue: queue.clone(), id: None, max_size: None }),
        ("PurgeCooldown", Error::PurgeCooldown { queue: queue.clone(), cooldown }),
        (
            "Serialization",
            Error::Serialization { queue: queue.clone(), id, action, codec, cause: cause() },
        ),
        ("Connection", Error::connection(Some(&queue), "send", "because")),
        (
            "ReplyMailboxUnavailable",
            Error::ReplyMailboxUnavailable { queue: queue.clone(), id, cause: cause() },
        ),
        ("InvalidParameter", Error::invalid(Some(&queue), "delay", "1 h", "0 to 900 s")),
        ("Closed", Error::Closed { queue: None }),
    ]
}

#[test]
fn the_page_says_which_errors_are_transient() {
    let page = read(PAGE);
    let rows = rows(&page, "Error");
    let errors = errors();
    assert_eq!(errors.len(), rows.len());
    for (variant, error) in errors {
        let row = rows.iter().find(|row| quoted(row[0])[0] == variant).unwrap();
        assert_eq!(row[1], if error.is_transient() { "yes" } else { "no" }, "{variant}");
    }
}
