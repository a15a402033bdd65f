//! What a server is, what it promises, and whether its queues are sound.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use pillarbox_core::{Diagnosis, Finding, QueueName, Repair, Severity, Timestamp};

use crate::engine::{Engine, LIST_ROUTE, UNHEARD_ADVICE, foreign_keys, unheard};
use crate::failure::Failure;
use crate::format::{IdText, Keys};
use crate::hub::Hub;
use crate::layout::Number;
use crate::link::Link;
use crate::options::Durability;
use crate::partition::Partition;
use crate::scripts;
use crate::servers::{Node, Route, Servers, field};

/// How many entries in line one script may look at: it searches the line for each message that it
/// looks at twice.
const ENTRIES_AT_ONCE: usize = 1_000_000;

/// What decides whether a server keeps what it is given.
const SETTINGS: [&str; 5] =
    ["appendonly", "appendfsync", "save", "maxmemory-policy", "min-replicas-to-write"];

/// What a server says of itself.
#[derive(Debug)]
struct Server {
    place: Arc<str>,
    info: String,
    /// Without those that may not be asked for.
    settings: HashMap<String, String>,
}

impl Server {
    async fn ask(engine: &Engine, node: &Arc<Node>) -> Result<Self, Failure> {
        let Engine { link, gate, .. } = engine;
        let command = redis::cmd("INFO");
        let info = match &link.servers {
            Servers::One(_) => link.ask(gate, Route::To(node), &command).await,
            // One of several that is down keeps nobody waiting; a connection that breaks is made anew.
            Servers::Cluster(_) => match link.ask_once(node, &command).await {
                Err(failure) if failure.may_pass() => link.ask_once(node, &command).await,
                info => info,
            },
        };
        let info = match info {
            Ok(mut info) => info.parsed()?,
            // A user who may use queues may not be one who may know more of the server.
            Err(failure) if failure.is_forbidden() => String::new(),
            Err(failure) => return Err(failure),
        };
        // One by one: servers before 7 take no more. Some do not tell.
        let settings = SETTINGS.map(async |name| {
            let mut command = redis::cmd("CONFIG");
            let mut words = link.ask_once(node, command.arg("GET").arg(name)).await.ok()?;
            Some((words.parsed().ok()?, words.parsed().ok()?))
        });
        let settings = join_all(settings).await.into_iter().flatten().collect();
        Ok(Self { place: node.place.clone(), info, settings })
    }

    /// All servers that have keys and answer, and why others do not.
    async fn all(engine: &Engine) -> Result<(Vec<Self>, Vec<(Arc<str>, Failure)>), Failure> {
        let nodes = engine.link.all_servers().await?;
        let asked = join_all(nodes.iter().map(|node| Self::ask(engine, node))).await;
        let (mut servers, mut failures) = (Vec::new(), Vec::new());
        for (node, server) in nodes.iter().zip(asked) {
            match server {
                Ok(server) => servers.push(server),
                Err(failure) => failures.push((node.place.clone(), failure)),
            }
        }
        if servers.is_empty()
            && let Some((_, failure)) = failures.pop()
        {
            return Err(failure);
        }
        Ok((servers, failures))
    }

    fn info(&self, name: &str) -> Option<&str> {
        field(&self.info, name)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.info(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn version(&self) -> String {
        match (self.info("valkey_version"), self.info("redis_version")) {
            (Some(valkey), _) => format!("Valkey {valkey}"),
            (None, Some(redis)) => format!("Redis {redis}"),
            (None, None) => "unknown".into(),
        }
    }

    /// What an answered send has survived.
    fn promise(&self) -> String {
        let appends = match self.setting("appendonly") {
            Some(value) => value == "yes",
            None => self.number("aof_enabled") == 1,
        };
        let disk = match self.setting("appendfsync") {
            Some("always") if appends => {
                "an answered send is on the server's disk: it survives kill -9 and power failure"
            }
            Some("everysec") if appends => {
                "an answered send survives the end of the server's process; a crash of its machine \
                 may cost the last one or two seconds (appendfsync everysec)"
            }
            _ if appends => {
                "an answered send survives the end of the server's process; a crash of its machine \
                 may cost what the operating system has not written yet"
            }
            _ => match self.setting("save") {
                Some("") => "messages are gone when the server ends: it stores nothing on disk",
                Some(_) => "what was sent since the last snapshot is gone when the server ends",
                None => "unknown: the server does not tell how it stores on disk",
            },
        };
        let replicas = self.number("connected_slaves");
        let told = if replicas == 1 { "a replica is" } else { &format!("{replicas} replicas are") };
        match (replicas, self.least_replicas()) {
            (0, _) => disk.to_owned(),
            (_, 0) => {
                format!("{disk}; {told} told afterwards: a failover may cost the last moments")
            }
            (_, least) => format!(
                "{disk}; {told} told afterwards, and writes are refused while fewer than {least} keep up"
            ),
        }
    }

    /// How many replicas keep up: they were heard of within the last seconds.
    fn replicas(&self) -> u64 {
        let is_near = |replica: &&str| {
            let lag = replica.split(',').find_map(|field| field.strip_prefix("lag="));
            replica.contains("state=online") && lag.and_then(|lag| lag.parse().ok()) <= Some(5_u64)
        };
        // A line each, whatever number it says there are.
        let replicas = self.info.lines().filter_map(|line| {
            let (name, replica) = line.split_once(':')?;
            let number = name.strip_prefix("slave")?;
            number.bytes().all(|byte| byte.is_ascii_digit()).then_some(replica)
        });
        let most = self.number("connected_slaves");
        (replicas.filter(is_near).count() as u64).min(most)
    }

    /// How many replicas must keep up, or the server refuses to write.
    fn least_replicas(&self) -> u64 {
        self.setting("min-replicas-to-write").and_then(|least| least.parse().ok()).unwrap_or(0)
    }

    /// Whether a failover may cost what others were told has been stored.
    fn replication(&self, durability: Option<Durability>, has_others: bool) -> Option<Finding> {
        let replicas = self.replicas();
        let wanted = durability.map_or(0, |durability| u64::from(durability.replicas));
        let finding = |severity, text: String, advice: &str| {
            let (advice, repair) = (advice.to_owned(), Repair::Manual);
            Some(Finding { severity, text, advice, repair })
        };
        let least = self.least_replicas();
        if replicas < least {
            let text = format!(
                "{} refuses to write: {replicas} of its replicas keep up, and {least} must \
                 (min-replicas-to-write)",
                self.place
            );
            let advice = "bring replicas back; where one may fail, have one more than that";
            return finding(Severity::Problem, text, advice);
        }
        if replicas < wanted {
            let text = format!(
                "{replicas} replicas of {} keep up, and {wanted} are asked to confirm \
                 (replicas={wanted}): sends and settles fail",
                self.place
            );
            return finding(Severity::Problem, text, "add replicas, or ask for fewer");
        }
        if replicas == 0 && has_others {
            let text = format!("{} has no replica: nobody takes over when it fails", self.place);
            return finding(Severity::Warning, text, "add a replica, or bring it back");
        }
        if replicas > 0 && wanted == 0 && self.least_replicas() == 0 {
            let text = format!(
                "{} goes on alone when it loses its {replicas} replicas: what it is sent then is lost \
                 when another takes over (min-replicas-to-write 0)",
                self.place
            );
            let advice = "set min-replicas-to-write 1 and min-replicas-max-lag 10; and open with \
                          replicas=1 where not a single answered send may be lost";
            return finding(Severity::Warning, text, advice);
        }
        None
    }

    /// Whether there is hardly any memory left.
    fn fullness(&self) -> Option<Finding> {
        let (used, most) = (self.number("used_memory"), self.number("maxmemory"));
        (most > 0 && used > most / 20 * 19).then(|| Finding {
            severity: Severity::Warning,
            text: format!(
                "the memory of {} is nearly full (maxmemory): sends fail, or soon will",
                self.place
            ),
            advice: "drain queues, or give the server more".into(),
            repair: Repair::Manual,
        })
    }

    /// Whether the server may throw away keys that are still needed.
    fn eviction(&self, has_ttl: bool) -> Option<Finding> {
        let policy = self.setting("maxmemory-policy").or(self.info("maxmemory_policy"))?;
        let evicts = policy.starts_with("allkeys-") || has_ttl && policy.starts_with("volatile-");
        evicts.then(|| Finding {
            severity: match self.number("maxmemory") {
                0 => Severity::Warning,
                _ => Severity::Problem,
            },
            text: format!(
                "{} throws away keys, queues among them, when its memory is full \
                 (maxmemory-policy {policy})",
                self.place
            ),
            advice: "set maxmemory-policy to noeviction: sends then fail with a clear error".into(),
            repair: Repair::Manual,
        })
    }
}

/// All that is told of a server that says this of itself, for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) fn told(info: String, settings: HashMap<String, String>) -> Vec<String> {
    let server = Server { place: "redis://server".into(), info, settings };
    let findings = [
        server.eviction(true),
        server.fullness(),
        server.replication(Some(Durability::replicas(1)), true),
    ];
    let findings = findings.into_iter().flatten().map(|finding| finding.text);
    [server.version(), server.promise(), memory(&server)].into_iter().chain(findings).collect()
}

/// Connects, and warns of servers that may lose messages.
pub(crate) async fn warn(engine: &Engine) -> Result<(), Failure> {
    let place = engine.link.place();
    engine.link.reach(&engine.gate).await?;
    let (servers, failures) = Server::all(engine).await?;
    for (_, failure) in failures {
        tracing::warn!(%place, %failure, "a server does not answer");
    }
    for server in servers {
        if let Some(finding) = server.eviction(engine.link.usage.default_ttl.is_some()) {
            tracing::warn!(%place, "{}; {}", finding.text, finding.advice);
        }
        let (version, promise) = (server.version(), server.promise());
        tracing::info!(%place, server = %server.place, version, promise, "opened");
    }
    // A user who has the keys of all queues should have their channels as well.
    if let Ok(any) = QueueName::new("any")
        && may_publish(engine, &Keys::new(&any, 0)).await == Some(false)
    {
        engine.warn_unheard(None);
    }
    Ok(())
}

/// Looks at the servers and at every message of every queue.
pub(crate) async fn diagnose(
    engine: &Arc<Engine>,
    listed: Result<Vec<QueueName>, Failure>,
    repair: bool,
) -> Result<Diagnosis, Failure> {
    let Engine { link, gate, .. } = &**engine;
    let (servers, failures) = Server::all(engine).await?;
    let found = partitions_found(link).await?;
    // Where there is no list, those are looked at that are there.
    let (queues, no_list) = match listed {
        Ok(queues) => (queues, None),
        Err(failure) => (found.keys().cloned().collect(), Some(failure)),
    };
    // What is true of all is said once.
    let all = |of: &dyn Fn(&Server) -> String| {
        let mut texts: Vec<_> = servers.iter().map(of).collect();
        if texts.windows(2).all(|two| two[0] == two[1]) {
            texts.truncate(1);
            return texts.pop().unwrap_or_default();
        }
        let places = servers.iter().map(|server| &server.place);
        let texts: Vec<_> = places.zip(texts).map(|(place, it)| format!("{place}: {it}")).collect();
        texts.join("; ")
    };
    let info = |server: &Server, names: &[&str]| {
        let found = names.iter().find_map(|name| server.info(name));
        found.unwrap_or("unknown").to_owned()
    };
    let mut diagnosis = Diagnosis::new(promise(engine, &all(&Server::promise)))
        .with_fact("server", all(&Server::version))
        .with_fact("place", &**link.place())
        .with_fact("mode", all(&|server| info(server, &["redis_mode", "server_mode"])))
        .with_fact("role", all(&|server| info(server, &["role"])))
        .with_fact("replicas", all(&|server| server.number("connected_slaves").to_string()))
        .with_fact("memory", all(&memory))
        .with_fact("queues", queues.len().to_string());
    let mut time = link.ask(gate, *LIST_ROUTE, &redis::cmd("TIME")).await?;
    let (seconds, micros): (i64, i64) = (time.parsed()?, time.parsed()?);
    diagnosis.clock =
        Some(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)));
    diagnosis
        .findings
        .extend(failures.iter().map(|(_, failure)| unreachable(&failure.to_string())));
    let has_ttl = has_ttl(engine, &servers, &queues).await;
    for server in &servers {
        diagnosis.findings.extend(server.eviction(has_ttl));
        diagnosis.findings.extend(server.fullness());
        let has_others = link.servers.has_failover();
        diagnosis.findings.extend(server.replication(link.usage.durability, has_others));
        if server.info("role") == Some("slave") {
            diagnosis.findings.push(Finding {
                severity: Severity::Problem,
                text: format!("{} is a replica, which refuses to store anything", server.place),
                advice: "connect to its primary".into(),
                repair: Repair::Manual,
            });
        }
    }
    diagnosis.findings.extend(uncovered(engine));
    diagnosis.findings.extend(no_list.map(|failure| foreign("the list of queues", &failure)));
    let unlisted: Vec<_> = found.keys().filter(|name| !queues.contains(name)).cloned().collect();
    if !unlisted.is_empty() {
        let names: Vec<_> = unlisted.iter().take(10).map(|name| format!("'{name}'")).collect();
        diagnosis.findings.push(Finding {
            severity: Severity::Problem,
            text: format!("{} queues are not on the list: {}", unlisted.len(), names.join(", ")),
            advice: "somebody has removed them from pillarbox:queues; a send puts them there"
                .into(),
            repair: if repair { Repair::Done } else { Repair::Possible },
        });
    }
    for queue in queues.iter().chain(&unlisted) {
        let hub = Hub::new(queue.clone(), engine.clone());
        if let Some(ttl) = engine.named_ttl(queue) {
            hub.state.name_ttl(ttl);
        }
        if repair && unlisted.contains(queue) {
            engine.list(queue).await?;
        }
        let node = link.servers.known_node(Keys::new(queue, 0).slot);
        if let Some(node) = node.filter(|node| failures.iter().any(|(at, _)| *at == node.place)) {
            let text = format!("queue '{queue}': {} does not answer", node.place);
            diagnosis.findings.push(unreachable(&text));
        } else if let Err(failure) =
            look_into(&hub, found.get(queue).copied(), repair, &mut diagnosis).await
        {
            diagnosis.findings.push(unreachable(&format!("queue '{queue}': {failure}")));
        }
    }
    Ok(diagnosis)
}

/// Whether a queue has a time to live, as far as it matters to one of the servers: whoever opens a queue
/// may name one, so the keys are looked at.
async fn has_ttl(engine: &Engine, servers: &[Server], queues: &[QueueName]) -> bool {
    if engine.link.usage.default_ttl.is_some() {
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
        let left = engine.link.ask(&engine.gate, Route::Slot(keys.slot), &command).await;
        if left.and_then(|mut left| left.integer()).is_ok_and(|left| left >= 0) {
            return true;
        }
    }
    false
}

/// What cannot be looked at.
fn unreachable(text: &str) -> Finding {
    Finding {
        severity: Severity::Problem,
        text: text.to_owned(),
        advice: "what is there cannot be used, nor looked at, until it can be reached".into(),
        repair: Repair::Manual,
    }
}

/// Looks at every message of a queue, of which `last` is the last partition that there is.
async fn look_into(
    hub: &Hub,
    last: Option<Number>,
    repair: bool,
    diagnosis: &mut Diagnosis,
) -> Result<(), Failure> {
    let queue = hub.name();
    let mut layout = hub.state.learn_layout(1).await?;
    if let Some(last) = last.filter(|last| *last >= layout.held_in) {
        diagnosis.findings.push(Finding {
            severity: Severity::Problem,
            text: format!(
                "queue '{queue}': there is a partition {last}, and only {} are received from",
                layout.held_in
            ),
            advice: "somebody has changed the queue's key :partitions".into(),
            repair: if repair { Repair::Done } else { Repair::Possible },
        });
        if repair {
            layout = hub.state.enlist(last).await?;
        }
    }
    for partition in hub.all(layout) {
        let Partition { keys, .. } = &*partition;
        let foreign_keys = foreign_keys(hub.engine(), keys.slot, &keys.types()).await?;
        if foreign_keys.is_empty() {
            diagnosis.findings.extend(check(&partition, repair).await?);
        }
        let name = name(&partition);
        diagnosis.findings.extend(foreign_keys.iter().map(|failure| foreign(&name, failure)));
    }
    if may_publish(hub.engine(), &Keys::new(queue, 0)).await == Some(false) {
        diagnosis.findings.push(Finding {
            severity: Severity::Warning,
            text: format!("queue '{queue}': {}", unheard()),
            advice: UNHEARD_ADVICE.into(),
            repair: Repair::Manual,
        });
    }
    Ok(())
}

/// A key of another type.
fn foreign(whose: &str, failure: &Failure) -> Finding {
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

/// Whether the user may wake those who wait at a partition, if the server tells.
async fn may_publish(engine: &Engine, keys: &Keys) -> Option<bool> {
    let node = engine.link.servers.known_node(keys.slot)?;
    let mut command = redis::cmd("EVAL");
    command.arg(&scripts::PUBLISH.code).arg(1).arg(&keys.pending);
    let mut answer = engine.link.ask_once(&node, &command).await.ok()?;
    Some(answer.bytes().ok()?.is_empty())
}

/// What an answered send has survived, all in all.
fn promise(engine: &Engine, servers: &str) -> String {
    match engine.link.usage.durability {
        None => servers.to_owned(),
        Some(Durability { replicas, timeout }) => format!(
            "{servers}. But here, a send or settle is answered only when {replicas} of them have confirmed it, \
             and fails after {timeout:?} without"
        ),
    }
}

/// Whether a cluster has slots that nobody serves.
fn uncovered(engine: &Engine) -> Option<Finding> {
    let Servers::Cluster(cluster) = &engine.link.servers else { return None };
    let uncovered = cluster.uncovered();
    (uncovered > 0).then(|| Finding {
        severity: Severity::Problem,
        text: format!("{uncovered} of the cluster's 16384 slots have no primary"),
        advice: "queues in them cannot be used: see CLUSTER NODES, or redis-cli --cluster fix"
            .into(),
        repair: Repair::Manual,
    })
}

fn memory(server: &Server) -> String {
    let used = server.info("used_memory_human").unwrap_or("unknown");
    match server.number("maxmemory") {
        0 => format!("{used} used, no limit set"),
        _ => format!("{used} used of {}", server.info("maxmemory_human").unwrap_or("unknown")),
    }
}

type Id = Vec<u8>;

/// Reads the keys of a queue one after the other, while others use it, and looks twice at whatever
/// does not fit together.
async fn check(partition: &Partition, repair: bool) -> Result<Vec<Finding>, Failure> {
    let mut places: HashMap<Id, u32> = HashMap::new();
    let in_line = line(partition).await?;
    let timed = timed(partition).await?;
    for id in in_line.iter().chain(&timed) {
        *places.entry(id.clone()).or_default() += 1;
    }
    let (data, foreign) = fields(partition, 3).await?;
    let (meta, _) = fields(partition, 4).await?;
    let mut suspects: HashSet<&Id> =
        places.iter().filter(|(_, times)| **times > 1).map(|(id, _)| id).collect();
    suspects.extend(data.iter().filter(|id| !places.contains_key(*id)));
    suspects.extend(places.keys().chain(&meta).filter(|id| !data.contains(*id)));
    // By id, which is the order of sending: those that are put in line are in that order.
    let mut suspects: Vec<_> = suspects.into_iter().collect();
    suspects.sort();

    let mut found: HashMap<u8, usize> = HashMap::new();
    let at_once = (ENTRIES_AT_ONCE / (in_line.len() + suspects.len() + 1)).clamp(1, 200);
    for some in suspects.chunks(at_once) {
        for answer in mend(partition, repair, some).await? {
            *found.entry(answer).or_default() += 1;
        }
    }
    let off =
        String::from_utf8_lossy(&mend(partition, repair, &[]).await?).parse::<i64>().unwrap_or(0);
    if off != 0 {
        found.insert(b'd', off.unsigned_abs() as usize);
    }
    if foreign > 0 {
        found.insert(b'f', foreign);
    }
    let finding = |(kind, count): (&u8, &usize)| {
        let (severity, what) = match kind {
            b'u' => {
                (Severity::Problem, "messages that are neither ready nor in flight nor delayed")
            }
            b'b' => (Severity::Problem, "messages in two places"),
            b'h' => (Severity::Problem, "ready messages with a receipt"),
            b'n' => (Severity::Warning, "entries that belong to no message"),
            b'd' => (Severity::Warning, "delayed messages counted wrongly"),
            b'f' => (Severity::Warning, "data under names that are no ids, which nobody receives"),
            _ => return None,
        };
        let repair = match (kind, repair) {
            (b'f', _) => Repair::Manual,
            (_, true) => Repair::Done,
            (_, false) => Repair::Possible,
        };
        let text = format!("{}: {count} {what}", name(partition));
        let advice = "somebody has written to the keys, or the server has lost some".into();
        Some(Finding { severity, text, advice, repair })
    };
    let mut findings: Vec<_> = found.iter().filter_map(finding).collect();
    findings.sort_by(|one, other| one.text.cmp(&other.text));
    Ok(findings)
}

/// What a partition is called.
fn name(partition: &Partition) -> String {
    match partition.number {
        0 => format!("queue '{}'", partition.queue.name),
        number => format!("queue '{}', partition {number}", partition.queue.name),
    }
}

/// The queues that are there, whether they are on the list or not, each with its last partition.
async fn partitions_found(link: &Link) -> Result<BTreeMap<QueueName, Number>, Failure> {
    let mut found = BTreeMap::new();
    for node in link.all_servers().await? {
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg("{queue:*}:*").arg("COUNT").arg(1000);
            // That a server does not answer is told elsewhere.
            let Ok(mut words) = link.ask_once(&node, &scan).await else { break };
            cursor = words.parsed()?;
            while !words.is_empty() {
                let key = String::from_utf8_lossy(&words.bytes()?).into_owned();
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

async fn mend(partition: &Partition, repair: bool, ids: &[&Id]) -> Result<Vec<u8>, Failure> {
    let mut words = partition
        .run_unremembered(&scripts::MEND, |command| {
            command.arg(u8::from(repair));
            for id in ids {
                command.arg(&id[..]);
            }
        })
        .await?;
    words.bytes()
}

/// All ids in the line of ready messages.
async fn line(partition: &Partition) -> Result<Vec<Id>, Failure> {
    let Engine { link, gate, .. } = &**partition.engine();
    let route = Route::Slot(partition.keys.slot);
    let mut ids = Vec::new();
    loop {
        // From the tail on: what is delivered meanwhile is at the other end.
        let mut page = redis::cmd("LRANGE");
        page.arg(&partition.keys.pending).arg(ids.len()).arg(ids.len() + 999);
        let mut words = link.ask(gate, route, &page).await?;
        if words.is_empty() {
            return Ok(ids);
        }
        while !words.is_empty() {
            ids.push(words.bytes()?);
        }
    }
}

/// All ids in flight or delayed.
async fn timed(partition: &Partition) -> Result<HashSet<Id>, Failure> {
    let Engine { link, gate, .. } = &**partition.engine();
    let route = Route::Slot(partition.keys.slot);
    let mut ids = HashSet::new();
    let mut from = 0;
    loop {
        let mut page = redis::cmd("ZRANGE");
        page.arg(&partition.keys.invisible).arg(from).arg(from + 999);
        let mut words = link.ask(gate, route, &page).await?;
        if words.is_empty() {
            return Ok(ids);
        }
        while !words.is_empty() {
            from += 1;
            ids.extend(Some(words.bytes()?).filter(|id| id.len() == 22));
        }
    }
}

/// All ids that are fields of the hash that is key number `key` of the scripts, and how many fields are
/// something else.
async fn fields(partition: &Partition, key: u32) -> Result<(HashSet<Id>, usize), Failure> {
    let (mut ids, mut foreign) = (HashSet::new(), 0);
    let mut cursor = "0".to_owned();
    loop {
        let mut words = partition
            .run_unremembered(&scripts::FIELDS, |command| {
                command.arg(key).arg(&cursor);
            })
            .await?;
        cursor = words.parsed()?;
        while !words.is_empty() {
            let field = words.bytes()?;
            if IdText::parse(&field).is_some() {
                ids.insert(field);
            } else if !field.starts_with(b"#") {
                foreign += 1;
            }
        }
        if cursor == "0" {
            return Ok((ids, foreign));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_those_that_are_listed_whatever_their_number_is_said_to_be() {
        let listed = "slave0:ip=a,state=online,lag=0\r\nslave1:ip=b,state=online,lag=9\r\n";
        for number in ["2", "18446744073709551615"] {
            let info = format!("connected_slaves:{number}\r\n{listed}");
            let server = Server { place: "h".into(), info, settings: HashMap::new() };
            assert_eq!(server.replicas(), 1);
        }
    }
}
