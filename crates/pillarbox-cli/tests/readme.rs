//! The README, followed to the letter.

#![allow(clippy::unwrap_used, reason = "it is all tests")]
#![cfg(unix)]

mod common;

use std::process::{Command, Stdio};

use common::{Place, finish};

/// A line of a console block: the command, and the lines that it prints.
struct Step {
    command: String,
    prints: Vec<String>,
}

/// The commands of the README in order, but for those that build it.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match (inside, line) {
            (_, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, line) => match line.strip_prefix("$ ") {
                Some(command) => {
                    steps.push(Step { command: command.to_owned(), prints: Vec::new() });
                }
                None => steps.last_mut().unwrap().prints.push(line.to_owned()),
            },
            _ => {}
        }
    }
    steps
        .retain(|step| !step.command.starts_with("make ") && !step.command.starts_with("sqlite3 "));
    steps
}

/// Whether a word is printed as it was written, but for what changes from run to run: ids and
/// receipts, which are remembered for later commands, ages, moments and the names of workers.
fn same(written: &str, printed: &str, known: &mut Vec<(String, String)>) -> bool {
    let age = |word: &str| {
        let word = word.trim_start_matches('(').trim_end_matches("left").to_owned();
        word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(['s', 'm', 'h'])
    };
    if written.len() >= 36 && written.len() == printed.len() && written.contains('-') {
        known.push((written.to_owned(), printed.to_owned()));
        return true;
    }
    let moment = |word: &str| word.contains('T') && word.ends_with('Z') && word.len() >= 20;
    let worker = |word: &str| word.contains('/') && word.contains('@');
    let alike = [&age as &dyn Fn(&str) -> bool, &moment, &worker];
    written == printed || alike.iter().any(|is_one| is_one(written) && is_one(printed))
}

/// Types what a text says, and sees whether it prints what it says.
fn follow(text: &str, at_least: usize) {
    let place = Place::new();
    let steps = steps(text);
    assert!(steps.len() >= at_least, "{} steps", steps.len());
    let mut known: Vec<(String, String)> = Vec::new();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_pillarbox"));
    let path =
        format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    for Step { command, prints } in steps {
        let mut line = command.clone();
        // Receipts first, for they hold ids.
        known.sort_by_key(|(written, _)| std::cmp::Reverse(written.len()));
        for (written, printed) in &known {
            line = line.replace(written, printed);
        }
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("{line} 2>&1")]).env("PATH", &path).current_dir(place.path());
        shell.env_remove("PILLARBOX_URL").stdin(Stdio::null());
        let run = finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let printed: Vec<&str> = run.stdout.lines().collect();
        assert_eq!(printed.len(), prints.len(), "{command}: {run:?}");
        for (written, printed) in prints.iter().zip(printed) {
            let words: Vec<_> = written.split_whitespace().collect();
            let found: Vec<_> = printed.split_whitespace().collect();
            let agree = words.len() == found.len()
                && words.iter().zip(&found).all(|(word, found)| same(word, found, &mut known));
            assert!(agree, "{command}\n  written: {written}\n  printed: {printed}");
        }
    }
}

#[test]
fn the_readme_prints_what_it_says() {
    follow(include_str!("../../../README.md"), 8);
}

#[test]
fn the_page_on_dead_letters_prints_what_it_says() {
    let (_, page) = include_str!("../../../docs/cli.md").split_once("\n## Dead letters\n").unwrap();
    follow(page, 8);
}

/// The commands that a help names.
fn commands_of(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn the_documentation_names_every_command_and_option() {
    let documented = include_str!("../../../docs/cli.md");
    let place = Place::new();
    let mut commands = commands_of(&place.ok("--help"));
    assert_eq!(commands.len(), 24, "{commands:?}");
    for group in ["dlq", "eval"] {
        let more = commands_of(&place.ok(&format!("{group} --help")));
        let more = more.into_iter().filter(|name| name != "help");
        commands.extend(more.map(|name| format!("{group} {name}")));
    }
    assert_eq!(commands.len(), 24 + 5 + 3, "{commands:?}");
    for command in commands {
        assert!(documented.contains(&format!("**`{command}")), "{command}");
        if command == "help" {
            continue;
        }
        for word in place.ok(&format!("{command} --help")).split_whitespace() {
            let option = word.trim_end_matches([',', '.', ';', ':', ')']);
            let option = option.split(['[', '=']).next().unwrap();
            let global = ["--help", "--verbose...", "--version", "--"].contains(&option);
            if option.starts_with("--") && !global {
                assert!(documented.contains(option), "{command}: {option} is not documented");
            }
        }
    }
}
