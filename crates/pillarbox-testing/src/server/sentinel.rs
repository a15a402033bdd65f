//! A primary with replicas, and sentinels that watch them: when the primary dies, they make one of
//! its replicas the primary.
//!
//! Sentinels find each other and the replicas by themselves, within some seconds. To have that
//! at once, they are started with what they would write down once they had found out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Flavour, PORTS, RedisServer, RedisServerBuilder, lasting_port, random_id, wait_for};

/// By what name sentinels are asked for the primary.
const SERVICE: &str = "pillarbox";
/// After which time a failover that has not been done is asked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// How often sentinels look and talk, in milliseconds, where they can be told: by themselves they
/// take ten seconds to look at a replica and another eight to set right what is wrong with it.
/// And who was not let run for two seconds does nothing for another thirty.
const HASTE: [(&str, &str); 4] = [
    ("INFO-PERIOD", "300"),
    ("PUBLISH-PERIOD", "200"),
    ("TILT-PERIOD", "1000"),
    ("MIN-LINK-RECONNECT-PERIOD", "1000"),
];

/// How servers and their sentinels are to be started.
#[derive(Debug, Clone)]
#[must_use]
pub struct RedisSentinelsBuilder {
    flavour: Flavour,
    replicas: usize,
    sentinels: usize,
    down_after: Duration,
    settings: Vec<(String, String)>,
    password: Option<String>,
}

impl RedisSentinelsBuilder {
    /// Starts servers and sentinels of this flavour, in place of the distribution's Redis.
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.flavour = flavour;
        self
    }

    /// Starts this many replicas, in place of two.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Starts this many sentinels, in place of three. More than half must agree.
    pub fn sentinels(mut self, sentinels: usize) -> Self {
        self.sentinels = sentinels;
        self
    }

    /// Has a server taken for dead when it was silent for this long, in place of a second.
    pub fn down_after(mut self, silence: Duration) -> Self {
        self.down_after = silence;
        self
    }

    /// Adds a line to the configuration file of every server, not of the sentinels.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Has every change logged in a file, which is synced `always`, `everysec` or `no`.
    pub fn appendonly(self, fsync: &str) -> Self {
        self.setting("appendonly", "yes").setting("appendfsync", fsync)
    }

    /// Has the servers ask for a password, and not the sentinels.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Starts them and waits until they are whole.
    ///
    /// # Panics
    ///
    /// When the program is not here, one does not come up, or they do not find each other.
    pub fn start(self) -> RedisSentinels {
        assert!(self.sentinels > 0, "somebody watches");
        let mut servers: Vec<RedisServer> = Vec::new();
        for _ in 0..=self.replicas {
            let mut server = self.server(servers.first()).prepare();
            server.start_on(lasting_port);
            servers.push(server);
        }
        let sentinels = self.start_sentinels(&servers);
        let all = RedisSentinels { servers, sentinels, password: self.password };
        all.hasten();
        all.wait_until_whole();
        all
    }

    fn server(&self, primary: Option<&RedisServer>) -> RedisServerBuilder {
        let mut server = RedisServer::builder()
            .flavour(self.flavour)
            .setting("repl-diskless-sync", "yes")
            .setting("repl-diskless-sync-delay", "0")
            // By way of a file, Valkey's replicas look only once a second whether it is complete.
            .setting("repl-diskless-load", "on-empty-db");
        if let Some(primary) = primary {
            server = server.setting("replicaof", &format!("127.0.0.1 {}", primary.port()));
        }
        if let Some(password) = &self.password {
            server = server.password(password).setting("masterauth", &format!("{password:?}"));
        }
        for (name, value) in &self.settings {
            server = server.setting(name, value);
        }
        server
    }

    /// Starts all sentinels, each of which knows the others from the start.
    fn start_sentinels(&self, servers: &[RedisServer]) -> Vec<RedisServer> {
        for _ in 0..PORTS {
            let known = (0..self.sentinels).map(|_| (lasting_port(), random_id()));
            let known: Vec<(u16, String)> = known.collect();
            let start = |own: usize| {
                let mut sentinel = self.sentinel(own, &known, servers).prepare();
                sentinel.port = known[own].0;
                sentinel.write_configuration();
                sentinel.start_again();
                sentinel
            };
            let sentinels: Vec<RedisServer> = (0..self.sentinels).map(start).collect();
            // Else another has taken a port meanwhile.
            if sentinels.iter().all(RedisServer::comes_up) {
                return sentinels;
            }
            let ended = sentinels.iter().find(|sentinel| !sentinel.is_running());
            let log = ended.map(RedisServer::log).unwrap_or_default();
            assert!(log.contains("ddress already in use"), "a sentinel does not come up:\n{log}");
        }
        panic!("no sentinels came up on any of {PORTS} times their ports");
    }

    fn sentinel(
        &self,
        own: usize,
        known: &[(u16, String)],
        servers: &[RedisServer],
    ) -> RedisServerBuilder {
        let (primary, replicas) = servers.split_first().expect("a primary");
        let silence = self.down_after.as_millis();
        let mut lines = vec![
            format!("myid {}", known[own].1),
            format!("monitor {SERVICE} 127.0.0.1 {} {}", primary.port(), self.sentinels / 2 + 1),
            format!("down-after-milliseconds {SERVICE} {silence}"),
            // After twice that, a failover that has not come to its end is tried again.
            format!("failover-timeout {SERVICE} 3000"),
            format!("parallel-syncs {SERVICE} 10"),
        ];
        if let Some(password) = &self.password {
            lines.push(format!("auth-pass {SERVICE} {password:?}"));
        }
        for replica in replicas {
            lines.push(format!("known-replica {SERVICE} 127.0.0.1 {}", replica.port()));
        }
        for (other, (port, id)) in known.iter().enumerate() {
            if other != own {
                lines.push(format!("known-sentinel {SERVICE} 127.0.0.1 {port} {id}"));
            }
        }
        let mut sentinel = RedisServer::builder().flavour(self.flavour).argument("--sentinel");
        for line in &lines {
            sentinel = sentinel.setting("sentinel", line);
        }
        sentinel
    }
}

/// Servers and their sentinels, killed when dropped and their directories removed.
///
/// Servers and sentinels are named by number. At first the primary is the server 0. After a
/// failover it is otherwise: ask.
#[derive(Debug)]
pub struct RedisSentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    password: Option<String>,
}

impl RedisSentinels {
    /// Starts a primary of the distribution's Redis, two replicas and three sentinels.
    ///
    /// # Panics
    ///
    /// When it is not here, or does not come up.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Says how they are to be started.
    pub fn builder() -> RedisSentinelsBuilder {
        RedisSentinelsBuilder {
            flavour: Flavour::Redis,
            replicas: 2,
            sentinels: 3,
            down_after: Duration::from_secs(1),
            settings: Vec::new(),
            password: None,
        }
    }

    /// Where to find them: `redis-sentinel://127.0.0.1:PORT,127.0.0.1:PORT,.../pillarbox`, with the
    /// ports of all sentinels, and the password of the servers if they have one.
    pub fn url(&self) -> String {
        let password = self.password.as_ref();
        let password = password.map(|password| format!(":{password}@")).unwrap_or_default();
        let sentinels = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port()));
        let sentinels = sentinels.collect::<Vec<_>>().join(",");
        format!("redis-sentinel://{password}{sentinels}/{SERVICE}")
    }

    /// The servers, those that were killed included.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// One of the servers.
    pub fn server(&self, server: usize) -> &RedisServer {
        &self.servers[server]
    }

    /// One of the servers, to be stopped and started.
    pub fn server_mut(&mut self, server: usize) -> &mut RedisServer {
        &mut self.servers[server]
    }

    /// The sentinels, those that were killed included.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// One of the sentinels.
    pub fn sentinel(&self, sentinel: usize) -> &RedisServer {
        &self.sentinels[sentinel]
    }

    /// Which server is the primary, as the sentinels that answer know it, and of those the one with
    /// the newest knowledge. It may be dead.
    ///
    /// # Panics
    ///
    /// When no sentinel answers.
    pub fn primary(&self) -> usize {
        self.known_primary().unwrap_or_else(|missing| panic!("no primary: {missing}"))
    }

    /// Ends a server by SIGKILL.
    pub fn kill(&mut self, server: usize) {
        self.servers[server].kill();
    }

    /// Ends the primary by SIGKILL, and gives its number.
    ///
    /// # Panics
    ///
    /// When no sentinel answers.
    pub fn kill_primary(&mut self) -> usize {
        let primary = self.primary();
        self.kill(primary);
        primary
    }

    /// Starts a server anew, after killing it if it still runs, and waits until it answers. It takes
    /// itself for what it was, until the sentinels set it right: see
    /// [`wait_until_whole`](Self::wait_until_whole).
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn restart(&mut self, server: usize) {
        self.servers[server].restart();
    }

    /// Ends a sentinel by SIGKILL.
    pub fn kill_sentinel(&mut self, sentinel: usize) {
        self.sentinels[sentinel].kill();
    }

    /// Starts a sentinel anew, after killing it if it still runs, and waits until it answers.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn restart_sentinel(&mut self, sentinel: usize) {
        self.sentinels[sentinel].restart();
        self.hasten();
    }

    /// Waits until all running sentinels know each other and agree: the primary runs, and all other
    /// servers that run are its replicas and have what it has.
    ///
    /// Of Redis 6.2 this may take twenty seconds when a server has come back.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute; the message says what is missing.
    pub fn wait_until_whole(&self) {
        self.wait(|| self.is_whole());
    }

    /// Waits until every replica that runs has received all that the primary has done until now.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    pub fn wait_until_replicated(&self) {
        let primary = self.primary();
        let done = self.wait(|| self.servers[primary].offset("master_repl_offset"));
        for replica in running(&self.servers).filter(|server| *server != primary) {
            self.wait(|| self.servers[replica].has_received(done));
        }
    }

    /// Waits until another server has taken the place of this one as primary, and all sentinels
    /// that answer say so. Gives its number.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    pub fn wait_for_promotion(&self, old: usize) -> usize {
        self.wait(|| self.heir_of(old))
    }

    /// Has the sentinels make another server the primary while all is well, and waits until it is.
    /// Gives its number.
    ///
    /// What was written meanwhile may be lost: until they have made it a replica, the old primary
    /// takes itself for one.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    pub fn failover(&self) -> usize {
        let old = self.primary();
        let mut asked: Option<Instant> = None;
        self.wait(|| {
            if asked.is_none_or(|asked| asked.elapsed() > AGAIN) {
                let sentinel = running(&self.sentinels).next().ok_or("no sentinel runs")?;
                self.sentinels[sentinel].glance(&["SENTINEL", "FAILOVER", SERVICE])?;
                asked = Some(Instant::now());
            }
            self.heir_of(old)
        })
    }

    /// Waits until this gives no error, which says what is missing.
    fn wait<T>(&self, look: impl FnMut() -> Result<T, String>) -> T {
        wait_for(look, || {
            let logs = self.sentinels.iter().map(RedisServer::log);
            logs.collect::<Vec<_>>().join("\n")
        })
    }

    fn hasten(&self) {
        for sentinel in running(&self.sentinels) {
            for (name, value) in HASTE {
                // Redis 6.2 cannot be told.
                let _ = self.sentinels[sentinel].glance(&["SENTINEL", "DEBUG", name, value]);
            }
        }
    }

    /// What a sentinel knows of the primary.
    fn look_at_primary(&self, sentinel: usize) -> Result<Watched, String> {
        Ok(Watched::read(&self.sentinels[sentinel].glance(&["SENTINEL", "MASTER", SERVICE])?))
    }

    /// What a sentinel knows of `REPLICAS` or `SENTINELS`, by port.
    fn look_at(&self, sentinel: usize, whom: &str) -> Result<HashMap<u16, Watched>, String> {
        let text = self.sentinels[sentinel].glance(&["SENTINEL", whom, SERVICE])?;
        let lines: Vec<&str> = text.lines().collect();
        // Each begins with its name.
        let starts = (0..lines.len()).step_by(2).filter(|line| lines[*line] == "name");
        let starts: Vec<usize> = starts.chain([lines.len()]).collect();
        let parts =
            starts.windows(2).map(|ends| Watched::read(&lines[ends[0]..ends[1]].join("\n")));
        Ok(parts.map(|watched| (watched.number("port"), watched)).collect())
    }

    /// At which port the primary is, as a sentinel tells clients.
    fn told(&self, sentinel: usize) -> Result<u16, String> {
        let sentinel = &self.sentinels[sentinel];
        let told = sentinel.glance(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?;
        let port = told.lines().nth(1).and_then(|port| port.parse().ok());
        port.ok_or_else(|| format!("a sentinel tells of {told:?}"))
    }

    fn known_primary(&self) -> Result<usize, String> {
        let known = running(&self.sentinels).filter_map(|sentinel| {
            let epoch = self.look_at_primary(sentinel).ok()?.number::<u64>("config-epoch");
            Some((epoch, self.told(sentinel).ok()?))
        });
        let (_, port) = known.max_by_key(|(epoch, _)| *epoch).ok_or("no sentinel answers")?;
        let server = self.servers.iter().position(|server| server.port() == port);
        server.ok_or_else(|| format!("the primary is at port {port}, where no server is"))
    }

    /// Who is the primary in place of a server, if all know.
    fn heir_of(&self, old: usize) -> Result<usize, String> {
        let heir = self.known_primary()?;
        if heir == old {
            return Err(format!("server {old} is the primary"));
        }
        for sentinel in running(&self.sentinels) {
            let Ok(told) = self.told(sentinel) else { continue };
            if told != self.servers[heir].port() {
                return Err(format!("sentinel {sentinel} does not know that it is server {heir}"));
            }
        }
        match self.servers[heir].replication("role")?.as_deref() {
            Some("master") => Ok(heir),
            role => Err(format!("server {heir} takes itself for a {role:?}")),
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
                // That it follows the primary is known once it was asked, and only then can it
                // take its place.
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

fn running(servers: &[RedisServer]) -> impl Iterator<Item = usize> {
    (0..servers.len()).filter(|server| servers[*server].is_running())
}

/// What a sentinel knows of a server or of another sentinel.
#[derive(Debug)]
struct Watched(HashMap<String, String>);

impl Watched {
    /// Reads lines of which each first is a name and each second a value.
    fn read(text: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let fields = lines.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
        Self(fields.collect())
    }

    fn get(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    /// Whether it is there, and nothing is going on.
    fn is_well(&self) -> bool {
        let ill = ["s_down", "o_down", "disconnected", "failover_in_progress"];
        !self.get("flags").split(',').any(|flag| ill.contains(&flag))
    }

    /// A field that is a number, or nothing of that kind where it is not.
    fn number<T: std::str::FromStr + Default>(&self, field: &str) -> T {
        self.get(field).parse().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_of_every_flavour_make_a_replica_the_primary_when_it_dies() {
        for flavour in Flavour::ALL.into_iter().filter(|flavour| flavour.is_here()) {
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
    fn sentinels_hand_over_while_all_is_well() {
        for flavour in [Flavour::Redis, Flavour::Valkey] {
            if !flavour.is_here() {
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
