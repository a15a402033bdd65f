//! Subscriptions to wake-ups: one connection per server, for all queues there.
//!
//! Scripts publish on a partition's channel when there is a message to deliver that was not there before,
//! or when one will be ready sooner than waiters may know. One task keeps a connection to each server that
//! has such channels, and none to others. What is published while it is not connected is lost; therefore
//! the waiters are woken whenever it has subscribed again.
//!
//! In a cluster, a server may also publish what others forward to it: a replica, or in old versions any. Not
//! everything is forwarded while servers change roles. Therefore a channel is subscribed at the server that
//! has its slot, and again when the slot moves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::Gate;
use pillarbox_core::internal::lock;
use redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection, SendError};
use redis::{Pipeline, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::task::TaskTracker;

use super::shared_waiters::SharedWaiters;
use crate::failure::{Recovery, classify};
use crate::partition_layout::PartitionNumber;
use crate::retrying_client::{RetryingClient, retry_delay};
use crate::servers::Node;

/// Time within which a server must connect, subscribe or answer a ping.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of pings, by which a dead connection is noticed.
const PING_INTERVAL: Duration = Duration::from_secs(15);

/// Maximum number of channels that are subscribed in one round trip.
const MAX_CHANNELS: usize = 500;

/// Handle to the task that subscribes.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    /// `None` if no connection can be made.
    requests: Option<mpsc::Sender<Request>>,
}

/// Request to subscribe to channels, answered once that was tried.
#[derive(Debug)]
struct Request {
    channels: Vec<(String, Channel)>,
    done: oneshot::Sender<()>,
}

/// Channel of a partition.
#[derive(Debug)]
pub(crate) struct Channel {
    waiters: Weak<SharedWaiters>,
    partition: PartitionNumber,
    slot: u16,
    /// Number of the subscription that receives it.
    subscription: Option<u64>,
    /// Whether the server has refused it, and need not be asked again soon.
    is_refused: bool,
}

impl Channel {
    pub(crate) fn new(waiters: &Arc<SharedWaiters>, partition: PartitionNumber, slot: u16) -> Self {
        let waiters = Arc::downgrade(waiters);
        Self { waiters, partition, slot, subscription: None, is_refused: false }
    }

    fn needs_subscription(&self) -> bool {
        self.subscription.is_none() && !self.is_refused
    }

    fn set_subscription(&mut self, number: Option<u64>) {
        let before = std::mem::replace(&mut self.subscription, number);
        if (number.is_some() || before.is_some())
            && let Some(waiters) = self.waiters.upgrade()
        {
            waiters.lock().set_subscribed(self.partition, number.is_some());
        }
    }
}

impl Subscriptions {
    /// Starts the task that subscribes. It connects at the first request, and ends when the backend is
    /// closed or dropped.
    pub(crate) fn open(
        client: &Arc<RetryingClient>,
        gate: &Arc<Gate>,
        tasks: &TaskTracker,
        runtime: &Handle,
    ) -> Self {
        let requests = client.servers.can_connect().then(|| {
            let (sender, receiver) = mpsc::channel(64);
            let (gate, client) = (gate.clone(), client.clone());
            let task = SubscriptionTask {
                client,
                requests: receiver,
                channels: Arc::default(),
                subscriptions: HashMap::new(),
                abandoned: Vec::new(),
                last_number: 0,
                has_warned: false,
            };
            let run = async move {
                tokio::select! {
                    () = gate.closed() => {}
                    () = task.run() => {}
                }
            };
            tasks.spawn_on(run, runtime);
            sender
        });
        Self { requests }
    }

    /// Subscribes to channels by name. Returns when they are subscribed or cannot be at present; the
    /// waiters know which.
    pub(crate) async fn subscribe(&self, channels: Vec<(String, Channel)>) {
        let Some(requests) = &self.requests else { return };
        let (done, is_done) = oneshot::channel();
        if requests.send(Request { channels, done }).await.is_ok() {
            let _ = is_done.await;
        }
    }
}

/// The channels by name, shared with the connections, which wake waiters directly.
#[derive(Debug, Default)]
struct Channels {
    channels: Mutex<HashMap<String, Channel>>,
    /// Notified when a subscription is lost.
    lost: Notify,
}

impl Channels {
    /// Never held across an await.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Channel>> {
        lock(&self.channels)
    }
}

/// Handles what one connection receives.
struct PushHandler {
    number: u64,
    channels: Arc<Channels>,
    is_broken: Arc<AtomicBool>,
}

impl AsyncPushSender for PushHandler {
    fn send(&self, PushInfo { kind, data }: PushInfo) -> Result<(), SendError> {
        let text = |index: usize| match data.get(index) {
            Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
            _ => None,
        };
        let mut channels = self.channels.lock();
        let channel = text(0).and_then(|channel| channels.get_mut(channel));
        match kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(channel) = channel
                    && let Some(waiters) = channel.waiters.upgrade()
                {
                    if text(1) == Some("p") {
                        waiters.layout_changed();
                    }
                    waiters.lock().wake(channel.partition);
                }
            }
            // Ordered with the pushes that end a subscription, unlike the replies to commands.
            PushKind::SSubscribe | PushKind::Subscribe => {
                if let Some(channel) = channel {
                    channel.set_subscription(Some(self.number));
                }
            }
            // The slot has moved to another server. (A channel that was unsubscribed is not here.)
            PushKind::SUnsubscribe => {
                if let Some(channel) = channel.filter(|c| c.subscription == Some(self.number)) {
                    channel.set_subscription(None);
                    self.channels.lost.notify_one();
                }
            }
            PushKind::Disconnection => {
                self.is_broken.store(true, Ordering::Release);
                self.channels.lost.notify_one();
            }
            _ => {}
        }
        Ok(())
    }
}

/// A connection that is subscribed to some channels of one server.
struct Subscription {
    number: u64,
    connection: MultiplexedConnection,
    is_broken: Arc<AtomicBool>,
    /// Whether the server has sharded channels.
    is_sharded: bool,
}

/// The task that subscribes.
struct SubscriptionTask {
    client: Arc<RetryingClient>,
    requests: mpsc::Receiver<Request>,
    channels: Arc<Channels>,
    /// By the endpoint of the server.
    subscriptions: HashMap<Arc<str>, Subscription>,
    /// Channels that have moved to another server, and the numbers of the subscriptions they had before.
    abandoned: Vec<(String, u64)>,
    last_number: u64,
    /// Whether a missing permission was reported.
    has_warned: bool,
}

impl SubscriptionTask {
    async fn run(mut self) {
        let mut delay = retry_delay();
        let mut pings = tokio::time::interval(PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (channels, client) = (self.channels.clone(), self.client.clone());
        let mut unanswered: Vec<oneshot::Sender<()>> = Vec::new();
        let mut next_try: Option<Instant> = None;
        loop {
            if next_try.is_none_or(|next| next <= Instant::now()) || !unanswered.is_empty() {
                let is_complete = self.subscribe_all().await;
                for done in unanswered.drain(..) {
                    let _ = done.send(());
                }
                next_try = if is_complete {
                    delay.reset();
                    None
                } else {
                    Some(Instant::now() + delay.next_delay())
                };
            }
            let retry = async {
                match next_try {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                request = self.requests.recv() => match request {
                    Some(request) => {
                        unanswered.push(self.add(request));
                        while let Ok(request) = self.requests.try_recv() {
                            unanswered.push(self.add(request));
                        }
                    }
                    None => return,
                },
                () = channels.lost.notified() => {}
                () = client.servers.moved() => self.abandon_moved(),
                _ = pings.tick() => self.maintain().await,
                () = retry => self.client.servers.refresh().await,
            }
            self.remove_broken();
        }
    }

    fn add(&self, request: Request) -> oneshot::Sender<()> {
        let mut channels = self.channels.lock();
        for (name, mut channel) in request.channels {
            // It may be subscribed already, for a handle that was closed.
            if let Some(before) = channels.remove(&name) {
                channel.set_subscription(before.subscription);
            }
            channels.insert(name, channel);
        }
        request.done
    }

    /// Subscribes to all channels that need it, and returns whether all are subscribed then.
    async fn subscribe_all(&mut self) -> bool {
        let needed: Vec<_> = {
            let channels = self.channels.lock();
            let needed = channels.iter().filter(|(_, channel)| channel.needs_subscription());
            needed.map(|(name, channel)| (name.clone(), channel.slot)).collect()
        };
        if needed.is_empty() {
            return true;
        }
        let servers = &self.client.servers;
        if needed.iter().any(|(_, slot)| servers.known_node(*slot).is_none()) {
            servers.refresh().await;
        }
        let mut by_server: HashMap<Arc<str>, (Arc<Node>, Vec<String>)> = HashMap::new();
        for (name, slot) in needed {
            if let Some(node) = servers.known_node(slot) {
                let entry = by_server.entry(node.endpoint.clone());
                entry.or_insert_with(|| (node, Vec::new())).1.push(name);
            }
        }
        let work = by_server.into_iter().map(|(endpoint, (node, names))| {
            let existing = self.subscriptions.remove(&endpoint);
            self.last_number += 1;
            let (number, channels) = (self.last_number, self.channels.clone());
            let client = &self.client;
            async move {
                let done = subscribe_at(client, &node, existing, number, &channels, &names);
                (endpoint, within_timeout(done).await)
            }
        });
        let done: Vec<_> = join_all(work.collect::<Vec<_>>()).await;
        for (endpoint, outcome) in done {
            let refused = match outcome {
                Ok((subscription, refused)) => {
                    self.subscriptions.insert(endpoint, subscription);
                    refused
                }
                Err(error) => {
                    tracing::debug!(%endpoint, %error, "cannot subscribe");
                    Some(error).filter(|error| error.code() == Some("NOPERM"))
                }
            };
            if let Some(error) = refused.filter(|_| !std::mem::replace(&mut self.has_warned, true))
            {
                let advice = "waiting receivers poll every half second instead: the user needs the \
                              commands ssubscribe and subscribe, and channels {queue:*";
                tracing::warn!(%error, "cannot subscribe to wake-ups; {advice}");
            }
        }
        self.clear_lost();
        !self.channels.lock().values().any(Channel::needs_subscription)
    }

    /// Marks channels whose slots have moved to another server as not subscribed.
    fn abandon_moved(&mut self) {
        let Self { client, channels, subscriptions, abandoned, .. } = self;
        for (name, channel) in channels.lock().iter_mut() {
            let node = client.servers.known_node(channel.slot);
            if let (Some(number), Some(node)) = (channel.subscription, node)
                && subscriptions.get(&node.endpoint).is_none_or(|one| one.number != number)
            {
                channel.set_subscription(None);
                abandoned.push((name.clone(), number));
            }
        }
    }

    /// Removes broken connections.
    fn remove_broken(&mut self) {
        let before = self.subscriptions.len();
        self.subscriptions.retain(|_, one| !one.is_broken.load(Ordering::Acquire));
        if self.subscriptions.len() < before {
            tracing::debug!("a subscription was lost");
            self.clear_lost();
        }
    }

    /// Marks channels whose subscription is gone as not subscribed.
    fn clear_lost(&self) {
        let mut channels = self.channels.lock();
        for channel in channels.values_mut() {
            let exists = |number: u64| self.subscriptions.values().any(|one| one.number == number);
            if channel.subscription.is_some_and(|number| !exists(number)) {
                channel.set_subscription(None);
            }
        }
    }

    /// Unsubscribes from channels that are no longer used, and pings the connections.
    async fn maintain(&mut self) {
        let unused: Vec<_> = {
            let mut channels = self.channels.lock();
            channels.values_mut().for_each(|channel| channel.is_refused = false);
            let is_unused = |_: &String, channel: &mut Channel| channel.waiters.strong_count() == 0;
            let unused = channels.extract_if(is_unused);
            let mut unused: Vec<_> =
                unused.filter_map(|(name, c)| Some((name, c.subscription?))).collect();
            let is_abandoned = |(name, number): &(String, u64)| {
                channels.get(name).is_none_or(|channel| channel.subscription != Some(*number))
            };
            unused.extend(self.abandoned.drain(..).filter(is_abandoned));
            unused
        };
        let used: Vec<_> = self.channels.lock().values().filter_map(|c| c.subscription).collect();
        self.subscriptions.retain(|_, subscription| used.contains(&subscription.number));
        let work = self.subscriptions.values_mut().map(async |subscription| {
            let mut commands = redis::pipe();
            let name = if subscription.is_sharded { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
            for (channel, _) in unused.iter().filter(|(_, number)| *number == subscription.number) {
                commands.cmd(name).arg(channel);
            }
            commands.cmd("PING");
            let done = run_all(&mut subscription.connection, &commands);
            if let Err(error) = within_timeout(done).await {
                tracing::debug!(%error, "a subscription does not answer");
                subscription.is_broken.store(true, Ordering::Release);
            }
        });
        join_all(work).await;
    }
}

/// Subscribes to channels at one server, on the existing connection or a new one, except for those that
/// have moved to another server. Also returns the error if the user may not subscribe to some of them.
async fn subscribe_at(
    client: &RetryingClient,
    node: &Node,
    existing: Option<Subscription>,
    number: u64,
    channels: &Arc<Channels>,
    names: &[String],
) -> RedisResult<(Subscription, Option<RedisError>)> {
    let mut subscription = match existing {
        Some(subscription) => subscription,
        None => {
            let is_broken = Arc::new(AtomicBool::new(false));
            let (channels, flag) = (channels.clone(), is_broken.clone());
            let handler = PushHandler { number, channels, is_broken: flag };
            let connection = node.connect_with_pushes(handler).await?;
            Subscription { number, connection, is_broken, is_sharded: true }
        }
    };
    let mut refused = None;
    let mut rest = names.to_vec();
    while !rest.is_empty() {
        let some: Vec<_> = rest.drain(..rest.len().min(MAX_CHANNELS)).collect();
        let is_sharded = subscription.is_sharded;
        let name = if is_sharded { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        let mut commands = redis::pipe();
        for channel in &some {
            commands.cmd(name).arg(channel);
        }
        let answers = subscription.connection.req_packed_commands(&commands, 0, some.len()).await?;
        for (channel, answer) in some.into_iter().zip(answers) {
            match answer.extract_error() {
                Ok(_) => {}
                Err(error) if matches!(classify(&error), Recovery::Redirect { .. }) => {
                    client.servers.redirected(&error, true);
                }
                Err(error) if is_sharded && is_unknown_command(&error) => {
                    // A server before 7: what is published reaches all servers.
                    subscription.is_sharded = false;
                    rest.push(channel);
                }
                Err(error) if error.code() == Some("NOPERM") => {
                    if let Some(channel) = channels.lock().get_mut(&channel) {
                        channel.is_refused = true;
                    }
                    refused = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok((subscription, refused))
}

fn is_unknown_command(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("unknown command"))
}

/// Runs commands, none of which may fail.
async fn run_all(connection: &mut MultiplexedConnection, commands: &Pipeline) -> RedisResult<()> {
    let answers = connection.req_packed_commands(commands, 0, commands.len()).await?;
    answers.into_iter().try_for_each(|answer| answer.extract_error().map(|_| ()))
}

async fn within_timeout<T>(work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    timeout(TIMEOUT, work).await.unwrap_or_else(late)
}
