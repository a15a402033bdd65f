//! Noticing that a loop is stuck: on a thread that no handler can block.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::roster::Roster;
use crate::event::About;

/// How a process ends whose loop is stuck.
pub(super) const EXIT_CODE: i32 = 70;
/// How long that may take, before it is ended by force.
const EXIT_WITHIN: Duration = Duration::from_secs(10);

/// A loop that is stuck: one of its handlers, or all of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stuck {
    /// What the loop is called.
    pub loop_name: String,
    /// The delivery whose handler shows no progress: its queue, message and worker. `None` where the loop
    /// itself does nothing any more, because handlers block every thread.
    pub about: Option<About>,
    /// For how long.
    pub lasting: Duration,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, lasting) = (&self.loop_name, self.lasting);
        match &self.about {
            Some(About { queue, message_id, attempt, worker_id }) => {
                let worker = worker_id.map_or_else(String::new, |id| format!("worker {} ", id.0));
                write!(
                    f,
                    "loop '{name}': {worker}has been at message {message_id} of queue '{queue}' (delivery \
                     {attempt}) for {lasting:.1?} without a heartbeat"
                )
            }
            None => write!(f, "loop '{name}' has done nothing for {lasting:.1?}"),
        }
    }
}

/// What to do about a loop that is stuck.
pub(super) type OnStuck = Arc<dyn Fn(&Stuck) + Send + Sync>;

/// What the thread is told at the start.
pub(super) struct Orders {
    /// How long a handler may show no progress. Without it nothing is watched.
    pub(super) threshold: Option<Duration>,
    pub(super) on_stuck: Option<OnStuck>,
}

impl Orders {
    /// How often each loop must show that it is there.
    pub(super) fn turn_within(&self) -> Option<Duration> {
        self.threshold.map(|threshold| (threshold / 4).min(Duration::from_secs(60)))
    }

    /// How often the loops are looked at.
    fn look_every(&self) -> Option<Duration> {
        let (least, most) = (Duration::from_millis(5), Duration::from_secs(5));
        self.threshold.map(|threshold| (threshold / 20).clamp(least, most))
    }
}

/// The thread, joined when it is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches the loops, and tells systemd that they are alive, where it wants to know. `None` where there
    /// is nothing to do.
    pub(super) fn start(orders: Orders, roster: Arc<Roster>) -> Option<Self> {
        let ping_every = roster.systemd().and_then(|systemd| systemd.ping_every());
        let every = orders.look_every().into_iter().chain(ping_every).min()?;
        let (stop, stopped) = sync_channel(1);
        let watch = move || watch(orders, &roster, every, ping_every, &stopped);
        match std::thread::Builder::new().name("pillarbox-watchdog".to_owned()).spawn(watch) {
            Ok(thread) => Some(Self { stop: Some(stop), thread: Some(thread) }),
            Err(error) => {
                tracing::error!(%error, "there is no watchdog: a loop that is stuck will not be noticed");
                None
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to wait for any more. A panic in it has been told.
            let _ = thread.join();
        }
    }
}

/// A hook on a thread of its own, which begins when there is something to tell. Nobody waits for it: it may take
/// its time, and ends by itself when it has been told all.
struct Hook {
    call: OnStuck,
    thread: Option<Sender<Stuck>>,
}

impl Hook {
    const fn new(call: OnStuck) -> Self {
        Self { call, thread: None }
    }

    fn tell(&mut self, stuck: Stuck) {
        if self.thread.is_none() {
            let (sender, told) = channel::<Stuck>();
            let call = self.call.clone();
            let listen = move || told.iter().for_each(|stuck| call_safely(&call, &stuck));
            match std::thread::Builder::new().name("pillarbox-stuck".to_owned()).spawn(listen) {
                Ok(_) => self.thread = Some(sender),
                Err(error) => {
                    tracing::error!(%error, "the hook for a loop that is stuck cannot be called");
                }
            }
        }
        if let Some(thread) = &self.thread {
            // It listens for as long as this is there.
            let _ = thread.send(stuck);
        }
    }
}

fn call_safely(hook: &OnStuck, stuck: &Stuck) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| hook(stuck))).is_err() {
        tracing::error!("the hook for a loop that is stuck panicked");
    }
}

fn watch(
    orders: Orders,
    roster: &Roster,
    every: Duration,
    ping_every: Option<Duration>,
    stopped: &Receiver<()>,
) {
    let mut eyes = orders.threshold.map(Eyes::new);
    let mut hook = orders.on_stuck.map(Hook::new);
    let mut looked = Instant::now();
    let mut ping_at = looked;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
        let now = Instant::now();
        // A process that was suspended has not been stuck for that time.
        let lived = (now - looked).min(2 * every);
        looked = now;
        if let Some(eyes) = &mut eyes {
            let found = eyes.look(lived, &roster.sights());
            roster.set_stuck(found.iter().map(|(stuck, _)| stuck.clone()).collect());
            for (stuck, _) in found.iter().filter(|(_, is_new)| *is_new) {
                tell(stuck, hook.as_mut(), roster);
            }
            if !found.is_empty() {
                continue;
            }
        }
        // Not too late for the next one.
        if let (Some(ping_every), Some(systemd)) = (ping_every, roster.systemd())
            && now + every > ping_at
        {
            systemd.send("WATCHDOG=1");
            ping_at = now + ping_every;
        }
    }
    roster.set_stuck(Vec::new());
}

/// Does what is to be done about a loop that is stuck.
fn tell(stuck: &Stuck, hook: Option<&mut Hook>, roster: &Roster) {
    if hook.is_none() {
        // Whatever is stuck may hold what a log or an exit needs.
        let backstop = || {
            std::thread::sleep(EXIT_WITHIN);
            std::process::abort();
        };
        let _ = std::thread::Builder::new().name("pillarbox-backstop".to_owned()).spawn(backstop);
    }
    let about = stuck.about.as_ref();
    tracing::error!(
        loop_name = stuck.loop_name,
        queue = about.map(|about| tracing::field::display(&about.queue)),
        message_id = about.map(|about| tracing::field::display(about.message_id)),
        attempt = about.map(|about| about.attempt),
        worker_id = about.and_then(|about| about.worker_id).map(|id| id.0),
        seconds = stuck.lasting.as_secs_f64(),
        "a loop is stuck"
    );
    if let Some(systemd) = roster.systemd() {
        systemd.send(&format!("STATUS=stuck: {stuck}"));
    }
    match hook {
        Some(hook) => hook.tell(stuck.clone()),
        None => {
            tracing::error!(
                "the process ends; what it holds comes back when the leases end. See LoopGroup::watchdog"
            );
            std::process::exit(EXIT_CODE);
        }
    }
}

/// What is seen of a loop at a look.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) name: String,
    /// How often it was made anew.
    pub(super) life: u32,
    /// How many turns its driver has made, if it is to make more.
    pub(super) turns: Option<u64>,
    /// What each worker is at: a number that tells it from others, how many heartbeats, and which delivery.
    pub(super) work: Vec<Option<(u64, u32, About)>>,
}

/// Tells from what is seen again and again what is stuck, pure.
#[derive(Debug)]
struct Eyes {
    threshold: Duration,
    /// The time that it has watched.
    now: Duration,
    /// By loop, and by worker, or none for the driver.
    signs: HashMap<(usize, Option<usize>), Sign>,
}

/// A sign of life, and since when it has been the same.
#[derive(Debug, Clone, Copy)]
struct Sign {
    /// The life of the loop; turns, or deliveries; heartbeats.
    seen: (u32, u64, u32),
    since: Duration,
    is_told: bool,
}

impl Eyes {
    fn new(threshold: Duration) -> Self {
        Self { threshold, now: Duration::ZERO, signs: HashMap::new() }
    }

    /// Looks once more, so long after the last time. What is stuck now, and whether that is news.
    fn look(&mut self, lived: Duration, loops: &[Sight]) -> Vec<(Stuck, bool)> {
        self.now += lived;
        let mut signs = HashMap::new();
        let mut found = Vec::new();
        for (index, one) in loops.iter().enumerate() {
            let work = one.work.iter().enumerate().filter_map(|(worker, work)| {
                let (number, beats, about) = work.as_ref()?;
                Some((Some(worker), (one.life, *number, *beats), Some(about)))
            });
            let driver = one.turns.map(|turns| (None, (one.life, turns, 0), None));
            // The handler that is at fault is named before the loop that suffers.
            for (worker, seen, about) in work.chain(driver) {
                let key = (index, worker);
                let before = self.signs.get(&key).filter(|sign| sign.seen == seen);
                let new = Sign { seen, since: self.now, is_told: false };
                let mut sign = before.copied().unwrap_or(new);
                let lasting = self.now - sign.since;
                if lasting >= self.threshold {
                    let stuck =
                        Stuck { loop_name: one.name.clone(), about: about.cloned(), lasting };
                    found.push((stuck, !std::mem::replace(&mut sign.is_told, true)));
                }
                signs.insert(key, sign);
            }
        }
        self.signs = signs;
        found
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{MessageId, QueueName};

    use super::*;
    use crate::request::WorkerId;

    const SECOND: Duration = Duration::from_secs(1);

    fn about(worker: usize) -> About {
        let queue: QueueName = "orders".try_into().unwrap();
        let mut about = About::new(queue, MessageId::from_key("one"), 1);
        about.worker_id = Some(WorkerId(worker));
        about
    }

    /// A loop with one worker, at a delivery of this number and with so many heartbeats.
    fn sight(turns: u64, work: Option<(u64, u32)>) -> Vec<Sight> {
        let work = work.map(|(number, beats)| (number, beats, about(0)));
        vec![Sight { name: "orders".to_owned(), life: 0, turns: Some(turns), work: vec![work] }]
    }

    #[test]
    fn a_handler_that_shows_no_progress_is_stuck_and_told_once() {
        let mut eyes = Eyes::new(3 * SECOND);
        for turn in 0..3 {
            assert!(eyes.look(SECOND, &sight(turn, Some((1, 0)))).is_empty(), "at {turn}");
        }
        let found = eyes.look(SECOND, &sight(3, Some((1, 0))));
        let [(stuck, true)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((stuck.about.as_ref(), stuck.lasting), (Some(&about(0)), 3 * SECOND));
        let said = format!(
            "loop 'orders': worker 0 has been at message {} of queue 'orders' (delivery 1) for 3.0s without \
             a heartbeat",
            MessageId::from_key("one")
        );
        assert_eq!(stuck.to_string(), said);
        assert!(matches!(&eyes.look(SECOND, &sight(4, Some((1, 0))))[..], [(_, false)]));
        assert!(eyes.look(SECOND, &sight(5, Some((1, 1)))).is_empty(), "it goes on");
        for turn in 6..8 {
            assert!(eyes.look(SECOND, &sight(turn, Some((1, 1)))).is_empty());
        }
        assert!(matches!(&eyes.look(SECOND, &sight(8, Some((1, 1))))[..], [(_, true)]));
    }

    #[test]
    fn a_heartbeat_or_the_next_delivery_is_progress() {
        let mut eyes = Eyes::new(2 * SECOND);
        for step in 0..20 {
            assert!(eyes.look(SECOND, &sight(step, Some((1, step as u32)))).is_empty());
        }
        for step in 20..40 {
            assert!(eyes.look(SECOND, &sight(step, Some((step, 0)))).is_empty());
        }
        for step in 40..60 {
            assert!(eyes.look(SECOND, &sight(step, None)).is_empty(), "it has nothing to do");
        }
    }

    #[test]
    fn a_loop_that_makes_no_turns_is_stuck_until_it_is_over() {
        let mut eyes = Eyes::new(2 * SECOND);
        eyes.look(SECOND, &sight(7, None));
        eyes.look(SECOND, &sight(7, None));
        let found = eyes.look(SECOND, &sight(7, None));
        let [(stuck, true)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(stuck.to_string(), "loop 'orders' has done nothing for 2.0s");
        let mut over = sight(7, None);
        over[0].turns = None;
        assert!(eyes.look(SECOND, &over).is_empty());
    }

    #[test]
    fn a_loop_that_was_made_anew_begins_anew() {
        let mut eyes = Eyes::new(2 * SECOND);
        for life in 0..10 {
            let mut again = sight(0, Some((1, 0)));
            again[0].life = life;
            assert!(eyes.look(SECOND, &again).is_empty());
        }
    }
}
