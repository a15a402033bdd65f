//! Compares the cost of a message on the hot paths with the recorded cost in `costs.toml`.
//!
//! Valgrind counts instructions and allocations, with the same result on a busy machine. Each path runs with a few
//! batches and with many; the difference excludes the cost of the start. The build is that of the tests, which
//! optimises the core and the SQLite backend and little else: the counts reflect what the program does, more than how
//! well the compiler does it.
//!
//! After an intended change, `make accept-costs` updates the file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use pillarbox_testing::server::RedisServer;
use serde::{Deserialize, Serialize};

/// Largest factor against the recorded cost: allows for another compiler or allocator.
const INSTRUCTIONS: f64 = 1.15;
const ALLOCATIONS: f64 = 1.05;

const FEW: usize = 10;
const MANY: usize = 60;
const BATCH: usize = 10;

/// Cost of one message.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Cost {
    instructions: f64,
    allocations: f64,
}

/// Runs the program under a valgrind tool, and returns the number after `before` in its output.
#[track_caller]
fn counted(options: &[&str], before: &str, path: &str, batches: usize, url: &str) -> f64 {
    let output = Command::new("valgrind")
        .args(options)
        .arg(env!("CARGO_BIN_EXE_pillarbox-costs"))
        .args([path, &batches.to_string(), url])
        .output()
        .unwrap_or_else(|error| {
            panic!("cannot run valgrind, which `make setup` installs: {error}")
        });
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let figure = text.split(before).nth(1).and_then(|rest| rest.split_whitespace().next());
    let figure =
        figure.map(|figure| figure.replace(',', "")).and_then(|figure| figure.parse().ok());
    figure.unwrap_or_else(|| panic!("no figure after {before:?}: {text}"))
}

/// Returns the cost of a message on a path.
#[track_caller]
fn cost(path: &str, url: impl Fn() -> String) -> Cost {
    let each = |options: &[&str], before: &str| {
        let [few, many] =
            [FEW, MANY].map(|batches| counted(options, before, path, batches, &url()));
        (many - few) / ((MANY - FEW) * BATCH) as f64
    };
    Cost {
        instructions: each(&["--tool=callgrind", "--callgrind-out-file=/dev/null"], "Collected :")
            .round(),
        allocations: (each(&["--tool=dhat", "--dhat-out-file=/dev/null"], "bytes in ") * 10.0)
            .round()
            / 10.0,
    }
}

#[track_caller]
fn hold(name: &str, path: &str, url: impl Fn() -> String) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/costs.toml");
    let read = || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        toml::from_str::<BTreeMap<String, Cost>>(&text).expect("costs.toml is valid")
    };
    let now = cost(path, url);
    if std::env::var_os("PILLARBOX_ACCEPT").is_some() {
        // One at a time: each test is a process.
        let lock = std::fs::File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/costs.lock"))
            .expect("a lock");
        lock.lock().expect("locked");
        let mut all = read();
        all.insert(name.to_owned(), now);
        let text = toml::to_string(&all).expect("TOML");
        std::fs::write(
            file,
            format!(
                "# Cost of a message, in the build of the tests: see tests/costs.rs.\n\n{text}"
            ),
        )
        .expect("written");
        return;
    }
    let before = *read().get(name).unwrap_or_else(|| panic!("costs.toml has no '{name}': {now:?}"));
    println!("{name}: {now:?}, before: {before:?}");
    let advice = "make it cheaper, or accept the new cost with `make accept-costs`";
    for (what, now, before, most) in [
        ("instructions", now.instructions, before.instructions, INSTRUCTIONS),
        ("allocations", now.allocations, before.allocations, ALLOCATIONS),
    ] {
        assert!(
            now <= before * most,
            "a message costs {now} {what} on {name} and was {before}: {advice}"
        );
    }
}

fn memory() -> String {
    "memory:".to_owned()
}

/// Returns a new file for each run.
fn file(directory: &Path) -> String {
    let name = std::fs::read_dir(directory).expect("a directory").count();
    format!("sqlite:{}", directory.join(format!("{name}.db")).display())
}

#[test]
fn a_message_in_memory_costs_no_more_than_it_did() {
    hold("memory cycle", "cycle", memory);
}

#[test]
fn a_typed_message_in_memory_costs_no_more_than_it_did() {
    hold("memory typed", "typed", memory);
}

#[test]
fn a_message_of_a_worker_in_memory_costs_no_more_than_it_did() {
    hold("memory worker", "worker", memory);
}

#[test]
fn a_message_in_a_file_costs_no_more_than_it_did() {
    let directory = tempfile::tempdir().expect("a directory");
    hold("sqlite cycle", "cycle", || file(directory.path()));
}

#[test]
fn a_message_on_redis_costs_a_client_no_more_than_it_did() {
    let server = RedisServer::start();
    hold("redis cycle", "cycle", || server.url());
}

/// The server runs one command per batch, whatever its size.
#[test]
fn a_batch_on_redis_is_three_commands() {
    let server = RedisServer::start();
    let calls = || -> u64 {
        let stats = server.command(&["INFO", "commandstats"]);
        let lines = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
        lines.filter_map(|line| line.split(['=', ',']).nth(1)?.parse::<u64>().ok()).sum()
    };
    let run = |batches: usize| {
        let before = calls();
        let done = Command::new(env!("CARGO_BIN_EXE_pillarbox-costs"))
            .args(["cycle", &batches.to_string(), &server.url()])
            .status();
        assert!(done.expect("it runs").success());
        calls() - before
    };
    // The first run loads the scripts.
    run(1);
    assert_eq!(run(MANY) - run(FEW), 3 * (MANY - FEW) as u64);
}
