//! Cost of a message by the number of ready messages in its queue.
//!
//! One queue of each kind, which is filled from level to level. Each message that is received is
//! acknowledged and another is sent, so that it stays as long as it is.

use pillarbox_core::Mailboxes;
use pillarbox_sqlite::{SqliteBackend, SqliteOptions, Synchronous};

use super::window;
use crate::chart::{Contest, Role};
use crate::cycles::{Contestant, Load, cycles_on_backlog};
use crate::measure::{Plan, Result, expect_eq, micros_each, on_two_threads};
use crate::ours::Ours;
use crate::redis::wait_for_rewrites;
use crate::report::{Unit, grouped};
use crate::store::{Address, Kind, Store};

/// Messages in a call.
const BATCH: u64 = 10;

/// How many messages wait, at each place.
pub(super) fn levels(plan: &Plan) -> &'static [u64] {
    plan.pick(&[1_000, 10_000, 100_000, 1_000_000], &[1_000, 10_000])
}

pub(super) fn contest(plan: &Plan) -> Contest {
    let levels = levels(plan);
    let about = "One caller sends, receives and acknowledges ten 256-byte messages per call, in a queue with this many ready messages. With synchronous=NORMAL, SQLite shows the cost of the work without fsyncs.";
    let contest = Contest::new("backlog", "Cost by backlog", about, Unit::MicrosPerMessage)
        .along("ready messages", levels.iter().map(|level| grouped(*level)));
    let load = Load { callers: 1, batch: BATCH, window: window(plan) };
    let side = |kind: Kind, synchronous: Synchronous| {
        let mut filled: Option<Filled> = None;
        move |place: usize| {
            let filled = match &mut filled {
                Some(filled) => filled,
                none => none.insert(Filled { store: Store::fresh(kind)?, kept: None, level: 0 }),
            };
            on_two_threads(filled.cycles(synchronous, levels[place], load))
        }
    };
    let (full, normal) = (Synchronous::Full, Synchronous::Normal);
    contest
        .enter(Role::Ours, "memory", "not persistent", side(Kind::Memory, full))
        .enter(Role::Ours, "SQLite", "WAL, synchronous=FULL", side(Kind::Sqlite, full))
        .enter(Role::Ours, "Redis", "AOF everysec", side(Kind::Redis, full))
        .enter(
            Role::Variant,
            "SQLite, NORMAL (tuned)",
            "WAL, synchronous=NORMAL",
            side(Kind::Sqlite, normal),
        )
}

/// A queue that has been filled up to a level.
struct Filled {
    store: Store,
    /// In memory it is never closed, for nothing would be left of it.
    kept: Option<Ours>,
    level: u64,
}

impl Filled {
    /// Fills it up to this level. Says how long a message takes there.
    async fn cycles(&mut self, synchronous: Synchronous, level: u64, load: Load) -> Result<f64> {
        let queue = match &self.kept {
            Some(queue) => queue.clone(),
            None => open(&self.store.address(), synchronous).await?,
        };
        queue.add(level.saturating_sub(self.level)).await?;
        self.level = level;
        if let Store::Redis(server) = &self.store {
            // The added messages make the server rewrite its log, which is not measured.
            wait_for_rewrites(server);
        }
        let (done, _) = cycles_on_backlog(&queue, load).await?;
        expect_eq("messages left", queue.count().await?, level)?;
        if let Store::Memory = self.store {
            self.kept = Some(queue);
        } else {
            queue.close(level).await?;
        }
        Ok(micros_each(done.messages, done.elapsed))
    }
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
