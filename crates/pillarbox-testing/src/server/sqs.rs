//! Servers with the API of SQS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use tempfile::TempDir;

use super::{
    PAUSE, PORTS, START_TIMEOUT, StarterThread, bound_command, free_port, read_log, target,
};

/// Timeout of one request.
const ANSWER: Duration = Duration::from_secs(10);

/// Kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SqsFlavour {
    /// moto: slow, with the limits of AWS.
    Moto,
    /// ministack.
    Ministack,
    /// fauxqs. Needs Node.
    Fauxqs,
}

impl SqsFlavour {
    /// All flavours.
    pub const ALL: [Self; 3] = [Self::Moto, Self::Ministack, Self::Fauxqs];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Moto => "moto",
            Self::Ministack => "ministack",
            Self::Fauxqs => "fauxqs",
        }
    }

    /// Whether its program is installed.
    pub fn is_installed(self) -> bool {
        self.program().is_some()
    }

    /// Returns its program, if installed.
    pub fn program(self) -> Option<PathBuf> {
        let (variable, path) = match self {
            Self::Moto => ("PILLARBOX_MOTO_SERVER", "venv-sqs/bin/moto_server"),
            Self::Ministack => ("PILLARBOX_MINISTACK_SERVER", "venv-sqs/bin/ministack"),
            Self::Fauxqs => ("PILLARBOX_FAUXQS_SERVER", "sqs-node/node_modules/fauxqs/dist/cli.js"),
        };
        let program = env::var_os(variable).map_or_else(|| target().join(path), PathBuf::from);
        program.is_file().then_some(program)
    }

    fn command(self, program: &Path, port: u16) -> Command {
        let mut command = bound_command();
        match self {
            Self::Moto => {
                command.arg(program).args(["-H", "127.0.0.1", "-p", &port.to_string()]);
                // Like AWS: one purge per minute.
                command.env("MOTO_SQS_ENFORCE_STRICT_QUEUE_PURGE_BEHAVIOUR", "true");
            }
            Self::Ministack => {
                // Its own program listens on all interfaces; the one it wraps can be configured.
                let bind = format!("127.0.0.1:{port}");
                command.arg(program.with_file_name("hypercorn"));
                command.args(["ministack.app:app", "--bind", &bind, "--log-level", "warning"]);
                // In the process that is killed, not in a child.
                command.args(["--workers", "0"]);
                command.env("GATEWAY_PORT", port.to_string()).env("MINISTACK_HOST", "127.0.0.1");
                command.env("SERVICES", "sqs").env("LOG_LEVEL", "WARNING").env("SFTP_ENABLED", "0");
                // It would look for its containers; there are none.
                command.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
            }
            Self::Fauxqs => {
                // It listens on all interfaces, too; that cannot be configured.
                let listen = "const [module, port] = process.argv.slice(1); \
                              const { buildApp } = await import(module); \
                              await buildApp({ logger: false }).listen({ port, host: '127.0.0.1' });";
                command.args(["node", "--input-type=module", "--eval", listen, "--"]);
                command.arg(program.with_file_name("app.js")).arg(port.to_string());
            }
        }
        command
    }
}

/// Returns the Python that has boto3, if installed.
pub fn sqs_python() -> Option<PathBuf> {
    let program = target().join("venv-sqs/bin/python");
    program.is_file().then_some(program)
}

/// Builder of an [`SqsServer`].
#[derive(Debug, Clone)]
#[must_use]
pub struct SqsServerBuilder {
    flavour: SqsFlavour,
    environment: Vec<(String, String)>,
}

impl SqsServerBuilder {
    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    ///
    /// If the program is not installed, or the server does not start; the message contains its log.
    pub fn start(self) -> SqsServer {
        let name = self.flavour.name();
        let program = self.flavour.program().unwrap_or_else(|| {
            panic!("{name} is not installed; `make setup` installs it, if possible")
        });
        let directory = tempfile::Builder::new().prefix("pillarbox-sqs-").tempdir();
        let directory = directory.expect("a directory for a server");
        let starter = StarterThread::start();
        for _ in 0..PORTS {
            let port = free_port();
            let mut command = self.flavour.command(&program, port);
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
            let mut child = starter.spawn(command, directory.path());
            if wait_for_start(&mut child, port, directory.path()) {
                let flavour = self.flavour;
                return SqsServer { flavour, port, child, _starter: starter, directory };
            }
        }
        panic!("{name} started on none of {PORTS} ports:\n{}", read_log(directory.path()));
    }
}

/// A running server. Dropping it kills the process and removes its directory.
#[derive(Debug)]
pub struct SqsServer {
    flavour: SqsFlavour,
    port: u16,
    child: Child,
    _starter: StarterThread,
    directory: TempDir,
}

impl SqsServer {
    /// Starts a server of this flavour.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start.
    pub fn start(flavour: SqsFlavour) -> Self {
        Self::builder(flavour).start()
    }

    /// Returns a builder.
    pub fn builder(flavour: SqsFlavour) -> SqsServerBuilder {
        SqsServerBuilder { flavour, environment: Vec::new() }
    }

    /// Returns its flavour.
    pub fn flavour(&self) -> SqsFlavour {
        self.flavour
    }

    /// Returns its URL: `sqs+http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("sqs+{}", self.endpoint())
    }

    /// Returns its URL for other programs: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        read_log(self.directory.path())
    }
}

impl Drop for SqsServer {
    fn drop(&mut self) {
        // A process that cannot be killed has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a server answers or exits.
fn wait_for_start(child: &mut Child, port: u16, directory: &Path) -> bool {
    let start = Instant::now();
    while child.try_wait().expect("the state of a server").is_none() {
        if lists_queues(port).is_ok_and(|lists| lists) {
            return true;
        }
        let log = || read_log(directory);
        assert!(start.elapsed() < START_TIMEOUT, "a server does not answer:\n{}", log());
        thread::sleep(PAUSE * 4);
    }
    false
}

/// Asks for a list of queues, and says whether there was one.
fn lists_queues(port: u16) -> io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(ANSWER))?;
    let credential = "Credential=pillarbox/20260101/us-east-1/sqs/aws4_request";
    write!(
        stream,
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: 2\r\n\
         Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n\
         Authorization: AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=0\r\n\r\n{{}}"
    )?;
    let mut start = [0; 12];
    stream.read_exact(&mut start)?;
    Ok(start.ends_with(b" 200"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_installed_flavour_starts_and_stops() {
        for flavour in SqsFlavour::ALL.into_iter().filter(|flavour| flavour.is_installed()) {
            let server = SqsServer::start(flavour);
            let (port, pid) = (server.port(), server.pid());
            assert!(lists_queues(port).expect("an answer"), "{flavour:?}");
            assert_eq!(server.url(), format!("sqs+http://127.0.0.1:{port}"));
            drop(server);
            assert!(lists_queues(port).is_err(), "{flavour:?} is still there");
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{flavour:?} is still there");
        }
    }

    /// The suite of SQS says what is missing; it does not pass because nothing was tested.
    #[test]
    fn moto_is_installed() {
        assert!(SqsFlavour::Moto.is_installed(), "moto is not installed; run `make setup`");
    }
}
