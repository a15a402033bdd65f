//! The keys of a queue, read in one step, and their invariants.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use pillarbox_core::{MessageId, MessageState, QueueName};
use pillarbox_redis::redis;
use pillarbox_testing::Expected;

use super::steps::TIMEOUT;

/// The keys of a queue at one moment.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Time of the server in microseconds.
    pub(crate) now: f64,
    /// Ids of ready messages in order of delivery.
    pub(crate) pending: Vec<String>,
    /// Ids in flight or delayed, with scores, in the order in which they become ready.
    pub(crate) invisible: Vec<(String, f64)>,
    pub(crate) data: HashSet<String>,
    pub(crate) meta: BTreeMap<String, String>,
}

type Words = (Vec<String>, Vec<String>, Vec<String>, Vec<String>, Vec<String>);

/// A parsed value of `meta`.
#[derive(Default)]
struct Meta<'a> {
    secret: Option<&'a str>,
    /// Number of deliveries, plus 2^32 for each unsettled one.
    number: u64,
    uncounted: u32,
    is_started: bool,
}

impl Stored {
    pub(crate) async fn read(client: &redis::Client, queue: &QueueName) -> Self {
        Self::read_at(client, queue).await.unwrap_or_else(|error| panic!("the keys: {error}"))
    }

    /// Reads the keys at one node of a cluster. Fails if it does not have them.
    async fn read_at(client: &redis::Client, queue: &QueueName) -> redis::RedisResult<Self> {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connection.expect("a connection");
        let mut command = redis::cmd("EVAL");
        command.arg(
            "return {redis.call('TIME'), redis.call('LRANGE', KEYS[1], 0, -1),
                redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'), redis.call('HKEYS', KEYS[3]),
                redis.call('HGETALL', KEYS[4])}",
        );
        command.arg(4);
        for key in ["pending", "invisible", "data", "meta"] {
            command.arg(format!("{{queue:{queue}}}:{key}"));
        }
        let (time, pending, invisible, data, meta): Words =
            command.query_async(&mut connection).await?;
        let number = |text: &String| text.parse::<f64>().expect("a number");
        let pairs = |words: Vec<String>| {
            let pairs = words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            pairs.collect::<Vec<_>>()
        };
        let timed = pairs(invisible).into_iter().map(|(id, score)| (id, number(&score)));
        Ok(Self {
            now: number(&time[0]) * 1e6 + number(&time[1]),
            pending: pending.into_iter().rev().collect(),
            invisible: timed.filter(|(_, score)| score.is_finite()).collect(),
            data: data.into_iter().collect(),
            meta: pairs(meta).into_iter().collect(),
        })
    }

    /// Returns the secret of a message, and its delivery count.
    pub(crate) fn meta_of(&self, id: &str) -> (Option<&str>, u32) {
        let Meta { secret, number, .. } = self.read_meta(id);
        (secret, number as u32)
    }

    /// Returns the stored numbers of unsettled and of uncounted deliveries.
    pub(crate) fn ended_of(&self, id: &str) -> (u32, u32) {
        let Meta { number, uncounted, .. } = self.read_meta(id);
        ((number >> 32) as u32, uncounted)
    }

    fn read_meta(&self, id: &str) -> Meta<'_> {
        let Some(value) = self.meta.get(id) else { return Meta::default() };
        let (secret, rest) = match value.len() {
            17.. if !value[..16].contains(':') => (Some(&value[..16]), &value[16..]),
            _ => (None, &value[..]),
        };
        let (rest, is_started) = rest.strip_suffix('s').map_or((rest, false), |rest| (rest, true));
        let (number, uncounted) = rest.split_once(':').unwrap_or((rest, "0"));
        let number = number.parse().expect("a number");
        Meta { secret, number, uncounted: uncounted.parse().expect("a number"), is_started }
    }

    fn number(&self, field: &str) -> u64 {
        self.meta.get(field).map_or(0, |text| text.parse().expect("a number"))
    }

    /// Checks the invariants that always hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut occurrences: HashMap<&str, usize> = HashMap::new();
        let timed = self.invisible.iter().map(|(id, _)| id);
        for id in self.pending.iter().chain(timed) {
            *occurrences.entry(id).or_default() += 1;
        }
        if let Some((id, _)) = occurrences.iter().find(|(_, times)| **times != 1) {
            return Err(format!("{id} has two states"));
        }
        let with_state: HashSet<&str> = occurrences.into_keys().collect();
        let data: HashSet<&str> = self.data.iter().map(String::as_str).collect();
        if with_state != data {
            return Err(format!("ids with data: {data:?}, ids with a state: {with_state:?}"));
        }
        let mut ids = self.meta.keys().filter(|field| !field.starts_with('#'));
        if let Some(id) = ids.find(|id| !data.contains(id.as_str())) {
            return Err(format!("{id} has a delivery count and no data"));
        }
        for id in &self.data {
            let ((secret, count), ended) = (self.meta_of(id), self.ended_of(id));
            if ended.0 + ended.1 + u32::from(secret.is_some()) > count {
                return Err(format!(
                    "{id}: {ended:?} of {count} deliveries were unsettled, uncounted"
                ));
            }
            if secret.is_none() && self.read_meta(id).is_started {
                return Err(format!("{id} is started and has no receipt"));
            }
        }
        if let Some(id) = self.pending.iter().find(|id| self.meta_of(id).0.is_some()) {
            return Err(format!("{id} is ready and has a receipt"));
        }
        let without_lease = |(id, _): &&(String, f64)| self.meta_of(id).0.is_none();
        let delayed = self.invisible.iter().filter(without_lease).count() as u64;
        if delayed != self.number("#delayed") {
            return Err(format!("{delayed} are delayed, {} counted", self.number("#delayed")));
        }
        Ok(())
    }

    /// Checks that the queue holds what the ledger expects.
    fn check_against(&self, expected: &Expected) -> Result<(), String> {
        let due = self.invisible.iter().filter(|(_, score)| *score <= self.now);
        let ready: Vec<_> = self.pending.iter().chain(due.map(|(id, _)| id)).collect();
        let of_ready = |state: MessageState| state == MessageState::Ready;
        let should = expected.messages.iter().filter(|peeked| of_ready(peeked.state));
        let should: Vec<_> = should.map(|peeked| short(peeked.message.id)).collect();
        if !ready.iter().copied().eq(&should) {
            return Err(format!("ready are {ready:?}, not {should:?}"));
        }
        if self.data.len() != expected.messages.len() {
            return Err(format!("{} messages, not {}", self.data.len(), expected.messages.len()));
        }
        for peeked in &expected.messages {
            let id = short(peeked.message.id);
            let (secret, count) = self.meta_of(&id);
            if count != peeked.message.delivery_count {
                let should = peeked.message.delivery_count;
                return Err(format!("{id} was delivered {should} times, and has {count}"));
            }
            // A secret whose lease has expired belongs to a message that was not promoted yet.
            let ended = peeked.state == MessageState::Ready && secret.is_some();
            let is_started = self.read_meta(&id).is_started;
            let (unsettled, uncounted) = self.ended_of(&id);
            let unsettled = unsettled + u32::from(ended && is_started);
            let uncounted = uncounted + u32::from(ended && !is_started);
            let should = (peeked.message.unsettled, peeked.message.uncounted);
            if (unsettled, uncounted) != should {
                return Err(format!(
                    "{id} has {should:?} unsettled and uncounted deliveries, and says \
                     {unsettled}, {uncounted}"
                ));
            }
            let held = matches!(peeked.state, MessageState::InFlight { .. });
            let must_differ = !matches!(peeked.state, MessageState::Ready);
            if must_differ && secret.is_some() != held {
                return Err(format!("{id} is {:?}, and its meta says otherwise", peeked.state));
            }
        }
        if self.number("#sent") != expected.sent {
            return Err(format!("{} sent, {} counted", expected.sent, self.number("#sent")));
        }
        Ok(())
    }
}

/// Checks the keys after every step, against all earlier ones.
#[derive(Debug, Clone)]
pub(crate) struct Inspector {
    clients: Vec<redis::Client>,
    seen: Arc<Mutex<HashMap<String, Deliveries>>>,
}

/// Delivery counts and secrets of a message over time.
type Deliveries = Vec<(u32, Option<String>)>;

impl Inspector {
    pub(crate) fn new(url: &str) -> Self {
        Self::of_nodes([url.to_owned()])
    }

    /// Inspects the node that has the keys.
    pub(crate) fn of_nodes(urls: impl IntoIterator<Item = String>) -> Self {
        let client = |url: String| redis::Client::open(url).expect("a client");
        Self { clients: urls.into_iter().map(client).collect(), seen: Arc::default() }
    }

    async fn read(&self, queue: &QueueName) -> Stored {
        for client in &self.clients {
            match Stored::read_at(client, queue).await {
                Ok(stored) => return stored,
                Err(error) if error.code() == Some("MOVED") => {}
                Err(error) => panic!("the keys: {error}"),
            }
        }
        panic!("no node has the keys of {queue}");
    }

    pub(crate) async fn look(self, expected: Expected) -> Result<(), String> {
        let stored = self.read(&expected.queue).await;
        stored.check()?;
        stored.check_against(&expected)?;
        let mut seen = self.seen.lock().expect("what was seen");
        // A message that is sent again after it was deleted starts over.
        seen.retain(|id, _| stored.data.contains(id));
        for id in &stored.data {
            let (secret, count) = stored.meta_of(id);
            let history = seen.entry(id.clone()).or_default();
            if let Some((before, _)) = history.last().filter(|(before, _)| *before > count) {
                return Err(format!("the delivery count of {id} fell from {before} to {count}"));
            }
            let secret = secret.map(str::to_owned);
            let used = history.iter().any(|(at, old)| *at != count && old == &secret);
            if secret.is_some() && used {
                return Err(format!("{id} has the receipt of an earlier delivery"));
            }
            if history.last().is_none_or(|last| *last != (count, secret.clone())) {
                history.push((count, secret));
            }
        }
        Ok(())
    }
}

/// Returns the stored form of an id.
pub(crate) fn short(id: MessageId) -> String {
    const DIGITS: &[u8; 64] = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
    let number = u128::from_be_bytes(*id.as_bytes());
    let digit = |index: u32| char::from(DIGITS[(number >> (6 * index) & 63) as usize]);
    (0..22).rev().map(digit).collect()
}
