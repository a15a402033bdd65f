//! A loopback proxy in front of a server that has scripts tell what they did.
//!
//! Where a client sends a script that changes a queue, the proxy sends the same script with a few lines around it:
//! they append its name, the time that it took for now, its keys, arguments and reply to a list on the server, in
//! the same atomic step. So the list has what really ran, in the order in which the server ran it, whether the
//! answer reached the client or not; and a server that comes back with what is on its disk has both or neither.

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

/// Where calls on a queue are listed: this and the first key of the script.
const LIST: &str = "trace:";

/// A proxy, gone when dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    port: u16,
    task: JoinHandle<()>,
}

/// By the hash of a script as the client has it, the hash of the one that tells what it did.
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

    /// Where clients find it.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How many calls on a queue are recorded.
pub(crate) fn recorded(server: &RedisServer, queue: &str) -> usize {
    let mut connection = connection(server);
    redis::cmd("LLEN").arg(list_of(queue)).query(&mut connection).expect("a length")
}

/// What is recorded of a queue, as scripts/tlaplus_trace.py reads it.
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

/// Bodies may be no text. Nobody reads them.
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
        // Ends, as connections do, with an error that matters to nobody.
        tokio::spawn(async move { serve(client, server, hashes).await.ok() });
    }
}

async fn serve(client: TcpStream, server: SocketAddr, hashes: Hashes) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (asks, mut hears) = client.into_split();
    let (mut says, tells) = server.into_split();
    // Whichever ends first, both connections are closed.
    tokio::select! {
        ended = pass_on(asks, tells, &hashes) => ended,
        ended = tokio::io::copy(&mut says, &mut hears) => ended.map(|_| ()),
    }
}

/// Passes commands on, scripts with what they tell.
async fn pass_on(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    hashes: &Hashes,
) -> std::io::Result<()> {
    let mut asked = Vec::new();
    while from.read_buf(&mut asked).await? > 0 {
        let mut commands = Vec::new();
        let mut rest = &asked[..];
        while let Some((words, length)) = command(rest) {
            write(&rewritten(words, hashes), &mut commands);
            rest = &rest[length..];
        }
        asked = rest.to_vec();
        to.write_all(&commands).await?;
    }
    Ok(())
}

/// The words of the first command, and its length, if it is all there.
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

/// A command with its script replaced by one that tells what it did. A script that was never seen is not known to
/// the server either: the server says so, and the client sends it.
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
            if let Some(telling) = telling(code) {
                let hash = |code: &str| redis::Script::new(code).get_hash().to_owned();
                hashes.insert(hash(code).into_bytes(), hash(&telling));
                words[1] = telling.into_bytes();
            }
        }
        _ => {}
    }
    words
}

/// The script that does the same and tells it, if it is one that changes a queue.
fn telling(code: &str) -> Option<String> {
    let (name, _) = RECORDED.into_iter().find(|(_, text)| has_lines(code, text))?;
    let start = code.find("local now_text = ").expect("a script knows the time");
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
local function told(value)
  if type(value) == 'number' then return string.format(':%.0f\\r\\n', value) end
  if type(value) == 'string' then return '$' .. #value .. '\\r\\n' .. value .. '\\r\\n' end
  if type(value) ~= 'table' then return '$-1\\r\\n' end
  local parts = {{'*' .. #value .. '\\r\\n'}}
  for n = 1, #value do parts[n + 1] = told(value[n]) end
  return table.concat(parts)
end
redis.call('RPUSH', '{LIST}' .. KEYS[1], told({{'{name}', at, KEYS, ARGV, reply}}))
return reply
"
    ))
}

/// Whether the lines of a file are in a script, in their order: other texts may stand between them.
fn has_lines(code: &str, file: &str) -> bool {
    let mut lines = code.lines().map(str::trim);
    let mut wanted = file.lines().map(str::trim);
    wanted.all(|wanted| wanted.starts_with("--") || lines.any(|line| line == wanted))
}
