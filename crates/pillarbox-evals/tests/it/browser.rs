//! The web page of a report, opened in a browser. `make test-browser` runs this: it needs Chromium.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pillarbox_core::{Mailboxes, MemoryBackend};
use pillarbox_evals::{
    Collect, Dataset, EvalLoop, EvalReport, EvalRequests, EvalRun, Experiment, Sample,
    collect_results, exact_match, submit_experiments,
};
use pillarbox_runtime::Runnable;
use pillarbox_runtime::loops::Run;
use pillarbox_testing::on_threads;

/// Report on twenty samples: two errors and four wrong outputs with `small`, two and one with `"large" & <b>`.
fn report() -> EvalReport {
    on_threads(async {
        let backend = Mailboxes::new(MemoryBackend::new());
        let requests: EvalRequests<String, String> = backend.mailbox("evals").unwrap();
        let adapter = |text: String, run: Run| async move {
            let wrong: usize = run.resources().get("wrong").unwrap_or(1);
            let n: usize =
                text.split(' ').next().and_then(|n| n.parse().ok()).ok_or("no number")?;
            if n >= 18 {
                return Err(format!("{n} is too much"));
            }
            Ok(if n < wrong {
                "</pre><script>document.title = 'taken over'</script>".to_owned()
            } else {
                text
            })
        };
        let running =
            EvalLoop::from_adapter::<String, _, _>(adapter, exact_match, requests.clone()).start();
        let dataset = Dataset::new((0..20).map(|n| {
            let text = format!("{n} <img src=x onerror=\"document.title = 'taken over'\">");
            Sample::new(format!("sample-{n}"), text.clone(), text)
        }))
        .unwrap();
        let two =
            [Experiment::new("small").resource("wrong", 4), Experiment::new("\"large\" & <b>")];
        let mut run = EvalRun::in_memory();
        submit_experiments(&mut run, &requests, &dataset, &two).await.unwrap();
        let report = collect_results(&mut run, &requests, Collect::within(Duration::from_secs(60)))
            .await
            .unwrap();
        running.stop().await.unwrap();
        report
    })
}

/// Returns the DOM after the scripts have run.
fn browse(page: &Path, address: &str) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned()))
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ])
        .args(["--disable-component-update", "--disable-sync", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}{address}", page.display()))
        .output()
        .expect("chromium starts: `make test-browser` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the text with the number of shown rows, and the actual number.
fn shown(dom: &str) -> (String, usize) {
    let (_, rest) = dom.split_once("id=\"shown\"").expect("number of rows");
    let text = rest.split_once('>').unwrap().1.split_once('<').unwrap().0;
    let rows = dom.split("<tr data-experiment=").skip(1);
    let visible = rows.filter(|row| !row.split_once('>').unwrap().0.contains("hidden")).count();
    (text.to_owned(), visible)
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn the_web_page_of_a_report_works_offline_and_can_be_filtered() {
    let report = report();
    assert_eq!((report.passed, report.failures.len()), (31, 9), "{report}");
    let html = report.to_html();
    // Nothing is fetched from a server.
    assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("<link"));
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("report.html");
    std::fs::write(&page, &html).unwrap();

    let dom = browse(&page, "");
    assert_eq!(shown(&dom), ("9 of 9 shown".to_owned(), 9));
    assert!(
        dom.contains(&format!("<title>Eval run {}</title>", report.run_id)),
        "a sample took the page over"
    );
    for plot in ["pass-rate", "scores", "latency", "differences"] {
        assert!(dom.contains(&format!("id=\"{plot}\"")), "{plot}");
    }

    // Filtered by the fragment of the URL.
    for (address, count) in [
        ("#experiment=small", 6),
        ("#status=failed", 4),
        ("#status=not_passed&experiment=small", 4),
        ("#find=TOO+much+19", 2),
        ("#find=sample-1", 5),
        ("#find=nowhere", 0),
        ("#experiment=unknown", 9),
        ("#experiment=%22large%22+%26+%3Cb%3E", 3),
    ] {
        let dom = browse(&page, address);
        assert_eq!(shown(&dom), (format!("{count} of 9 shown"), count), "{address}");
    }

    // Filtered by the controls.
    let typing = "<script>\nconst field = document.getElementById('find');\nfield.value = 'sample-0';\n\
                  field.dispatchEvent(new Event('input'));\nconst chosen = document.getElementById('experiment');\n\
                  chosen.value = 'small';\nchosen.dispatchEvent(new Event('change'));\n\
                  document.title = location.hash;\n</script>\n</body>";
    std::fs::write(&page, html.replace("</body>", typing)).unwrap();
    let dom = browse(&page, "");
    assert_eq!(shown(&dom), ("1 of 9 shown".to_owned(), 1));
    assert!(
        dom.contains("<title>#find=sample-0&amp;experiment=small</title>"),
        "the filter is in the URL"
    );
}
