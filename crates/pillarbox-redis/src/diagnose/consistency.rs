//! Finding and repairing inconsistent keys of a partition.

use std::collections::{HashMap, HashSet};

use pillarbox_core::{Finding, Repair, Severity};

use crate::context::BackendContext;
use crate::failure::Result;
use crate::format::IdText;
use crate::script_runner::ScriptRunner;
use crate::scripts;
use crate::servers::Route;

/// Maximum number of list entries that one script examines: it searches the list of ready messages for each
/// message that it checks.
const MAX_ENTRIES: usize = 1_000_000;

type Id = Vec<u8>;

/// Reads the keys of a partition one after the other, while it is in use, and has a script check each message
/// that looks inconsistent.
pub(super) async fn check(
    partition: &ScriptRunner,
    name: &str,
    repair: bool,
) -> Result<Vec<Finding>> {
    let mut places: HashMap<Id, u32> = HashMap::new();
    let ready = ready_ids(partition).await?;
    let timed = timed_ids(partition).await?;
    for id in ready.iter().chain(&timed) {
        *places.entry(id.clone()).or_default() += 1;
    }
    let (data, foreign) = fields(partition, 3).await?;
    let (meta, _) = fields(partition, 4).await?;
    let mut candidates: HashSet<&Id> =
        places.iter().filter(|(_, times)| **times > 1).map(|(id, _)| id).collect();
    candidates.extend(data.iter().filter(|id| !places.contains_key(*id)));
    candidates.extend(places.keys().chain(&meta).filter(|id| !data.contains(*id)));
    // By id, which is the order of sending: those that become ready do so in that order.
    let mut candidates: Vec<_> = candidates.into_iter().collect();
    candidates.sort();

    let mut found: HashMap<u8, usize> = HashMap::new();
    let per_call = (MAX_ENTRIES / (ready.len() + candidates.len() + 1)).clamp(1, 200);
    for some in candidates.chunks(per_call) {
        for answer in repair_ids(partition, repair, some).await? {
            *found.entry(answer).or_default() += 1;
        }
    }
    let delayed_error = String::from_utf8_lossy(&repair_ids(partition, repair, &[]).await?)
        .parse::<i64>()
        .unwrap_or(0);
    if delayed_error != 0 {
        found.insert(b'd', delayed_error.unsigned_abs() as usize);
    }
    if foreign > 0 {
        found.insert(b'f', foreign);
    }
    let finding = |(kind, count): (&u8, &usize)| {
        let (severity, problem) = match kind {
            b'u' => {
                (Severity::Problem, "messages that are neither ready nor in flight nor delayed")
            }
            b'b' => (Severity::Problem, "messages in two states"),
            b'h' => (Severity::Problem, "ready messages with a receipt"),
            b'n' => (Severity::Warning, "entries that belong to no message"),
            b'd' => (Severity::Warning, "delayed messages counted wrongly"),
            b'f' => (Severity::Warning, "data with invalid ids, which are never received"),
            _ => return None,
        };
        let repair = match (kind, repair) {
            (b'f', _) => Repair::Manual,
            (_, true) => Repair::Done,
            (_, false) => Repair::Possible,
        };
        let text = format!("{name}: {count} {problem}");
        let advice = "another program has written to the keys, or the server has lost some".into();
        Some(Finding { severity, text, advice, repair })
    };
    let mut findings: Vec<_> = found.iter().filter_map(finding).collect();
    findings.sort_by(|one, other| one.text.cmp(&other.text));
    Ok(findings)
}

/// Checks messages, and repairs them if `repair`. Returns a character for each; without ids, the error of the
/// number of delayed messages.
async fn repair_ids(partition: &ScriptRunner, repair: bool, ids: &[&Id]) -> Result<Vec<u8>> {
    let reply = partition.run_without_caller(&scripts::REPAIR, |command| {
        command.arg(u8::from(repair));
        for id in ids {
            command.arg(&id[..]);
        }
    });
    reply.await?.bytes()
}

/// Returns the ids of all ready messages.
async fn ready_ids(partition: &ScriptRunner) -> Result<Vec<Id>> {
    let BackendContext { client, gate, .. } = &**partition.context();
    let route = Route::Slot(partition.keys.slot);
    let mut ids = Vec::new();
    loop {
        // From the tail: messages that are delivered meanwhile are at the other end.
        let mut page = redis::cmd("LRANGE");
        page.arg(&partition.keys.pending).arg(ids.len()).arg(ids.len() + 999);
        let mut reply = client.query(gate, route, &page).await?;
        if reply.is_empty() {
            return Ok(ids);
        }
        while !reply.is_empty() {
            ids.push(reply.bytes()?);
        }
    }
}

/// Returns the ids of all messages in flight or delayed.
async fn timed_ids(partition: &ScriptRunner) -> Result<HashSet<Id>> {
    let BackendContext { client, gate, .. } = &**partition.context();
    let route = Route::Slot(partition.keys.slot);
    let mut ids = HashSet::new();
    let mut from = 0;
    loop {
        let mut page = redis::cmd("ZRANGE");
        page.arg(&partition.keys.invisible).arg(from).arg(from + 999);
        let mut reply = client.query(gate, route, &page).await?;
        if reply.is_empty() {
            return Ok(ids);
        }
        while !reply.is_empty() {
            from += 1;
            ids.extend(Some(reply.bytes()?).filter(|id| id.len() == 22));
        }
    }
}

/// Returns the ids among the fields of a hash, which is key number `key` of the scripts, and the number of other
/// fields.
async fn fields(partition: &ScriptRunner, key: u32) -> Result<(HashSet<Id>, usize)> {
    let (mut ids, mut foreign) = (HashSet::new(), 0);
    let mut cursor = "0".to_owned();
    loop {
        let mut reply = partition
            .run_without_caller(&scripts::FIELDS, |command| {
                command.arg(key).arg(&cursor);
            })
            .await?;
        cursor = reply.parsed()?;
        while !reply.is_empty() {
            let field = reply.bytes()?;
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
