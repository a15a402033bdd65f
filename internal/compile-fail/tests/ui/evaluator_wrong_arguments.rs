#![allow(dead_code)]

use pillarbox::evals::{EvalLoop, EvalRequests};

fn right(output: String, expected: String) -> bool {
    output == expected
}

fn main() {}

fn build(requests: EvalRequests<String, String>) {
    let _ = EvalLoop::from_adapter(|text: String| async move { text }, right, requests);
}
