//! A loopback proxy in front of a server, which injects network faults.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Time within which an event at the proxy must happen.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Treatment of new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// They are forwarded to the server.
    Forward,
    /// They are accepted, and nothing is forwarded until the mode changes.
    Hold,
    /// They are closed at once.
    Refuse,
}

/// Fault that is injected into the next command that contains a text.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The server receives it, this number of bytes of the answer is forwarded, and the connection is cut. The
    /// mode applies to new connections from then on.
    Cut(usize, Mode),
    /// It is kept while the client gives up, and forwarded to the server later.
    Stall,
    /// Its answer is forwarded after this time.
    Delay(Duration),
}

/// A proxy, stopped when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    server: SocketAddr,
    fault: Mutex<Option<(Vec<u8>, Fault)>>,
    /// Text that is replaced in what the server sends, by one of the same length.
    rewrite: Mutex<Option<(Vec<u8>, Vec<u8>)>>,
    mode: watch::Sender<Mode>,
    /// Number of faults injected so far.
    injected: watch::Sender<usize>,
    /// Whether the stalled command is forwarded.
    released: watch::Sender<bool>,
    /// Number of stalled commands that the server has answered.
    answered: watch::Sender<usize>,
}

impl Proxy {
    /// Starts a proxy to the server at this port.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let state = Arc::new(State {
            server: ([127, 0, 0, 1], port).into(),
            fault: Mutex::default(),
            rewrite: Mutex::default(),
            mode: watch::Sender::new(Mode::Forward),
            injected: watch::Sender::new(0),
            released: watch::Sender::new(false),
            answered: watch::Sender::new(0),
        });
        let port = listener.local_addr().expect("its address").port();
        let task = tokio::spawn(accept(listener, state.clone()));
        Self { port, state, task }
    }

    /// Returns the URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the treatment of new connections.
    pub(crate) fn set(&self, mode: Mode) {
        self.state.mode.send_replace(mode);
    }

    /// Cuts the connection after this number of bytes of the answer to the next command with this text.
    pub(crate) fn cut_answer(&self, text: &str, after: usize) {
        self.arm(text, Fault::Cut(after, Mode::Forward));
    }

    /// Does the same, and holds new connections until the mode is set.
    pub(crate) fn cut_answer_and_hold(&self, text: &str, after: usize) {
        self.arm(text, Fault::Cut(after, Mode::Hold));
    }

    /// Does the same, and refuses new connections until the mode is set.
    pub(crate) fn cut_answer_and_refuse(&self, text: &str, after: usize) {
        self.arm(text, Fault::Cut(after, Mode::Refuse));
    }

    /// Keeps the next command with this text until [`deliver`](Self::deliver).
    pub(crate) fn stall(&self, text: &str) {
        self.state.released.send_replace(false);
        self.arm(text, Fault::Stall);
    }

    /// Delays the answer to the next command with this text.
    pub(crate) fn delay_answer(&self, text: &str, time: Duration) {
        self.arm(text, Fault::Delay(time));
    }

    /// Forwards the stalled command and waits until the server has answered it.
    pub(crate) async fn deliver(&self) {
        let before = *self.state.answered.borrow();
        self.state.released.send_replace(true);
        self.reaches(&self.state.answered, before + 1, "an answer to the stalled command").await;
    }

    /// Waits until this number of faults was injected.
    pub(crate) async fn injected(&self, times: usize) {
        self.reaches(&self.state.injected, times, "a command for the fault").await;
    }

    /// Replaces a text in what the server sends by another one of the same length.
    pub(crate) fn rewrite(&self, text: &str, by: &str) {
        assert_eq!(text.len(), by.len(), "a length precedes each text");
        *self.state.rewrite.lock().expect("the text") = Some((text.into(), by.into()));
    }

    fn arm(&self, text: &str, fault: Fault) {
        *self.state.fault.lock().expect("the fault") = Some((text.into(), fault));
    }

    async fn reaches(&self, count: &watch::Sender<usize>, least: usize, what: &str) {
        let mut count = count.subscribe();
        let reached = tokio::time::timeout(TIMEOUT, count.wait_for(|count| *count >= least));
        reached.await.unwrap_or_else(|_| panic!("timed out before {what}")).expect("a proxy");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((client, _)) = listener.accept().await {
        let state = state.clone();
        // A connection may end with an error.
        tokio::spawn(async move { state.serve(client).await.ok() });
    }
}

impl State {
    async fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        let mut mode = self.mode.subscribe();
        let Ok(mode) = mode.wait_for(|mode| *mode != Mode::Hold).await.map(|mode| *mode) else {
            return Ok(());
        };
        if mode == Mode::Refuse {
            return Ok(());
        }
        let mut server = TcpStream::connect(self.server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut sent, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut cut: Option<(usize, Mode)> = None;
        let mut delay = Duration::ZERO;
        loop {
            tokio::select! {
                bytes = client.read(&mut sent) => {
                    let sent = &sent[..bytes?];
                    if sent.is_empty() {
                        return Ok(());
                    }
                    match self.take_fault(sent) {
                        Some(Fault::Stall) => return self.stall(sent, server).await,
                        Some(Fault::Cut(after, mode)) => cut = Some((after, mode)),
                        Some(Fault::Delay(time)) => {
                            delay = time;
                            self.injected.send_modify(|times| *times += 1);
                        }
                        None => {}
                    }
                    server.write_all(sent).await?;
                }
                bytes = server.read(&mut answered) => {
                    let answered = &mut answered[..bytes?];
                    if answered.is_empty() {
                        return Ok(());
                    }
                    self.rewrite(answered);
                    tokio::time::sleep(std::mem::take(&mut delay)).await;
                    let Some((left, mode)) = &mut cut else {
                        client.write_all(answered).await?;
                        continue;
                    };
                    let some = answered.len().min(*left);
                    client.write_all(&answered[..some]).await?;
                    *left -= some;
                    if *left == 0 {
                        self.mode.send_replace(*mode);
                        self.injected.send_modify(|times| *times += 1);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes the fault that is meant for what a client sent.
    fn take_fault(&self, sent: &[u8]) -> Option<Fault> {
        let mut fault = self.fault.lock().expect("the fault");
        let found = fault.take_if(|(text, _)| sent.windows(text.len()).any(|some| some == text));
        found.map(|(_, fault)| fault)
    }

    async fn stall(&self, sent: &[u8], mut server: TcpStream) -> std::io::Result<()> {
        self.injected.send_modify(|times| *times += 1);
        if self.released.subscribe().wait_for(|released| *released).await.is_ok() {
            server.write_all(sent).await?;
            let mut answer = [0; 1024];
            if server.read(&mut answer).await? > 0 {
                self.answered.send_modify(|times| *times += 1);
            }
        }
        Ok(())
    }

    fn rewrite(&self, answer: &mut [u8]) {
        if let Some((text, by)) = &*self.rewrite.lock().expect("the text")
            && let Some(at) = answer.windows(text.len()).position(|some| some == text)
        {
            answer[at..at + by.len()].copy_from_slice(by);
        }
    }
}
