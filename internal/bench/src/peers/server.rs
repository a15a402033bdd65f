//! Servers of peers that have one of their own, each with files in a directory that is gone with it.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::target;
use crate::measure::Result;
use crate::place;

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server, killed when dropped.
#[derive(Debug)]
pub(crate) struct PeerServer {
    child: Child,
    port: u16,
    /// What it writes.
    directory: TempDir,
}

impl PeerServer {
    pub(crate) fn beanstalkd_is_here() -> bool {
        runs(&beanstalkd(), "-v")
    }

    pub(crate) fn nats_is_here() -> bool {
        runs(&nats(), "--version")
    }

    /// beanstalkd with a log that is synced once a second, as Redis has it.
    pub(crate) fn beanstalkd() -> Result<Self> {
        Self::start(|port, directory| {
            let mut command = Command::new(beanstalkd());
            command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-f", "1000", "-b"]);
            command.arg(directory.path());
            command
        })
    }

    /// NATS with JetStream, which keeps its files as it does by default: synced every two minutes.
    pub(crate) fn nats() -> Result<Self> {
        Self::start(|port, directory| {
            let mut command = Command::new(nats());
            command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"]);
            command.arg(directory.path());
            command
        })
    }

    fn start(command: impl FnOnce(u16, &TempDir) -> Command) -> Result<Self> {
        let directory = place::fresh()?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut command = command(port, &directory);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let mut server = Self { child, port, directory };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("the server has ended: {status}").into());
            }
            if Instant::now() > end {
                let directory = self.directory.path().display();
                return Err(format!("the server in {directory} does not answer").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn beanstalkd() -> PathBuf {
    installed("beanstalkd")
}

fn nats() -> PathBuf {
    installed("nats-server")
}

/// A program of the set-up, or else of the system.
fn installed(name: &str) -> PathBuf {
    let ours = target("tools/bin").join(name);
    if ours.is_file() { ours } else { name.into() }
}

fn runs(program: &PathBuf, version: &str) -> bool {
    let output = Command::new(program).arg(version).output();
    output.is_ok_and(|output| output.status.success())
}
