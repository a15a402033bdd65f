//! Mistakes that must not compile, with the compiler's messages.
//!
//! Messages change between compilers. Those recorded are of the version below; with another one, the doctests
//! of `Message` still show that these mistakes do not compile.

use std::process::Command;

const RECORDED_WITH: &str = "rustc 1.95.";

#[test]
fn mistakes_do_not_compile_and_have_helpful_messages() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").output().expect("rustc has a version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if !version.starts_with(RECORDED_WITH) && std::env::var_os("TRYBUILD").is_none() {
        println!("skipped: the messages are those of {RECORDED_WITH}x, this is {version}");
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
