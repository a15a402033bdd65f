//! Whether a message grows dearer with those that wait before it.
//!
//! One queue of each kind, which is filled from level to level. Each message that is received is
//! acknowledged and another is sent, so that it stays as long as it is.

use std::cell::RefCell;
use std::rc::Rc;

use pillarbox_core::Mailboxes;
use pillarbox_sqlite::{SqliteBackend, SqliteOptions, Synchronous};

use super::window;
use crate::chart::{Contest, Role};
use crate::cycles::{Load, cycles_on_backlog};
use crate::measure::{Plan, Result, micros_each, on_two_threads};
use crate::ours::Ours;
use crate::process::available_bytes;
use crate::report::{Unit, grouped};
use crate::store::{Address, Kind, Store};

/// Messages in a call.
const BATCH: u64 = 10;
/// What the longest queues need, of memory on a server and of disk for a file: 10 million messages of 256
/// bytes, with all that is stored beside.
const NEEDED_FOR_TEN_MILLION: u64 = 10 << 30;

/// How many messages wait, at each place.
pub(super) fn levels(plan: &Plan) -> &'static [u64] {
    const ALL: &[u64] = &[1_000, 10_000, 100_000, 1_000_000, 10_000_000];
    let has_room = available_bytes().is_ok_and(|bytes| bytes > NEEDED_FOR_TEN_MILLION);
    plan.pick(if has_room { ALL } else { &ALL[..4] }, &ALL[..3])
}

pub(super) fn contest(plan: &Plan) -> Contest {
    let levels = levels(plan);
    let about = "One caller sends, receives and acknowledges ten messages of 256 bytes in a call, while so many others wait. SQLite once as it comes, where a cycle is three syncs, and once with synchronous=NORMAL, where the work shows.";
    let contest =
        Contest::new("backlog", "A message among many that wait", about, Unit::MicrosPerMessage)
            .along("messages waiting", levels.iter().map(|level| grouped(*level)));
    let load = Load { callers: 1, batch: BATCH, window: window(plan) };
    let side = |kind: Kind, synchronous: Synchronous| {
        let store: Rc<RefCell<Option<(Store, u64)>>> = Rc::default();
        move |place: usize| {
            let mut store = store.borrow_mut();
            if store.is_none() {
                *store = Some((Store::fresh(kind)?, 0));
            }
            let Some((store, level)) = store.as_mut() else { return Err("no store".into()) };
            on_two_threads(async {
                let queue = open(&store.address(), synchronous).await?;
                if *level < levels[place] {
                    queue.add(levels[place] - *level).await?;
                    *level = levels[place];
                }
                let (done, _) = cycles_on_backlog(&queue, load).await?;
                crate::cycles::Contestant::close(queue, *level).await?;
                Ok(micros_each(done.messages, done.elapsed))
            })
        }
    };
    contest
        .enter(Role::Ours, "Redis", "AOF everysec", side(Kind::Redis, Synchronous::Full))
        .enter(Role::Ours, "SQLite, FULL", "WAL", side(Kind::Sqlite, Synchronous::Full))
        .enter(Role::Ours, "SQLite, NORMAL", "WAL", side(Kind::Sqlite, Synchronous::Normal))
        .enter(Role::Ours, "memory", "", in_memory(levels, load))
}

async fn open(address: &Address, synchronous: Synchronous) -> Result<Ours> {
    Ours::of(match address {
        Address::Sqlite(path) => {
            let options = SqliteOptions::new(path).synchronous(synchronous);
            Mailboxes::new(SqliteBackend::open(options).await?)
        }
        other => other.backend().await?,
    })
}

/// A queue that is never closed, for nothing would be left of it.
fn in_memory(levels: &'static [u64], load: Load) -> impl FnMut(usize) -> Result<f64> {
    let mut queue = None;
    let mut level = 0;
    move |place| {
        on_two_threads(async {
            let queue = match &queue {
                Some(queue) => queue,
                None => queue.insert(Ours::of(Address::Memory.backend().await?)?),
            };
            if level < levels[place] {
                queue.add(levels[place] - level).await?;
                level = levels[place];
            }
            let (done, _) = cycles_on_backlog(queue, load).await?;
            Ok(micros_each(done.messages, done.elapsed))
        })
    }
}
