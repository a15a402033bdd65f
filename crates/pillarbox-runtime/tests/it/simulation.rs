//! The runtime in a simulated world: the memory backend under paused time, a queue that fails by a seed,
//! handlers that fail, panic, hang, are slow or acknowledge in their own transactions, and random pauses, stops,
//! kills and restarts.
//!
//! Everything random comes from the seed, so a failure can be repeated:
//!
//! ```console
//! $ PILLARBOX_SEED=4711 cargo nextest run -p pillarbox-runtime --test it simulation:: --no-capture
//! ```
//!
//! `make simulate` runs many more seeds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pillarbox_core::{
    Json, Leased, Mailbox, Mailboxes, MemoryBackend, MessageId, NoReplies, Queue, QueueOptions,
    RawMessage, Settle,
};
use pillarbox_runtime::dead_letters::{DeadLetter, Dlq, DlqPolicy};
use pillarbox_runtime::handler::{Attempt, Context, Heartbeat, Metadata};
use pillarbox_runtime::stats::{State, StatsSnapshot};
use pillarbox_runtime::{
    Backoff, BoxError, Control, DlqAction, DlqConsumer, Outcome, ProducerHandle, ReadyWorker,
    Runnable, Worker,
};
use pillarbox_testing::process::setting;
use pillarbox_testing::{FaultQueue, Faults};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

const DRAIN: Duration = Duration::from_secs(20);
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

#[test]
fn no_message_is_lost_whatever_fails() {
    let (first, seeds) = match std::env::var("PILLARBOX_SEED") {
        Ok(seed) => (seed.parse().expect("PILLARBOX_SEED is a number"), 1),
        Err(_) => (0, setting("PILLARBOX_SEEDS", 500) as u64),
    };
    let next = AtomicU64::new(first);
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    let ran = std::panic::catch_unwind(|| simulate(seed));
                    match ran {
                        Ok(Ok(one)) => totals.lock().expect("totals").add(&one),
                        Ok(Err(wrong)) => fail(seed, &wrong),
                        Err(_) => fail(seed, "it panicked, see above"),
                    }
                }
            });
        }
    });
    let totals = totals.into_inner().expect("totals");
    println!("{seeds} seeds: {totals:?}");
    // A simulation in which nothing goes wrong shows nothing.
    if seeds >= 100 {
        let Totals { succeeded, dead, runs, replays, faults, lost, restarts, committed } = totals;
        for (what, count) in [
            ("succeeded", succeeded),
            ("dead letters", dead),
            ("repeated runs", runs - succeeded),
            ("runs of replays", replays),
            ("faults", faults),
            ("lost leases", lost),
            ("restarts", restarts),
            ("commits", committed),
        ] {
            assert!(count > seeds / 10, "{what}: only {count}");
        }
    }
}

fn fail(seed: u64, wrong: &str) -> ! {
    eprintln!("seed {seed}: {wrong}");
    eprintln!(
        "to repeat it: PILLARBOX_SEED={seed} cargo nextest run -p pillarbox-runtime --test it simulation:: --no-capture"
    );
    // From whatever thread this is, the test fails.
    std::process::exit(1);
}

/// Number of simulations in which each event happened.
#[derive(Debug, Default)]
struct Totals {
    succeeded: u64,
    dead: u64,
    runs: u64,
    replays: u64,
    faults: u64,
    lost: u64,
    restarts: u64,
    committed: u64,
}

impl Totals {
    fn add(&mut self, one: &Self) {
        self.succeeded += one.succeeded;
        self.dead += one.dead;
        self.runs += one.runs;
        self.replays += one.replays;
        self.faults += one.faults;
        self.lost += one.lost;
        self.restarts += one.restarts;
        self.committed += one.committed;
    }
}

/// What the handlers know of each other, and what they must not.
#[derive(Debug, Default)]
struct World {
    /// Those that run now, by message.
    running: BTreeMap<MessageId, Vec<(u64, Heartbeat)>>,
    succeeded: BTreeSet<MessageId>,
    sent: BTreeSet<MessageId>,
    /// Those that a handler has acknowledged in a transaction that was committed.
    committed: BTreeSet<MessageId>,
    /// Number of runs of each message.
    runs_of: BTreeMap<MessageId, u32>,
    runs: u64,
    /// Number of them that were replays.
    replays: u64,
    wrong: Option<String>,
}

#[derive(Debug, Clone)]
struct Stage {
    world: Arc<Mutex<World>>,
    luck: Arc<Mutex<StdRng>>,
    visibility: Duration,
    /// The queue itself, for transactions of handlers.
    queue: Arc<dyn Queue>,
}

impl Stage {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn draw(&self, most: u32) -> u32 {
        self.luck.lock().unwrap_or_else(std::sync::PoisonError::into_inner).random_range(0..most)
    }

    fn enter(&self, about: &Metadata, heartbeat: &Heartbeat) -> Presence {
        let id = about.id();
        let mut world = self.world();
        world.runs += 1;
        world.replays += u64::from(id != about.original_id());
        let run = world.runs;
        *world.runs_of.entry(id).or_default() += 1;
        // A replay may be sent again under the same id.
        if world.committed.contains(&id) && id == about.original_id() {
            world.wrong = Some(format!("{id} runs again after it was acknowledged"));
        }
        let others = world.running.entry(id).or_default();
        if others.iter().any(|(_, other)| !other.is_lost()) {
            world.wrong = Some(format!("two handlers run {id}, and the first holds its lease"));
        } else {
            others.push((run, heartbeat.clone()));
        }
        Presence { stage: self.clone(), id, run }
    }

    /// Acknowledges in a transaction, and commits it or not. Fails if the lease has expired.
    async fn transact(&self, about: &Metadata, commits: bool) -> Result<(), BoxError> {
        let receipt = about.receipt().clone();
        // The queue answers at once, so that nothing happens in between.
        let settle = match commits {
            true => Settle::acknowledge(receipt),
            false => Settle::extend(receipt, self.visibility),
        };
        self.queue.settle(vec![settle]).await?.remove(0)?;
        assert!(about.acknowledging(), "its handler runs");
        if commits {
            let mut world = self.world();
            world.committed.insert(about.id());
            // The message is gone; one that is sent again under its id is another.
            world.running.remove(&about.id());
            world.succeeded.insert(about.original_id());
        }
        Ok(())
    }
}

/// A handler that runs, until it is dropped: at its end, by a panic, a cancellation or a crash.
struct Presence {
    stage: Stage,
    id: MessageId,
    run: u64,
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(running) = self.stage.world().running.get_mut(&self.id) {
            running.retain(|(run, _)| *run != self.run);
        }
    }
}

async fn handle(
    depth: u32,
    about: Metadata,
    Context(stage): Context<Stage>,
    heartbeat: Heartbeat,
    Attempt(attempt): Attempt,
    producer: ProducerHandle<u32>,
) -> Result<Outcome, BoxError> {
    let _presence = stage.enter(&about, &heartbeat);
    let some_time = stage.visibility.mul_f64(f64::from(stage.draw(1_000)) / 500.0);
    match stage.draw(26) {
        0 => return Err("failed at once".into()),
        1 => panic!("a handler that panics"),
        2 => {
            tokio::time::sleep(some_time).await;
            return Err("failed after a while".into());
        }
        3 => {
            tokio::time::sleep(some_time).await;
            panic!("a handler that panics after a while");
        }
        4 => std::future::pending::<()>().await,
        5 => return Ok(Outcome::release_for(some_time)),
        6 => return Ok(Outcome::retry_after(some_time)),
        7 if attempt > 1 => return Ok(Outcome::reject("no good")),
        8 if depth > 0 => {
            // What is answered was stored; what is not may have been.
            if let Ok(id) = producer.send(&(depth - 1)).await {
                stage.world().sent.insert(id);
            }
        }
        9..12 => tokio::time::sleep(some_time).await,
        12 => {
            stage.transact(&about, true).await?;
            return Ok(Outcome::settled());
        }
        13 => {
            stage.transact(&about, true).await?;
            tokio::time::sleep(some_time).await;
            if heartbeat.is_lost() {
                stage.world().wrong = Some("a lease that was acknowledged is lost".to_owned());
            }
        }
        14 => {
            stage.transact(&about, true).await?;
            return Err("failed after its commit".into());
        }
        15 => {
            stage.transact(&about, true).await?;
            tokio::time::sleep(some_time).await;
            panic!("a handler that panics after its commit");
        }
        16 => {
            stage.transact(&about, false).await?;
            return Err("rolled back".into());
        }
        17 => {
            stage.transact(&about, false).await?;
            return Ok(Outcome::settled());
        }
        _ => {}
    }
    stage.world().succeeded.insert(about.original_id());
    Ok(Outcome::done())
}

/// A whole life of a queue. Says what happened, or what went wrong.
fn simulate(seed: u64) -> Result<Totals, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    std::panic::set_hook(Box::new(|info| {
        let is_expected = info
            .payload()
            .downcast_ref::<&str>()
            .is_some_and(|text| text.starts_with("a handler that"));
        if !is_expected {
            eprintln!("{info}");
        }
    }));
    runtime.block_on(live(seed))
}

async fn live(seed: u64) -> Result<Totals, String> {
    let mut random = StdRng::seed_from_u64(seed);
    let visibility = Duration::from_millis(random.random_range(500..20_000));
    let backend = Mailboxes::new(MemoryBackend::new());
    let open = |name: &str| backend.queue(name, QueueOptions::new()).expect("a queue");
    let (jobs, dead) = (open("jobs"), open("dead"));
    let faults = Faults::none()
        .fail_before(random.random_range(0.0..0.15))
        .fail_after(random.random_range(0.0..0.15))
        .drop_reply(random.random_range(0.0..0.05))
        .delay(random.random_range(0.0..0.2), Duration::from_secs(4));
    let faulty = FaultQueue::new(jobs.clone(), faults.clone(), seed);
    let faulty_dead = FaultQueue::new(dead.clone(), faults, seed + 1);
    let stage = Stage {
        world: Arc::default(),
        luck: Arc::new(Mutex::new(StdRng::seed_from_u64(seed + 2))),
        visibility,
        queue: jobs.clone(),
    };
    let sender: Mailbox<u32> = Mailbox::new(jobs.clone(), Json, NoReplies);
    let mut totals = Totals::default();

    for _ in 0..random.random_range(1..5) {
        totals.restarts += 1;
        let worker = configure(&faulty, &faulty_dead, &stage, &mut random);
        let control = worker.control();
        let stats = control.stats();
        let life = tokio::spawn(worker.run_until(std::future::pending()));
        let replays = replay_meanwhile([&faulty, &faulty_dead], &stage, &mut random);
        for _ in 0..random.random_range(1..12) {
            for _ in 0..random.random_range(0..6) {
                let id = sender.send(&2).await.map_err(|error| error.to_string())?;
                stage.world().sent.insert(id);
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(0..6_000))).await;
            meddle(&control, &mut random);
        }
        match random.random_range(0..4) {
            // The process dies.
            0 => life.abort(),
            end => {
                if end == 1 {
                    control.stop_now();
                } else {
                    control.stop();
                }
                let longest = DRAIN + CALL_TIMEOUT + Duration::from_secs(10);
                let ended = timeout(longest, life).await;
                let ended = ended.map_err(|_| "the drain does not finish".to_owned())?;
                let last = ended.map_err(|error| error.to_string())?.map_err(|e| e.to_string())?;
                check_end(&last)?;
            }
        }
        replays.abort();
        totals.lost += stats.borrow().leases_lost;
        if let Some(wrong) = stage.world().wrong.take() {
            return Err(wrong);
        }
        if !stage.world().running.values().all(Vec::is_empty) {
            // A task that was aborted goes when it is next looked at.
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            if !stage.world().running.values().all(Vec::is_empty) {
                return Err("a handler runs on after the end".to_owned());
            }
        }
    }
    totals.faults = faulty.injected() + faulty_dead.injected();
    check_all(&stage, &jobs, &dead, &mut totals).await?;
    replay_all(&stage, [&jobs, &dead], [&faulty, &faulty_dead], &mut random).await?;
    Ok(totals)
}

/// Replays dead letters while workers make them: by passes that may be killed, by a consumer, or not at all.
fn replay_meanwhile(
    [jobs, dead]: [&Arc<FaultQueue>; 2],
    stage: &Stage,
    random: &mut StdRng,
) -> tokio::task::JoinHandle<()> {
    let target: Mailbox<u32> = Mailbox::new(jobs.clone(), Json, NoReplies);
    let letters: Mailbox<DeadLetter<u32>> = Mailbox::new(dead.clone(), Json, NoReplies);
    let lease = stage.visibility.max(Duration::from_secs(1));
    let dlq = Dlq::of(&letters).replay_to(&target);
    let who = random.random_range(0..3);
    let stage = stage.clone();
    tokio::spawn(async move {
        match who {
            0 => {}
            1 => loop {
                tokio::time::sleep(Duration::from_millis(stage.draw(5_000).into())).await;
                let pass = dlq.replay().max_replays(u32::MAX).visibility(lease);
                let _ = timeout(Duration::from_millis(stage.draw(5_000).into()), pass.run()).await;
            },
            _ => {
                let replay = |_: DeadLetter<u32>| async { DlqAction::replay() };
                let consumer = DlqConsumer::new(letters, replay)
                    .replay_to(&target)
                    .visibility(lease)
                    .retry_after(Duration::from_secs(1))
                    .max_replays(u32::MAX)
                    .worker(|worker| worker.call_timeout(CALL_TIMEOUT).without_signals());
                let _ = consumer.run().await;
            }
        }
    })
}

/// What was wrong is put right, and every dead letter is replayed, by passes that meet faults and die: in
/// the end every message has succeeded.
async fn replay_all(
    stage: &Stage,
    [jobs, dead]: [&Arc<dyn Queue>; 2],
    [faulty, faulty_dead]: [&Arc<FaultQueue>; 2],
    random: &mut StdRng,
) -> Result<(), String> {
    let wrong = |error: pillarbox_core::Error| error.to_string();
    let target: Mailbox<u32> = Mailbox::new(faulty.clone(), Json, NoReplies);
    let letters: Mailbox<DeadLetter<u32>> = Mailbox::new(faulty_dead.clone(), Json, NoReplies);
    let dlq = Dlq::of(&letters).replay_to(&target);
    for pass in 0.. {
        if dead.counts().await.map_err(wrong)?.total() == 0 {
            break;
        }
        if pass == 1_000 {
            return Err("dead letters cannot be replayed".to_owned());
        }
        let replay = dlq.replay().max_replays(u32::MAX).matching(|letter| letter.body.len() < 100);
        let _ = timeout(Duration::from_millis(random.random_range(1..20_000)), replay.run()).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
    }
    let mailbox: Mailbox<u32> = Mailbox::new(jobs.clone(), Json, NoReplies);
    let worker = Worker::new(mailbox).context(stage.clone()).handler(
        |_: u32, about: Metadata, Context(stage): Context<Stage>| async move {
            stage.world().succeeded.insert(about.original_id());
        },
    );
    worker.run_until_empty().await.map_err(wrong)?;
    let world = stage.world();
    match world.sent.iter().find(|id| !world.succeeded.contains(id)) {
        Some(id) => Err(format!("message {id} was never handled, for all its replays")),
        None => Ok(()),
    }
}

fn configure(
    jobs: &Arc<FaultQueue>,
    dead: &Arc<FaultQueue>,
    stage: &Stage,
    random: &mut StdRng,
) -> ReadyWorker<u32, (), Stage> {
    let mailbox: Mailbox<u32> = Mailbox::new(jobs.clone(), Json, NoReplies);
    let letters: Mailbox<DeadLetter<u32>> = Mailbox::new(dead.clone(), Json, NoReplies);
    let mut worker = Worker::new(mailbox)
        .context(stage.clone())
        .handler(handle)
        .workers(random.random_range(1..6))
        .prefetch(random.random_range(0..20))
        .visibility(stage.visibility)
        .poll(Duration::from_secs(random.random_range(1..20)))
        .timeout(stage.visibility.mul_f64(random.random_range(0.2..4.0)))
        .retry(Backoff::exponential(Duration::from_millis(100), Duration::from_secs(5)))
        .max_deliveries(random.random_range(1..5))
        .park_for(Duration::from_secs(10))
        .drain_for(DRAIN)
        .call_timeout(CALL_TIMEOUT);
    if random.random() {
        worker = worker.dead_letters(DlqPolicy::to(&letters));
    }
    if random.random() {
        worker = worker.cancel_when_lost();
    }
    if random.random_range(0..4) == 0 {
        worker = worker.extend_while_beating();
    }
    worker
}

fn meddle(control: &Control, random: &mut StdRng) {
    match random.random_range(0..8) {
        0 => control.pause(),
        1 | 2 => control.resume(),
        3 => control.set_workers(random.random_range(0..6)),
        _ => {}
    }
}

/// What holds at the end of a drain.
fn check_end(last: &StatsSnapshot) -> Result<(), String> {
    if last.state != State::Stopped || last.in_flight != 0 {
        return Err(format!("not over: {last:?}"));
    }
    Ok(())
}

/// Everything that was sent has an end, or is still in its queue; and nothing is in flight forever.
async fn check_all(
    stage: &Stage,
    jobs: &Arc<dyn Queue>,
    dead: &Arc<dyn Queue>,
    totals: &mut Totals,
) -> Result<(), String> {
    let wrong = |error: pillarbox_core::Error| error.to_string();
    // Leases of killed workers expire; nothing else may be invisible for longer.
    tokio::time::sleep(stage.visibility + Duration::from_secs(20)).await;
    let counts = jobs.counts().await.map_err(wrong)?;
    if counts.in_flight > 0 {
        return Err(format!("{} messages are in flight forever", counts.in_flight));
    }
    let page = jobs.peek(1000, None).await.map_err(wrong)?;
    let first_id = |message: &RawMessage| {
        let first = message.attributes.get("pillarbox.original_id");
        first.map_or(Ok(message.id), str::parse)
    };
    let queued = page.messages.iter().map(|peeked| first_id(&peeked.message));
    let queued: BTreeSet<_> = queued.collect::<pillarbox_core::Result<_>>().map_err(wrong)?;
    let page = dead.peek(1000, None).await.map_err(wrong)?;
    let mut dead_letters = BTreeMap::new();
    for letter in &page.messages {
        let letter = DeadLetter::read(&letter.message).map_err(|error| error.to_string())?;
        let lives: &mut BTreeSet<_> = dead_letters.entry(letter.message_id).or_default();
        if !lives.insert(letter.replay_count) {
            return Err(format!("two dead letters of {}", letter.message_id));
        }
    }
    let world = stage.world();
    for id in &world.committed {
        let is_first_life = dead_letters.get(id).is_some_and(|lives| lives.contains(&0));
        // An earlier delivery may have been on its way to the dead letters when its lease ended.
        if is_first_life && world.runs_of[id] == 1 {
            return Err(format!("a dead letter of {id}, which was acknowledged"));
        }
    }
    for id in &world.sent {
        let ends =
            [queued.contains(id), dead_letters.contains_key(id), world.succeeded.contains(id)];
        if !ends.contains(&true) {
            return Err(format!("message {id} is lost"));
        }
    }
    totals.succeeded = world.succeeded.len() as u64;
    totals.dead = dead_letters.len() as u64;
    totals.committed = world.committed.len() as u64;
    (totals.runs, totals.replays) = (world.runs, world.replays);
    Ok(())
}
