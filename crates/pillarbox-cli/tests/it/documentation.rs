//! docs/cli.md is complete. (The output in the pages is checked by tests of `pillarbox-docs`.)

use crate::common::Place;

/// Returns the commands in a help text.
fn commands_of(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn the_documentation_names_every_command_and_option() {
    let documented = include_str!("../../../../docs/cli.md");
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
        assert!(documented.contains(&format!("\n### `{command}`\n")), "{command}");
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
