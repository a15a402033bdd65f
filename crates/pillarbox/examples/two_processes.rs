//! Requests and replies across two processes that share a file. The process that replies is killed and started again:
//! every request gets its reply.
//!
//!     cargo run --example two_processes
//!
//! With a `redis://` URL in PILLARBOX_URL and the feature `redis`, they share a server instead.

use std::process::{Child, Command};

use pillarbox::prelude::*;

type Squares = Mailbox<MainLoopRequest<u64>, MainLoopResult<u64>>;

const REQUESTS: u64 = 40;

/// The process that replies. In production it is a separate program.
async fn answer(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let backend = pillarbox::open(url).await?;
    let squares: Squares = backend.mailbox("squares")?;
    MainLoop::new(squares, |n: u64| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        n * n
    })
    // If this process dies, its messages are delivered again after this time.
    .visibility(Duration::from_secs(1))
    .run()
    .await?;
    backend.close().await;
    Ok(())
}

/// The process that sends the requests.
async fn ask(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let backend = pillarbox::open(url).await?;
    let squares: Squares = backend.mailbox("squares")?;
    let client = Client::new(&squares)?;
    let requests: Vec<_> = (0..REQUESTS).map(MainLoopRequest::new).collect();
    let mut submission = client.submit(&requests).await?;

    let mut answering = start(url)?;
    let mut answered = 0;
    while let Some(answer) = submission.next().await {
        let answer = answer?;
        let request = requests.iter().find(|request| request.request_id == answer.request_id);
        let n = request.ok_or("a reply without a request")?.request;
        assert_eq!(answer.output(), Some(&(n * n)));
        answered += 1;
        if answered == REQUESTS / 2 {
            println!("{answered} replies: process {} is killed", answering.id());
            answering.kill()?;
            answering.wait()?;
            answering = start(url)?;
        }
    }
    println!("{answered} replies: complete");
    assert_eq!(answered, REQUESTS);

    client.close().await;
    answering.kill()?;
    answering.wait()?;
    backend.close().await;
    Ok(())
}

fn start(url: &str) -> std::io::Result<Child> {
    let child = Command::new(std::env::current_exe()?).args(["answer", url]).spawn()?;
    println!("process {} is started", child.id());
    Ok(child)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [role, url] = &arguments[..]
        && role == "answer"
    {
        return answer(url).await;
    }
    let directory = tempfile::tempdir()?;
    let file = format!("sqlite:{}", directory.path().join("squares.db").display());
    ask(&std::env::var("PILLARBOX_URL").unwrap_or(file)).await
}
