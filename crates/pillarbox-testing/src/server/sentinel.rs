//! A primary with replicas, and sentinels that watch them and promote a replica when the primary dies.
//!
//! Sentinels discover each other and the replicas within some seconds. To skip that, they are started with
//! the configuration that they would write after discovery.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{
    Flavour, PORTS, RedisServer, RedisServerBuilder, addresses, lasting_port, random_id, running,
    wait_for,
};

/// Name of the primary in the sentinels' configuration.
const SERVICE: &str = "pillarbox";
/// Interval after which a failover that has not happened is requested again.
const AGAIN: Duration = Duration::from_secs(5);
/// Intervals of the sentinels' checks and messages in milliseconds, if they can be set: by default they take
/// ten seconds to check a replica and another eight to reconfigure it. A sentinel that did not run for two
/// seconds does nothing for another thirty.
const HASTE: [(&str, &str); 4] = [
    ("INFO-PERIOD", "300"),
    ("PUBLISH-PERIOD", "200"),
    ("TILT-PERIOD", "1000"),
    ("MIN-LINK-RECONNECT-PERIOD", "1000"),
];

/// Builder of [`RedisSentinels`].
#[derive(Debug, Clone)]
#[must_use]
pub struct RedisSentinelsBuilder {
    server: RedisServerBuilder,
    replicas: usize,
    sentinels: usize,
    down_after: Duration,
}

impl RedisSentinelsBuilder {
    /// Sets the flavour of servers and sentinels. Defaults to the distribution's Redis.
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.server.flavour = flavour;
        self
    }

    /// Sets the number of replicas. Defaults to 2.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets the number of sentinels. Defaults to 3. More than half must agree.
    pub fn sentinels(mut self, sentinels: usize) -> Self {
        self.sentinels = sentinels;
        self
    }

    /// Sets the time without an answer after which a server counts as down. Defaults to 1 s.
    pub fn down_after(mut self, silence: Duration) -> Self {
        self.down_after = silence;
        self
    }

    /// Adds a line to the configuration file of every server, not of the sentinels.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.server = self.server.setting(name, value);
        self
    }

    /// Enables the append-only file, synced `always`, `everysec` or `no`.
    pub fn appendonly(self, fsync: &str) -> Self {
        self.setting("appendonly", "yes").setting("appendfsync", fsync)
    }

    /// Requires a password on the servers, not on the sentinels.
    pub fn password(mut self, password: &str) -> Self {
        let login = format!("{password:?}");
        self.server = self.server.password(password).setting("masterauth", &login);
        self
    }

    /// Starts them and waits until replication works and the sentinels agree.
    ///
    /// # Panics
    ///
    /// If the program is not installed, one does not start, or they do not find each other.
    pub fn start(self) -> RedisSentinels {
        assert!(self.sentinels > 0, "at least one sentinel");
        let mut servers: Vec<RedisServer> = Vec::new();
        for _ in 0..=self.replicas {
            let mut server = self.server.clone();
            if let Some(primary) = servers.first() {
                server = server.setting("replicaof", &format!("127.0.0.1 {}", primary.port()));
            }
            let mut server = server.prepare();
            server.start_on(lasting_port);
            servers.push(server);
        }
        let sentinels = self.start_sentinels(&servers);
        let all = RedisSentinels { servers, sentinels };
        all.hasten();
        all.wait_until_whole();
        all
    }

    /// Starts all sentinels; each knows the others from the start.
    fn start_sentinels(&self, servers: &[RedisServer]) -> Vec<RedisServer> {
        for _ in 0..PORTS {
            let known = (0..self.sentinels).map(|_| (lasting_port(), random_id()));
            let known: Vec<(u16, String)> = known.collect();
            let start = |own: usize| {
                let mut sentinel = self.sentinel(own, &known, servers);
                sentinel.port = known[own].0;
                sentinel.write_configuration();
                sentinel.start_again();
                sentinel
            };
            let sentinels: Vec<RedisServer> = (0..self.sentinels).map(start).collect();
            // Otherwise another process has taken a port meanwhile.
            if sentinels.iter().all(RedisServer::wait_for_start) {
                return sentinels;
            }
            let ended = sentinels.iter().find(|sentinel| !sentinel.is_running());
            let log = ended.map(RedisServer::log).unwrap_or_default();
            assert!(log.contains("ddress already in use"), "a sentinel does not come up:\n{log}");
        }
        panic!("no sentinels started on any of {PORTS} sets of ports");
    }

    fn sentinel(
        &self,
        own: usize,
        known: &[(u16, String)],
        servers: &[RedisServer],
    ) -> RedisServer {
        let (primary, replicas) = servers.split_first().expect("a primary");
        let silence = self.down_after.as_millis();
        let mut lines = vec![
            format!("myid {}", known[own].1),
            format!("monitor {SERVICE} 127.0.0.1 {} {}", primary.port(), self.sentinels / 2 + 1),
            format!("down-after-milliseconds {SERVICE} {silence}"),
            // After twice that, an unfinished failover is retried.
            format!("failover-timeout {SERVICE} 3000"),
            format!("parallel-syncs {SERVICE} 10"),
        ];
        if let Some(password) = &self.server.password {
            lines.push(format!("auth-pass {SERVICE} {password:?}"));
        }
        let replica = |port| format!("known-replica {SERVICE} 127.0.0.1 {port}");
        lines.extend(replicas.iter().map(|server| replica(server.port)));
        for (port, id) in known.iter().filter(|(port, _)| *port != known[own].0) {
            lines.push(format!("known-sentinel {SERVICE} 127.0.0.1 {port} {id}"));
        }
        let sentinel = RedisServer::builder().flavour(self.server.flavour).argument("--sentinel");
        lines.iter().fold(sentinel, |sentinel, line| sentinel.setting("sentinel", line)).prepare()
    }
}

/// Running servers and their sentinels. Dropping it kills the processes and removes their directories.
///
/// Servers and sentinels are identified by index. At first the primary is server 0; after a failover, see
/// [`primary`](Self::primary).
#[derive(Debug)]
pub struct RedisSentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisSentinels {
    /// Starts a primary of the distribution's Redis, two replicas and three sentinels.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder.
    pub fn builder() -> RedisSentinelsBuilder {
        RedisSentinelsBuilder {
            server: RedisServer::builder().replicated(),
            replicas: 2,
            sentinels: 3,
            down_after: Duration::from_secs(1),
        }
    }

    /// Returns their URL: `redis-sentinel://127.0.0.1:PORT,127.0.0.1:PORT,.../pillarbox`, with the
    /// ports of all sentinels, and the password of the servers if they have one.
    pub fn url(&self) -> String {
        let password = self.servers[0].options.credentials();
        format!("redis-sentinel://{password}{}/{SERVICE}", addresses(&self.sentinels))
    }

    /// Returns the servers, including those that were killed.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns one of the servers.
    pub fn server(&self, server: usize) -> &RedisServer {
        &self.servers[server]
    }

    /// Returns one of the servers, to stop and start it.
    pub fn server_mut(&mut self, server: usize) -> &mut RedisServer {
        &mut self.servers[server]
    }

    /// Returns the sentinels, including those that were killed.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Returns one of the sentinels.
    pub fn sentinel(&self, sentinel: usize) -> &RedisServer {
        &self.sentinels[sentinel]
    }

    /// Returns the index of the primary according to the sentinel that answers and has the newest epoch. It
    /// may be down.
    ///
    /// # Panics
    ///
    /// If no sentinel answers.
    pub fn primary(&self) -> usize {
        self.known_primary().unwrap_or_else(|missing| panic!("no primary: {missing}"))
    }

    /// Kills a server with SIGKILL.
    pub fn kill(&mut self, server: usize) {
        self.servers[server].kill();
    }

    /// Kills the primary with SIGKILL, and returns its index.
    ///
    /// # Panics
    ///
    /// If no sentinel answers.
    pub fn kill_primary(&mut self) -> usize {
        let primary = self.primary();
        self.kill(primary);
        primary
    }

    /// Restarts a server, after killing it if it still runs, and waits until it answers. It has its old role
    /// until the sentinels reconfigure it: see [`wait_until_whole`](Self::wait_until_whole).
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self, server: usize) {
        self.servers[server].restart();
    }

    /// Kills a sentinel with SIGKILL.
    pub fn kill_sentinel(&mut self, sentinel: usize) {
        self.sentinels[sentinel].kill();
    }

    /// Restarts a sentinel, after killing it if it still runs, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart_sentinel(&mut self, sentinel: usize) {
        self.sentinels[sentinel].restart();
        self.hasten();
    }

    /// Waits until all running sentinels know each other and agree: the primary runs, and all other running
    /// servers are its replicas and up to date.
    ///
    /// With Redis 6.2 this may take twenty seconds after a server was restarted.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute; the message says what is missing.
    pub fn wait_until_whole(&self) {
        self.wait(|| self.is_whole());
    }

    /// Waits until every running replica has received all writes of the primary until now.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    pub fn wait_until_replicated(&self) {
        let primary = self.primary();
        let done = self.wait(|| self.servers[primary].offset("master_repl_offset"));
        for replica in running(&self.servers).filter(|server| *server != primary) {
            self.wait(|| self.servers[replica].has_received(done));
        }
    }

    /// Waits until another server has replaced this one as primary according to all sentinels that answer.
    /// Returns its index.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    pub fn wait_for_promotion(&self, old: usize) -> usize {
        self.wait(|| self.successor_of(old))
    }

    /// Requests a failover while all servers run, and waits until it is done. Returns the index of the new
    /// primary.
    ///
    /// Concurrent writes may be lost: the old primary accepts them until it is a replica.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    pub fn failover(&self) -> usize {
        let old = self.primary();
        let mut asked: Option<Instant> = None;
        self.wait(|| {
            if asked.is_none_or(|asked| asked.elapsed() > AGAIN) {
                let sentinel = running(&self.sentinels).next().ok_or("no sentinel runs")?;
                self.sentinels[sentinel].query(&["SENTINEL", "FAILOVER", SERVICE])?;
                asked = Some(Instant::now());
            }
            self.successor_of(old)
        })
    }

    /// Waits until `check` succeeds; its error says what is missing.
    fn wait<T>(&self, look: impl FnMut() -> Result<T, String>) -> T {
        wait_for(look, || {
            let logs = self.sentinels.iter().map(RedisServer::log);
            logs.collect::<Vec<_>>().join("\n")
        })
    }

    fn hasten(&self) {
        for sentinel in running(&self.sentinels) {
            for (name, value) in HASTE {
                // Redis 6.2 has no such command.
                let _ = self.sentinels[sentinel].query(&["SENTINEL", "DEBUG", name, value]);
            }
        }
    }

    /// Returns a sentinel's view of the primary.
    fn look_at_primary(&self, sentinel: usize) -> Result<Watched, String> {
        Ok(Watched::read(&self.sentinels[sentinel].query(&["SENTINEL", "MASTER", SERVICE])?))
    }

    /// Returns a sentinel's view of `REPLICAS` or `SENTINELS`, by port.
    fn look_at(&self, sentinel: usize, whom: &str) -> Result<HashMap<u16, Watched>, String> {
        let text = self.sentinels[sentinel].query(&["SENTINEL", whom, SERVICE])?;
        let lines: Vec<&str> = text.lines().collect();
        // Each begins with its name.
        let starts = (0..lines.len()).step_by(2).filter(|line| lines[*line] == "name");
        let starts: Vec<usize> = starts.chain([lines.len()]).collect();
        let parts =
            starts.windows(2).map(|ends| Watched::read(&lines[ends[0]..ends[1]].join("\n")));
        Ok(parts.map(|watched| (watched.number("port"), watched)).collect())
    }

    /// Returns the port of the primary that a sentinel reports to clients.
    fn reported_primary(&self, sentinel: usize) -> Result<u16, String> {
        let sentinel = &self.sentinels[sentinel];
        let reported = sentinel.query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?;
        let port = reported.lines().nth(1).and_then(|port| port.parse().ok());
        port.ok_or_else(|| format!("a sentinel reports {reported:?}"))
    }

    fn known_primary(&self) -> Result<usize, String> {
        let known = running(&self.sentinels).filter_map(|sentinel| {
            let epoch = self.look_at_primary(sentinel).ok()?.number::<u64>("config-epoch");
            Some((epoch, self.reported_primary(sentinel).ok()?))
        });
        let (_, port) = known.max_by_key(|(epoch, _)| *epoch).ok_or("no sentinel answers")?;
        let server = self.servers.iter().position(|server| server.port() == port);
        server.ok_or_else(|| format!("the primary is at port {port}, where no server is"))
    }

    /// Returns the primary that replaced a server, if all sentinels agree.
    fn successor_of(&self, old: usize) -> Result<usize, String> {
        let successor = self.known_primary()?;
        if successor == old {
            return Err(format!("server {old} is the primary"));
        }
        for sentinel in running(&self.sentinels) {
            let Ok(reported) = self.reported_primary(sentinel) else { continue };
            if reported != self.servers[successor].port() {
                return Err(format!(
                    "sentinel {sentinel} does not know that it is server {successor}"
                ));
            }
        }
        match self.servers[successor].replication("role")?.as_deref() {
            Some("master") => Ok(successor),
            role => Err(format!("server {successor} has the role {role:?}")),
        }
    }

    fn is_whole(&self) -> Result<(), String> {
        let primary = self.known_primary()?;
        let port = self.servers[primary].port();
        for server in running(&self.servers) {
            let one = &self.servers[server];
            let (role, link) =
                if server == primary { ("master", None) } else { ("slave", Some("up")) };
            if one.replication("role")?.as_deref() != Some(role) {
                return Err(format!("server {server} is no {role}"));
            }
            if one.replication("master_link_status")?.as_deref() != link {
                return Err(format!("server {server} has not what its primary has"));
            }
            let follows = one.replication("master_port")?;
            if server != primary && follows != Some(port.to_string()) {
                return Err(format!("server {server} follows {follows:?} in place of {port}"));
            }
        }
        for sentinel in running(&self.sentinels) {
            let known = self.look_at_primary(sentinel)?;
            if known.number::<u16>("port") != port || !known.is_well() {
                return Err(format!("sentinel {sentinel} knows the primary as {known:?}"));
            }
            let replicas = self.look_at(sentinel, "REPLICAS")?;
            for server in running(&self.servers).filter(|server| *server != primary) {
                let known = replicas.get(&self.servers[server].port());
                let known = known.ok_or_else(|| format!("{sentinel} does not know {server}"))?;
                // The sentinel knows that it follows the primary only after it has asked; before that, the
                // replica cannot be promoted.
                if !known.is_well() || known.number::<u16>("master-port") != port {
                    return Err(format!("sentinel {sentinel} knows server {server} as {known:?}"));
                }
            }
            let sentinels = self.look_at(sentinel, "SENTINELS")?;
            for other in running(&self.sentinels).filter(|other| *other != sentinel) {
                let known = sentinels.get(&self.sentinels[other].port());
                if !known.is_some_and(Watched::is_well) {
                    return Err(format!("sentinel {sentinel} knows {other} as {known:?}"));
                }
            }
        }
        Ok(())
    }
}

/// A sentinel's view of a server or of another sentinel.
#[derive(Debug)]
struct Watched(HashMap<String, String>);

impl Watched {
    /// Parses lines that alternate between names and values.
    fn read(text: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let fields = lines.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
        Self(fields.collect())
    }

    fn get(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    /// Whether it is up and no failover is in progress.
    fn is_well(&self) -> bool {
        let ill = ["s_down", "o_down", "disconnected", "failover_in_progress"];
        !self.get("flags").split(',').any(|flag| ill.contains(&flag))
    }

    /// Returns a numeric field; the error names it.
    fn number<T: std::str::FromStr + Default>(&self, field: &str) -> T {
        self.get(field).parse().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_of_every_flavour_make_a_replica_the_primary_when_it_dies() {
        for flavour in Flavour::ALL.into_iter().filter(|flavour| flavour.is_installed()) {
            let started = Instant::now();
            let mut all = RedisSentinels::builder().flavour(flavour).start();
            println!("{} sentinels started within {:?}", flavour.name(), started.elapsed());
            assert_eq!(all.primary(), 0);
            all.server(0).command(&["SET", "key", "value"]);
            all.wait_until_replicated();
            assert_eq!(all.kill_primary(), 0);
            let killed = Instant::now();
            assert!(all.server(0).try_command(&["PING"]).is_err());
            let new = all.wait_for_promotion(0);
            println!("{} replica promoted within {:?}", flavour.name(), killed.elapsed());
            assert_eq!(all.primary(), new);
            assert_eq!(all.server(new).command(&["GET", "key"]), "value");
            assert_eq!(all.server(new).command(&["SET", "key", "other"]), "OK");
            all.wait_until_whole();
        }
    }

    #[test]
    fn sentinels_replace_one_primary_after_another_and_take_back_the_dead() {
        let mut all =
            RedisSentinels::builder().password("pass-word").appendonly("everysec").start();
        assert!(all.url().starts_with("redis-sentinel://:pass-word@127.0.0.1:"));
        assert!(all.url().ends_with(&format!(":{}/pillarbox", all.sentinel(2).port())));
        for round in 0..3 {
            let primary = all.primary();
            all.server(primary).command(&["SET", "round", &round.to_string()]);
            all.wait_until_replicated();
            all.kill_primary();
            let new = all.wait_for_promotion(primary);
            assert_eq!(all.server(new).command(&["GET", "round"]), round.to_string());
            all.restart(primary);
            all.wait_until_whole();
            assert_eq!(all.server(primary).command(&["GET", "round"]), round.to_string());
        }
    }

    #[test]
    fn sentinels_fail_over_while_all_servers_run() {
        for flavour in [Flavour::Redis, Flavour::Valkey] {
            if !flavour.is_installed() {
                continue;
            }
            let all = RedisSentinels::builder().flavour(flavour).start();
            for _ in 0..2 {
                let old = all.primary();
                let new = all.failover();
                assert_ne!(new, old);
                assert_eq!(all.server(new).info("role"), "master");
                all.wait_until_whole();
            }
        }
    }

    #[test]
    fn two_sentinels_of_three_are_enough_and_the_third_learns_what_it_missed() {
        let mut all = RedisSentinels::builder().replicas(1).start();
        all.kill_sentinel(0);
        all.kill(0);
        assert_eq!(all.wait_for_promotion(0), 1);
        all.restart_sentinel(0);
        all.restart(0);
        all.wait_until_whole();
    }
}
