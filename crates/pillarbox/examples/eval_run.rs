//! An eval run: 200 questions, two variants of a model, and three worker processes that share a file. One process is
//! killed during the run; the report is complete, and no sample is scored twice.
//!
//!     cargo run --example eval_run --features evals
//!
//! With a `redis://` URL in PILLARBOX_URL and the feature `redis`, they share a server instead. The report goes to
//! `target/eval-run/report.html`.

use std::path::Path;
use std::process::{Child, Command};

use pillarbox::evals::{
    Collect, Dataset, EvalLoop, EvalRequests, EvalRun, Experiment, RecordSteps, Sample, Score,
    Session, Status, all_of, collect_results, exact_match, submit_experiments,
};
use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};

/// A question to the model.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Question {
    text: String,
    a: u64,
    b: u64,
}

/// A deterministic stand-in for a model. The more digits it knows, the larger the numbers that it can add, and the
/// longer it takes.
async fn ask_the_model(question: Question, run: Run) -> Result<String, String> {
    let digits: u32 =
        run.resources().get("digits").ok_or("the variant does not set the number of digits")?;
    let Question { a, b, .. } = question;
    run.step("read", serde_json::json!({ "a": a, "b": b }));
    tokio::time::sleep(Duration::from_millis(u64::from(digits) * 2 + (a + b) % 7)).await;
    if (a + b) % 67 == 0 {
        run.step("think again", serde_json::json!("it looks odd"));
    }
    let known = 10_u64.pow(digits);
    Ok(((a % known) + (b % known)).to_string())
}

/// Scores an answer lower if it took a second thought.
fn without_hesitation(_: &String, _: &String, session: &Session) -> Score {
    match session.steps_of("think again").count() {
        0 => Score::pass(),
        times => Score::graded(0.5, 1.0).because(format!("it hesitated, {times} time")),
    }
}

/// A worker process. In production it is a separate program.
async fn work(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let backend = pillarbox::open(url).await?;
    // The loop under evaluation, as it runs in production. Its production requests are not touched.
    let production: Mailbox<MainLoopRequest<Question>, MainLoopResult<String>> =
        backend.mailbox("questions")?;
    let main_loop = MainLoop::new(production, ask_the_model);
    let requests: EvalRequests<Question, String> = backend.mailbox("questions-eval")?;
    EvalLoop::new(main_loop, all_of((exact_match, without_hesitation)), requests)
        .workers(2)
        // If this process dies, its messages are delivered to others after this time.
        .visibility(Duration::from_secs(1))
        .dead_letters(DlqPolicy::new())
        .run()
        .await?;
    backend.close().await;
    Ok(())
}

/// Submits the samples and collects the results.
async fn evaluate(url: &str, home: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let backend = pillarbox::open(url).await?;
    let requests: EvalRequests<Question, String> = backend.mailbox("questions-eval")?;

    let dataset = Dataset::new((0..200_u64).map(|n| {
        let (a, b) = (n * n % 1_500, n * 7);
        let question = Question { text: format!("What is {a} + {b}?"), a, b };
        Sample::new(format!("sum-{n}"), question, (a + b).to_string())
    }))?;
    let experiments = [
        Experiment::new("small").description("knows three digits").resource("digits", 3),
        Experiment::new("large").description("knows four digits").resource("digits", 4),
    ];

    let mut run = EvalRun::create(home.join("run"))?;
    let submitted = submit_experiments(&mut run, &requests, &dataset, &experiments).await?;
    println!("run {}: {} requests", run.id(), submitted.sent);

    let mut workers = (0..3).map(|_| start(url)).collect::<Result<Vec<_>, _>>()?;
    let mut killed = workers.pop();
    let kill_one = move |progress: &pillarbox::evals::Progress| {
        if progress.collected >= 100
            && let Some(mut worker) = killed.take()
        {
            println!("{} results: process {} is killed", progress.collected, worker.id());
            worker.kill().and_then(|()| worker.wait()).expect("a process that can be killed");
        }
    };
    let how = Collect::within(Duration::from_secs(120)).progress_bar().on_progress(kill_one);
    let report = collect_results(&mut run, &requests, how).await?;
    for mut worker in workers {
        worker.kill()?;
        worker.wait()?;
    }

    println!("\n{report}");
    std::fs::write(home.join("report.html"), report.to_html())?;
    std::fs::write(home.join("report.xml"), report.to_junit())?;
    std::fs::write(home.join("report.json"), serde_json::to_vec_pretty(&report)?)?;
    println!("see {}", home.join("report.html").display());

    assert!(report.is_complete);
    assert_eq!((report.total, report.count(Status::Missing)), (400, 0));
    let results = std::fs::read_to_string(home.join("run/results.jsonl"))?;
    assert_eq!(results.lines().count(), 400, "each sample of each experiment has one result");
    backend.close().await;
    Ok(())
}

fn start(url: &str) -> std::io::Result<Child> {
    let child = Command::new(std::env::current_exe()?).args(["work", url]).spawn()?;
    println!("process {} is started", child.id());
    Ok(child)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [role, url] = &arguments[..]
        && role == "work"
    {
        return work(url).await;
    }
    let home = Path::new("target/eval-run");
    if home.exists() {
        std::fs::remove_dir_all(home)?;
    }
    std::fs::create_dir_all(home)?;
    let file = format!("sqlite:{}", home.join("queues.db").display());
    evaluate(&std::env::var("PILLARBOX_URL").unwrap_or(file), home).await
}
