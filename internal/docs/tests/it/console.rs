//! Runs the commands of the pages and compares their output with the pages.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Page, page, pages};
use pillarbox::prelude::*;
use pillarbox::sqlite::rusqlite::Connection;
use pillarbox_testing::server::RedisServer;
use tempfile::TempDir;

/// A command of a console block, and its output.
struct Step {
    command: String,
    prints: Vec<String>,
}

/// Commands that are not run: they build, create a project or change into it, or belong to another program.
const LEFT_OUT: [&str; 9] = [
    "make ",
    "cargo install ",
    "cargo new ",
    "cd ",
    "sqlite3 ",
    "redis-cli ",
    "pillarbox-bench ",
    "pillarbox completions ",
    "pillarbox man ",
];

/// Returns the commands of a page in order.
fn steps(page: &Page) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in page.blocks().iter().filter(|block| block.language == "console") {
        for line in &block.lines {
            match line.strip_prefix("$ ") {
                Some(command) => steps.push(Step { command: command.into(), prints: Vec::new() }),
                None => steps.last_mut().unwrap().prints.push((*line).to_owned()),
            }
        }
    }
    steps.retain(|step| !LEFT_OUT.iter().any(|left_out| step.command.starts_with(left_out)));
    steps
}

/// Whether a printed word matches the page, except for values that change between runs: ids and receipts,
/// which are remembered for later commands, ages, times and names of workers.
fn same(written: &str, printed: &str, known: &mut Vec<(String, String)>) -> bool {
    let age = |word: &str| {
        let word = word.trim_start_matches('(').trim_end_matches("left").trim_end_matches(',');
        word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(['s', 'm', 'h'])
    };
    if written.starts_with('{') {
        let texts = |json: &str| json.split(|c: char| c.is_ascii_digit()).collect::<String>();
        return texts(written) == texts(printed);
    }
    if written.len() >= 36 && written.len() == printed.len() && written.contains('-') {
        known.push((written.to_owned(), printed.to_owned()));
        return true;
    }
    let moment = |word: &str| word.contains('T') && word.ends_with('Z') && word.len() >= 20;
    let worker = |word: &str| word.contains('/') && word.contains('@');
    let alike = [&age as &dyn Fn(&str) -> bool, &moment, &worker];
    written == printed || alike.iter().any(|is_one| is_one(written) && is_one(printed))
}

/// Returns the directory of the built programs.
fn built() -> PathBuf {
    let here = Path::new(env!("CARGO_BIN_EXE_tutorial")).parent().unwrap().to_owned();
    let build = "cargo build --workspace --all-features";
    assert!(here.join("pillarbox").exists(), "the command is not built: {build}");
    here
}

/// Creates a directory with a `cargo` whose `cargo run` is the program of the tutorial.
fn shims() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let cargo = directory.path().join("cargo");
    let program = env!("CARGO_BIN_EXE_tutorial");
    fs::write(&cargo, format!("#!/bin/sh\n[ \"$*\" = 'run -q' ] && exec '{program}'\n")).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// Runs the commands of a page in an empty directory, and compares their output.
fn follow(page: &Page, at_least: usize) {
    let place = tempfile::tempdir().unwrap();
    let shims = shims();
    let steps = steps(page);
    assert!(steps.len() >= at_least, "{} steps", steps.len());
    let mut known: Vec<(String, String)> = Vec::new();
    let first = format!("{}:{}", shims.path().display(), built().display());
    let path = format!("{first}:{}", std::env::var("PATH").unwrap());
    for Step { command, mut prints } in steps {
        let mut line = command.clone();
        // Receipts first, because they contain ids.
        known.sort_by_key(|(written, _)| std::cmp::Reverse(written.len()));
        for (written, printed) in &known {
            line = line.replace(written, printed);
        }
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("{line} 2>&1")]).env("PATH", &path).current_dir(place.path());
        shell.env_remove("PILLARBOX_URL").stdin(Stdio::null());
        let output = shell.output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let mut printed: Vec<&str> = stdout.lines().collect();
        if command.starts_with("cargo run") {
            // Several workers print in any order.
            prints.sort();
            printed.sort();
        }
        assert_eq!(printed.len(), prints.len(), "{}: {command}:\n{stdout}", page.path);
        for (written, printed) in prints.iter().zip(printed) {
            let words: Vec<_> = written.split_whitespace().collect();
            let found: Vec<_> = printed.split_whitespace().collect();
            let agree = words.len() == found.len()
                && words.iter().zip(&found).all(|(word, found)| same(word, found, &mut known));
            assert!(agree, "{}: {command}\n  written: {written}\n  printed: {printed}", page.path);
        }
    }
}

#[test]
fn the_readme_prints_what_it_says() {
    follow(&page("README.md"), 2);
}

#[test]
fn the_tutorial_prints_what_it_says() {
    follow(&page("docs/tutorial.md"), 15);
}

#[test]
fn the_page_on_operations_prints_what_it_says() {
    follow(&page("docs/operations.md"), 6);
}

#[test]
fn the_page_on_migration_prints_what_it_says() {
    follow(&page("docs/migration.md"), 5);
}

#[test]
fn the_page_on_dead_letters_prints_what_it_says() {
    let cli = page("docs/cli.md");
    let (_, text) = cli.text.split_once("\n## Dead letters\n").unwrap();
    follow(&Page { path: cli.path, text: text.to_owned() }, 8);
}

/// Every page with commands is run.
#[test]
fn every_page_with_a_console_is_followed() {
    let followed =
        ["README.md", "docs/cli.md", "docs/migration.md", "docs/operations.md", "docs/tutorial.md"];
    for page in pages() {
        let is_followed = followed.contains(&page.path.as_str());
        assert!(is_followed || steps(&page).is_empty(), "{} is not followed", page.path);
    }
}

#[tokio::test]
async fn the_queries_of_the_page_on_sqlite_can_be_asked() {
    let page = page("docs/sqlite.md");
    let lines = page.blocks().into_iter().flat_map(|block| block.lines);
    let queries: Vec<_> = lines
        .filter(|line| line.starts_with("$ sqlite3 "))
        .filter_map(|line| line.split('\'').nth(1))
        .collect();
    assert!(queries.len() >= 2, "{queries:?}");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("jobs.db");
    let backend = pillarbox::open(&format!("sqlite:{}", file.display())).await.unwrap();
    let jobs: Mailbox<String> = backend.mailbox("jobs").unwrap();
    jobs.send(&"sweep".to_owned()).await.unwrap();
    let looking = Connection::open(&file).unwrap();
    for query in queries {
        let found: String =
            looking.query_row(query, [], |row| row.get("queue").or_else(|_| row.get(0))).unwrap();
        assert_eq!(found, "jobs", "{query}");
    }
}

#[tokio::test]
async fn the_commands_of_the_page_on_redis_can_be_given() {
    let server = RedisServer::start();
    let backend = pillarbox::open(&server.url()).await.unwrap();
    let jobs: Mailbox<String> = backend.mailbox("jobs").unwrap();
    for job in ["sweep", "dust"] {
        jobs.send(&job.to_owned()).await.unwrap();
    }
    let _in_flight = jobs.receive(Receive::one()).await.unwrap();
    let page = page("docs/redis.md");
    let lines = page.blocks().into_iter().flat_map(|block| block.lines);
    let commands: Vec<_> = lines.filter_map(|line| line.strip_prefix("$ redis-cli ")).collect();
    assert!(commands.len() >= 5, "{commands:?}");
    let id = server.command(&["LRANGE", "{queue:jobs}:pending", "0", "0"]);
    for command in commands.iter().filter(|command| !command.contains("subscribe")) {
        let command = command.replace(" ID ", &format!(" '{}' ", id.trim()));
        // -e: an error of the server fails the command.
        let line = format!("redis-cli -e -p {} {command}", server.port());
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !printed.trim().is_empty(), "{line}: {printed}");
    }
}
