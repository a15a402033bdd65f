//! Hearing that a queue has something: one subscription for all queues that are at one server.
//!
//! Scripts publish on a partition's channel when there is something to deliver that was not there
//! before, or will be sooner than those who wait may know. One task keeps a connection to each server
//! that has such channels, and none to others. What is published while it is not connected is lost;
//! therefore everybody is woken whenever it has subscribed anew.
//!
//! In a cluster, a server may also publish what others tell it: a replica, or in old versions any. Others
//! do not tell it all while they change roles. Therefore a channel is listened to where its slot is, and
//! again when that is elsewhere.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::Gate;
use redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection, SendError};
use redis::{Pipeline, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::task::TaskTracker;

use crate::failure::{Verdict, judge};
use crate::layout::Number;
use crate::link::{Link, Pauses};
use crate::partition::Partition;
use crate::servers::Node;
use crate::state::QueueState;

/// How long a server may take to connect, subscribe or answer a ping.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a connection is tried, so that one that is dead is noticed.
const PING: Duration = Duration::from_secs(15);

/// The most channels that are subscribed to at once.
const AT_ONCE: usize = 500;

/// Where partitions ask to be listened for.
#[derive(Debug)]
pub(crate) struct Ears {
    /// `None` where there is no way to make a connection.
    requests: Option<mpsc::Sender<Request>>,
}

/// Listen for these partitions, and tell when that is so.
#[derive(Debug)]
struct Request {
    channels: Vec<(String, Channel)>,
    done: oneshot::Sender<()>,
}

/// What is published for a partition.
#[derive(Debug)]
struct Channel {
    queue: Weak<QueueState>,
    partition: Number,
    slot: u16,
    /// The subscription that hears it, by its number.
    heard_by: Option<u64>,
    /// Whether the server has refused it, and need not be asked again soon.
    is_refused: bool,
}

impl Channel {
    fn must_be_heard(&self) -> bool {
        self.heard_by.is_none() && !self.is_refused
    }

    fn set_heard(&mut self, by: Option<u64>) {
        let was_heard = self.heard_by.is_some();
        self.heard_by = by;
        if (by.is_some() || was_heard)
            && let Some(queue) = self.queue.upgrade()
        {
            queue.line().set_heard(self.partition, by.is_some());
        }
    }
}

impl Ears {
    /// Starts the task that listens. It connects when the first queue asks, and ends when the
    /// backend is closed or gone.
    pub(crate) fn open(
        link: &Arc<Link>,
        gate: &Arc<Gate>,
        tasks: &TaskTracker,
        runtime: &Handle,
    ) -> Self {
        let requests = link.servers.can_connect().then(|| {
            let (sender, receiver) = mpsc::channel(64);
            let (gate, link) = (gate.clone(), link.clone());
            let listener = Listener {
                link,
                requests: receiver,
                heard: Arc::default(),
                subscriptions: HashMap::new(),
                left: Vec::new(),
                made: 0,
                has_warned: false,
            };
            let listen = async move {
                tokio::select! {
                    () = gate.closed() => {}
                    () = listener.run() => {}
                }
            };
            tasks.spawn_on(listen, runtime);
            sender
        });
        Self { requests }
    }

    /// Has partitions of one queue listened for. Returns when they are, or when that cannot be done at
    /// present: whether they are heard, the queue knows.
    pub(crate) async fn listen(&self, partitions: &[Arc<Partition>]) {
        let Some(requests) = &self.requests else { return };
        let (done, told) = oneshot::channel();
        let channel = |partition: &Arc<Partition>| {
            let channel = Channel {
                queue: Arc::downgrade(&partition.queue),
                partition: partition.number,
                slot: partition.keys.slot,
                heard_by: None,
                is_refused: false,
            };
            (partition.keys.wake.clone(), channel)
        };
        let channels = partitions.iter().map(channel).collect();
        if requests.send(Request { channels, done }).await.is_ok() {
            let _ = told.await;
        }
    }
}

/// What the connections share with the task: they tell queues directly.
#[derive(Debug, Default)]
struct Heard {
    channels: Mutex<HashMap<String, Channel>>,
    /// A subscription is lost.
    news: Notify,
}

impl Heard {
    /// Held for moments, never across an await.
    fn channels(&self) -> MutexGuard<'_, HashMap<String, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what one connection hears.
struct Ear {
    number: u64,
    heard: Arc<Heard>,
    is_broken: Arc<AtomicBool>,
}

impl AsyncPushSender for Ear {
    fn send(&self, PushInfo { kind, data }: PushInfo) -> Result<(), SendError> {
        let text = |place: usize| match data.get(place) {
            Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
            _ => None,
        };
        let mut channels = self.heard.channels();
        let channel = text(0).and_then(|channel| channels.get_mut(channel));
        match kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(channel) = channel
                    && let Some(queue) = channel.queue.upgrade()
                {
                    if text(1) == Some("p") {
                        queue.layout_has_changed();
                    }
                    queue.line().wake(channel.partition);
                }
            }
            // In order with what ends a subscription, unlike the answers to what was asked.
            PushKind::SSubscribe | PushKind::Subscribe => {
                if let Some(channel) = channel {
                    channel.set_heard(Some(self.number));
                }
            }
            // The slot has moved to another server. (A channel that we have let go of is not here.)
            PushKind::SUnsubscribe => {
                if let Some(channel) = channel.filter(|c| c.heard_by == Some(self.number)) {
                    channel.set_heard(None);
                    self.heard.news.notify_one();
                }
            }
            PushKind::Disconnection => {
                self.is_broken.store(true, Ordering::Release);
                self.heard.news.notify_one();
            }
            _ => {}
        }
        Ok(())
    }
}

/// A connection that listens to some channels of one server.
struct Subscription {
    number: u64,
    connection: MultiplexedConnection,
    is_broken: Arc<AtomicBool>,
    /// Whether the server knows channels that belong to one shard.
    is_sharded: bool,
}

/// The task that listens.
struct Listener {
    link: Arc<Link>,
    requests: mpsc::Receiver<Request>,
    heard: Arc<Heard>,
    /// By the place of the server.
    subscriptions: HashMap<Arc<str>, Subscription>,
    /// Channels that are listened to elsewhere, and the numbers of the subscriptions that were left.
    left: Vec<(String, u64)>,
    made: u64,
    /// Whether somebody was told that it may not listen.
    has_warned: bool,
}

impl Listener {
    async fn run(mut self) {
        let mut pauses = Pauses::new();
        let mut ticks = tokio::time::interval(PING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (heard, link) = (self.heard.clone(), self.link.clone());
        let mut asked = Vec::new();
        let mut again: Option<Instant> = None;
        loop {
            if again.is_none_or(|again| again <= Instant::now()) || !asked.is_empty() {
                let is_complete = self.subscribe().await;
                asked.drain(..).for_each(tell);
                again = if is_complete {
                    pauses = Pauses::new();
                    None
                } else {
                    Some(Instant::now() + pauses.next())
                };
            }
            let pause = async {
                match again {
                    Some(again) => tokio::time::sleep_until(again).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                request = self.requests.recv() => match request {
                    Some(request) => {
                        asked.push(self.note(request));
                        while let Ok(request) = self.requests.try_recv() {
                            asked.push(self.note(request));
                        }
                    }
                    None => return,
                },
                () = heard.news.notified() => {}
                () = link.servers.moved() => self.leave_moved(),
                _ = ticks.tick() => self.keep().await,
                () = pause => self.link.servers.look_around().await,
            }
            self.let_go_of_broken();
        }
    }

    fn note(&self, request: Request) -> oneshot::Sender<()> {
        let mut channels = self.heard.channels();
        for (name, mut channel) in request.channels {
            // It may be heard already, for a queue that was closed.
            if let Some(before) = channels.remove(&name) {
                channel.set_heard(before.heard_by);
            }
            channels.insert(name, channel);
        }
        request.done
    }

    /// Subscribes to all channels that are not heard. Says whether all are heard then.
    async fn subscribe(&mut self) -> bool {
        let unheard: Vec<_> = {
            let channels = self.heard.channels();
            let unheard = channels.iter().filter(|(_, channel)| channel.must_be_heard());
            unheard.map(|(name, channel)| (name.clone(), channel.slot)).collect()
        };
        if unheard.is_empty() {
            return true;
        }
        let servers = &self.link.servers;
        if unheard.iter().any(|(_, slot)| servers.known_node(*slot).is_none()) {
            servers.look_around().await;
        }
        let mut by_server: HashMap<Arc<str>, (Arc<Node>, Vec<String>)> = HashMap::new();
        for (name, slot) in unheard {
            if let Some(node) = servers.known_node(slot) {
                let entry = by_server.entry(node.place.clone());
                entry.or_insert_with(|| (node, Vec::new())).1.push(name);
            }
        }
        let work = by_server.into_iter().map(|(place, (node, names))| {
            let existing = self.subscriptions.remove(&place);
            self.made += 1;
            let (number, heard) = (self.made, self.heard.clone());
            let link = &self.link;
            async move {
                let done = subscribe_at(link, &node, existing, number, &heard, &names);
                (place, within_patience(done).await)
            }
        });
        let done: Vec<_> = join_all(work.collect::<Vec<_>>()).await;
        for (place, outcome) in done {
            let refused = match outcome {
                Ok((subscription, refused)) => {
                    self.subscriptions.insert(place, subscription);
                    refused
                }
                Err(error) => {
                    tracing::debug!(%place, %error, "cannot subscribe");
                    Some(error).filter(|error| error.code() == Some("NOPERM"))
                }
            };
            if let Some(error) = refused.filter(|_| !std::mem::replace(&mut self.has_warned, true))
            {
                let advice = "receivers that wait look every half second instead: the user needs the \
                              commands ssubscribe and subscribe, and channels {queue:*";
                tracing::warn!(%error, "wake-ups cannot be heard; {advice}");
            }
        }
        self.unheard_without_subscription();
        !self.heard.channels().values().any(Channel::must_be_heard)
    }

    /// Notes of channels whose slots are elsewhere now that they are not heard.
    fn leave_moved(&mut self) {
        let Self { link, heard, subscriptions, left, .. } = self;
        for (name, channel) in heard.channels().iter_mut() {
            let node = link.servers.known_node(channel.slot);
            if let (Some(by), Some(node)) = (channel.heard_by, node)
                && subscriptions.get(&node.place).is_none_or(|one| one.number != by)
            {
                channel.set_heard(None);
                left.push((name.clone(), by));
            }
        }
    }

    /// Gives up connections that have broken off.
    fn let_go_of_broken(&mut self) {
        let before = self.subscriptions.len();
        self.subscriptions.retain(|_, one| !one.is_broken.load(Ordering::Acquire));
        if self.subscriptions.len() < before {
            tracing::debug!("a subscription has broken off");
            self.unheard_without_subscription();
        }
    }

    /// Tells the queues whose subscription is gone that they are not heard.
    fn unheard_without_subscription(&self) {
        let mut channels = self.heard.channels();
        for channel in channels.values_mut() {
            let is_there = |by: &u64| self.subscriptions.values().any(|one| one.number == *by);
            if channel.heard_by.is_some_and(|by| !is_there(&by)) {
                channel.set_heard(None);
            }
        }
    }

    /// Lets go of channels that nobody uses any more, and sees whether the connections live.
    async fn keep(&mut self) {
        let gone: Vec<_> = {
            let mut channels = self.heard.channels();
            channels.values_mut().for_each(|channel| channel.is_refused = false);
            let is_gone = |_: &String, channel: &mut Channel| channel.queue.strong_count() == 0;
            let gone = channels.extract_if(is_gone);
            let mut gone: Vec<_> = gone.filter_map(|(name, c)| Some((name, c.heard_by?))).collect();
            let is_left = |(name, by): &(String, u64)| {
                channels.get(name).is_none_or(|channel| channel.heard_by != Some(*by))
            };
            gone.extend(self.left.drain(..).filter(is_left));
            gone
        };
        let used: Vec<_> = self.heard.channels().values().filter_map(|c| c.heard_by).collect();
        self.subscriptions.retain(|_, subscription| used.contains(&subscription.number));
        let work = self.subscriptions.values_mut().map(async |subscription| {
            let mut commands = redis::pipe();
            let name = if subscription.is_sharded { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
            for (channel, _) in gone.iter().filter(|(_, by)| *by == subscription.number) {
                commands.cmd(name).arg(channel);
            }
            commands.cmd("PING");
            let kept = all_of(&mut subscription.connection, &commands);
            if let Err(error) = within_patience(kept).await {
                tracing::debug!(%error, "a subscription is given up");
                subscription.is_broken.store(true, Ordering::Release);
            }
        });
        join_all(work).await;
    }
}

/// Subscribes to channels at one server, by the connection there is or a new one, except for those that have
/// moved to another. Says why some may not be heard at all.
async fn subscribe_at(
    link: &Link,
    node: &Node,
    existing: Option<Subscription>,
    number: u64,
    heard: &Arc<Heard>,
    names: &[String],
) -> RedisResult<(Subscription, Option<RedisError>)> {
    let mut subscription = match existing {
        Some(subscription) => subscription,
        None => {
            let is_broken = Arc::new(AtomicBool::new(false));
            let ear = Ear { number, heard: heard.clone(), is_broken: is_broken.clone() };
            let connection = node.listen(ear).await?;
            Subscription { number, connection, is_broken, is_sharded: true }
        }
    };
    let mut refused = None;
    let mut rest = names.to_vec();
    while !rest.is_empty() {
        let some: Vec<_> = rest.drain(..rest.len().min(AT_ONCE)).collect();
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
                Err(error) if matches!(judge(&error), Verdict::GoTo { .. }) => {
                    link.servers.redirected(&error, true);
                }
                Err(error) if is_sharded && is_unknown_command(&error) => {
                    // A server before 7: what is published reaches all servers.
                    subscription.is_sharded = false;
                    rest.push(channel);
                }
                Err(error) if error.code() == Some("NOPERM") => {
                    if let Some(channel) = heard.channels().get_mut(&channel) {
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

/// Asks for commands, none of which may fail.
async fn all_of(connection: &mut MultiplexedConnection, commands: &Pipeline) -> RedisResult<()> {
    let answers = connection.req_packed_commands(commands, 0, commands.len()).await?;
    answers.into_iter().try_for_each(|answer| answer.extract_error().map(|_| ()))
}

/// Tells somebody who may not wait any more.
fn tell(asked: oneshot::Sender<()>) {
    let _ = asked.send(());
}

async fn within_patience<T>(work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    timeout(PATIENCE, work).await.unwrap_or_else(late)
}
