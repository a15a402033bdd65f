//! End-to-end runs in one process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
use pillarbox_evals::{
    Collect, Dataset, EvalError, EvalLoop, EvalRequests, EvalResult, EvalRun, Experiment,
    RecordSteps, Resubmit, Sample, Score, ScoredBy, Session, Status, all_of, collect_outputs,
    collect_results, exact_match, numeric_close, submit_dataset, submit_experiments, submit_inputs,
};
use pillarbox_runtime::dead_letters::{Dlq, DlqPolicy};
use pillarbox_runtime::loops::{
    Budget, MainLoop, MainLoopRequest, MainLoopResult, RemoteErrorKind, Run,
};
use pillarbox_runtime::{Backoff, Runnable, Running};
use serde_json::{Value, json};

/// Time limit, generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn backend() -> Mailboxes {
    Mailboxes::new(MemoryBackend::new())
}

fn requests(backend: &Mailboxes) -> EvalRequests<i64, i64> {
    backend.mailbox("evals").unwrap()
}

/// Samples of squares; every tenth expected value is wrong.
fn squares(count: i64) -> Dataset<i64, i64> {
    let samples =
        (0..count).map(|n| Sample::new(format!("s{n}"), n, n * n + i64::from(n % 10 == 9)));
    Dataset::new(samples).unwrap()
}

/// Starts a loop that squares, and counts its calls.
fn squaring(requests: &EvalRequests<i64, i64>, paid: &Arc<AtomicUsize>) -> Running {
    let paid = paid.clone();
    let adapter = move |n: i64| {
        paid.fetch_add(1, Ordering::Relaxed);
        async move { n * n }
    };
    EvalLoop::from_adapter(adapter, exact_match, requests.clone()).start()
}

fn within() -> Collect {
    Collect::within(TIMEOUT)
}

#[tokio::test]
async fn every_sample_of_every_experiment_is_scored_once() {
    let backend = backend();
    let requests = requests(&backend);
    // The experiments differ in a resource of the request.
    let adapter =
        |n: i64, run: Run| async move { run.resources().get::<i64>("plus").unwrap_or(0) + n * n };
    let running = EvalLoop::from_adapter(adapter, exact_match, requests.clone()).start();
    let experiments = [Experiment::baseline(), Experiment::new("off").resource("plus", 1)];
    let mut run = EvalRun::in_memory();
    let submitted =
        submit_experiments(&mut run, &requests, &squares(100), &experiments).await.unwrap();
    assert_eq!((submitted.sent, submitted.before, submitted.total), (200, 0, 200));
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert!(report.is_complete && run.is_complete());
    assert_eq!((report.total, report.passed), (200, 100));
    let [baseline, off] = &report.experiments[..] else { panic!() };
    assert_eq!((baseline.tally.passed, baseline.tally.not_passed), (90, 10));
    assert_eq!((off.tally.passed, off.tally.not_passed), (10, 90));
    assert_eq!(baseline.tally.mean_score, Some(0.9));
    assert!(baseline.tally.latency.unwrap().p50_ms >= 0.0);
    let [comparison] = &report.comparisons[..] else { panic!() };
    assert_eq!((comparison.pairs, comparison.gained, comparison.lost), (100, 10, 90));
    assert!(comparison.pass_rate.unwrap().is_significant());
    assert!((comparison.mean_score.unwrap().value + 0.8).abs() < 1e-9);
    let back = report.compare("off", "baseline").unwrap();
    assert_eq!((back.gained, back.lost), (90, 10));
    assert_eq!(report.compare("off", "none"), None);
    assert_eq!(report.failures.len(), 100);
    let first = &report.failures[0];
    assert_eq!((&*first.sample_id, &first.input, &first.expected), ("s9", &json!(9), &json!(82)));
    assert_eq!(first.output, Some(json!(81)));
    // Nothing is left in the mailbox of the run.
    let results: Mailbox<Value> = backend.mailbox(&*run.address()).unwrap();
    assert_eq!(results.counts().await.unwrap().total(), 0);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_main_loop_is_evaluated_with_its_resources_and_its_own_requests_are_not_touched() {
    struct Model(i64);
    let backend = backend();
    let production: Mailbox<MainLoopRequest<i64>, MainLoopResult<i64>> =
        backend.mailbox("work").unwrap();
    production.send(&MainLoopRequest::new(7)).await.unwrap();
    let main_loop = MainLoop::new(production.clone(), |n: i64, run: Run| async move {
        Ok::<_, pillarbox_runtime::loops::NotRegistered>(run.live::<Model>()?.0 * n)
    })
    .resource(Model(2));
    let requests = requests(&backend);
    let running = EvalLoop::new(main_loop, exact_match, requests.clone()).start();
    let mut run = EvalRun::in_memory();
    let dataset = Dataset::new([Sample::new("a", 21, 42)]).unwrap();
    submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await.unwrap();
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert_eq!(report.passed, 1, "{report}");
    running.stop().await.unwrap();
    assert_eq!(production.counts().await.unwrap().ready, 1);
}

#[tokio::test]
async fn an_evaluator_sees_the_steps_of_the_adapter_and_a_report_shows_them() {
    let backend = backend();
    let requests = requests(&backend);
    let adapter = |n: i64, run: Run| async move {
        for step in 0..n {
            run.step("search", json!({ "query": step }));
        }
        n
    };
    let once = |_: &i64, _: &i64, session: &Session| {
        assert!(session.latency.is_some() && session.experiment == "frugal");
        assert_eq!(session.budget.get("searches"), Some(1));
        match session.steps_of("search").count() {
            0 | 1 => Score::pass(),
            more => Score::fail(format!("{more} searches")),
        }
    };
    let running =
        EvalLoop::from_adapter(adapter, all_of((exact_match, once)), requests.clone()).start();
    let dataset = Dataset::new((0..4).map(|n| Sample::new(n.to_string(), n, n))).unwrap();
    let experiment = Experiment::new("frugal").budget(Budget::new().limit("searches", 1));
    let mut run = EvalRun::in_memory();
    submit_dataset(&mut run, &requests, &dataset, experiment).await.unwrap();
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert_eq!(report.passed, 2);
    let failed = &report.failures[1];
    assert_eq!((failed.reason.as_deref(), failed.score), (Some("3 searches"), Some(0.5)));
    assert_eq!(failed.steps.len(), 3);
    assert_eq!(failed.steps[2].data, json!({"query": 2}));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn failed_samples_are_reported_and_do_not_block_others() {
    let backend = backend();
    let requests = requests(&backend);
    let adapter = |n: i64| async move {
        match n {
            1 => Err("no answer".to_owned()),
            2 => panic!("out of wits"),
            n => Ok(n),
        }
    };
    let judge = |output: &i64, expected: &i64| match output {
        3 => Err("the judge is out".to_owned()),
        4 => Ok(Score::graded(7.0, 0.5)),
        _ => Ok(exact_match(output, expected)),
    };
    let running = EvalLoop::from_adapter::<i64, _, _>(adapter, judge, requests.clone()).start();
    let dataset = Dataset::new((0..5).map(|n| Sample::new(n.to_string(), n, n))).unwrap();
    let mut run = EvalRun::in_memory();
    submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await.unwrap();
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert_eq!((report.passed, report.count(Status::Failed)), (1, 4));
    let reasons: Vec<_> =
        report.failures.iter().map(|failed| failed.reason.clone().unwrap()).collect();
    for (reason, part) in reasons.iter().zip([
        "no answer",
        "out of wits",
        "the judge is out",
        "a score of 7, which is not",
    ]) {
        assert!(reason.contains(part), "{reason}");
    }
    // Failed samples count as not passed, and have no score.
    assert_eq!((report.pass_rate, report.mean_score), (Some(0.2), Some(1.0)));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_dead_lettered_sample_is_reported_and_replaced_by_its_replay() {
    let backend = backend();
    let requests = requests(&backend);
    let is_fixed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let looked = is_fixed.clone();
    let adapter = move |n: i64| {
        let fails = n == 3 && !looked.load(Ordering::Relaxed);
        async move { if fails { Err("broken") } else { Ok(n * n) } }
    };
    let running = EvalLoop::from_adapter::<i64, _, _>(adapter, exact_match, requests.clone())
        .max_deliveries(2)
        .dead_letters(DlqPolicy::new())
        .worker(|worker| worker.retry(Backoff::constant(Duration::from_millis(1))))
        .start();
    let mut run = EvalRun::in_memory();
    submit_dataset(&mut run, &requests, &squares(5), Experiment::baseline()).await.unwrap();
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert_eq!((report.passed, report.count(Status::DeadLettered)), (4, 1), "{report}");
    let reason = report.failures[0].reason.clone().unwrap();
    assert!(reason.contains("2 attempts") && reason.contains("broken"), "{reason}");
    let is_dead_lettered = |result: &EvalResult| result.status() == Status::DeadLettered;
    let result = run.results().map(Result::unwrap).find(is_dead_lettered).unwrap();
    assert_eq!(result.outcome.unwrap_err().kind, RemoteErrorKind::DeadLettered);

    is_fixed.store(true, Ordering::Relaxed);
    let dead = Dlq::open(&backend, "evals-dlq").unwrap();
    let replayed = dead.replay().run().await.unwrap();
    assert_eq!(replayed.done, 1, "{replayed:?}");
    // The run is complete; collecting again takes the new result.
    let results: Mailbox<Value> = backend.mailbox(&*run.address()).unwrap();
    until(async || results.counts().await.unwrap().ready == 1).await;
    let report = collect_results(&mut run, &requests, Collect::available()).await.unwrap();
    assert_eq!((report.passed, report.count(Status::DeadLettered)), (5, 0), "{report}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn collected_results_are_not_computed_again_when_a_run_is_continued() {
    let backend = backend();
    let requests = requests(&backend);
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("runs/a");
    let paid = Arc::new(AtomicUsize::new(0));
    let dataset = squares(30);
    let two = [Experiment::new("a"), Experiment::new("b")];

    // The first collector stops after some results.
    let mut run = EvalRun::create(&home).unwrap();
    let id = run.id().to_owned();
    submit_experiments(&mut run, &requests, &dataset, &two[..1]).await.unwrap();
    let running = squaring(&requests, &paid);
    until(async || paid.load(Ordering::Relaxed) == 30).await;
    running.stop().await.unwrap();
    let results: Mailbox<Value> = backend.mailbox(&*run.address()).unwrap();
    let batch = results.receive(pillarbox_core::Receive::up_to(10)).await.unwrap();
    assert_eq!(batch.len(), 10);
    let report = collect_results(&mut run, &requests, Collect::available()).await.unwrap();
    assert_eq!((report.total, report.count(Status::Missing)), (30, 10));
    assert!(!report.is_complete);
    drop(run);
    for message in batch {
        message.nack(Duration::ZERO).await.unwrap();
    }

    // The second sends only new samples.
    let mut run = EvalRun::open(&home).unwrap();
    assert_eq!(run.id(), id);
    assert_eq!(run.progress().collected, 20);
    let submitted = submit_experiments(&mut run, &requests, &dataset, &two).await.unwrap();
    assert_eq!((submitted.sent, submitted.before), (30, 30));
    let running = squaring(&requests, &paid);
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert!(report.is_complete, "{report}");
    assert_eq!(report.passed, 54);
    assert_eq!(paid.load(Ordering::Relaxed), 60);
    let before = report;
    drop(run);

    // The third has nothing to do and reports the same.
    let mut run = EvalRun::open_or_create(&home).unwrap();
    assert_eq!(submit_experiments(&mut run, &requests, &dataset, &two).await.unwrap().sent, 0);
    assert_eq!(collect_results(&mut run, &requests, within()).await.unwrap(), before);
    assert_eq!(paid.load(Ordering::Relaxed), 60);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn duplicate_results_count_once_and_strays_not_at_all() {
    let backend = backend();
    let requests = requests(&backend);
    let directory = tempfile::tempdir().unwrap();
    let mut run = EvalRun::create(directory.path()).unwrap();
    submit_dataset(&mut run, &requests, &squares(10), Experiment::baseline()).await.unwrap();
    let running = squaring(&requests, &Arc::default());
    let results: Mailbox<Value> = backend.mailbox(&*run.address()).unwrap();
    until(async || results.counts().await.unwrap().ready == 10).await;
    running.stop().await.unwrap();
    // As if a worker or the collector had died before its acknowledgement.
    for peeked in results.peek(10).await.unwrap() {
        results.send(&peeked.body.unwrap()).await.unwrap();
    }
    results.send(&json!("hello")).await.unwrap();
    let stranger = MainLoopResult::<Value>::new(
        pillarbox_runtime::loops::Uuid::nil(),
        Ok(json!({"score": {"value": 1.0, "passed": true}, "output": 1})),
    );
    results.send(&serde_json::to_value(&stranger).unwrap()).await.unwrap();
    // One result is held back until all others have arrived, so that all are looked at.
    let held = results.receive(pillarbox_core::Receive::one()).await.unwrap();
    let report = collect_results(&mut run, &requests, Collect::available()).await.unwrap();
    for message in held {
        message.nack(Duration::ZERO).await.unwrap();
    }
    assert_eq!((report.total, report.passed, report.strays), (10, 9, 2), "{report}");
    let lines = std::fs::read_to_string(directory.path().join("results.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 10);
    let strays = std::fs::read_to_string(directory.path().join("strays.jsonl")).unwrap();
    assert!(
        strays.contains("\\\"hello\\\"") && strays.contains("does not belong to this run"),
        "{strays}"
    );
}

#[tokio::test]
async fn samples_can_be_submitted_again_and_the_later_result_counts() {
    let backend = backend();
    let requests = requests(&backend);
    let is_fixed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let looked = is_fixed.clone();
    let adapter = move |n: i64| {
        let plus = i64::from(!looked.load(Ordering::Relaxed) && n < 3);
        async move { n * n + plus }
    };
    let running = EvalLoop::from_adapter(adapter, exact_match, requests.clone()).start();
    let mut run = EvalRun::in_memory();
    let dataset = squares(9);
    submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await.unwrap();
    assert_eq!(collect_results(&mut run, &requests, within()).await.unwrap().passed, 6);
    is_fixed.store(true, Ordering::Relaxed);
    assert_eq!((run.resubmit(Resubmit::DeadLettered), run.resubmit(Resubmit::Missing)), (0, 0));
    assert_eq!(run.resubmit(Resubmit::NotPassed), 3);
    let submitted =
        submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await.unwrap();
    assert_eq!((submitted.sent, submitted.before), (3, 6));
    // The run was complete; the new results are waited for.
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert_eq!((report.total, report.passed), (9, 9), "{report}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn outputs_of_a_plain_main_loop_are_scored_by_the_collector() {
    let backend = backend();
    let production: Mailbox<MainLoopRequest<i64>, MainLoopResult<i64>> =
        backend.mailbox("work").unwrap();
    let main_loop = MainLoop::new(production.clone(), |n: i64, run: Run| async move {
        match n {
            4 => Err("four".to_owned()),
            n => Ok(n * n + run.resources().get::<i64>("plus").unwrap_or(0)),
        }
    });
    let running = main_loop.start();
    let directory = tempfile::tempdir().unwrap();
    let mut run = EvalRun::create(directory.path()).unwrap();
    let two = [Experiment::baseline(), Experiment::new("more").resource("plus", 2)];
    submit_inputs(&mut run, &production, &squares(10), &two).await.unwrap();
    drop(run);
    let mut run = EvalRun::open(directory.path()).unwrap();
    assert_eq!(run.scored_by(), ScoredBy::Collector);
    // Tolerance of one: every tenth expected value is one too high, the second experiment is two too high.
    let close = numeric_close::<i64, i64>(0.0, 1.0);
    let report =
        collect_outputs::<_, i64, _, i64, _>(&mut run, &production, close, within()).await.unwrap();
    assert_eq!(report.experiments[0].tally.passed, 9);
    assert_eq!(report.experiments[1].tally.passed, 1);
    assert_eq!(report.count(Status::Failed), 2);
    assert_eq!(report.latency, None);

    let evals = requests(&backend);
    let error = collect_results(&mut run, &evals, within()).await.unwrap_err();
    assert!(error.to_string().contains("collect_outputs"), "{error}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_run_has_one_dataset_one_queue_and_fixed_experiments() {
    let backend = backend();
    let requests = requests(&backend);
    let directory = tempfile::tempdir().unwrap();
    let mut run = EvalRun::create(directory.path()).unwrap();
    let one = || Experiment::new("a").resource("model", "small");
    submit_dataset(&mut run, &requests, &squares(3), one()).await.unwrap();
    let error_text = |result: Result<_, EvalError>| {
        result.map(|_: pillarbox_evals::Submitted| ()).unwrap_err().to_string()
    };
    let other = submit_dataset(&mut run, &requests, &squares(4), one()).await;
    assert!(error_text(other).contains("a different dataset"));
    let other =
        submit_dataset(&mut run, &requests, &squares(3), one().resource("model", "large")).await;
    assert!(error_text(other).contains("a different experiment called \"a\""));
    let elsewhere: EvalRequests<i64, i64> = backend.mailbox("elsewhere").unwrap();
    let other = submit_dataset(&mut run, &elsewhere, &squares(3), one()).await;
    assert!(error_text(other).contains("on queue \"evals\", not \"elsewhere\""));
    let plain: Mailbox<MainLoopRequest<i64>, MainLoopResult<i64>> =
        backend.mailbox("evals").unwrap();
    let other = submit_inputs(&mut run, &plain, &squares(3), &[one()]).await;
    assert!(error_text(other).contains("scored by the workers"));
    let none = submit_experiments(&mut run, &requests, &squares(3), &[]).await;
    assert!(error_text(none).contains("no experiment"));
    // None of these calls had an effect.
    assert_eq!(run.progress().total, 3);
    assert_eq!(requests.counts().await.unwrap().total(), 3);

    // A run cannot be opened twice, and there is one run per directory.
    let error = EvalRun::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("open in another process"), "{error}");
    drop(run);
    assert!(EvalRun::create(directory.path()).unwrap_err().to_string().contains("already"));
    assert!(
        EvalRun::open(directory.path().join("none")).unwrap_err().to_string().contains("no run")
    );
}

#[tokio::test]
async fn a_run_can_be_continued_after_the_queue_was_full() {
    let backend = backend();
    let requests: EvalRequests<i64, i64> = backend.builder("evals").max_size(10).open().unwrap();
    let paid = Arc::new(AtomicUsize::new(0));
    let dataset = squares(25);
    let mut run = EvalRun::in_memory();
    let mut errors = 0;
    let running = loop {
        match submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await {
            Ok(_) => break squaring(&requests, &paid),
            Err(EvalError::Unsent { error, .. }) => {
                errors += 1;
                assert!(matches!(error, pillarbox_core::Error::MailboxFull { .. }), "{error}");
                let running = squaring(&requests, &paid);
                until(async || requests.counts().await.unwrap().total() == 0).await;
                running.stop().await.unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(errors, 2);
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert!(report.is_complete);
    assert_eq!(paid.load(Ordering::Relaxed), 25);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn damaged_files_are_rejected_and_an_incomplete_line_is_repaired() {
    let backend = backend();
    let requests = requests(&backend);
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let running = squaring(&requests, &Arc::default());
    let mut run = EvalRun::create(directory.path()).unwrap();
    submit_dataset(&mut run, &requests, &squares(8), Experiment::baseline()).await.unwrap();
    collect_results(&mut run, &requests, within()).await.unwrap();
    drop(run);
    running.stop().await.unwrap();
    let opened = |path: &Path| EvalRun::open(path).map_err(|error| error.to_string());
    // An incomplete line.
    let whole = std::fs::read_to_string(at("results.jsonl")).unwrap();
    std::fs::write(at("results.jsonl"), &whole[..whole.len() - 5]).unwrap();
    assert_eq!(opened(directory.path()).unwrap().progress().collected, 7);
    // An edited line.
    let edited = whole.replacen("\"sample_id\":\"s3\"", "\"sample_id\":\"s33\"", 1);
    std::fs::write(at("results.jsonl"), edited).unwrap();
    let error = opened(directory.path()).unwrap_err();
    assert!(error.contains("results.jsonl is damaged: there is no sample \"s33\""), "{error}");
    std::fs::write(at("results.jsonl"), whole).unwrap();
    let manifest = std::fs::read_to_string(at("run.json")).unwrap();
    for (text, reason) in [
        ("{}".to_owned(), "does not describe a run"),
        (manifest.replace("\"format\": 1", "\"format\": 2"), "has format 2"),
    ] {
        std::fs::write(at("run.json"), text).unwrap();
        let error = opened(directory.path()).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn progress_is_reported_and_collecting_can_time_out() {
    let backend = backend();
    let requests = requests(&backend);
    let mut run = EvalRun::in_memory();
    submit_dataset(&mut run, &requests, &squares(50), Experiment::baseline()).await.unwrap();
    let nobody = Collect::within(Duration::from_millis(50));
    let report = collect_results(&mut run, &requests, nobody).await.unwrap();
    assert_eq!((report.count(Status::Missing), report.pass_rate), (50, None));
    assert_eq!(report.failures[0].reason.as_deref(), Some("there is no result yet"));
    let running = squaring(&requests, &Arc::default());
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let recorded = seen.clone();
    let how =
        within().on_progress(move |progress| recorded.lock().unwrap().push(progress.collected));
    collect_results(&mut run, &requests, how).await.unwrap();
    let seen = seen.lock().unwrap().clone();
    assert_eq!((seen[0], *seen.last().unwrap()), (0, 50));
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_run_that_was_never_submitted_reports_nothing() {
    let run = EvalRun::in_memory();
    assert!(!run.is_complete());
    let report = run.report().unwrap();
    assert_eq!((report.total, report.pass_rate, report.experiments.len()), (0, None, 0));
    assert!(report.to_html().contains("</html>") && report.to_junit().contains("tests=\"0\""));
    assert!(report.to_string().contains("0 of 0 passed"));
}

#[test]
fn runs_can_be_collected_on_any_thread() {
    fn is_send<T: Send>(_: T) {}
    let backend = backend();
    let requests = requests(&backend);
    let plain: Mailbox<MainLoopRequest<i64>, MainLoopResult<i64>> =
        backend.mailbox("work").unwrap();
    let dataset = squares(1);
    let mut run = EvalRun::in_memory();
    is_send(submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()));
    is_send(collect_results(&mut run, &requests, Collect::new()));
    is_send(collect_outputs::<_, i64, _, i64, _>(&mut run, &plain, exact_match, Collect::new()));
}

async fn until(condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("the condition becomes true");
}

/// Removes the record of sent samples, as after a kill right after the send.
fn remove_sent_log(home: &Path) {
    std::fs::write(home.join("sent.jsonl"), "").unwrap();
}

#[tokio::test]
async fn a_collected_sample_is_not_sent_again_even_if_its_send_was_not_recorded() {
    let backend = backend();
    let requests = requests(&backend);
    let directory = tempfile::tempdir().unwrap();
    let paid = Arc::new(AtomicUsize::new(0));
    let mut run = EvalRun::create(directory.path()).unwrap();
    submit_dataset(&mut run, &requests, &squares(20), Experiment::baseline()).await.unwrap();
    drop(run);
    remove_sent_log(directory.path());
    let running = squaring(&requests, &paid);
    let mut run = EvalRun::open(directory.path()).unwrap();
    let results: Mailbox<Value> = backend.mailbox(&*run.address()).unwrap();
    until(async || results.counts().await.unwrap().ready == 20).await;
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert_eq!((report.passed, report.strays), (18, 0), "{report}");
    drop(run);
    let mut run = EvalRun::open(directory.path()).unwrap();
    let submitted = submit_dataset(&mut run, &requests, &squares(20), Experiment::baseline()).await;
    assert_eq!(submitted.unwrap().sent, 0);
    assert_eq!(paid.load(Ordering::Relaxed), 20);

    // The same for samples that are sent again.
    run.resubmit(Resubmit::NotPassed);
    submit_dataset(&mut run, &requests, &squares(20), Experiment::baseline()).await.unwrap();
    until(async || results.counts().await.unwrap().ready == 2).await;
    drop(run);
    remove_sent_log(directory.path());
    let mut run = EvalRun::open(directory.path()).unwrap();
    let report = collect_results(&mut run, &requests, Collect::available()).await.unwrap();
    assert_eq!((report.strays, report.is_complete), (0, true), "{report}");
    assert_eq!(run.results().map(Result::unwrap).filter(|result| result.round == 2).count(), 2);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn samples_without_a_result_are_not_sent_again() {
    let backend = backend();
    let requests: EvalRequests<i64, i64> = backend.builder("evals").max_size(10).open().unwrap();
    let mut run = EvalRun::in_memory();
    let dataset = Dataset::new((0..10).map(|n| Sample::new(n.to_string(), n, -1))).unwrap();
    submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await.unwrap();
    let paid = Arc::new(AtomicUsize::new(0));
    let running = squaring(&requests, &paid);
    collect_results(&mut run, &requests, within()).await.unwrap();
    running.stop().await.unwrap();
    // The queue has room for six.
    let filler: Vec<_> = (0..4).map(MainLoopRequest::new).collect();
    let plain: Mailbox<MainLoopRequest<i64>, MainLoopResult<i64>> =
        backend.mailbox("evals").unwrap();
    plain.send_batch(&filler).await.unwrap().all().unwrap();
    assert_eq!(run.resubmit(Resubmit::NotPassed), 10);
    let error =
        submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await.unwrap_err();
    assert!(matches!(error, EvalError::Unsent { sent: 6, unsent: 4, .. }), "{error}");
    plain.purge().await.unwrap();
    // The same again: the samples that were sent have no result yet.
    assert_eq!(run.resubmit(Resubmit::NotPassed), 4);
    let submitted =
        submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await.unwrap();
    assert_eq!((submitted.sent, submitted.before), (4, 6));
    assert_eq!(run.resubmit(Resubmit::NotPassed), 0);
    // The purge removed six requests, which count as missing.
    assert!(!run.is_complete());
    assert_eq!(run.progress().awaited, 10);
    assert_eq!(run.resubmit(Resubmit::Missing), 10);
}

#[tokio::test]
async fn an_answer_of_another_type_stays_in_the_queue() {
    let backend = backend();
    let production: Mailbox<MainLoopRequest<i64>, MainLoopResult<i64>> =
        backend.mailbox("work").unwrap();
    let running = MainLoop::new(production.clone(), |n: i64| async move { n * n }).start();
    let mut run = EvalRun::in_memory();
    submit_inputs(&mut run, &production, &squares(5), &[Experiment::baseline()]).await.unwrap();
    let other: Mailbox<MainLoopRequest<i64>, MainLoopResult<String>> =
        backend.mailbox("work").unwrap();
    let results: Mailbox<Value> = backend.mailbox(&*run.address()).unwrap();
    until(async || results.counts().await.unwrap().ready == 5).await;
    let lengths = |output: &String, _: &i64| output.len() < 9;
    let error = collect_outputs::<_, i64, _, i64, _>(&mut run, &other, lengths, within())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("does not have the expected type, and stays in the queue"),
        "{error}"
    );
    assert_eq!(results.counts().await.unwrap().ready, 5);
    let report = collect_outputs::<_, i64, _, i64, _>(&mut run, &production, exact_match, within())
        .await
        .unwrap();
    assert_eq!((report.passed, report.strays), (5, 0));
    run.resubmit(Resubmit::NotPassed);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn an_evaluator_that_panics_or_cannot_read_its_sample_fails_that_sample_alone() {
    let backend = backend();
    let production: Mailbox<MainLoopRequest<i64>, MainLoopResult<i64>> =
        backend.mailbox("work").unwrap();
    let running = MainLoop::new(production.clone(), |n: i64| async move { n }).start();
    let dataset = Dataset::new((0..10).map(|n| {
        let expected = if n == 7 { json!("seven") } else { json!(n) };
        Sample::new(n.to_string(), n, expected)
    }));
    let mut run = EvalRun::in_memory();
    submit_inputs(&mut run, &production, &dataset.unwrap(), &[Experiment::baseline()])
        .await
        .unwrap();
    let judged = Arc::new(AtomicUsize::new(0));
    let counted = judged.clone();
    let evaluator = move |output: &i64, expected: &i64| {
        counted.fetch_add(1, Ordering::Relaxed);
        assert!(*output != 3, "three");
        output == expected
    };
    let report = collect_outputs::<_, i64, _, i64, _>(&mut run, &production, evaluator, within())
        .await
        .unwrap();
    assert_eq!((report.passed, report.count(Status::Failed)), (8, 2), "{report}");
    assert!(
        report.failures[0].reason.as_ref().unwrap().contains("the evaluator panicked"),
        "{report}"
    );
    assert!(
        report.failures[1].reason.as_ref().unwrap().contains("invalid type: string"),
        "{report}"
    );
    assert_eq!(judged.load(Ordering::Relaxed), 9);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn collecting_ends_at_its_timeout_even_if_results_keep_arriving() {
    let backend = backend();
    let requests = requests(&backend);
    let mut run = EvalRun::in_memory();
    let dataset = squares(2000);
    submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await.unwrap();
    // Each collected result releases the next one.
    let (more, mut next) = tokio::sync::mpsc::unbounded_channel();
    let sender = requests.resolve_reply(&run.address()).unwrap();
    let answers: Vec<_> = dataset
        .iter()
        .zip(requests.peek(1000).await.unwrap())
        .map(|(_, request)| request.body.unwrap().request_id)
        .collect();
    let total = answers.len();
    let coming = tokio::spawn(async move {
        for request_id in answers {
            let scored = serde_json::from_value(
                json!({"score": {"value": 1.0, "passed": true}, "output": 1}),
            );
            sender.send(&MainLoopResult::new(request_id, Ok(scored.unwrap()))).await.unwrap();
            if next.recv().await.is_none() {
                return;
            }
        }
    });
    let results: Mailbox<Value> = backend.mailbox(&*run.address()).unwrap();
    until(async || results.counts().await.unwrap().ready == 1).await;
    let how = Collect::available().on_progress(move |_| _ = more.send(()));
    let report = collect_results(&mut run, &requests, how).await.unwrap();
    assert!(report.passed >= 1 && report.passed < total / 2, "{} of {total}", report.passed);
    coming.await.unwrap();
}

#[tokio::test]
async fn a_collector_that_is_dropped_in_the_middle_loses_nothing() {
    let backend = backend();
    let requests = requests(&backend);
    let directory = tempfile::tempdir().unwrap();
    let dataset = squares(300);
    let mut run = EvalRun::create(directory.path()).unwrap();
    submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await.unwrap();
    let paid = Arc::new(AtomicUsize::new(0));
    let running = squaring(&requests, &paid);
    for micros in [100, 500, 1000, 2000, 4000, 8000] {
        let collecting = collect_results(&mut run, &requests, within());
        let _ = tokio::time::timeout(Duration::from_micros(micros), collecting).await;
        // As another process would, once the pending write is done.
        drop(run);
        until(async || EvalRun::open(directory.path()).is_ok()).await;
        run = EvalRun::open(directory.path()).unwrap();
    }
    let report = collect_results(&mut run, &requests, within()).await.unwrap();
    assert_eq!((report.total, report.passed, report.is_complete), (300, 270, true), "{report}");
    drop(run);
    assert_eq!(EvalRun::open_read_only(directory.path()).unwrap().report().unwrap(), report);
    assert_eq!(paid.load(Ordering::Relaxed), 300);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_dataset_has_the_same_fingerprint_after_a_restart() {
    let backend = backend();
    let requests: EvalRequests<std::collections::HashMap<String, f64>, f64> =
        backend.mailbox("evals").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let dataset = || {
        let samples = (0..50).map(|n| {
            let numbers = (0..20).map(|m| (format!("k{m}"), f64::from(n * 20 + m).sin()));
            Sample::new(n.to_string(), numbers.collect(), f64::from(n).cos())
        });
        Dataset::new(samples).unwrap()
    };
    let experiment = || Experiment::new("a").resource("temperature", 0.907_303_832_202_868_9);
    let mut run = EvalRun::create(directory.path()).unwrap();
    submit_dataset(&mut run, &requests, &dataset(), experiment()).await.unwrap();
    drop(run);
    let mut run = EvalRun::open(directory.path()).unwrap();
    let again = submit_dataset(&mut run, &requests, &dataset(), experiment()).await.unwrap();
    assert_eq!(again.sent, 0);
    let read = Dataset::from_file(directory.path().join("samples.jsonl")).unwrap();
    assert_eq!(submit_dataset(&mut run, &requests, &read, experiment()).await.unwrap().sent, 0);
}

#[tokio::test]
async fn a_run_that_is_open_for_reading_is_not_changed() {
    let backend = backend();
    let requests = requests(&backend);
    let directory = tempfile::tempdir().unwrap();
    let mut run = EvalRun::create(directory.path()).unwrap();
    submit_dataset(&mut run, &requests, &squares(5), Experiment::baseline()).await.unwrap();
    let mut look = EvalRun::open_read_only(directory.path()).unwrap();
    assert_eq!((look.progress().sent, look.report().unwrap().total), (5, 5));
    let error = submit_dataset(&mut look, &requests, &squares(5), Experiment::baseline())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("for reading only"), "{error}");
    // A missing file is not the same as an empty one.
    drop((run, look));
    std::fs::remove_file(directory.path().join("results.jsonl")).unwrap();
    let error = EvalRun::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("cannot open") && error.contains("results.jsonl"), "{error}");
}
