//! Hearing that a queue has something: one subscription for all queues of a backend.
//!
//! Scripts publish on a queue's channel when there is something to deliver that was not there
//! before, or will be sooner than those who wait may know. A task listens for all queues of the
//! backend on one connection of its own. What is published while it is not connected is lost;
//! therefore everybody is woken whenever it has subscribed anew.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use pillarbox_core::Gate;
use redis::aio::{PubSubSink, PubSubStream};
use redis::{Client, RedisResult};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::task::TaskTracker;

use crate::hub::Hub;
use crate::link::Pauses;

/// How long the server may take to connect, subscribe or answer a ping.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often the connection is tried, so that one that is dead is noticed.
const PING: Duration = Duration::from_secs(15);

/// The most channels in one command.
const AT_ONCE: usize = 500;

/// Where queues ask to be listened for.
#[derive(Debug)]
pub(crate) struct Ears {
    /// `None` where there is no way to make a connection.
    requests: Option<mpsc::Sender<Request>>,
}

/// Listen for this queue, and tell when that is so.
#[derive(Debug)]
struct Request {
    hub: Weak<Hub>,
    channel: String,
    done: oneshot::Sender<()>,
}

impl Ears {
    /// Starts the task that listens. It connects when the first queue asks, and ends when the
    /// backend is closed or gone.
    pub(crate) fn open(
        client: Option<Client>,
        gate: &Arc<Gate>,
        tasks: &TaskTracker,
        runtime: &Handle,
    ) -> Self {
        let requests = client.map(|client| {
            let (sender, receiver) = mpsc::channel(64);
            let gate = gate.clone();
            tasks.spawn_on(
                async move {
                    let listener = Listener {
                        client,
                        requests: receiver,
                        hubs: HashMap::new(),
                        has_warned: false,
                    };
                    tokio::select! {
                        () = gate.closed() => {}
                        () = listener.run() => {}
                    }
                },
                runtime,
            );
            sender
        });
        Self { requests }
    }

    /// Has a queue listened for. Returns when it is, or when that cannot be done at present: whether
    /// it is heard, the queue knows.
    pub(crate) async fn listen(&self, hub: &Arc<Hub>) {
        let Some(requests) = &self.requests else { return };
        let (done, told) = oneshot::channel();
        let channel = hub.keys.wake.clone();
        let request = Request { hub: Arc::downgrade(hub), channel, done };
        if requests.send(request).await.is_ok() {
            let _ = told.await;
        }
    }
}

/// The task that listens.
struct Listener {
    client: Client,
    requests: mpsc::Receiver<Request>,
    /// Who is to be told of what is published where.
    hubs: HashMap<String, Weak<Hub>>,
    /// Whether somebody was told that it may not listen.
    has_warned: bool,
}

impl Listener {
    async fn run(mut self) {
        let mut pauses = Pauses::new();
        let mut asked = Vec::new();
        loop {
            // Nobody waits, nobody needs a connection.
            if self.hubs.is_empty() {
                match self.requests.recv().await {
                    Some(request) => asked.push(self.note(request)),
                    None => return,
                }
            }
            let connected = self.connect().await;
            if connected.is_ok() {
                self.tell_all(true);
            }
            asked.drain(..).for_each(tell);
            match connected {
                Ok((sink, stream)) => {
                    pauses = Pauses::new();
                    if self.listen(sink, stream).await.is_break() {
                        return;
                    }
                    tracing::debug!("the subscription has broken off");
                    self.tell_all(false);
                }
                Err(error) if error.code() == Some("NOPERM") && !self.has_warned => {
                    self.has_warned = true;
                    let advice = "receivers that wait look every half second instead: the user needs \
                                  channels {queue:*";
                    tracing::warn!(%error, "wake-ups cannot be heard; {advice}");
                }
                Err(error) => tracing::debug!(%error, "cannot subscribe"),
            }
            let mut pause = std::pin::pin!(tokio::time::sleep(pauses.next()));
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    request = self.requests.recv() => match request {
                        Some(request) => tell(self.note(request)),
                        None => return,
                    },
                }
            }
        }
    }

    fn note(&mut self, request: Request) -> oneshot::Sender<()> {
        self.hubs.insert(request.channel, request.hub);
        request.done
    }

    /// Connects and subscribes to all channels.
    async fn connect(&self) -> RedisResult<(PubSubSink, PubSubStream)> {
        let connect = async {
            let (mut sink, stream) = self.client.get_async_pubsub().await?.split();
            let channels: Vec<_> = self.hubs.keys().collect();
            for channels in channels.chunks(AT_ONCE) {
                sink.subscribe(channels).await?;
            }
            Ok((sink, stream))
        };
        within_patience(connect).await
    }

    /// Tells all queues whether they are heard.
    fn tell_all(&self, is_heard: bool) {
        self.hubs.values().filter_map(Weak::upgrade).for_each(|hub| hub.set_heard(is_heard));
    }

    /// Listens until the connection breaks off, or for good.
    async fn listen(&mut self, mut sink: PubSubSink, mut stream: PubSubStream) -> ControlFlow<()> {
        let mut ticks = tokio::time::interval(PING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            let kept = tokio::select! {
                biased;
                message = stream.next() => match message {
                    Some(message) => {
                        let hub = self.hubs.get(message.get_channel_name());
                        if let Some(hub) = hub.and_then(Weak::upgrade) {
                            hub.line().wake();
                        }
                        Ok(())
                    }
                    None => return ControlFlow::Continue(()),
                },
                request = self.requests.recv() => match request {
                    Some(request) => self.add(&mut sink, request).await,
                    None => return ControlFlow::Break(()),
                },
                _ = ticks.tick() => self.keep(&mut sink).await,
            };
            if let Err(error) = kept {
                tracing::debug!(%error, "the subscription is given up");
                return ControlFlow::Continue(());
            }
        }
    }

    /// Subscribes to the channel of a queue, and of whichever others ask at the same time.
    async fn add(&mut self, sink: &mut PubSubSink, request: Request) -> RedisResult<()> {
        let mut requests = vec![request];
        while requests.len() < AT_ONCE
            && let Ok(request) = self.requests.try_recv()
        {
            requests.push(request);
        }
        let channels: Vec<_> = requests.iter().map(|request| request.channel.clone()).collect();
        let subscribed = within_patience(sink.subscribe(channels)).await;
        for request in requests {
            if let Some(hub) = request.hub.upgrade().filter(|_| subscribed.is_ok()) {
                hub.set_heard(true);
            }
            tell(self.note(request));
        }
        subscribed
    }

    /// Lets go of channels that nobody uses any more, and sees whether the connection lives.
    async fn keep(&mut self, sink: &mut PubSubSink) -> RedisResult<()> {
        let gone: Vec<_> = self.hubs.extract_if(|_, hub| hub.strong_count() == 0).collect();
        let gone: Vec<_> = gone.into_iter().map(|(channel, _)| channel).collect();
        within_patience(async {
            for channels in gone.chunks(AT_ONCE) {
                sink.unsubscribe(channels).await?;
            }
            sink.ping::<redis::Value>().await.map(|_| ())
        })
        .await
    }
}

/// Tells somebody who may not wait any more.
fn tell(asked: oneshot::Sender<()>) {
    let _ = asked.send(());
}

async fn within_patience<T>(work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    timeout(PATIENCE, work).await.unwrap_or_else(late)
}
