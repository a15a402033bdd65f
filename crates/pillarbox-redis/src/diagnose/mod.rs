//! Diagnosis of the servers and of every queue, and repair.

mod consistency;
mod server;

use std::collections::BTreeMap;
#[cfg(feature = "fuzzing")]
use std::collections::HashMap;

use pillarbox_core::{Diagnosis, Finding, QueueName, Repair, Severity, Timestamp};

use self::server::Server;
use crate::context::{BackendContext, PUBLISH_ADVICE, REGISTRY_ROUTE, publish_problem};
use crate::failure::{Failure, Result};
use crate::format::Keys;
use crate::open_queues::OpenQueues;
use crate::options::Durability;
use crate::partition_layout::PartitionNumber;
use crate::partitioned_queue::PartitionedQueue;
use crate::retrying_client::RetryingClient;
use crate::script_runner::ScriptRunner;
use crate::servers::{Route, Servers};
use crate::{registration, scripts};

/// Formats everything that is reported of a server, for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) fn describe(info: String, settings: HashMap<String, String>) -> Vec<String> {
    let server = Server { endpoint: "redis://server".into(), info, settings };
    let findings = [
        server.eviction(true),
        server.fullness(),
        server.replication(Some(Durability::replicas(1)), true),
    ];
    let findings = findings.into_iter().flatten().map(|finding| finding.text);
    [server.version(), server.promise(), server.memory()].into_iter().chain(findings).collect()
}

/// Connects, and warns of servers that may lose messages.
pub(crate) async fn connect_and_warn(context: &BackendContext) -> Result<()> {
    let endpoint = context.client.endpoint();
    context.client.reach(&context.gate).await?;
    let (servers, failures) = Server::all(context).await?;
    for (_, failure) in failures {
        tracing::warn!(%endpoint, %failure, "a server does not answer");
    }
    for server in servers {
        if let Some(finding) = server.eviction(context.client.settings.default_ttl.is_some()) {
            tracing::warn!(%endpoint, "{}; {}", finding.text, finding.advice);
        }
        let (version, promise) = (server.version(), server.promise());
        tracing::info!(%endpoint, server = %server.endpoint, version, promise, "opened");
    }
    // A user with access to the keys of all queues needs their channels as well.
    if let Ok(any) = QueueName::new("any")
        && may_publish(context, &Keys::new(&any, 0)).await == Some(false)
    {
        context.warn_of_publish(None);
    }
    Ok(())
}

/// Checks the servers and every message of every queue.
pub(crate) async fn diagnose(
    open: &OpenQueues,
    registered: Result<Vec<QueueName>>,
    repair: bool,
) -> Result<Diagnosis> {
    let context = &open.context;
    let BackendContext { client, gate, .. } = &**context;
    let (servers, failures) = Server::all(context).await?;
    let found = find_queues(client).await?;
    // Without a list, all queues that were found are checked.
    let (queues, no_list) = match registered {
        Ok(queues) => (queues, None),
        Err(failure) => (found.keys().cloned().collect(), Some(failure)),
    };
    // A text that is the same for all servers is shown once.
    let all = |of: &dyn Fn(&Server) -> String| {
        let mut texts: Vec<_> = servers.iter().map(of).collect();
        if texts.windows(2).all(|two| two[0] == two[1]) {
            texts.truncate(1);
            return texts.pop().unwrap_or_default();
        }
        let endpoints = servers.iter().map(|server| &server.endpoint);
        let texts: Vec<_> =
            endpoints.zip(texts).map(|(endpoint, text)| format!("{endpoint}: {text}")).collect();
        texts.join("; ")
    };
    let info = |server: &Server, names: &[&str]| {
        let found = names.iter().find_map(|name| server.info(name));
        found.unwrap_or("unknown").to_owned()
    };
    let mut diagnosis = Diagnosis::new(promise(context, &all(&Server::promise)))
        .with_fact("server", all(&Server::version))
        .with_fact("place", &**client.endpoint())
        .with_fact("mode", all(&|server| info(server, &["redis_mode", "server_mode"])))
        .with_fact("role", all(&|server| info(server, &["role"])))
        .with_fact("replicas", all(&|server| server.number("connected_slaves").to_string()))
        .with_fact("memory", all(&Server::memory))
        .with_fact("queues", queues.len().to_string());
    let mut time = client.query(gate, *REGISTRY_ROUTE, &redis::cmd("TIME")).await?;
    let (seconds, micros): (i64, i64) = (time.parsed()?, time.parsed()?);
    diagnosis.clock =
        Some(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)));
    diagnosis
        .findings
        .extend(failures.iter().map(|(_, failure)| unreachable(&failure.to_string())));
    let has_ttl = has_ttl(context, &servers, &queues).await;
    for server in &servers {
        diagnosis.findings.extend(server.eviction(has_ttl));
        diagnosis.findings.extend(server.fullness());
        let has_failover = client.servers.has_failover();
        let replication = server.replication(client.settings.durability, has_failover);
        diagnosis.findings.extend(replication);
        if server.info("role") == Some("slave") {
            diagnosis.findings.push(Finding {
                severity: Severity::Problem,
                text: format!("{} is a replica, which refuses writes", server.endpoint),
                advice: "connect to its primary".into(),
                repair: Repair::Manual,
            });
        }
    }
    diagnosis.findings.extend(uncovered_slots(context));
    diagnosis.findings.extend(no_list.map(|failure| foreign_key("the list of queues", &failure)));
    let unregistered: Vec<_> =
        found.keys().filter(|name| !queues.contains(name)).cloned().collect();
    if !unregistered.is_empty() {
        let names: Vec<_> = unregistered.iter().take(10).map(|name| format!("'{name}'")).collect();
        diagnosis.findings.push(Finding {
            severity: Severity::Problem,
            text: format!(
                "{} queues are not on the list: {}",
                unregistered.len(),
                names.join(", ")
            ),
            advice: "they were removed from pillarbox:queues; a send adds them again".into(),
            repair: if repair { Repair::Done } else { Repair::Possible },
        });
    }
    for queue in queues.iter().chain(&unregistered) {
        let partitioned = PartitionedQueue::new(queue.clone(), context.clone());
        if let Some(ttl) = open.requested_ttl(queue) {
            partitioned.state.request_ttl(ttl);
        }
        if repair && unregistered.contains(queue) {
            context.register(queue).await?;
        }
        let node = client.servers.known_node(Keys::new(queue, 0).slot);
        if let Some(node) = node.filter(|node| failures.iter().any(|(at, _)| *at == node.endpoint))
        {
            let text = format!("queue '{queue}': {} does not answer", node.endpoint);
            diagnosis.findings.push(unreachable(&text));
        } else if let Err(failure) =
            check_queue(&partitioned, found.get(queue).copied(), repair, &mut diagnosis).await
        {
            diagnosis.findings.push(unreachable(&format!("queue '{queue}': {failure}")));
        }
    }
    Ok(diagnosis)
}

/// Returns whether a queue has a time to live, if that matters to one of the servers. Any handle may set one,
/// so the keys are checked.
async fn has_ttl(context: &BackendContext, servers: &[Server], queues: &[QueueName]) -> bool {
    if context.client.settings.default_ttl.is_some() {
        return true;
    }
    let matters =
        |server: &Server| server.eviction(true).is_some() && server.eviction(false).is_none();
    if !servers.iter().any(matters) {
        return false;
    }
    for queue in queues {
        let keys = Keys::new(queue, 0);
        let mut command = redis::cmd("PTTL");
        command.arg(&keys.meta);
        let left = context.client.query(&context.gate, Route::Slot(keys.slot), &command).await;
        if left.and_then(|mut left| left.integer()).is_ok_and(|left| left >= 0) {
            return true;
        }
    }
    false
}

/// The finding of something that cannot be checked.
fn unreachable(text: &str) -> Finding {
    Finding {
        severity: Severity::Problem,
        text: text.to_owned(),
        advice: "it cannot be used or checked until it is reachable".into(),
        repair: Repair::Manual,
    }
}

/// Checks every message of a queue, of which `last` is the last partition found.
async fn check_queue(
    queue: &PartitionedQueue,
    last: Option<PartitionNumber>,
    repair: bool,
    diagnosis: &mut Diagnosis,
) -> Result<()> {
    let name = queue.name();
    let mut layout = queue.state.read_layout(1).await?;
    if let Some(last) = last.filter(|last| *last >= layout.received_from) {
        diagnosis.findings.push(Finding {
            severity: Severity::Problem,
            text: format!(
                "queue '{name}': there is a partition {last}, but only {} are received from",
                layout.received_from
            ),
            advice: "the key :partitions of the queue was changed".into(),
            repair: if repair { Repair::Done } else { Repair::Possible },
        });
        if repair {
            layout = registration::enlist(&queue.state, last).await?;
        }
    }
    for partition in queue.all(layout) {
        let runner = &partition.runner;
        let (keys, name) = (&runner.keys, partition_name(runner));
        let foreign = queue.context().foreign_keys(keys.slot, &keys.types()).await?;
        if foreign.is_empty() {
            diagnosis.findings.extend(consistency::check(runner, &name, repair).await?);
        }
        diagnosis.findings.extend(foreign.iter().map(|failure| foreign_key(&name, failure)));
    }
    if may_publish(queue.context(), &Keys::new(name, 0)).await == Some(false) {
        diagnosis.findings.push(Finding {
            severity: Severity::Warning,
            text: format!("queue '{name}': {}", publish_problem()),
            advice: PUBLISH_ADVICE.into(),
            repair: Repair::Manual,
        });
    }
    Ok(())
}

/// The finding of a key of another type.
fn foreign_key(whose: &str, failure: &Failure) -> Finding {
    let text = match failure {
        Failure::ForeignKey { key, found, expected } => {
            format!("{whose}: the key {key} is a {found}, not a {expected}")
        }
        failure => format!("{whose}: {failure}"),
    };
    Finding {
        severity: Severity::Problem,
        text,
        advice: "another program uses the name: rename or remove the key".into(),
        repair: Repair::Manual,
    }
}

/// Returns whether the user may publish wake-ups of a partition, if that can be found out.
async fn may_publish(context: &BackendContext, keys: &Keys) -> Option<bool> {
    let node = context.client.servers.known_node(keys.slot)?;
    let mut command = redis::cmd("EVAL");
    command.arg(&scripts::PUBLISH.code).arg(1).arg(&keys.pending);
    let mut answer = context.client.query_once(&node, &command).await.ok()?;
    Some(answer.bytes().ok()?.is_empty())
}

/// Describes what an answered send survives, with the durability of the options.
fn promise(context: &BackendContext, servers: &str) -> String {
    match context.client.settings.durability {
        None => servers.to_owned(),
        Some(Durability { replicas, timeout }) => format!(
            "{servers}. But here, a send or settle is answered only when {replicas} of them have confirmed it, \
             and fails if they have not after {timeout:?}"
        ),
    }
}

/// Finds slots of a cluster without a primary.
fn uncovered_slots(context: &BackendContext) -> Option<Finding> {
    let Servers::Cluster(cluster) = &context.client.servers else { return None };
    let uncovered = cluster.uncovered();
    (uncovered > 0).then(|| Finding {
        severity: Severity::Problem,
        text: format!("{uncovered} of the cluster's 16384 slots have no primary"),
        advice: "queues in them cannot be used: see CLUSTER NODES, or redis-cli --cluster fix"
            .into(),
        repair: Repair::Manual,
    })
}

/// Returns the name of a partition in findings.
fn partition_name(partition: &ScriptRunner) -> String {
    match partition.number {
        0 => format!("queue '{}'", partition.queue.name),
        number => format!("queue '{}', partition {number}", partition.queue.name),
    }
}

/// Finds all queues that exist, on the list or not, each with its last partition.
async fn find_queues(client: &RetryingClient) -> Result<BTreeMap<QueueName, PartitionNumber>> {
    let mut found = BTreeMap::new();
    for node in client.all_servers().await? {
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg("{queue:*}:*").arg("COUNT").arg(1000);
            // A server that does not answer is reported elsewhere.
            let Ok(mut reply) = client.query_once(&node, &scan).await else { break };
            cursor = reply.parsed()?;
            while !reply.is_empty() {
                let key = String::from_utf8_lossy(&reply.bytes()?).into_owned();
                if let Some((name, partition, "pending" | "data" | "invisible")) = Keys::owner(&key)
                {
                    let last = found.entry(name).or_insert(partition);
                    *last = partition.max(*last);
                }
            }
            if cursor == "0" {
                break;
            }
        }
    }
    Ok(found)
}
