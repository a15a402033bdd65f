//! Requests and replies in one process, with a main loop and a client.
//!
//!     cargo run --example main_loop
//!
//! The loop has a live object, found by its type, and reads settings by name. The client makes single calls, handles
//! failures, and submits many requests at once.

use pillarbox::loops::{Budget, NotRegistered, RemoteErrorKind};
use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Question {
    text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Answer {
    text: String,
    tokens: u64,
}

/// A live object that cannot be sent in a message, such as a model or a connection pool.
struct Model {
    name: &'static str,
}

impl Model {
    async fn complete(&self, question: &Question) -> Answer {
        tokio::time::sleep(Duration::from_millis(question.text.len() as u64)).await;
        let text = format!("{} has no idea about '{}'", self.name, question.text);
        Answer { tokens: text.split_whitespace().count() as u64, text }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{tokens} tokens exceed the budget of {most}")]
    OverBudget { tokens: u64, most: u64 },
    #[error(transparent)]
    NoModel(#[from] NotRegistered),
}

async fn answer(question: Question, run: Run) -> Result<Answer, Failure> {
    let model = run.live::<Model>()?;
    let answer = model.complete(&question).await;
    if let Some(most) = run.budget().get("tokens").filter(|most| answer.tokens > *most) {
        return Err(Failure::OverBudget { tokens: answer.tokens, most });
    }
    match run.resources().get::<String>("style").as_deref() {
        Some("loud") => Ok(Answer { text: answer.text.to_uppercase(), ..answer }),
        _ => Ok(answer),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = pillarbox::open("memory:").await?;
    let questions: Mailbox<MainLoopRequest<Question>, MainLoopResult<Answer>> =
        backend.mailbox("questions")?;

    let running = MainLoop::new(questions.clone(), answer)
        .resource(Model { name: "tiny" })
        .workers(8)
        .start();
    let client = Client::new(&questions)?;
    let ask = |text: &str| MainLoopRequest::new(Question { text: text.to_owned() });

    // A single call.
    let reply =
        client.call(&ask("the weather").resource("style", "loud"), Duration::from_secs(5)).await?;
    println!("{}", reply.text);
    assert_eq!(reply.text, "TINY HAS NO IDEA ABOUT 'THE WEATHER'");

    // A call that fails in the loop, and one that misses its deadline.
    let request = ask("the weather").budget(Budget::new().limit("tokens", 3));
    match client.call(&request, Duration::from_secs(5)).await {
        Err(CallError::Remote { error, .. }) => println!("failed: {error}"),
        other => return Err(format!("not refused: {other:?}").into()),
    }
    let request = ask(&"long ".repeat(1_000)).deadline_in(Duration::from_millis(100));
    match client.call(&request, Duration::from_secs(5)).await {
        Err(CallError::Remote { error, .. }) if error.kind == RemoteErrorKind::Deadline => {
            println!("cancelled: {error}");
        }
        other => return Err(format!("not cancelled: {other:?}").into()),
    }

    // Many requests at once; the replies are in the order of the requests.
    let requests: Vec<_> = (1..=50).map(|n| ask(&format!("number {n}"))).collect();
    let answers = client.submit(&requests).await?.collect(Duration::from_secs(10)).await;
    for (n, answer) in (1..).zip(answers) {
        let answer = answer?;
        let text = &answer.output().ok_or("no output")?.text;
        assert_eq!(*text, format!("tiny has no idea about 'number {n}'"));
    }
    println!("50 more replies");

    client.close().await;
    let stats = running.stop().await?;
    println!("{} requests in total", stats.succeeded);
    assert_eq!(stats.succeeded, 53);
    backend.close().await;
    Ok(())
}
