//! Mistakes that the compiler finds.

#[test]
fn settling_a_message_twice_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
