//! Real servers of the Redis family and of SQS, each on a free port, in its own directory.
//!
//! A server runs until its [`RedisServer`] or [`SqsServer`] is dropped or the process that started it ends,
//! in any way: it is started with `setpriv --pdeathsig KILL`. That signal is sent when
//! the *thread* that started it ends, and a test's thread ends with the test; hence each server is started
//! by a dedicated thread.
//!
//! Programs are looked up as follows:
//!
//! | flavour | variable | otherwise |
//! |---|---|---|
//! | [`Flavour::Redis`] | `PILLARBOX_REDIS_SERVER` | `redis-server` in the `PATH` |
//! | [`Flavour::Valkey`] | `PILLARBOX_VALKEY_SERVER` | `target/servers/valkey-server` |
//! | [`Flavour::Redis62`] | `PILLARBOX_REDIS62_SERVER` | `target/servers/redis-server-6.2` |
//! | [`SqsFlavour::Moto`] | `PILLARBOX_MOTO_SERVER` | `target/venv-sqs/bin/moto_server` |
//! | [`SqsFlavour::Ministack`] | `PILLARBOX_MINISTACK_SERVER` | `target/venv-sqs/bin/ministack` |
//! | [`SqsFlavour::Fauxqs`] | `PILLARBOX_FAUXQS_SERVER` | `target/sqs-node/node_modules/fauxqs/dist/cli.js` |
//!
//! Several servers make a [`RedisCluster`], or a primary with replicas that [`RedisSentinels`] watch.

mod cluster;
mod sentinel;
mod sqs;

pub use cluster::{RedisCluster, RedisClusterBuilder, SLOTS, slot_of};
pub use sentinel::{RedisSentinels, RedisSentinelsBuilder};
pub use sqs::{SqsFlavour, SqsServer, SqsServerBuilder, sqs_python};

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, io};

use pillarbox_core::internal::lock;
use rand::RngExt as _;
use tempfile::TempDir;

use crate::process::send_signal;

/// Name of a server's log in its directory.
const LOG: &str = "server.log";
/// Longest time until a server answers, including loading its data.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of checks meanwhile.
const PAUSE: Duration = Duration::from_millis(5);
/// Number of ports to try: another process may take a free port before the server binds it.
const PORTS: usize = 10;
/// Longest time for a server to report its state, if several servers are asked.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Ports of servers that others connect to: below the ephemeral ports of the system, or a client could take
/// the port of a server while it is down.
const LASTING_PORTS: Range<u16> = 11_000..32_000;

/// Kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// The distribution's Redis.
    Redis,
    /// Valkey 9.
    Valkey,
    /// Redis 6.2, the oldest that is supported.
    Redis62,
}

impl Flavour {
    /// All flavours.
    pub const ALL: [Self; 3] = [Self::Redis, Self::Valkey, Self::Redis62];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Valkey => "Valkey",
            Self::Redis62 => "Redis 6.2",
        }
    }

    /// Whether its program is installed.
    pub fn is_installed(self) -> bool {
        self.program().is_some()
    }

    /// Returns its program, if installed.
    pub fn program(self) -> Option<PathBuf> {
        let (variable, name) = match self {
            Self::Redis => ("PILLARBOX_REDIS_SERVER", "redis-server"),
            Self::Valkey => ("PILLARBOX_VALKEY_SERVER", "valkey-server"),
            Self::Redis62 => ("PILLARBOX_REDIS62_SERVER", "redis-server-6.2"),
        };
        if let Some(named) = env::var_os(variable) {
            return Some(PathBuf::from(named)).filter(|program| program.is_file());
        }
        let program = |directory: PathBuf| Some(directory.join(name)).filter(|path| path.is_file());
        match self {
            Self::Redis => env::split_paths(&env::var_os("PATH")?).find_map(program),
            Self::Valkey | Self::Redis62 => program(target().join("servers")),
        }
    }
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target")
}

/// Builder of a [`RedisServer`].
#[derive(Debug, Clone)]
#[must_use]
pub struct RedisServerBuilder {
    flavour: Flavour,
    settings: Vec<(String, String)>,
    arguments: Vec<String>,
    password: Option<String>,
    tls: bool,
    parent: PathBuf,
}

impl RedisServerBuilder {
    /// Sets the flavour. Defaults to the distribution's Redis.
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.flavour = flavour;
        self
    }

    /// Adds a line to the server's configuration file. The value is not quoted: several words are several
    /// values, and an empty one is `""`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an argument for the program, after its configuration file.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Enables the append-only file, synced `always`, `everysec` or `no`.
    pub fn appendonly(self, fsync: &str) -> Self {
        self.setting("appendonly", "yes").setting("appendfsync", fsync)
    }

    /// Requires a password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Enables TLS and disables plain connections, with a certificate for `127.0.0.1` and `localhost`,
    /// signed by a private authority: [`RedisServer::ca_file`].
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Creates the server's directory in this one. Defaults to the system's temporary directory.
    pub fn directory_in(mut self, parent: impl Into<PathBuf>) -> Self {
        self.parent = parent.into();
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    ///
    /// If the program is not installed, or the server does not start; the message contains its log.
    pub fn start(self) -> RedisServer {
        let mut server = self.prepare();
        server.start_on(free_port);
        server
    }

    /// Adds settings with which replicas start quickly.
    fn replicated(self) -> Self {
        self.setting("repl-diskless-sync", "yes")
            .setting("repl-diskless-sync-delay", "0")
            // With a file, Valkey's replicas check only once a second whether it is complete.
            .setting("repl-diskless-load", "on-empty-db")
    }

    /// Returns the password as part of a URL.
    fn credentials(&self) -> String {
        self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default()
    }

    /// Creates its directory, and starts nothing yet.
    fn prepare(self) -> RedisServer {
        let program = self.flavour.program().unwrap_or_else(|| {
            panic!("{} is not installed; `make setup` installs it", self.flavour.name())
        });
        let directory =
            tempfile::Builder::new().prefix("pillarbox-redis-").tempdir_in(&self.parent);
        let directory = directory.expect("a directory for a server");
        if self.tls {
            make_certificates(directory.path());
        }
        RedisServer {
            program,
            options: self,
            port: 0,
            pid: 0,
            child: Mutex::new(None),
            starter: StarterThread::start(),
            directory,
        }
    }
}

/// A running server. Dropping it kills the process and removes its directory.
#[derive(Debug)]
pub struct RedisServer {
    program: PathBuf,
    options: RedisServerBuilder,
    port: u16,
    pid: u32,
    /// The process, until it was waited for.
    child: Mutex<Option<Child>>,
    starter: StarterThread,
    directory: TempDir,
}

impl RedisServer {
    /// Starts the distribution's Redis, without persistence.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder {
            flavour: Flavour::Redis,
            settings: Vec::new(),
            arguments: Vec::new(),
            password: None,
            tls: false,
            parent: env::temp_dir(),
        }
    }

    /// Returns its URL: `redis://127.0.0.1:PORT`, with the password if it has one, and `rediss` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.options.tls { "rediss" } else { "redis" };
        format!("{scheme}://{}127.0.0.1:{}", self.options.credentials(), self.port)
    }

    /// Returns the port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its process id, or the last one if it was stopped.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns its directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the Unix socket on which it also listens, always without TLS.
    pub fn socket(&self) -> PathBuf {
        self.directory().join("socket")
    }

    /// Returns the certificate of the authority that signed the server's, with TLS.
    pub fn ca_file(&self) -> Option<PathBuf> {
        self.options.tls.then(|| self.directory().join("ca.crt"))
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        read_log(self.directory())
    }

    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        let ended = |child: &mut Child| child.try_wait().expect("the state of a server");
        lock(&self.child).as_mut().is_some_and(|child| ended(child).is_none())
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = lock(&self.child).take() {
            child.kill().expect("killed a server");
            child.wait().expect("the end of a server");
        }
    }

    /// Stops it with SIGTERM.
    pub fn stop(&mut self) {
        self.signal("TERM");
        if let Some(mut child) = lock(&self.child).take() {
            child.wait().expect("the end of a server");
        }
    }

    /// Suspends its process until [`resume`](Self::resume): connections stay open without answers.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Resumes its process.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Restarts it on the same port with the same files and settings; kills it first if it still runs. Waits
    /// until it answers.
    pub fn restart(&mut self) {
        self.start_again();
        self.wait_until_ready();
    }

    /// Restarts it like [`restart`](Self::restart), without waiting.
    pub fn start_again(&mut self) {
        self.kill();
        let mut command = bound_command();
        command.arg(&self.program).arg(self.directory().join("server.conf"));
        command.args(&self.options.arguments);
        let child = self.starter.spawn(command, self.directory());
        self.pid = child.id();
        *lock(&self.child) = Some(child);
    }

    /// Waits until it answers.
    ///
    /// # Panics
    ///
    /// If it exits, or takes longer than a minute; the message contains its log.
    pub fn wait_until_ready(&self) {
        assert!(self.wait_for_start(), "a server has ended:\n{}", self.log());
    }

    /// Runs one command and returns the reply as text: a list with one element per line, nil as an empty
    /// string.
    ///
    /// Uses the Unix socket, so that this server answers even if the network is cut.
    ///
    /// # Panics
    ///
    /// If the server replies with an error, or does not reply.
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Runs one command like [`command`](Self::command), and returns its error.
    pub fn try_command(&self, words: &[&str]) -> Result<String, String> {
        self.try_command_within(START_TIMEOUT, words)
    }

    /// Runs one command like [`try_command`](Self::try_command), with a timeout for each reply.
    pub fn try_command_within(&self, timeout: Duration, words: &[&str]) -> Result<String, String> {
        let answer = || -> io::Result<Result<String, String>> {
            let stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(timeout))?;
            let mut stream = BufReader::new(stream);
            if let Some(password) = &self.options.password {
                ask(&mut stream, &["AUTH", password])?.ok();
            }
            ask(&mut stream, words)
        };
        answer().map_err(|error| error.to_string())?
    }

    /// Returns one field of `INFO`.
    ///
    /// # Panics
    ///
    /// If there is no such field.
    pub fn info(&self, field: &str) -> String {
        let info = self.command(&["INFO", "all"]);
        let value = field_of(&info, field);
        value.unwrap_or_else(|| panic!("INFO has no field {field}")).to_owned()
    }

    /// Returns the CPU time of its main thread in microseconds, or of all threads if it does not report them
    /// separately.
    pub fn cpu_micros(&self) -> u64 {
        let info = self.command(&["INFO", "cpu"]);
        let micros = |field: &str| {
            let seconds = field_of(&info, field)?.parse::<f64>().ok()?;
            Some((seconds * 1e6).round() as u64)
        };
        let sum = |user, system| Some(micros(user)? + micros(system)?);
        sum("used_cpu_user_main_thread", "used_cpu_sys_main_thread")
            .or_else(|| sum("used_cpu_user", "used_cpu_sys"))
            .expect("INFO has the CPU time")
    }

    /// Starts it on a port that `find_port` returns, and waits until it answers.
    fn start_on(&mut self, find_port: fn() -> u16) {
        for _ in 0..PORTS {
            self.port = find_port();
            self.write_configuration();
            self.start_again();
            if self.wait_for_start() {
                return;
            }
        }
        panic!("no server started on any of {PORTS} ports:\n{}", self.log());
    }

    /// Runs one command on a server that may be down or hang.
    fn query(&self, words: &[&str]) -> Result<String, String> {
        let answer = self.try_command_within(QUERY_TIMEOUT, words);
        answer.map_err(|error| format!("port {} replied to {words:?}: {error}", self.port))
    }

    /// Returns the replication section of `INFO`, or that it does not answer.
    fn replication(&self, field: &str) -> Result<Option<String>, String> {
        let info = self.query(&["INFO", "replication"])?;
        Ok(field_of(&info, field).map(str::to_owned))
    }

    /// Returns one of its replication offsets.
    fn offset(&self, field: &str) -> Result<u64, String> {
        let offset = self.replication(field)?.and_then(|offset| offset.parse().ok());
        offset.ok_or_else(|| format!("port {} has no {field}", self.port))
    }

    /// Checks that it has reached a replication offset; the error has the offset it reached.
    fn has_received(&self, done: u64) -> Result<(), String> {
        match self.offset("slave_repl_offset")? {
            received if received >= done => Ok(()),
            received => Err(format!("port {} is at {received} of {done}", self.port)),
        }
    }

    /// Sends a signal, if the process still runs; its id is not reused until it was waited for.
    fn signal(&self, name: &str) {
        if lock(&self.child).is_some() {
            send_signal(self.pid, name);
        }
    }

    /// Waits until it answers or exits.
    fn wait_for_start(&self) -> bool {
        let start = Instant::now();
        while self.is_running() {
            // While it loads its data, it replies with an error.
            if self.try_command(&["PING"]).is_ok_and(|answer| answer == "PONG") {
                return true;
            }
            assert!(start.elapsed() < START_TIMEOUT, "a server does not answer:\n{}", self.log());
            thread::sleep(PAUSE);
        }
        false
    }

    /// If a setting occurs twice, the last one counts.
    fn write_configuration(&self) {
        let directory = self.directory().display();
        let (plain, encrypted) = if self.options.tls { (0, self.port) } else { (self.port, 0) };
        let mut text = format!(
            "bind 127.0.0.1\nport {plain}\nunixsocket \"{directory}/socket\"\n\
             daemonize no\ndir \"{directory}\"\nsave \"\"\nappendonly no\n"
        );
        if self.options.tls {
            let _ = write!(
                text,
                "tls-port {encrypted}\ntls-cert-file \"{directory}/server.crt\"\n\
                 tls-key-file \"{directory}/server.key\"\ntls-ca-cert-file \"{directory}/ca.crt\"\n\
                 tls-auth-clients no\n"
            );
        }
        if let Some(password) = &self.options.password {
            let _ = writeln!(text, "requirepass {password:?}");
        }
        for (name, value) in &self.options.settings {
            let value = if value.is_empty() { "\"\"" } else { value };
            let _ = writeln!(text, "{name} {value}");
        }
        fs::write(self.directory().join("server.conf"), text)
            .expect("the configuration of a server");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The thread that starts a server, and ends with it.
#[derive(Debug)]
struct StarterThread {
    /// `None` once the thread must end.
    requests: Option<Sender<Command>>,
    children: Mutex<Receiver<io::Result<Child>>>,
    thread: Option<JoinHandle<()>>,
}

impl StarterThread {
    fn start() -> Self {
        let (requests, commands) = channel::<Command>();
        let (answers, children) = channel();
        let thread = thread::spawn(move || {
            for mut command in commands {
                // The receiver is gone only if a test has panicked in between.
                let _ = answers.send(command.spawn());
            }
        });
        Self { requests: Some(requests), children: Mutex::new(children), thread: Some(thread) }
    }

    /// Starts a program that works in this directory and writes its log there.
    fn spawn(&self, mut command: Command, directory: &Path) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(directory.join(LOG));
        let log = log.expect("the log of a server");
        command.current_dir(directory).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("the log of a server")).stderr(log);
        let children = lock(&self.children);
        let requests = self.requests.as_ref().expect("it ends when dropped");
        requests.send(command).expect("the thread runs");
        let child = children.recv().expect("the thread runs");
        child.unwrap_or_else(|error| panic!("cannot start setpriv: {error}"))
    }
}

impl Drop for StarterThread {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns a command whose arguments are a program, which ends with the thread that starts it.
fn bound_command() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    command
}

fn read_log(directory: &Path) -> String {
    fs::read(directory.join(LOG)).map_or_else(
        |error| format!("(no log: {error})"),
        |text| String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Returns the indices of the servers that run.
fn running(servers: &[RedisServer]) -> impl Iterator<Item = usize> + Clone {
    (0..servers.len()).filter(|server| servers[*server].is_running())
}

/// Returns the addresses of servers, separated by commas.
fn addresses(servers: &[RedisServer]) -> String {
    let addresses = servers.iter().map(|server| format!("127.0.0.1:{}", server.port));
    addresses.collect::<Vec<_>>().join(",")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its number").port()
}

/// Returns a free port for a server that others connect to, also while it is down.
fn lasting_port() -> u16 {
    let mut random = rand::rng();
    loop {
        let port = random.random_range(LASTING_PORTS);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Returns a random node id: 40 hexadecimal digits.
fn random_id() -> String {
    let mut random = rand::rng();
    (0..40).map(|_| char::from(b"0123456789abcdef"[random.random_range(0..16)])).collect()
}

/// Waits until `check` succeeds; its error says what is missing.
///
/// # Panics
///
/// If that takes longer than a minute; the message contains the last error and `rest`.
fn wait_for<T>(mut look: impl FnMut() -> Result<T, String>, rest: impl Fn() -> String) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(missing) if start.elapsed() > START_TIMEOUT => {
                panic!("timed out: {missing}\n{}", rest());
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Creates an authority and a certificate signed by it, with the program `openssl`.
fn make_certificates(directory: &Path) {
    let names = "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n";
    fs::write(directory.join("server.ext"), names).expect("a file for openssl");
    let key = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256";
    let authority = "-x509 -days 30 -subj /CN=pillarbox-test-authority";
    for line in [
        format!("{key} {authority} -keyout ca.key -out ca.crt"),
        format!("{key} -subj /CN=localhost -keyout server.key -out server.csr"),
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -sha256 \
         -extfile server.ext -out server.crt"
            .to_owned(),
    ] {
        let output = Command::new("openssl")
            .args(line.split_whitespace())
            .current_dir(directory)
            .output()
            .unwrap_or_else(|error| panic!("openssl: {error}; `make setup` installs it"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {line}:\n{errors}");
    }
}

fn field_of<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'))
}

/// Sends a command and reads its reply.
fn ask(stream: &mut BufReader<UnixStream>, words: &[&str]) -> io::Result<Result<String, String>> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        let _ = write!(command, "${}\r\n{word}\r\n", word.len());
    }
    stream.get_mut().write_all(command.as_bytes())?;
    read_answer(stream)
}

/// Reads one RESP2 reply.
fn read_answer(stream: &mut impl BufRead) -> io::Result<Result<String, String>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let strange = || io::Error::new(io::ErrorKind::InvalidData, format!("an answer of {line:?}"));
    let (kind, rest) = line.split_at_checked(1).ok_or_else(strange)?;
    let length = || rest.parse::<i64>().map_err(|_| strange());
    match kind {
        "+" | ":" => Ok(Ok(rest.to_owned())),
        "-" => Ok(Err(rest.to_owned())),
        "$" => {
            let Ok(length) = usize::try_from(length()?) else { return Ok(Ok(String::new())) };
            let mut bytes = vec![0; length + 2];
            stream.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(Ok(String::from_utf8_lossy(&bytes).into_owned()))
        }
        "*" => {
            let mut lines = Vec::new();
            for _ in 0..length()? {
                // An element may be an error although the list is not.
                lines.push(read_answer(stream)?.unwrap_or_else(|error| format!("({error})")));
            }
            Ok(Ok(lines.join("\n")))
        }
        _ => Err(strange()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_answers_by_itself_and_keeps_nothing() {
        let mut server = RedisServer::start();
        assert_eq!(server.command(&["SET", "key", "two words"]), "OK");
        assert_eq!(server.command(&["MGET", "key", "none"]), "two words\n");
        assert_eq!(server.command(&["INCR", "count"]), "1");
        let error = server.try_command(&["INCR", "key"]).expect_err("not a number");
        assert!(error.contains("not an integer"), "{error}");
        assert_eq!(server.info("process_id"), server.pid().to_string());
        assert_eq!(server.info("tcp_port"), server.port().to_string());
        server.restart();
        assert_eq!(server.command(&["DBSIZE"]), "0");
        assert!(server.cpu_micros() > 0);
    }

    #[test]
    fn a_server_that_logs_every_change_survives_a_kill() {
        let mut server = RedisServer::builder().appendonly("always").start();
        let (url, first) = (server.url(), server.pid());
        server.command(&["SET", "key", "value"]);
        server.kill();
        assert!(server.try_command(&["PING"]).is_err());
        server.restart();
        assert_eq!(server.command(&["GET", "key"]), "value");
        assert_eq!(server.url(), url);
        assert_ne!(server.pid(), first);
        server.stop();
        server.start_again();
        server.wait_until_ready();
        assert_eq!(server.command(&["GET", "key"]), "value");
    }

    #[test]
    fn a_server_asks_for_its_password() {
        let server = RedisServer::builder().password("pass-word").start();
        assert_eq!(server.command(&["PING"]), "PONG");
        assert_eq!(server.url(), format!("redis://:pass-word@127.0.0.1:{}", server.port()));
        let mut stranger = BufReader::new(UnixStream::connect(server.socket()).expect("connected"));
        let answer = ask(&mut stranger, &["PING"]).expect("an answer");
        assert!(answer.expect_err("refused").contains("NOAUTH"));
    }

    #[test]
    fn a_server_speaks_tls_with_a_certificate_that_its_authority_has_signed() {
        let server = RedisServer::builder().tls().start();
        assert_eq!(server.url(), format!("rediss://127.0.0.1:{}", server.port()));
        let address = format!("127.0.0.1:{}", server.port());
        let authority = server.ca_file().expect("an authority");
        let output = Command::new("openssl")
            .args(["s_client", "-connect", &address, "-verify_return_error"])
            .args(["-verify_ip", "127.0.0.1", "-CAfile"])
            .arg(authority)
            .stdin(Stdio::null())
            .output()
            .expect("openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn every_installed_flavour_starts() {
        for flavour in Flavour::ALL.into_iter().filter(|flavour| flavour.is_installed()) {
            let server = RedisServer::builder().flavour(flavour).setting("hz", "20").start();
            assert_eq!(server.command(&["CONFIG", "GET", "hz"]), "hz\n20", "{flavour:?}");
        }
    }

    #[test]
    fn a_server_that_does_not_come_up_shows_its_log() {
        let start = || RedisServer::builder().setting("hz", "often").start();
        let panic = thread::spawn(start).join().expect_err("a panic");
        let message = panic.downcast_ref::<String>().expect("a text");
        assert!(message.contains("argument couldn't be parsed into an integer"), "{message}");
    }

    /// Started and killed by the next test.
    #[test]
    #[ignore = "waits to be killed"]
    fn an_owner_that_waits_to_be_killed() {
        // Started by a thread that ends: the server must survive it.
        let server = thread::spawn(RedisServer::start).join().expect("a server");
        println!("\nserver {}", server.pid());
        thread::sleep(START_TIMEOUT);
    }

    #[test]
    fn a_server_dies_with_its_owner() {
        // The killed owner cannot clean up, so its directories are created in one that is removed.
        let directory = tempfile::tempdir().expect("a directory");
        let mut owner = Command::new(env::current_exe().expect("this test"))
            .args(["--exact", "server::tests::an_owner_that_waits_to_be_killed"])
            .args(["--ignored", "--nocapture"])
            .env("TMPDIR", directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an owner");
        let lines = BufReader::new(owner.stdout.take().expect("its output"));
        let mut lines = lines.lines().map_while(Result::ok);
        let pid = lines.find_map(|line| Some(line.strip_prefix("server ")?.to_owned()));
        let stat = format!("/proc/{}/stat", pid.expect("the number of its server"));
        // A process that has ended and was not waited for is a zombie, Z.
        let runs = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        assert!(runs(), "{stat}");
        owner.kill().expect("killed");
        owner.wait().expect("its end");
        let start = Instant::now();
        while runs() {
            assert!(start.elapsed() < START_TIMEOUT, "the server has outlived its owner");
            thread::sleep(PAUSE);
        }
    }
}
