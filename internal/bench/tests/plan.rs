//! `docs/capacity-planning.md` shows what the program prints.

use std::path::Path;
use std::process::Command;

/// Returns the commands of the page, each with its output.
fn examples(text: &str) -> Vec<(String, String)> {
    let blocks = text.split("```console\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split_once("\n```").map(|(block, _)| block));
    let examples = blocks.filter_map(|block| {
        let (command, output) = block.split_once('\n')?;
        let arguments = command.strip_prefix("$ pillarbox-bench plan")?;
        Some((arguments.to_owned(), format!("{output}\n")))
    });
    examples.collect()
}

#[test]
fn the_document_shows_what_the_program_prints() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/capacity-planning.md");
    let text = std::fs::read_to_string(document).expect("docs/capacity-planning.md");
    let examples = examples(&text);
    assert!(examples.len() >= 3, "{examples:?}");
    for (arguments, expected) in examples {
        let program = env!("CARGO_BIN_EXE_pillarbox-bench");
        let output = Command::new(program).arg("plan").args(arguments.split_whitespace()).output();
        let printed = String::from_utf8(output.expect("the program starts").stdout).expect("text");
        assert_eq!(printed, expected, "docs/capacity-planning.md, plan{arguments}");
    }
}

#[test]
fn a_server_without_memory_or_network_is_refused() {
    for argument in ["--server-memory", "--server-network"] {
        let program = env!("CARGO_BIN_EXE_pillarbox-bench");
        let output = Command::new(program).args(["plan", argument, "0"]).output();
        let output = output.expect("the program starts");
        assert!(!output.status.success() && output.stdout.is_empty(), "{argument}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("more than 0"), "{argument}");
    }
}
