//! What a server is, what it promises, and whether its queues are sound.

use std::collections::{HashMap, HashSet};

use pillarbox_core::{Diagnosis, Finding, QueueName, Repair, Severity, Timestamp};

use crate::engine::Engine;
use crate::failure::Failure;
use crate::hub::Hub;
use crate::link::field;
use crate::reply::Reply;
use crate::scripts;

/// The most messages of a queue that are looked at twice.
const MOST_SUSPECTS: usize = 1000;

/// How many of them one script looks at: it searches the whole line for each.
const SUSPECTS_AT_ONCE: usize = 10;

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
        .with_fact("mode", server.info("redis_mode").unwrap_or("unknown"))
        .with_fact("role", server.info("role").unwrap_or("unknown"))
        .with_fact("memory", memory(&server))
        .with_fact("queues", queues.len().to_string());
    let mut time =
        Reply::new(link.call(gate, &redis::cmd("TIME")).await?, &link.place).flat_words();
    let (seconds, micros): (i64, i64) = (time.parsed()?, time.parsed()?);
    diagnosis.clock = Some(Timestamp::from_micros(seconds * 1_000_000 + micros));
    diagnosis.findings.extend(server.eviction(link.usage.default_ttl.is_some()));
    if server.info("role") == Some("slave") {
        diagnosis.findings.push(Finding {
            severity: Severity::Problem,
            text: "the server is a replica, which refuses to store anything".into(),
            advice: "connect to its primary".into(),
            repair: Repair::Manual,
        });
    }
    for queue in queues {
        let hub = Hub::new(queue.clone(), engine.clone());
        diagnosis.findings.extend(check(&hub, repair).await?);
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
    let data = fields(hub, 3).await?;
    let meta = fields(hub, 4).await?;
    let mut suspects: HashSet<&Id> =
        places.iter().filter(|(_, times)| **times > 1).map(|(id, _)| id).collect();
    suspects.extend(data.iter().filter(|id| !places.contains_key(*id)));
    suspects.extend(places.keys().chain(&meta).filter(|id| !data.contains(*id)));
    let suspects: Vec<_> = suspects.into_iter().take(MOST_SUSPECTS).collect();

    let mut found: HashMap<u8, usize> = HashMap::new();
    for some in suspects.chunks(SUSPECTS_AT_ONCE) {
        for answer in mend(hub, repair, some).await? {
            *found.entry(answer).or_default() += 1;
        }
    }
    let off = String::from_utf8_lossy(&mend(hub, repair, &[]).await?).parse::<i64>().unwrap_or(0);
    if off != 0 {
        found.insert(b'd', off.unsigned_abs() as usize);
    }
    let finding = |(kind, count): (&u8, &usize)| {
        let (severity, what) = match kind {
            b'u' => (Severity::Problem, "messages are neither ready nor in flight nor delayed"),
            b'b' => (Severity::Problem, "messages are in two places"),
            b'h' => (Severity::Problem, "ready messages have a receipt"),
            b'n' => (Severity::Warning, "entries belong to no message"),
            b'd' => (Severity::Warning, "is the error in the number of delayed messages"),
            _ => return None,
        };
        let repair = if repair { Repair::Done } else { Repair::Possible };
        let text = format!("queue '{}': {count} {what}", hub.name);
        let advice = "somebody has written to the keys, or the server has lost some".into();
        Some(Finding { severity, text, advice, repair })
    };
    Ok(found.iter().filter_map(finding).collect())
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

/// All ids that are fields of the hash that is key number `key` of the scripts.
async fn fields(hub: &Hub, key: u32) -> Result<HashSet<Id>, Failure> {
    let mut ids = HashSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut words = hub
            .run_unremembered(&scripts::FIELDS, |command| {
                command.arg(key).arg(&cursor);
            })
            .await?;
        cursor = words.parsed()?;
        while !words.is_empty() {
            ids.extend(Some(words.bytes()?).filter(|id| id.len() == 22));
        }
        if cursor == "0" {
            return Ok(ids);
        }
    }
}
