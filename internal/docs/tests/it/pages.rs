//! Links are valid, every page is in the book, every block is checked by some test, and the rules and tests that
//! pages name exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_norway::Value;

use crate::common::{Page, links, page, pages, quoted, read, root, rust_files, table};

/// Returns the broken links of a page.
fn broken_links(page: &Page) -> Vec<String> {
    let directory = Path::new(&page.path).parent().unwrap();
    let mut broken = Vec::new();
    for (number, line) in page.prose() {
        for link in links(line) {
            let problem = |what: &str| format!("{}:{number}: {link}: {what}", page.path);
            if link.starts_with("http://") || link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').map_or((link, None), |(f, a)| (f, Some(a)));
            let path = match file {
                "" => page.path.clone(),
                _ => directory.join(file).to_str().unwrap().to_owned(),
            };
            if !root().join(&path).exists() {
                broken.push(problem("there is no such file"));
            } else if let Some(anchor) = anchor
                && !crate::common::page(&path).anchors().iter().any(|there| there == anchor)
            {
                broken.push(problem("there is no such heading"));
            }
        }
    }
    broken
}

#[test]
fn every_link_leads_somewhere() {
    let broken: Vec<_> = pages().iter().flat_map(broken_links).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let text = "See [here](workers.md#options), [there](nowhere.md), [below](#nothing), \
                [the web](https://example.com) and `[this](is code)`.\n\n```text\n[x](y)\n```\n";
    let page = Page { path: "docs/faq.md".to_owned(), text: text.to_owned() };
    assert_eq!(
        broken_links(&page),
        [
            "docs/faq.md:1: nowhere.md: there is no such file",
            "docs/faq.md:1: #nothing: there is no such heading",
        ]
    );
}

#[test]
fn every_page_is_in_the_book() {
    let summary = page("docs/SUMMARY.md");
    let chapters: BTreeSet<_> = summary.text.lines().flat_map(links).collect();
    for page in pages() {
        let Some(name) = page.path.strip_prefix("docs/") else { continue };
        let is_listed = name == "SUMMARY.md" || chapters.contains(name);
        assert!(is_listed, "{name} is not in docs/SUMMARY.md");
    }
}

/// Every block has a known language, which determines its check.
#[test]
fn every_block_is_checked() {
    for page in pages() {
        for block in page.blocks() {
            let place = format!("{}:{}", page.path, block.line);
            let text = block.text();
            match block.language {
                // Doctests.
                "rust" | "rust,no_run" => {}
                // Run by console.rs and similar tests, parsed by the tests of the command.
                "console" | "sh" => {}
                // Not checked.
                "text" => {}
                "json" => {
                    for value in serde_json::Deserializer::from_str(&text).into_iter() {
                        let _: serde_json::Value = value.unwrap_or_else(|e| panic!("{place}: {e}"));
                    }
                }
                "toml" => {
                    let _: toml::Table = text.parse().unwrap_or_else(|e| panic!("{place}: {e}"));
                }
                "yaml" => {
                    let value = serde_norway::from_str(&text);
                    let _: Value = value.unwrap_or_else(|e| panic!("{place}: {e}"));
                }
                // Programs of other projects, which the text before them names.
                "typescript" | "python" => {
                    assert_eq!(page.path, "docs/migration.md", "{place}");
                    let before: Vec<_> = page.text.lines().take(block.line - 1).collect();
                    let before = before.join("\n").to_lowercase();
                    let note = format!("({}):", block.language);
                    assert!(before.trim_end().ends_with(&note), "{place}");
                }
                other => panic!("{place}: unknown language '{other}'"),
            }
        }
    }
}

#[test]
fn every_page_with_programs_is_compiled() {
    let compiled = read("internal/docs/src/lib.rs");
    for page in pages() {
        let has_programs = page.blocks().iter().any(|block| block.language.starts_with("rust"));
        let is_compiled = compiled.contains(&format!("\"{}\"", page.path));
        assert!(is_compiled || !has_programs, "{} is not in lib.rs", page.path);
    }
}

/// Programs that are also files, to run them: the page has the whole file except for its first line.
#[test]
fn programs_that_are_files_are_on_their_pages() {
    for (path, file) in [
        ("docs/tutorial.md", "internal/docs/src/bin/tutorial.rs"),
        ("docs/writing-a-backend.md", "internal/docs/tests/it/shelf.rs"),
    ] {
        let file = read(file);
        let (first, program) = file.split_once("\n\n").unwrap();
        assert!(first.starts_with("//! "), "{first}");
        assert!(page(path).text.contains(program.trim_end()), "{path} has another program");
    }
}

#[test]
fn the_guarantees_name_every_rule_of_the_contract() {
    let (design, guarantees) = (read("docs/design.md"), read("docs/guarantees.md"));
    let rules = table(&design, "| id | rule | tests |");
    let rules: BTreeSet<_> = rules.iter().flat_map(|row| quoted(row[0])).collect();
    let promises = table(&guarantees, "| guarantee | rules | holds on |");
    let named: Vec<_> = promises.iter().flat_map(|row| quoted(row[1])).collect();
    assert!(rules.len() > 20, "{rules:?}");
    assert!(promises.iter().all(|row| row.len() == 3 && !quoted(row[1]).is_empty()));
    let once: BTreeSet<_> = named.iter().copied().collect();
    assert_eq!(once.len(), named.len(), "a rule is named twice: {named:?}");
    assert_eq!(once, rules);
}

#[test]
fn the_tests_that_answer_a_question_are_there() {
    let faq = page("docs/faq.md");
    let sources: String = rust_files().into_iter().map(|(_, text)| text).collect();
    let mut questions = 0;
    let answers = faq.text.split("\n## ").skip(1);
    for answer in answers.filter(|answer| !answer.starts_with("General questions")) {
        let (question, _) = answer.split_once('\n').unwrap();
        let (_, shown) = answer.split_once("\nShown by ").unwrap_or_else(|| panic!("{question}"));
        let tests: Vec<_> = quoted(shown);
        assert!(!tests.is_empty(), "{question}");
        for test in tests {
            assert!(sources.contains(&format!("fn {test}(")), "{question}: no test '{test}'");
        }
        questions += 1;
    }
    assert!(questions >= 11, "{questions} questions");
}

#[test]
fn diagrams_are_as_their_script_draws_them() {
    let mut script = Command::new("python3");
    script.args(["scripts/diagrams.py", "--check", "docs/pictures"]).current_dir(root());
    let output = script.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the make targets that a text names: in backticks, after a prompt, or in a step of a workflow.
fn make_targets(text: &str) -> Vec<&str> {
    let typed = text.lines().filter_map(|line| {
        let starts = ["    make ", "$ make ", "run: make ", "- run: make "];
        starts.iter().find_map(|start| {
            line.strip_prefix(start).or_else(|| line.trim_start().strip_prefix(start))
        })
    });
    let named = text.split('`').filter_map(|part| part.strip_prefix("make "));
    let words = typed.chain(named).filter_map(|rest| rest.split_whitespace().next());
    let target = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    words.filter(target).collect()
}

#[test]
fn every_make_target_that_is_named_is_there() {
    let makefile = read("Makefile");
    let is_there = |target: &str| makefile.contains(&format!("\n{target}: "));
    let mut texts = pages();
    texts.extend(["CONTRIBUTING.md", "specs/tla/README.md"].map(page));
    texts.extend([".github/workflows/ci.yml", ".github/workflows/verify.yml"].map(page));
    for text in texts {
        let targets = make_targets(&text.text);
        assert!(!text.path.starts_with(".github") || targets.len() > 3, "{}", text.path);
        for target in targets {
            assert!(is_there(target), "{}: there is no 'make {target}'", text.path);
        }
    }
    assert!(!is_there("nothing"));
}

#[test]
fn a_make_target_is_found_wherever_it_is_named() {
    let text = "Run `make one ROUNDS=3`, then\n\n    make two    # a comment\n\n```console\n$ make three\n```\n\
                \x20     - run: make four\nmake five no sense.\n";
    assert_eq!(make_targets(text), ["two", "three", "four", "one"]);
}
