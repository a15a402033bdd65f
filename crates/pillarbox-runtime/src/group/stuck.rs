//! Detection of stuck handlers and loops, pure.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use crate::event::About;

/// A stuck handler, or a stuck loop.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stuck {
    /// The name of the loop.
    pub loop_name: String,
    /// The delivery whose handler makes no progress. `None` if the loop itself makes none, because handlers block
    /// every thread.
    pub about: Option<About>,
    /// Time since the last sign of progress.
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
                    "loop '{name}': {worker}has been at message {message_id} of queue '{queue}' (attempt \
                     {attempt}) for {lasting:.1?} without a heartbeat"
                )
            }
            None => write!(f, "loop '{name}' has done nothing for {lasting:.1?}"),
        }
    }
}

/// The progress of a loop at one moment.
#[derive(Debug)]
pub(super) struct LoopProgress {
    pub(super) name: String,
    /// Number of restarts.
    pub(super) restarts: u32,
    /// Number of turns that its driver has made, unless it is over.
    pub(super) turns: Option<u64>,
    /// The delivery of each worker: its number, its heartbeats, and what it is.
    pub(super) work: Vec<Option<(u64, u32, About)>>,
}

/// Compares the progress of loops over time.
#[derive(Debug)]
pub(super) struct StuckDetector {
    threshold: Duration,
    /// Total time watched.
    now: Duration,
    /// By loop and worker; `None` is the driver.
    marks: HashMap<(usize, Option<usize>), Mark>,
}

/// A state of progress, and since when it has not changed.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Restarts; turns or deliveries; heartbeats.
    state: (u32, u64, u32),
    since: Duration,
    is_reported: bool,
}

impl StuckDetector {
    pub(super) fn new(threshold: Duration) -> Self {
        Self { threshold, now: Duration::ZERO, marks: HashMap::new() }
    }

    /// Records the progress of all loops, `elapsed` after the last time. Returns what is stuck now, and for each
    /// whether it was not reported before.
    pub(super) fn update(
        &mut self,
        elapsed: Duration,
        loops: &[LoopProgress],
    ) -> Vec<(Stuck, bool)> {
        self.now += elapsed;
        let mut marks = HashMap::new();
        let mut found = Vec::new();
        for (index, one) in loops.iter().enumerate() {
            let work = one.work.iter().enumerate().filter_map(|(worker, work)| {
                let (number, beats, about) = work.as_ref()?;
                Some((Some(worker), (one.restarts, *number, *beats), Some(about)))
            });
            let driver = one.turns.map(|turns| (None, (one.restarts, turns, 0), None));
            // A stuck handler is named before the loop that is stuck because of it.
            for (worker, state, about) in work.chain(driver) {
                let key = (index, worker);
                let before = self.marks.get(&key).filter(|mark| mark.state == state);
                let new = Mark { state, since: self.now, is_reported: false };
                let mut mark = before.copied().unwrap_or(new);
                let lasting = self.now - mark.since;
                if lasting >= self.threshold {
                    let stuck =
                        Stuck { loop_name: one.name.clone(), about: about.cloned(), lasting };
                    found.push((stuck, !std::mem::replace(&mut mark.is_reported, true)));
                }
                marks.insert(key, mark);
            }
        }
        self.marks = marks;
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

    /// A loop with one worker, which handles the delivery of this number and has sent this many heartbeats.
    fn progress(turns: u64, work: Option<(u64, u32)>) -> Vec<LoopProgress> {
        let work = work.map(|(number, beats)| (number, beats, about(0)));
        let (name, turns, work) = ("orders".to_owned(), Some(turns), vec![work]);
        vec![LoopProgress { name, restarts: 0, turns, work }]
    }

    #[test]
    fn a_handler_without_progress_is_stuck_and_reported_once() {
        let mut detector = StuckDetector::new(3 * SECOND);
        for turn in 0..3 {
            assert!(detector.update(SECOND, &progress(turn, Some((1, 0)))).is_empty(), "at {turn}");
        }
        let found = detector.update(SECOND, &progress(3, Some((1, 0))));
        let [(stuck, true)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((stuck.about.as_ref(), stuck.lasting), (Some(&about(0)), 3 * SECOND));
        let text = format!(
            "loop 'orders': worker 0 has been at message {} of queue 'orders' (attempt 1) for 3.0s without \
             a heartbeat",
            MessageId::from_key("one")
        );
        assert_eq!(stuck.to_string(), text);
        assert!(matches!(&detector.update(SECOND, &progress(4, Some((1, 0))))[..], [(_, false)]));
        // It makes progress.
        for turn in 5..8 {
            assert!(detector.update(SECOND, &progress(turn, Some((1, 1)))).is_empty());
        }
        assert!(matches!(&detector.update(SECOND, &progress(8, Some((1, 1))))[..], [(_, true)]));
    }

    #[test]
    fn a_heartbeat_or_the_next_delivery_is_progress() {
        let mut detector = StuckDetector::new(2 * SECOND);
        for step in 0..20 {
            assert!(detector.update(SECOND, &progress(step, Some((1, step as u32)))).is_empty());
        }
        for step in 20..40 {
            assert!(detector.update(SECOND, &progress(step, Some((step, 0)))).is_empty());
        }
        for step in 40..60 {
            // It has nothing to do.
            assert!(detector.update(SECOND, &progress(step, None)).is_empty());
        }
    }

    #[test]
    fn a_loop_that_makes_no_turns_is_stuck_until_it_is_over() {
        let mut detector = StuckDetector::new(2 * SECOND);
        detector.update(SECOND, &progress(7, None));
        detector.update(SECOND, &progress(7, None));
        let found = detector.update(SECOND, &progress(7, None));
        let [(stuck, true)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(stuck.to_string(), "loop 'orders' has done nothing for 2.0s");
        let mut over = progress(7, None);
        over[0].turns = None;
        assert!(detector.update(SECOND, &over).is_empty());
    }

    #[test]
    fn a_restart_is_progress() {
        let mut detector = StuckDetector::new(2 * SECOND);
        for restarts in 0..10 {
            let mut again = progress(0, Some((1, 0)));
            again[0].restarts = restarts;
            assert!(detector.update(SECOND, &again).is_empty());
        }
    }
}
