//! What a message costs the servers, by number of nodes and partitions.
//!
//! The cost of a message depends on the number of messages in a call, and the cost of a call on the
//! number of other calls that reach the server at the same time. Every layout therefore has the same
//! number of callers per primary. In the first cases each call of a caller is one call to a server, so
//! that the scripts get the same batches. In the others calls are coalesced, which is the default for
//! users: twelve partitions have twelve batchers, so that each coalesces the calls of fewer callers.
//!
//! On a machine with fewer processors than servers, nodes that are busy at the same time take turns, and
//! each finds the caches as the others have left them. One contestant has all partitions at one node of
//! three, while the others idle: what it costs to be one of three, without that.
//!
//! The queues hold a backlog, so that every receive finds a full batch wherever it asks; but for the
//! last cases, where receivers come to partitions that are empty and look around: in the process that
//! sends, and in another one.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::site::{Layout, PARTITIONS, Reading, Site, fill};
use crate::cycles::{BODY, Contestant, Done, Load, Numbers, body, crowd, cycle, cycles_on_backlog};
use crate::measure::{Case, Figure, Plan, Result, expect_eq, on_two_threads, per_second};
use crate::ours::Ours;
use crate::process::CpuClock;
use crate::progress;
use crate::report::Unit;

/// How many callers there are for each primary.
const CALLERS: u64 = 64;

/// How many rounds there are: many short ones, for the pace of a machine changes by the second, and what
/// is compared should be at the same pace.
pub(super) fn rounds(plan: &Plan) -> usize {
    plan.rounds() * plan.pick(4, 1)
}

/// How long a run takes.
pub(super) fn window(plan: &Plan) -> Duration {
    plan.pick(Duration::from_millis(400), Duration::from_millis(40))
}

/// How calls reach the servers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Calls {
    /// Each call of a caller is one call to a server.
    Separate { batch: u64 },
    /// Concurrent calls are coalesced, which is the default for users.
    Coalesced { batch: u64 },
    /// Coalesced, in batches of 10, on a queue without a backlog.
    OnEmptyQueue,
    /// The same, with one backend for the senders and another for the receivers.
    OnEmptyQueueApart,
}

impl Calls {
    fn batch(self) -> u64 {
        match self {
            Self::Separate { batch } | Self::Coalesced { batch } => batch,
            Self::OnEmptyQueue | Self::OnEmptyQueueApart => 10,
        }
    }

    fn are_coalesced(self) -> bool {
        !matches!(self, Self::Separate { .. })
    }

    fn name(self) -> String {
        let load = match self.batch() {
            1 => "one at a time".to_owned(),
            batch => format!("batch {batch}"),
        };
        match self {
            Self::Separate { .. } => format!("{load}, calls not coalesced"),
            Self::Coalesced { .. } => format!("{load}, calls coalesced"),
            Self::OnEmptyQueue => format!("{load}, no backlog"),
            Self::OnEmptyQueueApart => format!("{load}, no backlog, two processes"),
        }
    }
}

/// What a run has found.
struct Outcome {
    by_node: Vec<Reading>,
    client_micros: f64,
    rate: f64,
}

impl Outcome {
    /// Something of all nodes together, for each message.
    fn each(&self, what: fn(&Reading) -> u64) -> f64 {
        let messages: u64 = self.by_node.iter().map(|reading| reading.messages).sum();
        self.by_node.iter().map(what).sum::<u64>() as f64 / messages as f64
    }

    /// The CPU time for each message of the node where that is the most.
    fn dearest_micros(&self) -> f64 {
        let micros = |node: &Reading| node.cpu_micros as f64 / node.messages as f64;
        // In a short run, some may not have had their turn.
        let busy = self.by_node.iter().filter(|node| node.messages > 0);
        busy.map(micros).fold(f64::NAN, f64::max)
    }
}

/// How much of the servers' time a message takes.
pub(super) fn server_cpu(plan: &Plan, calls: Calls) -> Case {
    let name = calls.name();
    let figures = [
        Figure::median(format!("server CPU, {name}"), Unit::CpuMicrosPerMessage),
        Figure::median(format!("most expensive node, {name}"), Unit::CpuMicrosPerMessage),
        Figure::median(format!("calls, {name}"), Unit::CallsPerMessage),
        Figure::median(format!("rate, {name}"), Unit::MessagesPerSecond),
    ];
    let side = |layout: Layout| {
        let mut run = runner(plan, layout, calls);
        move || {
            let outcome = run()?;
            let cpu = outcome.each(|node| node.cpu_micros);
            Ok([cpu, outcome.dearest_micros(), outcome.each(|node| node.calls), outcome.rate])
        }
    };
    let mut case = Case::several(format!("server CPU, {name}"), figures, side(Layout::SPREAD));
    let others = [
        Layout::WHOLE,
        Layout::alone(PARTITIONS),
        Layout::cluster(1),
        Layout::cluster(2),
        Layout::cluster(3).at_first(),
    ];
    for layout in others {
        case = case.against(layout.to_string(), side(layout));
    }
    case
}

/// How many bytes a message takes on the wire, and how much of the client's time.
pub(super) fn wire(plan: &Plan) -> Case {
    let calls = Calls::Separate { batch: 10 };
    let figures = [
        Figure::median("wire, bytes to the servers, batch 10", Unit::Bytes),
        Figure::median("wire, bytes from the servers, batch 10", Unit::Bytes),
        Figure::median("wire, client CPU, batch 10", Unit::CpuMicrosPerMessage),
    ];
    let side = |layout: Layout| {
        let mut run = runner(plan, layout, calls);
        move || {
            let outcome = run()?;
            let bytes = [outcome.each(|node| node.bytes_in), outcome.each(|node| node.bytes_out)];
            Ok([bytes[0], bytes[1], outcome.client_micros])
        }
    };
    Case::several("wire", figures, side(Layout::SPREAD))
        .against(Layout::WHOLE.to_string(), side(Layout::WHOLE))
}

/// Runs on servers that live through all rounds.
fn runner(plan: &Plan, layout: Layout, calls: Calls) -> impl FnMut() -> Result<Outcome> + use<> {
    let batches = match calls {
        Calls::OnEmptyQueue | Calls::OnEmptyQueueApart => 0,
        _ => plan.pick(64, 2) * u64::from(PARTITIONS),
    };
    let load = Load {
        callers: plan.pick(CALLERS, 4) * layout.used_primaries() as u64,
        batch: calls.batch(),
        window: window(plan),
    };
    let site = Cell::new(None);
    move || {
        let (here, batches) = match site.take() {
            Some(site) => (site, 0),
            None => (Site::start(layout), batches),
        };
        let outcome = on_two_threads(measure(&here, calls, load, batches))?;
        if batches > 0 {
            say_spread(&here, layout, &outcome);
        }
        site.set(Some(here));
        Ok(outcome)
    }
}

async fn measure(site: &Site, calls: Calls, load: Load, batches: u64) -> Result<Outcome> {
    let open =
        || -> Result<_> { Ok(site.open_with(site.options()?.coalesce(calls.are_coalesced()))) };
    let queue = open()?.await?;
    let other = open()?.await?;
    fill(&queue, batches).await?;
    // By now it is connected to all, and the servers know the scripts.
    for number in 0..u64::from(PARTITIONS) {
        cycle(&queue, number, load.batch).await?;
    }
    let (clock, before) = (CpuClock::new()?, site.read()?);
    let client_before = clock.read()?;
    let done = match calls {
        Calls::OnEmptyQueueApart => apart(&queue, &other, load).await?,
        _ => cycles_on_backlog(&queue, load).await?.0,
    };
    let client_used = clock.read()? - client_before;
    let after = site.read()?;
    let count = queue.count().await?;
    other.close(count).await?;
    queue.close(count).await?;
    let by_node: Vec<_> =
        after.into_iter().zip(before).map(|(after, before)| after.since(before)).collect();
    let sent: u64 = by_node.iter().map(|node| node.messages).sum();
    expect_eq("messages that the servers have had", sent, done.messages)?;
    Ok(Outcome {
        by_node,
        client_micros: client_used.as_secs_f64() * 1e6 / done.messages as f64,
        rate: per_second(done.messages, done.elapsed),
    })
}

/// As many messages under way as the same callers have in cycles, half of whom send and half receive.
async fn apart(sends: &Ours, receives: &Ours, load: Load) -> Result<Done> {
    let Load { callers, batch, window } = load;
    let each = callers.div_ceil(2);
    let numbers = Numbers::within(window);
    let under_way = Arc::new(Semaphore::new((callers * batch) as usize));
    let (acknowledged, mut counts) = mpsc::unbounded_channel();
    let mut receivers = JoinSet::new();
    for _ in 0..each {
        let (queue, under_way) = (receives.clone(), under_way.clone());
        let acknowledged = acknowledged.clone();
        receivers.spawn(async move {
            loop {
                let deliveries = queue.receive(batch as usize).await?;
                let count = deliveries.len();
                let receipts = deliveries.into_iter().map(|(_, receipt)| receipt);
                queue.acknowledge(receipts.collect()).await?;
                under_way.add_permits(count);
                acknowledged.send(count as u64)?;
            }
        });
    }
    let senders = (0..each).map(|_| {
        let (queue, numbers, under_way) = (sends.clone(), numbers.clone(), under_way.clone());
        async move {
            while let Some(number) = numbers.take() {
                under_way.acquire_many(batch as u32).await?.forget();
                let bodies = (number * batch..(number + 1) * batch).map(|seq| body(seq, BODY));
                queue.send(bodies.collect()).await?;
            }
            Ok(())
        }
    });
    let (_, elapsed) = crowd(senders).await?;
    let messages = numbers.taken() * batch;
    let mut left = messages;
    while left > 0 {
        tokio::select! {
            count = counts.recv() => left -= count.unwrap_or_default(),
            Some(ended) = receivers.join_next() => {
                let ended: Result<()> = ended?;
                ended?;
            }
        }
    }
    receivers.shutdown().await;
    Ok(Done { messages, elapsed, each: Vec::new() })
}

/// Says how messages and keys are spread over the nodes.
fn say_spread(site: &Site, layout: Layout, outcome: &Outcome) {
    let all: u64 = outcome.by_node.iter().map(|node| node.messages).sum();
    let shares: Vec<_> = outcome
        .by_node
        .iter()
        .map(|node| format!("{:.1} %", node.messages as f64 * 100.0 / all as f64))
        .collect();
    let keys: Vec<_> = site
        .primaries()
        .iter()
        .map(|node| node.command(&["KEYS", "{queue:*:data"]).lines().count().to_string())
        .collect();
    progress::say(format_args!(
        "  {layout}: messages by node {}; partitions with messages by node {}",
        shares.join(", "),
        keys.join(", ")
    ));
}
