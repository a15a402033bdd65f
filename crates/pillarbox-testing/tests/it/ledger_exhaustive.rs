//! Every state that the ledger can reach within small bounds, checked against the invariants.
//!
//! Three messages, two consumers, two deliveries of each message. The search takes every step in
//! every order: send, send again, receive one or two, acknowledge, nack, extend, let a tick pass,
//! purge. A plain specification, written to be obvious rather than fast, runs beside the ledger; each
//! invariant is a statement about the ledger's observable state, compared with that specification if needed.
//!
//! Settles are not sampled: in every state reached, every receipt ever given is tried for every action, on a copy.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use pillarbox_core::ledger::Ledger;
use pillarbox_core::{
    MessageId, MessageState, Nonce, Outgoing, RawMessage, Receipt, Sent, SettleAction, Timestamp,
};
use stateright::{Checker, Model, Property};
use uuid::Uuid;

const MESSAGES: usize = 3;
const CONSUMERS: usize = 2;
const DELIVERIES: u32 = 2;
/// In ticks.
const VISIBILITY: u8 = 2;
const DELAY: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Send { delay: u8 },
    SendAgain { message: usize },
    Receive { consumer: usize, max: usize },
    Settle { delivery: usize, action: Action },
    Tick,
    Purge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Acknowledge,
    Nack { delay: u8 },
    Release { delay: u8 },
    Extend { timeout: u8 },
    Start { timeout: u8 },
}

const ACTIONS: [Action; 8] = [
    Action::Acknowledge,
    Action::Nack { delay: 0 },
    Action::Nack { delay: DELAY },
    Action::Extend { timeout: 0 },
    Action::Extend { timeout: VISIBILITY },
    Action::Release { delay: 0 },
    Action::Release { delay: DELAY },
    Action::Start { timeout: VISIBILITY },
];

impl Action {
    fn real(self) -> SettleAction {
        match self {
            Action::Acknowledge => SettleAction::Acknowledge,
            Action::Nack { delay } => SettleAction::Nack { delay: ticks(delay) },
            Action::Release { delay } => SettleAction::Release { delay: ticks(delay) },
            Action::Extend { timeout } => SettleAction::Extend { timeout: ticks(timeout) },
            Action::Start { timeout } => SettleAction::Start { timeout: ticks(timeout) },
        }
    }
}

/// State of a message in the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Unsent,
    Ready,
    /// Under this delivery, for this number of ticks.
    InFlight {
        delivery: usize,
        left: u8,
        is_started: bool,
    },
    Delayed {
        left: u8,
    },
    Deleted,
}

/// One delivery.
#[derive(Debug, Clone)]
struct Delivered {
    message: usize,
    consumer: usize,
    count: u32,
    receipt: Receipt,
}

/// The ledger, the specification, and the consumers' receipts.
#[derive(Debug, Clone)]
struct World {
    ledger: Ledger,
    now: Timestamp,
    places: [Place; MESSAGES],
    /// Ready messages, the next one first.
    line: Vec<usize>,
    /// Messages that become ready by time, in the order in which their time was set.
    timed: Vec<usize>,
    deliveries: Vec<Delivered>,
    /// Of each message, number of deliveries that were started and expired.
    unsettled: [u32; MESSAGES],
    /// Of each message, number of deliveries that were released, or expired without being started.
    uncounted: [u32; MESSAGES],
    /// Messages that were acknowledged rather than purged.
    acknowledged: [bool; MESSAGES],
    /// Wrong answers of the ledger so far.
    wrong: Option<&'static str>,
}

fn ticks(count: u8) -> Duration {
    Duration::from_secs(count.into())
}

fn id(message: usize) -> MessageId {
    MessageId::from_uuid(Uuid::from_u64_pair((message as u64) << 16 | 0x7000, 0b10 << 62))
}

fn message_of(id: MessageId) -> usize {
    (id.as_uuid().as_u64_pair().0 >> 16) as usize
}

/// Observable state of the ledger, in order: message, delivery count, differences of unsettled and uncounted
/// deliveries from the specification, state, ticks left.
///
/// These two numbers have no effect on anything else: an error is a step that changes one of them by too much
/// or too little, which shows in the difference.
type View = Vec<(usize, u32, [i64; 2], &'static str, u64)>;

impl World {
    fn new() -> Self {
        Self {
            ledger: Ledger::new(),
            now: Timestamp::from_secs(0),
            places: [Place::Unsent; MESSAGES],
            line: Vec::new(),
            timed: Vec::new(),
            deliveries: Vec::new(),
            unsettled: [0; MESSAGES],
            uncounted: [0; MESSAGES],
            acknowledged: [false; MESSAGES],
            wrong: None,
        }
    }

    fn view(&self) -> View {
        let shown = self.ledger.clone().peek(self.now, 0, usize::MAX);
        let each = shown.into_iter().map(|peeked| {
            let (state, left) = match peeked.state {
                MessageState::Ready => ("ready", 0),
                MessageState::InFlight { until } => ("in flight", until.since(self.now).as_secs()),
                MessageState::Delayed { until } => ("delayed", until.since(self.now).as_secs()),
            };
            let RawMessage { id, delivery_count, unsettled, uncounted, .. } = peeked.message;
            let message = message_of(id);
            let surplus = [
                i64::from(unsettled) - i64::from(self.unsettled[message]),
                i64::from(uncounted) - i64::from(self.uncounted[message]),
            ];
            (message, delivery_count, surplus, state, left)
        });
        each.collect()
    }

    /// Returns the same for the specification.
    fn expected_view(&self) -> View {
        let show = |message, state, left: u8| {
            (message, self.count(message), [0, 0], state, u64::from(left))
        };
        let mut timed: Vec<_> = self
            .timed
            .iter()
            .map(|message| match self.places[*message] {
                Place::InFlight { left, .. } => show(*message, "in flight", left),
                Place::Delayed { left } => show(*message, "delayed", left),
                other => unreachable!("{other:?} has no time"),
            })
            .collect();
        timed.sort_by_key(|(.., left)| *left);
        let ready = self.line.iter().map(|message| show(*message, "ready", 0));
        ready.chain(timed).collect()
    }

    fn is_current(&self, delivery: usize) -> bool {
        let message = self.deliveries[delivery].message;
        matches!(self.places[message], Place::InFlight { delivery: d, .. } if d == delivery)
    }

    fn holds(&self, consumer: usize) -> bool {
        (0..self.deliveries.len())
            .any(|d| self.deliveries[d].consumer == consumer && self.is_current(d))
    }

    fn count(&self, message: usize) -> u32 {
        self.deliveries.iter().filter(|d| d.message == message).count() as u32
    }

    /// Specification: makes a message ready at once or after `delay` ticks.
    fn make_available(&mut self, message: usize, delay: u8) {
        self.timed.retain(|other| *other != message);
        if delay == 0 {
            self.places[message] = Place::Ready;
            self.line.push(message);
        } else {
            self.places[message] = Place::Delayed { left: delay };
            self.timed.push(message);
        }
    }

    /// Specification: messages without time left join the tail, in the order in which their time was set. A
    /// lease that expires is unsettled if it was started, and uncounted otherwise.
    fn let_time_come(&mut self) {
        for message in self.timed.clone() {
            match self.places[message] {
                Place::InFlight { left: 0, is_started: true, .. } => self.unsettled[message] += 1,
                Place::InFlight { left: 0, .. } => self.uncounted[message] += 1,
                Place::Delayed { left: 0 } => {}
                _ => continue,
            }
            self.make_available(message, 0);
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Send { delay } => {
                let message = self.unsent().expect("offered only then");
                let outgoing = outgoing(message, delay);
                let answer = self.ledger.send(self.now, outgoing, None);
                let stored = Ok(Sent::stored(id(message)));
                self.claim(answer == stored, "a new message was not stored");
                self.make_available(message, delay);
            }
            Step::SendAgain { message } => {
                let answer = self.ledger.send(self.now, outgoing(message, 0), None);
                let duplicate = Ok(Sent::duplicate(id(message)));
                self.claim(answer == duplicate, "a message was stored twice");
            }
            Step::Receive { consumer, max } => self.receive(consumer, max),
            Step::Settle { delivery, action } => self.settle(delivery, action),
            Step::Tick => {
                self.now = self.now + ticks(1);
                for place in &mut self.places {
                    if let Place::InFlight { left, .. } | Place::Delayed { left } = place {
                        *left -= 1;
                    }
                }
                self.let_time_come();
            }
            Step::Purge => {
                let held = self.line.len() + self.timed.len();
                let purged = self.ledger.purge();
                self.claim(purged == held as u64, "purge counted wrongly");
                for message in self.line.drain(..).chain(self.timed.drain(..)) {
                    self.places[message] = Place::Deleted;
                }
            }
        }
    }

    fn receive(&mut self, consumer: usize, max: usize) {
        let mut minted = self.deliveries.len() as u8;
        let answer = self.ledger.receive(self.now, max, ticks(VISIBILITY), || {
            minted += 1;
            Nonce::from_bytes([minted; 12])
        });
        let expected: Vec<_> = self.line.drain(..max.min(self.line.len())).collect();
        let delivered: Vec<_> = answer.iter().map(|d| message_of(d.message.id)).collect();
        self.claim(delivered == expected, "delivered out of order, or not what is ready");
        for (message, delivery) in expected.into_iter().zip(answer) {
            let expected = (self.unsettled[message], self.uncounted[message]);
            let counted = (delivery.message.unsettled, delivery.message.uncounted);
            self.claim(counted == expected, "unsettled or uncounted deliveries miscounted");
            let number = self.deliveries.len();
            let (left, is_started) = (VISIBILITY, false);
            self.places[message] = Place::InFlight { delivery: number, left, is_started };
            self.timed.push(message);
            self.deliveries.push(Delivered {
                message,
                consumer,
                count: delivery.message.delivery_count,
                receipt: delivery.receipt,
            });
        }
    }

    fn settle(&mut self, delivery: usize, action: Action) {
        let receipt = self.deliveries[delivery].receipt.clone();
        let answer = self.ledger.settle(self.now, &receipt, action.real());
        self.claim(answer.is_ok(), "a current receipt was refused");
        let message = self.deliveries[delivery].message;
        match action {
            Action::Acknowledge => {
                self.timed.retain(|other| *other != message);
                self.places[message] = Place::Deleted;
                self.acknowledged[message] = true;
            }
            Action::Nack { delay } => self.make_available(message, delay),
            Action::Release { delay } => {
                self.uncounted[message] += 1;
                self.make_available(message, delay);
            }
            Action::Extend { timeout: left } | Action::Start { timeout: left } => {
                self.timed.retain(|other| *other != message);
                self.timed.push(message);
                let before = self.places[message];
                let is_started = matches!(before, Place::InFlight { is_started: true, .. })
                    || matches!(action, Action::Start { .. });
                self.places[message] = Place::InFlight { delivery, left, is_started };
                self.let_time_come();
            }
        }
    }

    fn unsent(&self) -> Option<usize> {
        self.places.iter().position(|place| *place == Place::Unsent)
    }

    fn claim(&mut self, right: bool, otherwise: &'static str) {
        if !right {
            self.wrong.get_or_insert(otherwise);
        }
    }
}

fn outgoing(message: usize, delay: u8) -> Outgoing {
    let mut outgoing = Outgoing::with_id(id(message), "");
    outgoing.delay = ticks(delay);
    outgoing
}

/// Two worlds are equal if no observation distinguishes them: absolute time and the values of nonces do not, the
/// number of messages sent follows from their states ("what was stored stays counted"), the numbers of unsettled and
/// uncounted deliveries affect nothing else, and everything else in the ledger shows in its view, or in whether the
/// specification has a delivery as started.
impl World {
    #[expect(clippy::type_complexity, reason = "used in the two places below only")]
    fn identity(
        &self,
    ) -> (
        View,
        [Place; MESSAGES],
        &[usize],
        &[usize],
        Vec<(usize, usize, u32)>,
        [bool; MESSAGES],
        Option<&str>,
    ) {
        let seen = self.deliveries.iter().map(|d| (d.message, d.consumer, d.count)).collect();
        let (line, timed) = (&self.line, &self.timed);
        (self.view(), self.places, line, timed, seen, self.acknowledged, self.wrong)
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

struct LedgerModel;

impl Model for LedgerModel {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.unsent().is_some() {
            steps.extend([Step::Send { delay: 0 }, Step::Send { delay: DELAY }]);
        }
        for (message, place) in world.places.iter().enumerate() {
            if !matches!(place, Place::Unsent | Place::Deleted) {
                steps.push(Step::SendAgain { message });
            }
        }
        // Consumers are interchangeable: the second is used after the first.
        let consumers = if world.deliveries.is_empty() { 1 } else { CONSUMERS };
        for consumer in 0..consumers {
            for max in 1..=2 {
                let bounded = world.line.iter().take(max).all(|m| world.count(*m) < DELIVERIES);
                if bounded && !world.holds(consumer) {
                    steps.push(Step::Receive { consumer, max });
                }
            }
        }
        for delivery in (0..world.deliveries.len()).filter(|d| world.is_current(*d)) {
            // Messages are interchangeable: it is enough if one may be started and released.
            let is_first = world.deliveries[delivery].message == 0;
            let plain = |action: &Action| {
                is_first || !matches!(action, Action::Start { .. } | Action::Release { .. })
            };
            let actions = ACTIONS.into_iter().filter(plain);
            steps.extend(actions.map(|action| Step::Settle { delivery, action }));
        }
        steps.extend([Step::Tick, Step::Purge]);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.take(step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every answer is right", |_, world: &World| world.wrong.is_none()),
            Property::always("INV-1 a message is in exactly one state", |_, world: &World| {
                let view = world.view();
                (0..MESSAGES).all(|message| {
                    let gone = matches!(world.places[message], Place::Unsent | Place::Deleted);
                    let shown = view.iter().filter(|(shown, ..)| *shown == message).count();
                    shown == usize::from(!gone)
                })
            }),
            Property::always("INV-2 every delivery has a new receipt", |_, world: &World| {
                let receipts: HashSet<_> = world.deliveries.iter().map(|d| &d.receipt).collect();
                receipts.len() == world.deliveries.len()
            }),
            Property::always("INV-3 a stale receipt settles nothing", |_, world: &World| {
                let before = world.view();
                (0..world.deliveries.len()).all(|delivery| {
                    ACTIONS.iter().all(|action| {
                        let mut probe = world.clone();
                        let receipt = &world.deliveries[delivery].receipt;
                        let answer = probe.ledger.settle(world.now, receipt, action.real());
                        let untouched = answer.is_ok() || probe.view() == before;
                        answer.is_ok() == world.is_current(delivery) && untouched
                    })
                })
            }),
            Property::always("INV-4 delivery counts rise by one", |_, world: &World| {
                (0..MESSAGES).all(|message| {
                    let of_message = world.deliveries.iter().filter(|d| d.message == message);
                    of_message.enumerate().all(|(n, d)| d.count == n as u32 + 1)
                })
            }),
            Property::always("INV-5 no message is lost", |_, world: &World| {
                let view = world.view();
                (0..MESSAGES).all(|message| {
                    let held = view.iter().any(|(shown, ..)| *shown == message);
                    let gone = matches!(world.places[message], Place::Unsent | Place::Deleted);
                    held != gone
                })
            }),
            Property::always("INV-6 what is due is ready", |_, world: &World| {
                let none_overdue =
                    world.view().iter().all(|(.., state, left)| *state == "ready" || *left > 0);
                // And every message is ready once its time has passed.
                let mut later = world.clone();
                later.now = later.now + ticks(VISIBILITY.max(DELAY));
                none_overdue && later.view().iter().all(|(.., state, _)| *state == "ready")
            }),
            Property::always("INV-7 messages line up as they became ready", |_, world: &World| {
                world.view() == world.expected_view()
            }),
            Property::always("INV-8 no message is in line twice", |_, world: &World| {
                let view = world.view();
                let ready = view.iter().filter(|(.., state, _)| *state == "ready");
                let mut line = HashSet::new();
                ready.into_iter().all(|(message, ..)| line.insert(message))
            }),
            Property::always("INV-9 nothing is orphaned", |_, world: &World| {
                world.ledger.check().is_ok()
            }),
            Property::always("what was stored stays counted", |_, world: &World| {
                let stored = world.places.iter().filter(|place| **place != Place::Unsent).count();
                world.ledger.clone().counts(world.now).sent == Some(stored as u64)
            }),
            Property::always(
                "deliveries that expire or are released are counted",
                |_, world: &World| {
                    let view = world.view();
                    view.iter().all(|(message, count, surplus, ..)| {
                        let ended = world.unsettled[*message] + world.uncounted[*message];
                        *surplus == [0, 0] && ended <= *count
                    })
                },
            ),
            // The search reached the relevant states.
            Property::sometimes("both consumers hold a message", |_, world: &World| {
                (0..CONSUMERS).all(|consumer| world.holds(consumer))
            }),
            Property::sometimes("a stale receipt meets a current one", |_, world: &World| {
                let current = (0..world.deliveries.len()).filter(|d| world.is_current(*d));
                current.into_iter().any(|d| world.deliveries[d].count == 2)
            }),
            Property::sometimes(
                "all messages are acknowledged, redelivered",
                |_, world: &World| {
                    (0..MESSAGES).all(|m| world.acknowledged[m] && world.count(m) == 2)
                },
            ),
        ]
    }
}

#[test]
fn the_ledger_keeps_inv_1_to_9_in_every_reachable_state() {
    let checker = LedgerModel.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} distinct", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 100_000, "{}", checker.unique_state_count());
}
