//! The tables of docs/urls.md match the schemes, parameters and defaults of the code.

use std::collections::BTreeSet;

use pillarbox::redis::RedisOptions;
use pillarbox::sqlite::SqliteOptions;
use pillarbox::sqs::SqsOptions;

use crate::common::{quoted, read, rust_files, table};

const PAGE: &str = "docs/urls.md";

/// A backend: its section of the page, the file that parses its URLs, and its parser.
struct Backend {
    section: &'static str,
    source: &'static str,
    /// URLs that take parameters, each up to where a parameter can be appended.
    bases: &'static [&'static str],
    /// Returns the options of a URL as text, or `None` if the URL is refused.
    parse: fn(&str) -> Option<String>,
}

const BACKENDS: [Backend; 3] = [
    Backend {
        section: "SQLite",
        source: "crates/pillarbox-sqlite/src/options.rs",
        bases: &["sqlite:f?"],
        parse: |url| SqliteOptions::from_url(url).ok().map(|options| format!("{options:?}")),
    },
    Backend {
        section: "Redis",
        source: "crates/pillarbox-redis/src/options.rs",
        bases: &[
            "redis://h?",
            "redis+unix:///s?",
            "redis-sentinel://h/s?",
            "redis-cluster://h?",
            // A certificate and its key are accepted only together.
            "rediss://h?cert=f&",
            "rediss://h?key=f&",
            "rediss://h?",
        ],
        parse: |url| RedisOptions::from_url(url).ok().map(|options| format!("{options:?}")),
    },
    Backend {
        section: "SQS",
        source: "crates/pillarbox-sqs/src/options.rs",
        bases: &["sqs://r?", "sqs+http://h?"],
        parse: |url| SqsOptions::from_url(url).ok().map(|options| format!("{options:?}")),
    },
];

/// Values of which every parameter accepts at least one.
const VALUES: [&str; 7] = ["true", "2", "2048", "normal", "umask", "f.pem", "eu-west-1"];

impl Backend {
    /// Returns the section of the page.
    fn text<'a>(&self, page: &'a str) -> &'a str {
        let (_, text) = page.split_once(&format!("\n## {}\n", self.section)).unwrap();
        text.split("\n## ").next().unwrap()
    }

    /// Returns the parameters of all schemes of the backend, each with its default.
    fn defaults<'a>(&self, page: &'a str) -> Vec<(&'a str, &'a str)> {
        let rows = table(self.text(page), "| parameter | default | effect |");
        rows.into_iter().map(|row| (name(&row), row[1])).collect()
    }

    /// Returns all documented parameters, including those of some schemes only.
    fn documented<'a>(&self, page: &'a str) -> Vec<&'a str> {
        let special = table(self.text(page), "| parameter | schemes | effect |");
        let names = self.defaults(page).into_iter().map(|(name, _)| name);
        names.chain(special.iter().map(|row| name(row))).collect()
    }

    fn accepts(&self, parameter: &str) -> bool {
        let is_valid = |url: String| (self.parse)(&url).is_some();
        let accepts =
            |base: &&str| VALUES.iter().any(|value| is_valid(format!("{base}{parameter}={value}")));
        self.bases.iter().any(accepts)
    }

    /// Returns the parameters that the parser accepts, out of all words of its source.
    fn accepted(&self) -> BTreeSet<String> {
        let source = read(self.source);
        let words = source.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let words: BTreeSet<_> = words.filter(|word| !word.is_empty()).collect();
        assert!(words.len() > 100, "{words:?}");
        words.into_iter().filter(|word| self.accepts(word)).map(str::to_owned).collect()
    }
}

/// Returns the name of the parameter in the first cell of a row.
fn name<'a>(row: &[&'a str]) -> &'a str {
    quoted(row[0])[0].split('=').next().unwrap()
}

#[test]
fn every_parameter_of_a_url_is_documented_and_accepted() {
    let page = read(PAGE);
    for backend in &BACKENDS {
        let documented = backend.documented(&page);
        let once: BTreeSet<_> = documented.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(once.len(), documented.len(), "{}: {documented:?}", backend.section);
        assert_eq!(once, backend.accepted(), "{}", backend.section);
        assert!(!backend.accepts("nonsense"), "{}", backend.section);
    }
}

/// A default in backticks can be written into the URL, and changes nothing.
#[test]
fn the_documented_defaults_are_those_of_the_code() {
    let page = read(PAGE);
    for backend in &BACKENDS {
        let base = backend.bases[0];
        let (plain, mut checked) = ((backend.parse)(base), 0);
        assert!(plain.is_some(), "{base}");
        for (name, default) in backend.defaults(&page) {
            let Some(value) = quoted(default).first().copied() else { continue };
            assert_eq!((backend.parse)(&format!("{base}{name}={value}")), plain, "{name}={value}");
            checked += 1;
        }
        assert!(checked >= 4, "{}: {checked} defaults", backend.section);
    }
}

#[test]
fn every_scheme_is_documented_with_its_feature() {
    let page = read(PAGE);
    let rows = table(&page, "| scheme | form | backend | cargo feature |");
    let documented: BTreeSet<_> = rows.iter().map(|row| quoted(row[0])[0]).collect();
    let known: BTreeSet<_> =
        pillarbox::url_forms().map(|form| form.split(':').next().unwrap()).collect();
    assert_eq!(documented, known);
    for row in rows {
        let expected = match quoted(row[0])[0] {
            "memory" => None,
            scheme if scheme.starts_with("rediss") => Some("redis-tls"),
            scheme => scheme.split(['+', '-']).next(),
        };
        assert_eq!(quoted(row[3]).first().copied(), expected, "{}", row[0]);
    }
}

/// Every environment variable that the library or the command reads by name is on the page.
#[test]
fn every_environment_variable_is_documented() {
    let page = read(PAGE);
    let is_variable =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let mut found = BTreeSet::new();
    for (path, text) in rust_files() {
        let is_ours = path.starts_with("crates/") && path.contains("/src/");
        if !is_ours || path.starts_with("crates/pillarbox-testing/") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let lines =
            code.lines().filter(|line| line.contains("env::var") || line.contains(" env = "));
        let literals = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
        found.extend(literals.filter(|name| is_variable(name)).map(str::to_owned));
    }
    assert!(found.len() >= 5, "{found:?}");
    for name in found {
        assert!(page.contains(&format!("`{name}`")), "{name} is not documented");
    }
}
