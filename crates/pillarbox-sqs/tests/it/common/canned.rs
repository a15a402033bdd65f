//! A server that gives answers that no real one here gives: too many messages in flight, throttling, an answer
//! that comes late. It sits on a free port and says what it was told to, one answer a request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// One answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    status: u16,
    body: String,
    is_held: bool,
}

impl Answer {
    pub(crate) fn ok(body: &str) -> Self {
        Self { status: 200, body: body.to_owned(), is_held: false }
    }

    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        let body = format!(r#"{{"__type":"com.amazonaws.sqs#{code}","message":"{message}"}}"#);
        Self { status, body, is_held: false }
    }

    /// One that comes when [`Canned::let_go`] says so.
    pub(crate) fn held(mut self) -> Self {
        self.is_held = true;
        self
    }
}

#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Answer>,
    /// The operation and the body of each request.
    asked: Vec<(String, String)>,
}

/// The server. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Canned {
    port: u16,
    script: Arc<Mutex<Script>>,
    holds: Arc<Semaphore>,
    heard: Arc<Semaphore>,
    _accepting: JoinSet<()>,
}

impl Canned {
    /// Answers `GetQueueUrl` always, and the other requests by this list.
    pub(crate) async fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("its number").port();
        let script = Arc::new(Mutex::new(Script { answers: answers.into(), asked: Vec::new() }));
        let (holds, heard) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let mut accepting = JoinSet::new();
        let parts = (script.clone(), holds.clone(), heard.clone());
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, holds, heard) = parts.clone();
                connections.spawn(serve(stream, port, script, holds, heard));
            }
        });
        Self { port, script, holds, heard, _accepting: accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("sqs+http://127.0.0.1:{}", self.port)
    }

    /// Lets the held answer go.
    pub(crate) fn let_go(&self) {
        self.holds.add_permits(1);
    }

    /// Waits for the next request other than `GetQueueUrl`.
    pub(crate) async fn next_request(&self) {
        self.heard.acquire().await.expect("it is never closed").forget();
    }

    /// What was asked for so far, `GetQueueUrl` left out.
    pub(crate) fn asked(&self) -> Vec<(String, String)> {
        self.script.lock().expect("the script").asked.clone()
    }
}

async fn serve(
    stream: TcpStream,
    port: u16,
    script: Arc<Mutex<Script>>,
    holds: Arc<Semaphore>,
    heard: Arc<Semaphore>,
) {
    let mut stream = BufReader::new(stream);
    while let Some((operation, body)) = read_request(&mut stream).await {
        let answer = if operation == "GetQueueUrl" {
            Answer::ok(&format!(r#"{{"QueueUrl":"http://127.0.0.1:{port}/1/q"}}"#))
        } else {
            let mut script = script.lock().expect("the script");
            script.asked.push((operation.clone(), body));
            let none = || Answer::error(500, "NothingLeft", &format!("no answer for {operation}"));
            script.answers.pop_front().unwrap_or_else(none)
        };
        if operation != "GetQueueUrl" {
            heard.add_permits(1);
        }
        if answer.is_held {
            holds.acquire().await.expect("it is never closed").forget();
        }
        let Answer { status, body, .. } = answer;
        let head = format!(
            "HTTP/1.1 {status} Canned\r\nContent-Type: application/x-amz-json-1.0\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = head + &body;
        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The operation and the body of the next request. `None` when there is none.
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
