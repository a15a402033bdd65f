#![allow(dead_code)]

use pillarbox::prelude::*;

async fn count(question: String) -> Result<usize, std::io::Error> {
    Ok(question.len())
}

fn main() {}

fn build(questions: Mailbox<MainLoopRequest<String>, MainLoopResult<String>>) {
    let _ = MainLoop::new(questions, count);
}
