//! A loopback proxy in front of a server, which can do to connections what networks do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long a test waits for something to happen at the proxy.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is done with new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// They are passed on to the server.
    Forward,
    /// They are accepted, and nothing is passed on until the mode changes.
    Hold,
    /// They are closed at once.
    Refuse,
}

/// What is done to the next command that has a certain text in it.
#[derive(Debug, Clone, Copy)]
enum Trap {
    /// The server gets it, so many bytes of the answer are passed on, and the connection is cut; new
    /// connections are treated so from then on.
    Cut(usize, Mode),
    /// It is kept while the client gives up, and passed on to the server when the test says so.
    Stall,
    /// Its answer is passed on this much later.
    Delay(Duration),
}

/// A proxy, gone when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    trap: Mutex<Option<(Vec<u8>, Trap)>>,
    /// Replaced in whatever the server says. Both are equally long.
    rewrite: Mutex<Option<(Vec<u8>, Vec<u8>)>>,
    mode: watch::Sender<Mode>,
    /// How many commands have met a trap.
    sprung: watch::Sender<usize>,
    /// Whether what was stalled is passed on.
    released: watch::Sender<bool>,
    /// How many commands that were stalled the server has answered.
    answered: watch::Sender<usize>,
}

impl Proxy {
    /// Starts a proxy that passes everything on to the server at this port.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let shared = Arc::new(Shared {
            server: ([127, 0, 0, 1], port).into(),
            trap: Mutex::default(),
            rewrite: Mutex::default(),
            mode: watch::Sender::new(Mode::Forward),
            sprung: watch::Sender::new(0),
            released: watch::Sender::new(false),
            answered: watch::Sender::new(0),
        });
        let port = listener.local_addr().expect("its address").port();
        let task = tokio::spawn(accept(listener, shared.clone()));
        Self { port, shared, task }
    }

    /// Where clients find it.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Says what is done with new connections.
    pub(crate) fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Has the connection cut in the answer to the next command with this text, after so many bytes.
    pub(crate) fn cut_answer(&self, text: &str, after: usize) {
        self.arm(text, Trap::Cut(after, Mode::Forward));
    }

    /// The same, and new connections are held until told otherwise.
    pub(crate) fn cut_answer_and_hold(&self, text: &str, after: usize) {
        self.arm(text, Trap::Cut(after, Mode::Hold));
    }

    /// The same, and new connections are closed at once until told otherwise.
    pub(crate) fn cut_answer_and_refuse(&self, text: &str, after: usize) {
        self.arm(text, Trap::Cut(after, Mode::Refuse));
    }

    /// Keeps the next command with this text until [`deliver`](Self::deliver).
    pub(crate) fn stall(&self, text: &str) {
        self.shared.released.send_replace(false);
        self.arm(text, Trap::Stall);
    }

    /// Passes on what the server answers to the next command with this text, but later.
    pub(crate) fn delay_answer(&self, text: &str, time: Duration) {
        self.arm(text, Trap::Delay(time));
    }

    /// Passes the stalled command on and waits until the server has answered it.
    pub(crate) async fn deliver(&self) {
        let before = *self.shared.answered.borrow();
        self.shared.released.send_replace(true);
        self.reaches(&self.shared.answered, before + 1, "an answer to the stalled command").await;
    }

    /// Waits until so many commands have met a trap.
    pub(crate) async fn sprung(&self, times: usize) {
        self.reaches(&self.shared.sprung, times, "a command for the trap").await;
    }

    /// Replaces a text in whatever the server says by another one of the same length.
    pub(crate) fn rewrite(&self, text: &str, by: &str) {
        assert_eq!(text.len(), by.len(), "lengths are told before texts");
        *self.shared.rewrite.lock().expect("the text") = Some((text.into(), by.into()));
    }

    fn arm(&self, text: &str, trap: Trap) {
        *self.shared.trap.lock().expect("the trap") = Some((text.into(), trap));
    }

    async fn reaches(&self, count: &watch::Sender<usize>, least: usize, what: &str) {
        let mut count = count.subscribe();
        let reached = tokio::time::timeout(PATIENCE, count.wait_for(|count| *count >= least));
        reached.await.unwrap_or_else(|_| panic!("waited in vain for {what}")).expect("a proxy");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = shared.clone();
        // Ends, as connections do, with an error that matters to nobody.
        tokio::spawn(async move { shared.serve(client).await.ok() });
    }
}

impl Shared {
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
        let (mut asked, mut said) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut cut: Option<(usize, Mode)> = None;
        let mut late = Duration::ZERO;
        loop {
            tokio::select! {
                bytes = client.read(&mut asked) => {
                    let asked = &asked[..bytes?];
                    if asked.is_empty() {
                        return Ok(());
                    }
                    match self.meets(asked) {
                        Some(Trap::Stall) => return self.stall(asked, server).await,
                        Some(Trap::Cut(after, mode)) => cut = Some((after, mode)),
                        Some(Trap::Delay(time)) => {
                            late = time;
                            self.sprung.send_modify(|times| *times += 1);
                        }
                        None => {}
                    }
                    server.write_all(asked).await?;
                }
                bytes = server.read(&mut said) => {
                    let said = &mut said[..bytes?];
                    if said.is_empty() {
                        return Ok(());
                    }
                    self.rewritten(said);
                    tokio::time::sleep(std::mem::take(&mut late)).await;
                    let Some((left, mode)) = &mut cut else {
                        client.write_all(said).await?;
                        continue;
                    };
                    let some = said.len().min(*left);
                    client.write_all(&said[..some]).await?;
                    *left -= some;
                    if *left == 0 {
                        self.mode.send_replace(*mode);
                        self.sprung.send_modify(|times| *times += 1);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// The trap that is meant for what a client asks.
    fn meets(&self, asked: &[u8]) -> Option<Trap> {
        let mut trap = self.trap.lock().expect("the trap");
        let found = trap.take_if(|(text, _)| asked.windows(text.len()).any(|some| some == text));
        found.map(|(_, trap)| trap)
    }

    async fn stall(&self, asked: &[u8], mut server: TcpStream) -> std::io::Result<()> {
        self.sprung.send_modify(|times| *times += 1);
        if self.released.subscribe().wait_for(|released| *released).await.is_ok() {
            server.write_all(asked).await?;
            let mut said = [0; 1024];
            if server.read(&mut said).await? > 0 {
                self.answered.send_modify(|times| *times += 1);
            }
        }
        Ok(())
    }

    fn rewritten(&self, said: &mut [u8]) {
        if let Some((text, by)) = &*self.rewrite.lock().expect("the text")
            && let Some(at) = said.windows(text.len()).position(|some| some == text)
        {
            said[at..at + by.len()].copy_from_slice(by);
        }
    }
}
