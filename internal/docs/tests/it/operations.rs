//! The files in deploy/ match docs/operations.md and docs/troubleshooting.md.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::common::{METRICS, page, quoted, read, root, table};
use pillarbox::prelude::*;
use pillarbox::stats::StatsSnapshot;
use pillarbox_testing::server::{Flavour, RedisServer};
use serde_norway::Value;

/// A metric as exposed to Prometheus.
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
}

/// Returns all metrics, as `/metrics` exposes them. A test of the runtime compares the table in docs/metrics.md
/// with the recorded metrics.
fn metrics() -> BTreeMap<String, Metric> {
    let page = read("docs/metrics.md");
    let metrics = table(&page, METRICS).into_iter().map(|cells| {
        let labels = quoted(cells[2]).into_iter().map(str::to_owned).collect();
        let mut name = cells[0].trim_matches('`').replace('.', "_");
        if cells[1] == "counter" {
            name += "_total";
        }
        (name, Metric { kind: cells[1].to_owned(), labels })
    });
    metrics.collect()
}

/// Returns the unknown metrics and labels of an expression.
fn problems(expression: &str, metrics: &BTreeMap<String, Metric>) -> Vec<String> {
    let mut problems = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut labels_there: BTreeSet<&str> = BTreeSet::from(["le"]);
    let mut named = 0;
    // Quoted texts are values of labels.
    let unquoted: String = expression.split('"').step_by(2).collect();
    for word in unquoted.split(|c: char| !is_word(c)) {
        if !(word.starts_with("pillarbox_") || word.starts_with("dlq_")) {
            continue;
        }
        named += 1;
        let bucket = word.strip_suffix("_bucket");
        match metrics.get(bucket.unwrap_or(word)) {
            None => problems.push(format!("there is no metric {word}")),
            Some(metric) if (metric.kind == "histogram") != bucket.is_some() => {
                problems.push(format!("{word} is a {}", metric.kind));
            }
            Some(metric) => labels_there.extend(metric.labels.iter().map(String::as_str)),
        }
        let counted = unquoted.contains("rate(") || unquoted.contains("increase(");
        let is_counter = metrics.get(word).is_some_and(|metric| metric.kind == "counter");
        if is_counter && !counted {
            problems.push(format!("{word} is a counter: without rate or increase it only grows"));
        }
    }
    if named == 0 {
        problems.push("it names no metric".to_owned());
    }
    // Labels: in braces, before an operator; and in lists behind by, on.
    let mut labels = Vec::new();
    for part in unquoted.split('{').skip(1) {
        let inside = part.split('}').next().unwrap();
        labels.extend(inside.split(',').map(|pair| pair.split(['=', '!']).next().unwrap().trim()));
    }
    for word in ["by (", "on ("] {
        for part in unquoted.split(word).skip(1) {
            labels.extend(part.split(')').next().unwrap().split(',').map(str::trim));
        }
    }
    let unknown = labels.iter().filter(|label| !labels_there.contains(**label));
    problems.extend(unknown.map(|label| format!("no metric in it has the label {label}")));
    problems
}

/// Returns the rules by name.
fn rules() -> Vec<(String, Value)> {
    let rules: Value = serde_norway::from_str(&read("deploy/prometheus-alerts.yaml")).unwrap();
    let groups = rules["groups"].as_sequence().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_sequence().unwrap().clone());
    rules.map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule)).collect()
}

#[test]
fn every_metric_in_an_alert_exists_and_every_alert_has_its_page() {
    let metrics = metrics();
    assert!(metrics.len() >= 20, "{}", metrics.len());
    let operations = read("docs/operations.md");
    let anchors = page("docs/troubleshooting.md").anchors();
    let rules = rules();
    assert!(rules.len() >= 10);
    for (name, rule) in rules {
        let problems = problems(rule["expr"].as_str().unwrap(), &metrics);
        assert!(problems.is_empty(), "{name}: {}", problems.join("; "));
        let runbook = rule["annotations"]["runbook"].as_str().unwrap();
        let anchor = runbook.strip_prefix("docs/troubleshooting.md#").unwrap();
        assert!(anchors.iter().any(|there| there == anchor), "{name}: {runbook}");
        let row = operations.lines().find(|line| line.contains(&format!("`{name}`"))).unwrap();
        assert!(row.contains(&format!("(troubleshooting.md#{anchor})")), "{name}: {row}");
        assert!(rule["annotations"]["summary"].as_str().is_some(), "{name}");
        assert!(matches!(rule["labels"]["severity"].as_str(), Some("page" | "ticket")), "{name}");
    }
}

#[test]
fn every_metric_is_on_the_dashboard_and_every_one_there_exists() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("deploy/grafana-dashboard.json")).unwrap();
    let metrics = metrics();
    let (mut shown, mut ids, mut titles) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut places: Vec<[u64; 4]> = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        assert!(titles.insert(title), "{title}");
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let problems = problems(expression, &metrics);
            assert!(problems.is_empty(), "{title}: {}", problems.join("; "));
            let words = expression.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            shown.extend(words.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned()));
        }
        let place = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().unwrap());
        let [x, y, w, h] = place;
        assert!(x + w <= 24, "{title}");
        let overlaps = |&[a, b, c, d]: &[u64; 4]| x < a + c && a < x + w && y < b + d && b < y + h;
        assert!(!places.iter().any(overlaps), "{title} overlaps another panel");
        places.push(place);
    }
    for name in metrics.keys() {
        assert!(shown.contains(name), "{name} is not on the dashboard");
    }
}

#[test]
fn whatever_is_wrong_with_an_expression_is_found() {
    let metrics = metrics();
    for (expression, found) in [
        ("rate(pillarbox_messages_recieved[5m])", "there is no metric"),
        ("pillarbox_messages_received_total > 5", "only grows"),
        ("rate(pillarbox_handler_duration_seconds[5m])", "is a histogram"),
        ("sum by (tenant) (rate(pillarbox_messages_received_total[5m]))", "label tenant"),
        ("rate(pillarbox_messages_received_total{outcome=\"done\"}[5m])", "label outcome"),
        ("up == 0", "names no metric"),
    ] {
        let problems = problems(expression, &metrics);
        assert_eq!(problems.len(), 1, "{expression}: {problems:?}");
        assert!(problems[0].contains(found), "{expression}: {problems:?}");
    }
}

/// Makes an HTTP request, like Prometheus.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The names match those that a group exposes, which differ from those in the code.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_tells_its_metrics_by_these_names() {
    let backend = pillarbox::open("memory:").await.unwrap();
    let orders: Mailbox<u32> = backend.mailbox("orders").unwrap();
    orders.send(&7).await.unwrap();
    let refuse = |_: u32| async { Outcome::reject("no") };
    let later = SendOptions::new().delay(Duration::from_secs(600));
    orders.send_with(&8, later).await.unwrap();
    let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq").unwrap();
    let keep = |_: DeadLetter<u32>| async { DlqAction::keep_for(Duration::from_secs(600)) };
    let sums: Mailbox<MainLoopRequest<u32>, MainLoopResult<u32>> = backend.mailbox("sums").unwrap();
    let worker = Worker::new(orders)
        .dead_letters(DlqPolicy::new())
        .depth_every(Duration::from_millis(100))
        .handler(refuse);
    let control = worker.control();
    let group = LoopGroup::new()
        .add(worker)
        .add(DlqConsumer::new(dead, keep))
        .add(MainLoop::new(sums, |n: u32| async move { n }))
        .health_addr(([127, 0, 0, 1], 0));
    let running = group.without_signals().start().unwrap();
    let is_counted =
        |stats: &StatsSnapshot| stats.terminal_failures == 1 && stats.mailboxes[0].depth == Some(1);
    control.stats().wait_for(is_counted).await.unwrap();
    let address = running.control().health_addr().unwrap();
    let output = tokio::task::spawn_blocking(move || get(address, "/metrics")).await.unwrap();
    running.stop().await.unwrap();

    let metrics = metrics();
    let types = output.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect::<Vec<_>>();
    assert!(types.len() >= 8, "{output}");
    for line in types {
        let (name, kind) = line.split_once(' ').unwrap();
        let metric = metrics.get(name).unwrap_or_else(|| panic!("{name} is not in the table"));
        assert_eq!(metric.kind, kind, "{name}");
    }
    for sample in [
        "dlq_messages_sent_total{queue=\"orders-dlq\",source=\"orders\",error_type=\"rejected\"} 1",
        "pillarbox_messages_settled_total{queue=\"orders\",outcome=\"dead_lettered\"} 1",
        // All are exposed from the start, so that `increase` sees the first of each.
        "pillarbox_messages_settled_total{queue=\"orders\",outcome=\"unconfirmed\"} 0",
        "pillarbox_leases_lost_total{queue=\"orders\"} 0",
        "pillarbox_handler_failures_total{queue=\"orders\",kind=\"panic\"} 0",
        "pillarbox_calls_failed_total{queue=\"orders\",call=\"receive\"} 0",
        "pillarbox_loops_restarted_total{loop=\"orders\"} 0",
        "pillarbox_requests_answered_total{queue=\"sums\",outcome=\"deadline\"} 0",
        "dlq_messages_sent_total{queue=\"orders-dlq\",source=\"orders\",error_type=\"timeout\"} 0",
        "dlq_messages_replayed_total{queue=\"orders-dlq\"} 0",
        "dlq_messages_expired_total{queue=\"orders-dlq\"} 0",
        // Messages by state: the second order is delayed.
        "pillarbox_queue_ready{queue=\"orders\"} 0",
        "pillarbox_queue_in_flight{queue=\"orders\"} 0",
        "pillarbox_queue_delayed{queue=\"orders\"} 1",
        "pillarbox_queue_oldest_age_seconds{queue=\"orders\"} 0",
        "pillarbox_handler_duration_seconds_bucket{queue=\"orders\",le=\"+Inf\"} 1",
    ] {
        assert!(output.contains(sample), "{sample} is not in:\n{output}");
    }
}

/// With Prometheus' own tool, if `scripts/setup.sh promtool` could install it.
#[test]
fn alerts_fire_when_they_should() {
    let promtool = root().join("target/tools/bin/promtool");
    if !promtool.exists() {
        println!("skipped: promtool is not installed");
        return;
    }
    for arguments in [
        ["check", "rules", "deploy/prometheus-alerts.yaml"],
        ["test", "rules", "deploy/prometheus-alerts-test.yaml"],
    ] {
        let output = Command::new(&promtool).args(arguments).current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

/// A server with the fragment has the settings that its comments describe.
#[tokio::test]
async fn a_redis_server_with_the_settings_promises_what_they_say() {
    let fragment = root().join("deploy/redis.conf").canonicalize().unwrap();
    for flavour in Flavour::ALL.into_iter().filter(|flavour| flavour.is_installed()) {
        let builder = RedisServer::builder().flavour(flavour);
        let server = builder.setting("include", fragment.to_str().unwrap()).start();
        let backend = pillarbox::open(&server.url()).await.unwrap();
        let jobs: Mailbox<String> = backend.mailbox("jobs").unwrap();
        jobs.send(&"sweep".to_owned()).await.unwrap();
        let diagnosis = backend.diagnose(false).await.unwrap();
        assert_eq!(diagnosis.problems().count(), 0, "{}: {diagnosis:?}", flavour.name());
        assert!(diagnosis.promise.contains("power failure"), "{}", diagnosis.promise);
        let warnings: Vec<_> = diagnosis.findings.iter().map(|finding| &finding.text).collect();
        assert!(warnings.is_empty(), "{}: {warnings:?}", flavour.name());
        backend.close().await;
    }
}
