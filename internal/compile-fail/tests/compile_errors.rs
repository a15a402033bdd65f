//! Mistakes that the compiler finds, with the texts that it finds for them.
//!
//! Texts change from one compiler to the next. The texts kept are those of the version below; with
//! another one, the doctests of `Message` still show that these mistakes do not compile.

use std::process::Command;

const RECORDED_WITH: &str = "rustc 1.95.";

#[test]
fn mistakes_do_not_compile_and_are_told_in_words_that_help() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").output().expect("rustc tells its version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if !version.starts_with(RECORDED_WITH) && std::env::var_os("TRYBUILD").is_none() {
        println!("left out: the texts are those of {RECORDED_WITH}x, this is {version}");
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
