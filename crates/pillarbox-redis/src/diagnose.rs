//! What a server is, what it promises, and whether its queues are sound.

use std::collections::{BTreeSet, HashMap, HashSet};

use pillarbox_core::{Diagnosis, Finding, QueueName, Repair, Severity, Timestamp};

use crate::engine::Engine;
use crate::failure::Failure;
use crate::format::{IdText, Keys};
use crate::hub::Hub;
use crate::link::field;
use crate::reply::Reply;
use crate::scripts;

/// How many entries in line one script may look at: it searches the line for each message that it
/// looks at twice.
const ENTRIES_AT_ONCE: usize = 1_000_000;

/// What a server says of itself.
#[derive(Debug, Default)]
struct Server {
    info: String,
    /// `None` of a setting that may not be asked for.
    settings: HashMap<String, String>,
}

impl Server {
    async fn ask(engine: &Engine) -> Result<Self, Failure> {
        let Engine { link, gate, .. } = engine;
        let info = match link.call(gate, &redis::cmd("INFO")).await {
            Ok(info) => Reply::new(info, &link.place).flat_words().parsed()?,
            // A user who may use queues may not be one who may know more of the server.
            Err(failure) if failure.is_forbidden() => String::new(),
            Err(failure) => return Err(failure),
        };
        let mut settings = HashMap::new();
        // One by one: servers before 7 take no more. Some do not tell.
        for name in
            ["appendonly", "appendfsync", "save", "maxmemory-policy", "min-replicas-to-write"]
        {
            let answer = link.call(gate, redis::cmd("CONFIG").arg("GET").arg(name)).await;
            if let Ok(answer) = answer {
                let mut words = Reply::new(answer, &link.place).flat_words();
                if !words.is_empty() {
                    settings.insert(words.parsed()?, words.parsed()?);
                }
            }
        }
        Ok(Self { info, settings })
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
        match (replicas, self.setting("min-replicas-to-write")) {
            (0, _) => disk.to_owned(),
            (_, Some(least)) if least != "0" => format!(
                "{disk}; {replicas} replicas are told afterwards, and writes are refused while fewer \
                 than {least} keep up"
            ),
            _ => format!(
                "{disk}; {replicas} replicas are told afterwards: a failover may cost the last moments"
            ),
        }
    }

    /// Whether there is hardly any memory left.
    fn fullness(&self) -> Option<Finding> {
        let (used, most) = (self.number("used_memory"), self.number("maxmemory"));
        (most > 0 && used > most / 20 * 19).then(|| Finding {
            severity: Severity::Warning,
            text: "the server's memory is nearly full (maxmemory): sends fail, or soon will".into(),
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
                "the server throws away keys, queues among them, when its memory is full \
                           (maxmemory-policy {policy})"
            ),
            advice: "set maxmemory-policy to noeviction: sends then fail with a clear error".into(),
            repair: Repair::Manual,
        })
    }
}

/// Connects, and warns of a server that may lose messages.
pub(crate) async fn warn(engine: &Engine) -> Result<(), Failure> {
    let server = Server::ask(engine).await?;
    let place = &engine.link.place;
    if let Some(finding) = server.eviction(engine.link.usage.default_ttl.is_some()) {
        tracing::warn!(%place, "{}; {}", finding.text, finding.advice);
    }
    tracing::info!(%place, version = server.version(), promise = server.promise(), "opened");
    Ok(())
}

/// Looks at the server and at every message of every queue.
pub(crate) async fn diagnose(
    engine: &std::sync::Arc<Engine>,
    queues: &[QueueName],
    repair: bool,
) -> Result<Diagnosis, Failure> {
    let Engine { link, gate, .. } = &**engine;
    let server = Server::ask(engine).await?;
    let mut diagnosis = Diagnosis::new(server.promise())
        .with_fact("server", server.version())
        .with_fact("place", &*link.place)
        .with_fact(
            "mode",
            server.info("redis_mode").or(server.info("server_mode")).unwrap_or("unknown"),
        )
        .with_fact("role", server.info("role").unwrap_or("unknown"))
        .with_fact("memory", memory(&server))
        .with_fact("queues", queues.len().to_string());
    let mut time =
        Reply::new(link.call(gate, &redis::cmd("TIME")).await?, &link.place).flat_words();
    let (seconds, micros): (i64, i64) = (time.parsed()?, time.parsed()?);
    diagnosis.clock = Some(Timestamp::from_micros(seconds * 1_000_000 + micros));
    diagnosis.findings.extend(server.eviction(link.usage.default_ttl.is_some()));
    diagnosis.findings.extend(server.fullness());
    if server.info("role") == Some("slave") {
        diagnosis.findings.push(Finding {
            severity: Severity::Problem,
            text: "the server is a replica, which refuses to store anything".into(),
            advice: "connect to its primary".into(),
            repair: Repair::Manual,
        });
    }
    let unlisted = unlisted(engine, queues).await?;
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
        if repair && unlisted.contains(queue) {
            engine.list(queue).await?;
        }
        let foreign = foreign_keys(&hub).await?;
        if foreign.is_empty() {
            diagnosis.findings.extend(check(&hub, repair).await?);
        }
        diagnosis.findings.extend(foreign);
    }
    Ok(diagnosis)
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
async fn check(hub: &Hub, repair: bool) -> Result<Vec<Finding>, Failure> {
    let mut places: HashMap<Id, u32> = HashMap::new();
    let in_line = line(hub).await?;
    let timed = timed(hub).await?;
    for id in in_line.iter().chain(&timed) {
        *places.entry(id.clone()).or_default() += 1;
    }
    let (data, foreign) = fields(hub, 3).await?;
    let (meta, _) = fields(hub, 4).await?;
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
        for answer in mend(hub, repair, some).await? {
            *found.entry(answer).or_default() += 1;
        }
    }
    let off = String::from_utf8_lossy(&mend(hub, repair, &[]).await?).parse::<i64>().unwrap_or(0);
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
        let text = format!("queue '{}': {count} {what}", hub.name);
        let advice = "somebody has written to the keys, or the server has lost some".into();
        Some(Finding { severity, text, advice, repair })
    };
    let mut findings: Vec<_> = found.iter().filter_map(finding).collect();
    findings.sort_by(|one, other| one.text.cmp(&other.text));
    Ok(findings)
}

/// Which keys of a queue are of another type.
async fn foreign_keys(hub: &Hub) -> Result<Vec<Finding>, Failure> {
    let Engine { link, gate, .. } = &*hub.engine;
    let Keys { pending, invisible, data, meta, .. } = &hub.keys;
    let mut findings = Vec::new();
    for (key, expected) in [(pending, "list"), (invisible, "zset"), (data, "hash"), (meta, "hash")]
    {
        let answer = link.call(gate, redis::cmd("TYPE").arg(key)).await?;
        let found: String = Reply::new(answer, &link.place).flat_words().parsed()?;
        if found != expected && found != "none" {
            findings.push(Finding {
                severity: Severity::Problem,
                text: format!("queue '{}': the key {key} is a {found}, not a {expected}", hub.name),
                advice: "another program uses the name: rename or remove the key".into(),
                repair: Repair::Manual,
            });
        }
    }
    Ok(findings)
}

/// Queues that are there and not on the list.
async fn unlisted(engine: &Engine, listed: &[QueueName]) -> Result<Vec<QueueName>, Failure> {
    let Engine { link, gate, .. } = engine;
    let mut found = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg("{queue:*}:*").arg("COUNT").arg(1000);
        let mut words = Reply::new(link.call(gate, &scan).await?, &link.place).flat_words();
        cursor = words.parsed()?;
        while !words.is_empty() {
            let key = String::from_utf8_lossy(&words.bytes()?).into_owned();
            let name = key.strip_prefix("{queue:").and_then(|rest| rest.split_once('}'));
            if let Some((name, ":pending" | ":data" | ":invisible")) = name {
                found.extend(QueueName::new(name));
            }
        }
        if cursor == "0" {
            return Ok(found.into_iter().filter(|name| !listed.contains(name)).collect());
        }
    }
}

async fn mend(hub: &Hub, repair: bool, ids: &[&Id]) -> Result<Vec<u8>, Failure> {
    let mut words = hub
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
async fn line(hub: &Hub) -> Result<Vec<Id>, Failure> {
    let Engine { link, gate, .. } = &*hub.engine;
    let mut ids = Vec::new();
    loop {
        // From the tail on: what is delivered meanwhile is at the other end.
        let mut page = redis::cmd("LRANGE");
        page.arg(&hub.keys.pending).arg(ids.len()).arg(ids.len() + 999);
        let mut words = Reply::new(link.call(gate, &page).await?, &link.place).flat_words();
        if words.is_empty() {
            return Ok(ids);
        }
        while !words.is_empty() {
            ids.push(words.bytes()?);
        }
    }
}

/// All ids in flight or delayed.
async fn timed(hub: &Hub) -> Result<HashSet<Id>, Failure> {
    let Engine { link, gate, .. } = &*hub.engine;
    let mut ids = HashSet::new();
    let mut from = 0;
    loop {
        let mut page = redis::cmd("ZRANGE");
        page.arg(&hub.keys.invisible).arg(from).arg(from + 999);
        let mut words = Reply::new(link.call(gate, &page).await?, &link.place).flat_words();
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
async fn fields(hub: &Hub, key: u32) -> Result<(HashSet<Id>, usize), Failure> {
    let (mut ids, mut foreign) = (HashSet::new(), 0);
    let mut cursor = "0".to_owned();
    loop {
        let mut words = hub
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
