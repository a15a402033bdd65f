//! The files in deploy/ run a program that is built, set variables that it reads, and fit the defaults of a group.

#![cfg(unix)]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Lines};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use pillarbox::prelude::*;
use serde_norway::Value;

use crate::common::{page, read, table};
use crate::operations::get;

const UNIT: &str = "deploy/pillarbox-worker.service";
const DOCKERFILE: &str = "deploy/Dockerfile";

/// Returns the settings of the unit, in order.
fn unit() -> Vec<(String, String)> {
    let unit = read(UNIT);
    let settings = unit.lines().filter(|line| !line.starts_with('#'));
    let settings = settings.filter_map(|line| line.split_once('='));
    settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the value of a setting of the unit that occurs once.
fn setting(name: &str) -> String {
    let values: Vec<_> = unit().into_iter().filter(|(key, _)| key == name).collect();
    assert_eq!(values.len(), 1, "{name}");
    values[0].1.clone()
}

fn deployment() -> Value {
    serde_norway::from_str(&read("deploy/kubernetes.yaml")).unwrap()
}

fn container(deployment: &Value) -> &Value {
    let containers = &deployment["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers.as_sequence().unwrap().len(), 1);
    &containers[0]
}

/// Returns the arguments of an instruction of the Dockerfile. Of several, the last one counts.
fn instruction(name: &str) -> String {
    let dockerfile = read(DOCKERFILE);
    let mut values = dockerfile.lines().rev();
    let value = values.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} is not in the Dockerfile")).to_owned()
}

/// Returns the command of the exec form of an instruction.
fn exec_form(name: &str) -> Vec<String> {
    serde_json::from_str(&instruction(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the number of seconds that a source file sets.
fn seconds(file: &str, before: &str) -> u64 {
    let source = read(&format!("crates/pillarbox-runtime/src/group/{file}"));
    let (_, rest) = source.split_once(before).unwrap_or_else(|| panic!("{file}: {before}"));
    let (_, number) = rest.split_once("Duration::from_secs(").unwrap();
    number.split(')').next().unwrap().parse().unwrap()
}

/// Returns the time that a stop of a group takes at most.
fn stop_takes() -> u64 {
    seconds("loop_group.rs", "drain: ") + seconds("running.rs", "const CANCEL_GRACE")
}

#[test]
fn the_unit_fits_the_defaults_of_a_group() {
    assert_eq!(setting("Type"), "notify");
    let stop: u64 = setting("TimeoutStopSec").trim_end_matches('s').parse().unwrap();
    assert!(stop > stop_takes(), "{stop}");
    // `pillarbox::open` does not wait for a server, so the program exits: with a restart limit, the service would
    // stay down after the server is back.
    assert_eq!(setting("Restart"), "on-failure");
    assert_eq!(setting("StartLimitIntervalSec"), "0", "any limit ends it at last");
    for line in read(UNIT).lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let is_section = line.starts_with('[') && line.ends_with(']');
        assert!(is_section || line.split_once('=').is_some(), "{line}");
    }
}

#[test]
fn the_deployment_fits_the_defaults_of_a_group() {
    let deployment = deployment();
    let pod = &deployment["spec"]["template"]["spec"];
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > stop_takes());
    let container = container(&deployment);
    for (probe, path) in [("livenessProbe", "/health/live"), ("readinessProbe", "/health/ready")] {
        let probe = &container[probe];
        assert_eq!(probe["httpGet"]["path"].as_str(), Some(path));
        assert_eq!(probe["httpGet"]["port"], container["ports"][0]["name"]);
        let response_takes = seconds("dead_letter_checks.rs", "const PROBE_TIMEOUT");
        assert!(probe["timeoutSeconds"].as_u64().unwrap() > response_takes);
    }
    // Probes come from the node: the server must listen on all addresses, not only on loopback.
    let health: SocketAddr = variables_of(container)
        .into_iter()
        .find_map(|(name, value)| (name == "PILLARBOX_HEALTH_ADDR").then(|| value.parse().unwrap()))
        .unwrap();
    assert!(health.ip().is_unspecified());
    let port = u64::from(health.port());
    assert_eq!(container["ports"][0]["containerPort"].as_u64(), Some(port));
    assert_eq!(instruction("EXPOSE"), port.to_string());
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/port"].as_str(), Some(&*port.to_string()));
    // Kubernetes refuses to start an image whose user is root or only a name.
    assert_eq!(pod["securityContext"]["runAsNonRoot"].as_bool(), Some(true));
    let user: u32 = instruction("USER").split(':').next().unwrap().parse().unwrap();
    assert_ne!(user, 0);
}

#[test]
fn the_page_has_the_defaults_of_a_group() {
    let page = page("docs/deployment.md");
    let options = table(&page.text, "| option | default | effect |");
    for (option, default) in [
        ("drain_for", seconds("loop_group.rs", "drain: ")),
        ("watchdog", seconds("loop_group.rs", "threshold: Some(")),
        ("ready_within", seconds("registry.rs", "const READY_WITHIN")),
    ] {
        let row = options.iter().find(|row| row[0].starts_with(&format!("`{option}("))).unwrap();
        assert_eq!(row[1], format!("{default} s"), "{option}");
    }
}

/// A command that builds an example.
struct Build {
    package: String,
    example: String,
    features: BTreeSet<String>,
}

/// Returns the command in a file that builds an example.
fn build(path: &str) -> Build {
    let file = read(path);
    let command = file.lines().find_map(|line| line.split_once("cargo build ")).unwrap().1;
    let words: Vec<_> = command.split(' ').collect();
    let value = |option: &str| {
        let at = words.iter().position(|word| *word == option);
        words[at.unwrap_or_else(|| panic!("{path}: {option}")) + 1].to_owned()
    };
    assert!(words.contains(&"--release") && words.contains(&"--locked"), "{command}");
    let features = value("--features").split(',').map(str::to_owned).collect();
    Build { package: value("-p"), example: value("--example"), features }
}

#[test]
fn the_program_of_every_file_is_an_example_that_is_built_and_installed_there() {
    for (path, installed, arguments) in [
        (UNIT, "sudo install -m 755 ", setting("ExecStart")),
        (DOCKERFILE, "COPY --from=build /src/", {
            [exec_form("ENTRYPOINT"), exec_form("CMD")].concat().join(" ")
        }),
    ] {
        let Build { package, example, features } = build(path);
        let manifest: toml::Table = read(&format!("crates/{package}/Cargo.toml")).parse().unwrap();
        let examples = manifest["example"].as_array().unwrap();
        let entry = examples.iter().find(|one| one["name"].as_str() == Some(&example));
        let entry = entry.unwrap_or_else(|| panic!("{path}: there is no example {example}"));
        let required = entry["required-features"].as_array().unwrap();
        for feature in required.iter().map(|feature| feature.as_str().unwrap()) {
            assert!(features.contains(feature), "{path}: {example} needs the feature {feature}");
        }
        let known = manifest["features"].as_table().unwrap();
        assert!(features.iter().all(|one| known.contains_key(one)), "{path}: {features:?}");
        assert!(program_source(&example).contains("Some(\"serve\")"));

        let file = read(path);
        let built = format!("{installed}target/release/examples/{example} ");
        let program = file.lines().find_map(|line| line.split_once(&built)).unwrap().1;
        assert_eq!(arguments, format!("{program} serve"), "{path}");
    }
    // The image is the one that the header of the Dockerfile builds, with the oldest Rust that is supported.
    let dockerfile = read(DOCKERFILE);
    let deployment = deployment();
    let image = container(&deployment)["image"].as_str().unwrap();
    assert!(
        dockerfile.contains(&format!("docker build -f {DOCKERFILE} -t {image} .\n")),
        "{image}"
    );
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let rust = workspace["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(dockerfile.contains(&format!("\nFROM rust:{rust}-")), "{rust}");
}

fn program_source(example: &str) -> String {
    read(&format!("crates/pillarbox/examples/{example}.rs"))
}

/// Returns the variables that a container sets.
fn variables_of(container: &Value) -> Vec<(String, String)> {
    let variables = container["env"].as_sequence().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    variables.map(|variable| (text(&variable["name"]), text(&variable["value"]))).collect()
}

#[test]
fn the_files_set_the_variables_that_the_program_reads_and_no_others() {
    let source = program_source(&build(UNIT).example);
    let parts = source.split("env::var(\"").skip(1);
    let mut read: BTreeSet<_> = parts.map(|part| part.split('"').next().unwrap()).collect();
    assert!(source.contains("tracing_subscriber::fmt::init()"), "this reads both");
    read.extend(["RUST_LOG", "NO_COLOR"]);
    for variable in &read {
        assert!(source.contains(&format!("//! | `{variable}` |")), "{variable} is not explained");
    }

    let settings = unit();
    let in_unit = settings.iter().filter(|(name, _)| name == "Environment");
    let in_unit: BTreeSet<_> =
        in_unit.map(|(_, variable)| variable.split_once('=').unwrap().0).collect();
    assert_eq!(in_unit, read);
    let deployment = deployment();
    let in_pod = variables_of(container(&deployment));
    assert_eq!(in_pod.iter().map(|(name, _)| &**name).collect::<BTreeSet<_>>(), read);
}

/// A running program, which is killed on drop.
struct Program {
    process: Child,
    log: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Returns the next line of the log.
    fn line(&mut self) -> String {
        self.log.next().expect("the log goes on").unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the next notification that starts like this.
fn notification(systemd: &UnixDatagram, start: &str) -> String {
    loop {
        let mut buffer = [0; 4096];
        let count = systemd.recv(&mut buffer).unwrap_or_else(|error| panic!("{start}: {error}"));
        let text = String::from_utf8(buffer[..count].to_vec()).unwrap();
        if text.starts_with(start) {
            return text;
        }
    }
}

/// Starts the program as the unit does, probes it like Kubernetes, and stops it.
#[tokio::test(flavor = "multi_thread")]
async fn the_program_notifies_systemd_answers_the_probes_and_stops_on_sigterm() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("jobs.db").display());
    let backend = pillarbox::open(&url).await.unwrap();
    let jobs: Mailbox<serde_json::Value> = backend.mailbox("jobs").unwrap();
    for job in [r#"{"fail": true}"#, r#"{"n": 1}"#] {
        jobs.send(&job.parse().unwrap()).await.unwrap();
    }

    let socket = directory.path().join("notify");
    let systemd = UnixDatagram::bind(&socket).unwrap();
    systemd.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_tutorial")).parent().unwrap();
    let program = built.join("examples").join(build(UNIT).example);
    let hint = "cargo build --workspace --all-features --examples";
    assert!(program.exists(), "the example is not built: {hint}");
    let start = setting("ExecStart");
    let mut process = Command::new(program)
        .args(start.split(' ').skip(1))
        .env("PILLARBOX_URL", &url)
        .env("PILLARBOX_HEALTH_ADDR", "127.0.0.1:0")
        .env("RUST_LOG", "info")
        .env("NO_COLOR", "1")
        .env("NOTIFY_SOCKET", &socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut program = Program { process, log };

    let health: SocketAddr = loop {
        if let Some((_, address)) = program.line().split_once("address=") {
            break address.trim().parse().unwrap();
        }
    };
    assert_eq!(notification(&systemd, "READY=1"), "READY=1\nSTATUS=running jobs");
    let deployment = deployment();
    let container = container(&deployment);
    for probe in ["livenessProbe", "readinessProbe"] {
        let response = get(health, container[probe]["httpGet"]["path"].as_str().unwrap());
        assert!(response.starts_with("HTTP/1.1 200 "), "{probe}: {response}");
    }
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    let metrics = get(health, annotations["prometheus.io/path"].as_str().unwrap());
    assert!(metrics.contains("\npillarbox_messages_received_total{queue=\"jobs\"}"), "{metrics}");
    let mut expected = vec!["handled a job", "a message was dead-lettered"];
    while !expected.is_empty() {
        let line = program.line();
        expected.retain(|text| !line.contains(text));
    }

    let kill = Command::new("kill").arg(program.process.id().to_string()).status().unwrap();
    assert!(kill.success());
    notification(&systemd, "STOPPING=1");
    assert_eq!(program.process.wait().unwrap().code(), Some(0));
    let dead: Mailbox<DeadLetter<serde_json::Value>> = backend.mailbox("jobs-dlq").unwrap();
    assert_eq!(jobs.counts().await.unwrap().total(), 0);
    assert_eq!(dead.counts().await.unwrap().total(), 1);
    backend.close().await;
}
