//! An eval run from one end to the other.

use std::path::Path;
use std::time::Instant;

use pillarbox_core::Mailboxes;
use pillarbox_evals::{
    Collect, Dataset, EvalLoop, EvalReport, EvalRequests, EvalRun, Experiment, Sample,
    collect_results, exact_match, submit_dataset,
};
use pillarbox_runtime::{Runnable, Running};

use super::{PATIENCE, figures, input};
use crate::measure::{Result, expect_eq, on_two_threads};
use crate::place;
use crate::store::{Kind, Store};

pub(super) fn run(kind: Kind, samples: u64) -> Result<[f64; 2]> {
    let store = Store::fresh(kind)?;
    let home = place::fresh()?;
    let address = store.address();
    on_two_threads(async {
        let backend = address.backend().await?;
        let dataset = dataset(samples)?;
        let running = start(&backend)?;
        let begun = Instant::now();
        submit(&backend, home.path(), &dataset).await?;
        let page = collect(&backend, home.path(), samples).await?.to_html();
        let elapsed = begun.elapsed();
        expect_eq("the page is whole", page.ends_with("</html>\n"), true)?;
        running.stop().await?;
        backend.close().await;
        Ok(figures(samples, elapsed))
    })
}

pub(super) fn dataset(samples: u64) -> Result<Dataset<String, String>> {
    Ok(Dataset::new((0..samples).map(|n| Sample::new(n.to_string(), input(n), input(n))))?)
}

pub(super) fn requests(backend: &Mailboxes) -> Result<EvalRequests<String, String>> {
    Ok(backend.mailbox("evals")?)
}

/// Starts the loop that works and judges.
pub(super) fn start(backend: &Mailboxes) -> Result<Running> {
    let adapter = |text: String| async move { text };
    let evals = EvalLoop::from_adapter(adapter, exact_match, requests(backend)?);
    Ok(evals.start())
}

pub(super) async fn submit(
    backend: &Mailboxes,
    home: &Path,
    dataset: &Dataset<String, String>,
) -> Result<()> {
    let mut run = EvalRun::create(home)?;
    submit_dataset(&mut run, &requests(backend)?, dataset, Experiment::baseline()).await?;
    Ok(())
}

pub(super) async fn collect(backend: &Mailboxes, home: &Path, samples: u64) -> Result<EvalReport> {
    let mut run = EvalRun::open(home)?;
    let report = collect_results(&mut run, &requests(backend)?, Collect::within(PATIENCE)).await?;
    expect_eq("samples that passed", report.passed as u64, samples)?;
    Ok(report)
}
