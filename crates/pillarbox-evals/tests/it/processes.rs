//! Runs whose workers, submitter and collector are killed. Every sample is in the report once, and a collected result
//! is not computed again.
//!
//! Each test runs on a SQLite file and on a Redis server.
#![cfg(unix)]

#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../../../pillarbox-runtime/tests/it/common/shared_backend.rs"]
mod shared_backend;

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use pillarbox_core::Mailboxes;
use pillarbox_evals::{
    Collect, Dataset, EvalLoop, EvalRequests, EvalResult, EvalRun, Experiment, Sample, Status,
    collect_results, exact_match, submit_experiments,
};
use pillarbox_runtime::Runnable;
use pillarbox_runtime::dead_letters::DlqPolicy;
use pillarbox_runtime::loops::Run;
use pillarbox_testing::on_threads;
use pillarbox_testing::process::{Child, assignment, end_with_the_parent, report};

use shared_backend::{SharedBackend, on_both, open};

/// Time limit, generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Lease duration, which is waited for after each kill.
const LEASE: Duration = Duration::from_secs(4);
const SAMPLES: u64 = 200;
/// Maximum number of unacknowledged samples of a worker process: two in work, two prefetched, and two answered.
const HANDS: usize = 6;

fn requests(backend: &Mailboxes) -> EvalRequests<u64, u64> {
    backend.mailbox("evals").expect("a mailbox")
}

fn dataset(samples: u64) -> Dataset<u64, u64> {
    Dataset::new((0..samples).map(|n| Sample::new(format!("s{n}"), n, n * n))).expect("samples")
}

fn experiments() -> [Experiment; 2] {
    [Experiment::new("small").resource("wrong", 4), Experiment::new("large").resource("wrong", 10)]
}

/// Adapter with a wrong output every `wrong` samples. Each call leaves a line in a file.
async fn model(n: u64, run: Run) -> u64 {
    let wrong: u64 = run.resources().get("wrong").expect("a variant");
    let effects = run.live::<std::path::PathBuf>().expect("a file");
    let file = OpenOptions::new().create(true).append(true).open(&*effects);
    file.expect("a file").write_all(format!("{wrong} {n}\n").as_bytes()).expect("written");
    tokio::time::sleep(Duration::from_millis(5)).await;
    report(&format!("begun {n}"));
    n * n + u64::from(n.is_multiple_of(wrong))
}

/// The worker process. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn working() {
    let Some((url, effects)) = assignment() else { return };
    end_with_the_parent();
    on_threads(async move {
        let backend = open(&url).await;
        EvalLoop::from_adapter(model, exact_match, requests(&backend))
            .resource(std::path::PathBuf::from(effects))
            .workers(2)
            .visibility(LEASE)
            .worker(|worker| worker.prefetch(4).result_buffer(2))
            .dead_letters(DlqPolicy::new())
            .run()
            .await
            .expect("it works");
    });
}

/// The submitter process. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn submitting() {
    let Some((url, task)) = assignment() else { return };
    end_with_the_parent();
    let (home, samples) = task.split_once('|').expect("a home and a number");
    let dataset = dataset(samples.parse().expect("a number"));
    on_threads(async move {
        let backend = open(&url).await;
        let mut run = EvalRun::open_or_create(home).expect("a run");
        report("open");
        submit_experiments(&mut run, &requests(&backend), &dataset, &experiments())
            .await
            .expect("submitted");
        report("submitted");
        std::future::pending::<()>().await;
    });
}

/// The collector process. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn collecting() {
    let Some((url, home)) = assignment() else { return };
    end_with_the_parent();
    on_threads(async move {
        let backend = open(&url).await;
        let mut run = EvalRun::open(home).expect("a run");
        let report_progress = |progress: &pillarbox_evals::Progress| {
            report(&format!("collected {}", progress.collected));
        };
        let how = Collect::within(TIMEOUT).on_progress(report_progress);
        collect_results(&mut run, &requests(&backend), how).await.expect("collected");
        report("complete");
    });
}

/// Returns the number of calls per input.
fn paid(effects: &Path) -> HashMap<String, usize> {
    let mut paid = HashMap::new();
    for line in std::fs::read_to_string(effects).expect("effects").lines() {
        *paid.entry(line.to_owned()).or_default() += 1;
    }
    paid
}

/// Returns the stored results, of which each sample of each experiment has one.
fn results(home: &Path) -> Vec<EvalResult> {
    let text = std::fs::read_to_string(home.join("results.jsonl")).expect("results");
    let results: Vec<EvalResult> =
        text.lines().map(|line| serde_json::from_str(line).expect("a result")).collect();
    let keys: HashSet<_> =
        results.iter().map(|result| (&*result.experiment, &*result.sample_id)).collect();
    assert_eq!(keys.len(), results.len(), "a sample was scored twice");
    results
}

on_both! {
    a_run_is_complete_after_a_worker_and_a_collector_are_killed;
    a_killed_submission_can_be_continued;
    concurrent_runs_collect_their_own_results_only;
}

fn a_run_is_complete_after_a_worker_and_a_collector_are_killed(shared: SharedBackend) {
    let (home, effects) = (shared.file("run"), shared.file("effects"));
    let task = effects.display().to_string();
    let workers: Vec<_> =
        (0..3).map(|_| Child::start("processes::working", &shared.url, &task)).collect();
    on_threads(async {
        let backend = open(&shared.url).await;
        let mut run = EvalRun::create(&home).expect("a run");
        submit_experiments(&mut run, &requests(&backend), &dataset(SAMPLES), &experiments())
            .await
            .expect("submitted");
    });
    let collector = Child::start("processes::collecting", &shared.url, &home.display().to_string());
    // In the middle of the run, while both hold messages.
    let mut workers = workers.into_iter();
    let worker = workers.next().expect("a worker");
    worker.wait_for("begun", 20);
    worker.kill();
    collector.wait_for("collected", 4);
    collector.kill();
    let before = results(&home).len();
    assert!(before > 0 && before < 2 * SAMPLES as usize, "{before} results");

    on_threads(async {
        let backend = open(&shared.url).await;
        let mut run = EvalRun::open(&home).expect("the run");
        assert_eq!(run.progress().collected, before);
        let how = Collect::within(TIMEOUT);
        let report = collect_results(&mut run, &requests(&backend), how).await.expect("collected");
        assert!(report.is_complete, "{report}");
        assert_eq!(report.total, 400);
        let [small, large] = &report.experiments[..] else { panic!("{report}") };
        assert_eq!((small.tally.passed, small.tally.not_passed), (150, 50), "{report}");
        assert_eq!((large.tally.passed, large.tally.not_passed), (180, 20), "{report}");
        let [comparison] = &report.comparisons[..] else { panic!("{report}") };
        // 10 of the multiples of 10 are multiples of 4, and wrong in both.
        assert_eq!((comparison.gained, comparison.lost), (40, 10));
        assert!(comparison.pass_rate.expect("a difference").is_significant(), "{report}");
    });
    assert_eq!(results(&home).len(), 400);
    let paid = paid(&effects);
    assert_eq!(paid.len(), 400);
    let twice = paid.values().sum::<usize>() - 400;
    assert!(
        twice <= HANDS,
        "{twice} were paid for twice, and the one killed had {HANDS} in its hands"
    );
}

fn a_killed_submission_can_be_continued(shared: SharedBackend) {
    const MANY: u64 = 3000;
    let home = shared.file("run");
    let task = format!("{}|{MANY}", home.display());
    // Kill it until it was in the middle: later if nothing was sent yet, earlier if everything was.
    let mut sent = 0;
    let mut pause = Duration::from_millis(10);
    for _ in 0..50 {
        let _ = std::fs::remove_dir_all(&home);
        let child = Child::start("processes::submitting", &shared.url, &task);
        child.wait_for("open", 0);
        std::thread::sleep(pause);
        child.kill();
        sent = EvalRun::open(&home).expect("the run").progress().sent;
        pause = match sent {
            0 => pause.mul_f64(1.5),
            some if some < 2 * MANY as usize => break,
            _ => pause.mul_f64(0.7),
        };
        on_threads(async { requests(&open(&shared.url).await).purge().await.expect("purged") });
    }
    assert!(sent > 0 && sent < 2 * MANY as usize, "it was never killed in the middle");
    on_threads(async {
        let backend = open(&shared.url).await;
        let requests = requests(&backend);
        let mut run = EvalRun::open(&home).expect("the run");
        let submitted =
            submit_experiments(&mut run, &requests, &dataset(MANY), &experiments()).await;
        let submitted = submitted.expect("submitted");
        assert_eq!((submitted.before, submitted.total), (sent, 6000));
        // Samples that were sent but not recorded are in the queue once.
        assert_eq!(requests.counts().await.expect("counts").total(), 6000);
    });
}

fn concurrent_runs_collect_their_own_results_only(shared: SharedBackend) {
    let effects = shared.file("effects").display().to_string();
    let _workers: Vec<_> =
        (0..2).map(|_| Child::start("processes::working", &shared.url, &effects)).collect();
    let homes = [shared.file("one"), shared.file("two")];
    on_threads(async {
        let backend = open(&shared.url).await;
        let requests = requests(&backend);
        let mut runs = homes.each_ref().map(|home| EvalRun::create(home).expect("a run"));
        for run in &mut runs {
            submit_experiments(run, &requests, &dataset(40), &experiments())
                .await
                .expect("submitted");
        }
        let [one, two] = &mut runs;
        let collect = |run| {
            let requests = requests.clone();
            async move { collect_results(run, &requests, Collect::within(TIMEOUT)).await }
        };
        let (one, two) = tokio::join!(collect(one), collect(two));
        for report in [one.expect("collected"), two.expect("collected")] {
            assert!(report.is_complete, "{report}");
            assert_eq!((report.total, report.strays), (80, 0));
            assert_eq!(report.count(Status::NotPassed), 14);
        }
    });
}
