//! A program whose `main` returns an error prints a readable line instead of a struct.

use std::process::Command;

use pillarbox_testing::server::RedisServer;

fn run(how: &str, what: &str) -> String {
    let program = env!("CARGO_BIN_EXE_failing");
    let output = Command::new(program).args([how, what]).output().expect("the program runs");
    assert_eq!(output.status.code(), Some(1), "{how} {what}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_main_that_fails_says_why_in_a_line() {
    let wrong = "Error: invalid backend URL: unknown scheme \"mongodb\"; allowed: sqlite: ";
    for how in ["open", "boxed"] {
        let output = run(how, "mongodb://localhost");
        assert!(output.starts_with(wrong) && output.lines().count() == 1, "{output}");
        assert_eq!(
            run(how, "sqlite:/no/such/place/jobs.db"),
            "Error: cannot open: /no/such/place does not exist: create the directory first\n"
        );
    }
}

#[test]
fn so_it_does_with_every_other_error_of_ours() {
    let output = run("call", "");
    let (before, after) = (&output[..15], &output[51..]);
    assert_eq!((before, after), ("Error: request ", " was not answered within 10ms\n"));
    let check = |how, what, says| assert_eq!(run(how, what), format!("Error: {says}\n"));
    check("group", "", "the loop 'jobs' failed: the mailbox on queue 'jobs' was closed");
    let text =
        "invalid visibility on queue 'jobs-dlq': 0ns; allowed: at least 1 s (after 0 were done)";
    check("pass", "", text);
    let text = "/no/such.jsonl: cannot read the samples: No such file or directory (os error 2)";
    check("eval", "/no/such.jsonl", text);
}

#[test]
fn no_password_is_shown() {
    let server = RedisServer::builder().password("hunter2").start();
    let url = server.url().replace("hunter2", "swordfish");
    assert!(url.contains("swordfish"), "{url}");
    let output = run("open", &url);
    assert!(output.starts_with("Error: cannot open: "), "{output}");
    assert!(!output.contains("swordfish") && !output.contains("hunter2"), "{output}");
}
