//! Facts that a server reports, and the findings that follow from them.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use pillarbox_core::{Finding, Repair, Severity};

use crate::context::BackendContext;
use crate::failure::{Failure, Result};
use crate::options::Durability;
use crate::servers::{Node, Route, Servers, info_field};

/// Settings that decide whether a server keeps messages.
const SETTINGS: [&str; 5] =
    ["appendonly", "appendfsync", "save", "maxmemory-policy", "min-replicas-to-write"];

/// Facts that a server reports.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) endpoint: Arc<str>,
    pub(super) info: String,
    /// Without those that the user may not read.
    pub(super) settings: HashMap<String, String>,
}

impl Server {
    async fn query(context: &BackendContext, node: &Arc<Node>) -> Result<Self> {
        let BackendContext { client, gate, .. } = context;
        let command = redis::cmd("INFO");
        let info = match &client.servers {
            Servers::One(_) => client.query(gate, Route::To(node), &command).await,
            // Of several nodes, one that is down is not waited for; a broken connection is replaced.
            Servers::Cluster(_) => match client.query_once(node, &command).await {
                Err(failure) if failure.is_transient() => client.query_once(node, &command).await,
                info => info,
            },
        };
        let info = match info {
            Ok(mut info) => info.parsed()?,
            // The user may lack the permission for INFO.
            Err(failure) if failure.is_forbidden() => String::new(),
            Err(failure) => return Err(failure),
        };
        // One by one: servers before 7 take only one. Some refuse.
        let settings = SETTINGS.map(async |name| {
            let mut command = redis::cmd("CONFIG");
            let mut reply = client.query_once(node, command.arg("GET").arg(name)).await.ok()?;
            Some((reply.parsed().ok()?, reply.parsed().ok()?))
        });
        let settings = join_all(settings).await.into_iter().flatten().collect();
        Ok(Self { endpoint: node.endpoint.clone(), info, settings })
    }

    /// Returns all servers that have keys and answer, and the failures of the others.
    pub(super) async fn all(
        context: &BackendContext,
    ) -> Result<(Vec<Self>, Vec<(Arc<str>, Failure)>)> {
        let nodes = context.client.all_servers().await?;
        let queried = join_all(nodes.iter().map(|node| Self::query(context, node))).await;
        let (mut servers, mut failures) = (Vec::new(), Vec::new());
        for (node, server) in nodes.iter().zip(queried) {
            match server {
                Ok(server) => servers.push(server),
                Err(failure) => failures.push((node.endpoint.clone(), failure)),
            }
        }
        if servers.is_empty()
            && let Some((_, failure)) = failures.pop()
        {
            return Err(failure);
        }
        Ok((servers, failures))
    }

    pub(super) fn info(&self, name: &str) -> Option<&str> {
        info_field(&self.info, name)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.info(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    pub(super) fn version(&self) -> String {
        match (self.info("valkey_version"), self.info("redis_version")) {
            (Some(valkey), _) => format!("Valkey {valkey}"),
            (None, Some(redis)) => format!("Redis {redis}"),
            (None, None) => "unknown".into(),
        }
    }

    /// Describes what an answered send survives.
    pub(super) fn promise(&self) -> String {
        let appends = match self.setting("appendonly") {
            Some(value) => value == "yes",
            None => self.number("aof_enabled") == 1,
        };
        let disk = match self.setting("appendfsync") {
            Some("always") if appends => {
                "an answered send is on the server's disk: it survives kill -9 and power failure"
            }
            Some("everysec") if appends => {
                "an answered send survives a crash of the server's process; a crash of its machine \
                 may lose the last one or two seconds (appendfsync everysec)"
            }
            _ if appends => {
                "an answered send survives a crash of the server's process; a crash of its machine \
                 may lose what the operating system has not written yet"
            }
            _ => match self.setting("save") {
                Some("") => "messages are lost when the server stops: it stores nothing on disk",
                Some(_) => "what was sent since the last snapshot is lost when the server stops",
                None => "unknown: the server does not show how it stores on disk",
            },
        };
        let replicas = self.number("connected_slaves");
        let copies = if replicas == 1 { "a replica" } else { &format!("{replicas} replicas") };
        match (replicas, self.least_replicas()) {
            (0, _) => disk.to_owned(),
            (_, 0) => {
                format!("{disk}; {copies} follow afterwards: a failover may lose the last moments")
            }
            (_, least) => format!(
                "{disk}; {copies} follow afterwards, and writes are refused while fewer than {least} keep up"
            ),
        }
    }

    /// Returns the number of replicas that keep up: they were heard from within the last seconds.
    fn replicas(&self) -> u64 {
        let is_near = |replica: &&str| {
            let lag = replica.split(',').find_map(|field| field.strip_prefix("lag="));
            replica.contains("state=online") && lag.and_then(|lag| lag.parse().ok()) <= Some(5_u64)
        };
        // One line each, whatever number the server claims.
        let replicas = self.info.lines().filter_map(|line| {
            let (name, replica) = line.split_once(':')?;
            let number = name.strip_prefix("slave")?;
            number.bytes().all(|byte| byte.is_ascii_digit()).then_some(replica)
        });
        let most = self.number("connected_slaves");
        (replicas.filter(is_near).count() as u64).min(most)
    }

    /// Returns the number of replicas without which the server refuses to write.
    fn least_replicas(&self) -> u64 {
        self.setting("min-replicas-to-write").and_then(|least| least.parse().ok()).unwrap_or(0)
    }

    /// Finds whether a failover may lose what was answered.
    pub(super) fn replication(
        &self,
        durability: Option<Durability>,
        has_others: bool,
    ) -> Option<Finding> {
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
                self.endpoint
            );
            let advice =
                "restore replicas; to tolerate the failure of one, have one more than that";
            return finding(Severity::Problem, text, advice);
        }
        if replicas < wanted {
            let text = format!(
                "{replicas} replicas of {} keep up, and {wanted} must confirm \
                 (replicas={wanted}): sends and settles fail",
                self.endpoint
            );
            return finding(Severity::Problem, text, "add replicas, or require fewer");
        }
        if replicas == 0 && has_others {
            let text =
                format!("{} has no replica: no server takes over when it fails", self.endpoint);
            return finding(Severity::Warning, text, "add or restore a replica");
        }
        if replicas > 0 && wanted == 0 && self.least_replicas() == 0 {
            let text = format!(
                "{} goes on alone when it loses its {replicas} replicas: what it is sent then is lost \
                 when another takes over (min-replicas-to-write 0)",
                self.endpoint
            );
            let advice = "set min-replicas-to-write 1 and min-replicas-max-lag 10; and open with \
                          replicas=1 if no answered send may be lost";
            return finding(Severity::Warning, text, advice);
        }
        None
    }

    /// Finds whether there is hardly any memory left.
    pub(super) fn fullness(&self) -> Option<Finding> {
        let (used, most) = (self.number("used_memory"), self.number("maxmemory"));
        (most > 0 && used > most / 20 * 19).then(|| Finding {
            severity: Severity::Warning,
            text: format!(
                "the memory of {} is nearly full (maxmemory): sends fail, or soon will",
                self.endpoint
            ),
            advice: "drain queues, or give the server more".into(),
            repair: Repair::Manual,
        })
    }

    /// Finds whether the server may evict keys of queues.
    pub(super) fn eviction(&self, has_ttl: bool) -> Option<Finding> {
        let policy = self.setting("maxmemory-policy").or(self.info("maxmemory_policy"))?;
        let evicts = policy.starts_with("allkeys-") || has_ttl && policy.starts_with("volatile-");
        evicts.then(|| Finding {
            severity: match self.number("maxmemory") {
                0 => Severity::Warning,
                _ => Severity::Problem,
            },
            text: format!(
                "{} evicts keys, queues among them, when its memory is full \
                 (maxmemory-policy {policy})",
                self.endpoint
            ),
            advice: "set maxmemory-policy to noeviction: sends then fail with a clear error".into(),
            repair: Repair::Manual,
        })
    }

    /// Describes the use of memory.
    pub(super) fn memory(&self) -> String {
        let used = self.info("used_memory_human").unwrap_or("unknown");
        match self.number("maxmemory") {
            0 => format!("{used} used, no limit set"),
            _ => format!("{used} used of {}", self.info("maxmemory_human").unwrap_or("unknown")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_counted_by_their_lines_and_not_by_the_number_claimed() {
        let listed = "slave0:ip=a,state=online,lag=0\r\nslave1:ip=b,state=online,lag=9\r\n";
        for number in ["2", "18446744073709551615"] {
            let info = format!("connected_slaves:{number}\r\n{listed}");
            let server = Server { endpoint: "h".into(), info, settings: HashMap::new() };
            assert_eq!(server.replicas(), 1);
        }
    }
}
