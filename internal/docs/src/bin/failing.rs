//! Returns the error that its first argument selects from `main`: `tests/it/failing.rs` checks its output.

use std::error::Error;
use std::process::{ExitCode, Termination};

use pillarbox::dead_letters::PassFailed;
use pillarbox::evals::{Dataset, EvalError};
use pillarbox::group::GroupError;
use pillarbox::prelude::*;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (how, what) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    // Like a `main` of that type.
    match &*how {
        "open" => open(&what).await.report(),
        "boxed" => boxed(&what).await.report(),
        "call" => call().await.report(),
        "group" => group().await.report(),
        "pass" => pass().await.report(),
        "eval" => eval(&what).report(),
        _ => ExitCode::from(64),
    }
}

async fn open(url: &str) -> pillarbox::Result<()> {
    let jobs: Mailbox<u32> = pillarbox::open(url).await?.mailbox("jobs")?;
    jobs.send(&1).await?;
    Ok(())
}

async fn boxed(url: &str) -> Result<(), Box<dyn Error>> {
    Ok(open(url).await?)
}

async fn call() -> Result<(), CallError> {
    let requests = async {
        let requests = pillarbox::open("memory:").await?.mailbox("requests")?;
        Client::<u32, u32>::new(&requests)
    };
    let client = requests.await.expect("a client");
    let request = MainLoopRequest::new(7);
    client.call(&request, Duration::from_millis(10)).await.map(|_| ())
}

async fn group() -> Result<(), GroupError> {
    let backend = pillarbox::open("memory:").await.map_err(GroupError::Invalid)?;
    let jobs: Mailbox<u32> = backend.mailbox("jobs").map_err(GroupError::Invalid)?;
    backend.close().await;
    let worker = Worker::new(jobs).handler(|_: u32| async {});
    LoopGroup::new().add(worker).run().await.map(|_| ())
}

async fn pass() -> Result<(), PassFailed> {
    let backend = pillarbox::open("memory:").await.expect("a backend");
    let dlq = Dlq::open(&backend, "jobs-dlq").expect("dead letters");
    dlq.replay().visibility(Duration::ZERO).run().await.map(|_| ())
}

fn eval(path: &str) -> Result<(), EvalError> {
    Dataset::<u32, u32>::from_file(path)?;
    Ok(())
}
