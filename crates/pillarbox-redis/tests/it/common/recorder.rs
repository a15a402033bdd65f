//! A loopback proxy in front of a server that records every run of a script.
//!
//! If a client sends a script that changes a queue, the proxy sends the same script with a few lines around it:
//! they append its name, the time that it read, its keys, arguments and reply to a list on the server, in the same
//! atomic step. So the list holds what really ran, in the order in which the server ran it, whether the answer
//! reached the client or not; and a server that restarts from its disk has both or neither.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use pillarbox_redis::redis;
use pillarbox_testing::server::RedisServer;
use redis::Value;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The scripts that change a queue. The specification has no `repair`, and a trace with it is refused.
const RECORDED: [(&str, &str); 8] = [
    ("send", include_str!("../../../scripts/send.lua")),
    ("receive", include_str!("../../../scripts/receive.lua")),
    ("settle", include_str!("../../../scripts/settle.lua")),
    ("release", include_str!("../../../scripts/release.lua")),
    ("look", include_str!("../../../scripts/look.lua")),
    ("purge", include_str!("../../../scripts/purge.lua")),
    ("repair", include_str!("../../../scripts/repair.lua")),
    ("forget", include_str!("../../../scripts/forget.lua")),
];

/// Prefix of the list of calls on a queue; the first key of the script follows.
const LIST: &str = "trace:";

/// A proxy, stopped when dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    port: u16,
    task: JoinHandle<()>,
}

/// Map from the hash of a script to the hash of its recording form.
type Hashes = Arc<Mutex<HashMap<Vec<u8>, String>>>;

impl Recorder {
    /// Starts a proxy to the server at this port.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let server = ([127, 0, 0, 1], port).into();
        let port = listener.local_addr().expect("its address").port();
        Self { port, task: tokio::spawn(accept(listener, server)) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the number of recorded calls on a queue.
pub(crate) fn recorded(server: &RedisServer, queue: &str) -> usize {
    let mut connection = connection(server);
    redis::cmd("LLEN").arg(list_of(queue)).query(&mut connection).expect("a length")
}

/// Returns the recorded calls on a queue, as scripts/tlaplus_trace.py reads them.
pub(crate) fn calls(server: &RedisServer, queue: &str) -> Vec<serde_json::Value> {
    let mut connection = connection(server);
    let calls = redis::cmd("LRANGE").arg(list_of(queue)).arg(0).arg(-1).query(&mut connection);
    let calls: Vec<Vec<u8>> = calls.expect("a list");
    calls.iter().map(|call| to_json(redis::parse_redis_value(call).expect("a call"))).collect()
}

fn list_of(queue: &str) -> String {
    format!("{LIST}{{queue:{queue}}}:pending")
}

fn connection(server: &RedisServer) -> redis::Connection {
    redis::Client::open(server.url()).and_then(|client| client.get_connection()).expect("a server")
}

/// Binary bodies are replaced, since they are never read.
fn to_json(value: Value) -> serde_json::Value {
    match value {
        Value::Array(values) => values.into_iter().map(to_json).collect(),
        Value::BulkString(bytes) => json!(String::from_utf8_lossy(&bytes)),
        Value::Int(number) => json!(number),
        Value::Nil => json!(null),
        other => panic!("{other:?} is not written"),
    }
}

async fn accept(listener: TcpListener, server: SocketAddr) {
    let hashes = Hashes::default();
    while let Ok((client, _)) = listener.accept().await {
        let hashes = hashes.clone();
        // A connection may end with an error.
        tokio::spawn(async move { serve(client, server, hashes).await.ok() });
    }
}

async fn serve(client: TcpStream, server: SocketAddr, hashes: Hashes) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    // Whichever ends first, both connections are closed.
    tokio::select! {
        ended = forward(from_client, to_server, &hashes) => ended,
        ended = tokio::io::copy(&mut from_server, &mut to_client) => ended.map(|_| ()),
    }
}

/// Forwards commands, with scripts in their recording form.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    hashes: &Hashes,
) -> std::io::Result<()> {
    let mut received = Vec::new();
    while from.read_buf(&mut received).await? > 0 {
        let mut commands = Vec::new();
        let mut rest = &received[..];
        while let Some((words, length)) = command(rest) {
            write(&rewritten(words, hashes), &mut commands);
            rest = &rest[length..];
        }
        received = rest.to_vec();
        to.write_all(&commands).await?;
    }
    Ok(())
}

/// Parses the words of the first command, and its length. `None` if it is incomplete.
fn command(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    fn number(bytes: &[u8], at: &mut usize, sign: u8) -> Option<usize> {
        let line = bytes.get(*at..)?;
        let end = line.windows(2).position(|two| two == b"\r\n")?;
        assert_eq!(line[0], sign, "{:?}", String::from_utf8_lossy(line));
        *at += end + 2;
        std::str::from_utf8(&line[1..end]).ok()?.parse().ok()
    }
    let mut at = 0;
    let mut words = Vec::new();
    for _ in 0..number(bytes, &mut at, b'*')? {
        let length = number(bytes, &mut at, b'$')?;
        words.push(bytes.get(at..at + length)?);
        at += length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

fn write(words: &[Vec<u8>], out: &mut Vec<u8>) {
    out.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend(word);
        out.extend(b"\r\n");
    }
}

/// Replaces the script of a command by its recording form. The server does not know a script that was never seen
/// either: it answers so, and the client sends the text.
fn rewritten(words: Vec<&[u8]>, hashes: &Hashes) -> Vec<Vec<u8>> {
    let mut words: Vec<_> = words.into_iter().map(<[u8]>::to_vec).collect();
    let mut hashes = hashes.lock().expect("the hashes");
    match &words[..] {
        [name, hash, ..] if name == b"EVALSHA" => {
            if let Some(known) = hashes.get(hash) {
                words[1] = known.clone().into_bytes();
            }
        }
        [name, code, ..] if name == b"EVAL" => {
            let code = std::str::from_utf8(code).expect("a script is text");
            if let Some(recording) = recording(code) {
                let hash = |code: &str| redis::Script::new(code).get_hash().to_owned();
                hashes.insert(hash(code).into_bytes(), hash(&recording));
                words[1] = recording.into_bytes();
            }
        }
        _ => {}
    }
    words
}

/// Returns the recording form of a script. `None` if it does not change a queue.
fn recording(code: &str) -> Option<String> {
    let (name, _) = RECORDED.into_iter().find(|(_, text)| has_lines(code, text))?;
    let start = code.find("local now_text = ").expect("a script reads the time");
    let end = start + code[start..].find('\n').expect("a line") + 1;
    let (head, body) = code.split_at(end);
    Some(format!(
        "local at
local function run()
{head}at = now_text
{body}
end
local reply = run()
if type(reply) == 'table' and reply.err then return reply end
local function encoded(value)
  if type(value) == 'number' then return string.format(':%.0f\\r\\n', value) end
  if type(value) == 'string' then return '$' .. #value .. '\\r\\n' .. value .. '\\r\\n' end
  if type(value) ~= 'table' then return '$-1\\r\\n' end
  local parts = {{'*' .. #value .. '\\r\\n'}}
  for n = 1, #value do parts[n + 1] = encoded(value[n]) end
  return table.concat(parts)
end
redis.call('RPUSH', '{LIST}' .. KEYS[1], encoded({{'{name}', at, KEYS, ARGV, reply}}))
return reply
"
    ))
}

/// Returns whether a script contains the lines of a file, in order and with others between them.
fn has_lines(code: &str, file: &str) -> bool {
    let mut lines = code.lines().map(str::trim);
    let mut wanted = file.lines().map(str::trim);
    wanted.all(|wanted| wanted.starts_with("--") || lines.any(|line| line == wanted))
}
