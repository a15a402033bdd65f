//! A server with scripted responses that the real ones do not give: too many messages in flight, throttling, a late
//! response.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// One response.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    status: u16,
    body: String,
    is_delayed: bool,
}

impl Response {
    pub(crate) fn ok(body: &str) -> Self {
        Self { status: 200, body: body.to_owned(), is_delayed: false }
    }

    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        let body = format!(r#"{{"__type":"com.amazonaws.sqs#{code}","message":"{message}"}}"#);
        Self { status, body, is_delayed: false }
    }

    /// Delays the response until [`FakeServer::release`].
    pub(crate) fn delayed(mut self) -> Self {
        self.is_delayed = true;
        self
    }
}

#[derive(Debug, Default)]
struct Script {
    responses: VecDeque<Response>,
    /// The operation and the body of each request.
    requests: Vec<(String, String)>,
}

/// The server. Stops when dropped.
#[derive(Debug)]
pub(crate) struct FakeServer {
    port: u16,
    script: Arc<Mutex<Script>>,
    releases: Arc<Semaphore>,
    received: Arc<Semaphore>,
    _accepting: JoinSet<()>,
}

impl FakeServer {
    /// Starts a server that responds to `GetQueueUrl` by itself, and to other requests with these responses in order.
    pub(crate) async fn start(responses: Vec<Response>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("its number").port();
        let script =
            Arc::new(Mutex::new(Script { responses: responses.into(), requests: Vec::new() }));
        let (releases, received) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let mut accepting = JoinSet::new();
        let parts = (script.clone(), releases.clone(), received.clone());
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, releases, received) = parts.clone();
                connections.spawn(serve(stream, port, script, releases, received));
            }
        });
        Self { port, script, releases, received, _accepting: accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("sqs+http://127.0.0.1:{}", self.port)
    }

    /// Sends the delayed response.
    pub(crate) fn release(&self) {
        self.releases.add_permits(1);
    }

    /// Waits for the next request other than `GetQueueUrl`.
    pub(crate) async fn next_request(&self) {
        self.received.acquire().await.expect("it is never closed").forget();
    }

    /// Returns the requests so far, without `GetQueueUrl`.
    pub(crate) fn requests(&self) -> Vec<(String, String)> {
        self.script.lock().expect("the script").requests.clone()
    }
}

async fn serve(
    stream: TcpStream,
    port: u16,
    script: Arc<Mutex<Script>>,
    releases: Arc<Semaphore>,
    received: Arc<Semaphore>,
) {
    let mut stream = BufReader::new(stream);
    while let Some((operation, body)) = read_request(&mut stream).await {
        let response = if operation == "GetQueueUrl" {
            Response::ok(&format!(r#"{{"QueueUrl":"http://127.0.0.1:{port}/1/q"}}"#))
        } else {
            let mut script = script.lock().expect("the script");
            script.requests.push((operation.clone(), body));
            let none =
                || Response::error(500, "NothingLeft", &format!("no response for {operation}"));
            script.responses.pop_front().unwrap_or_else(none)
        };
        if operation != "GetQueueUrl" {
            received.add_permits(1);
        }
        if response.is_delayed {
            releases.acquire().await.expect("it is never closed").forget();
        }
        let Response { status, body, .. } = response;
        let head = format!(
            "HTTP/1.1 {status} Fake\r\nContent-Type: application/x-amz-json-1.0\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let response = head + &body;
        if stream.get_mut().write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads the operation and the body of the next request. `None` at the end of the connection.
async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut operation, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            if line.trim_end().is_empty() {
                break;
            }
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "x-amz-target" => operation = value.rsplit('.').next()?.to_owned(),
            "content-length" => length = value.parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((operation, String::from_utf8(body).ok()?))
}
