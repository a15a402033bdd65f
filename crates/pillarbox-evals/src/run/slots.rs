//! What is known of each sample of each experiment, and which of its results counts. Pure.

use std::collections::HashMap;
use std::ops::Range;

use pillarbox_core::MessageId;
use pillarbox_runtime::Uuid;

use crate::result::{EvalResult, Status};

/// The place of a sample in an experiment: experiment by experiment, each with all samples.
pub(crate) type Index = usize;

/// No sample is submitted so often.
pub(crate) const MAX_ROUNDS: u32 = 1000;

/// Refuses a round that there cannot have been.
pub(crate) fn check_round(round: u32) -> Result<(), String> {
    if round == 0 || round > MAX_ROUNDS {
        return Err(format!("round {round} is none"));
    }
    Ok(())
}

/// What is known of a sample in an experiment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot {
    /// How often it was sent.
    pub(crate) sent: u32,
    /// It is to be sent once more.
    pub(crate) again: bool,
    /// The result that counts.
    pub(crate) result: Option<Light>,
}

impl Slot {
    /// A result of the last time that it was sent is still to come.
    pub(crate) fn is_awaited(&self) -> bool {
        self.sent > 0 && self.result.is_none_or(|result| result.round < self.sent)
    }
}

/// A result without what is in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Light {
    pub(crate) round: u32,
    pub(crate) status: Status,
    /// Where there is a score.
    pub(crate) value: f64,
    pub(crate) latency_ms: Option<f64>,
    /// Where the whole of it is.
    pub(crate) place: u64,
}

impl Light {
    pub(crate) fn of(result: &EvalResult, place: u64) -> Self {
        let scored = result.outcome.as_ref().ok();
        Self {
            round: result.round,
            status: result.status(),
            value: scored.map_or(0.0, |scored| scored.score.value),
            latency_ms: scored.and_then(|scored| scored.latency_ms),
            place,
        }
    }

    /// Whether a result of this round may replace it, as far as can be told before it is looked at.
    pub(crate) fn may_be_replaced_in(&self, round: u32) -> bool {
        round > self.round || self.status == Status::Died
    }

    /// Of two results of a sample, that of the later round counts. Of the same round, the first: a worker that
    /// died before its acknowledgement makes a second one. But one that died and was replayed, and has a score
    /// now, lives.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        let lives = other.status == Status::Died && self.status.is_scored();
        self.round > other.round || self.round == other.round && lives
    }
}

/// All samples of all experiments.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
}

impl Slots {
    /// Makes room for so many in all.
    pub(crate) fn grow(&mut self, total: usize) {
        self.slots.resize(total.max(self.slots.len()), Slot::default());
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many were sent, and have no result of the last time that they were.
    pub(crate) fn awaited(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_awaited()).count()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Slot> {
        self.slots.iter()
    }

    /// Whether a result of this round may count.
    pub(crate) fn may_count(&self, index: Index, round: u32) -> bool {
        self.slots[index].result.is_none_or(|other| other.may_be_replaced_in(round))
    }

    /// Takes note of a result. Whether it counts.
    pub(crate) fn record(&mut self, index: Index, result: Light) -> bool {
        let slot = &mut self.slots[index];
        if slot.result.is_some_and(|other| !result.replaces(&other)) {
            return false;
        }
        slot.result = Some(result);
        // It was sent, though that may not have been noted.
        if result.round > slot.sent {
            (slot.sent, slot.again) = (result.round, false);
        }
        true
    }

    /// Takes note that samples were sent for the so-manieth time.
    pub(crate) fn sent(&mut self, range: Range<Index>, round: u32) -> Result<(), String> {
        check_round(round)?;
        let slots = self.slots.get_mut(range.clone());
        let slots = slots.ok_or_else(|| format!("there are no samples {range:?}"))?;
        for slot in slots {
            slot.sent = slot.sent.max(round);
            slot.again = false;
        }
        Ok(())
    }

    /// Those that are to be sent, each with which round that is.
    pub(crate) fn to_send(&self) -> Vec<(Index, u32)> {
        let slots = self.slots.iter().enumerate();
        let wanted = slots.filter(|(_, slot)| slot.sent == 0 || slot.again);
        wanted.map(|(index, slot)| (index, slot.sent + 1)).collect()
    }

    /// Marks those whose result this is true of, to be sent once more. One whose result is still to come has none.
    pub(crate) fn again(&mut self, is_meant: impl Fn(Option<Status>) -> bool) -> usize {
        let mut marked = 0;
        for slot in self.slots.iter_mut().filter(|slot| slot.sent > 0) {
            let status = slot.result.filter(|_| !slot.is_awaited()).map(|result| result.status);
            slot.again |= is_meant(status);
            marked += usize::from(slot.again);
        }
        marked
    }

    /// All requests that were sent, by their ids.
    pub(crate) fn requests(&self, id: impl Fn(Index, u32) -> Uuid) -> HashMap<Uuid, (Index, u32)> {
        let mut requests = HashMap::with_capacity(self.slots.len());
        for (index, slot) in self.slots.iter().enumerate() {
            // The next one may have been sent as well, by a process that was killed before it noted that.
            for round in 1..=slot.sent + 1 {
                requests.insert(id(index, round), (index, round));
            }
        }
        requests
    }
}

/// The id of a request: the same whenever it is sent, so that what was sent just before a process was killed can
/// be sent again.
pub(crate) fn request_id(run_id: &str, experiment: &str, sample_id: &str, round: u32) -> Uuid {
    let key = serde_json::json!(["eval", run_id, experiment, sample_id, round]);
    *MessageId::from_key(&key.to_string()).as_uuid()
}

/// Joins what is next to each other.
pub(crate) fn ranges(sorted: &[Index]) -> Vec<Range<Index>> {
    let mut ranges: Vec<Range<Index>> = Vec::new();
    for &index in sorted {
        match ranges.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            _ => ranges.push(index..index + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn light(round: u32, status: Status) -> Light {
        Light { round, status, value: 0.0, latency_ms: None, place: 0 }
    }

    #[test]
    fn a_round_that_cannot_have_been_is_none() {
        assert!(check_round(1).is_ok() && check_round(MAX_ROUNDS).is_ok());
        for round in [0, MAX_ROUNDS + 1, u32::MAX] {
            assert!(check_round(round).unwrap_err().contains("is none"));
        }
    }

    #[test]
    fn the_first_result_of_an_attempt_counts_and_that_of_a_later_attempt_more() {
        use Status::{Died, Failed, NotPassed, Passed};
        for (first, second, counts) in [
            (light(1, Passed), light(1, NotPassed), false),
            (light(1, Passed), light(1, Passed), false),
            (light(1, Failed), light(1, Passed), false),
            (light(1, Died), light(1, Passed), true),
            (light(1, Died), light(1, NotPassed), true),
            (light(1, Died), light(1, Died), false),
            (light(1, Passed), light(1, Died), false),
            (light(1, Failed), light(2, Failed), true),
            (light(2, Failed), light(1, Passed), false),
        ] {
            let mut slots = Slots::default();
            slots.grow(1);
            assert!(slots.record(0, first));
            assert_eq!(slots.record(0, second), counts, "{first:?} {second:?}");
        }
    }

    #[test]
    fn what_was_sent_is_not_sent_again_unless_that_is_wanted() {
        let mut slots = Slots::default();
        slots.grow(4);
        assert_eq!(slots.to_send(), [(0, 1), (1, 1), (2, 1), (3, 1)]);
        slots.sent(0..3, 1).unwrap();
        assert_eq!(slots.to_send(), [(3, 1)]);
        assert!(slots.sent(3..5, 1).is_err());
        slots.record(0, light(1, Status::Passed));
        slots.record(1, light(1, Status::Died));
        // One that was never sent is sent anyway, and not once more.
        assert_eq!(slots.again(|status| status.is_none()), 1);
        assert_eq!(slots.to_send(), [(2, 2), (3, 1)]);
        assert_eq!(slots.again(|status| status == Some(Status::Died)), 2);
        assert_eq!(slots.to_send(), [(1, 2), (2, 2), (3, 1)]);
        assert_eq!(slots.awaited(), 1);
        slots.sent(1..3, 2).unwrap();
        assert_eq!(slots.to_send(), [(3, 1)]);
        assert_eq!(slots.awaited(), 2);
        // On its way, it is not one that died; nor does it count as one with a result.
        assert_eq!(slots.again(|status| status == Some(Status::Died)), 0);
        slots.record(1, light(2, Status::Passed));
        assert_eq!(slots.awaited(), 1);
        assert_eq!(slots.again(|status| status.is_none()), 1);
    }

    #[test]
    fn a_result_shows_that_its_sample_was_sent_though_nobody_noted_it() {
        let mut slots = Slots::default();
        slots.grow(2);
        let known = slots.requests(|index, round| request_id("r", "e", &index.to_string(), round));
        assert_eq!(known[&request_id("r", "e", "1", 1)], (1, 1));
        slots.record(1, light(1, Status::Died));
        assert_eq!(slots.to_send(), [(0, 1)]);
        // The same for the second time.
        let known = slots.requests(|index, round| request_id("r", "e", &index.to_string(), round));
        assert_eq!(known[&request_id("r", "e", "1", 2)], (1, 2));
        slots.again(|status| status == Some(Status::Died));
        slots.record(1, light(2, Status::Passed));
        assert_eq!(slots.to_send(), [(0, 1)]);
    }

    #[test]
    fn each_request_has_an_id_of_its_own_whatever_things_are_called() {
        let ids = [
            request_id("r", "a", "b", 1),
            request_id("r", "a", "b", 2),
            request_id("r", "a\",\"b", "", 1),
            request_id("r", "", "a b", 1),
            request_id("s", "a", "b", 1),
        ];
        for (place, id) in ids.iter().enumerate() {
            assert!(!ids[..place].contains(id));
        }
        assert_eq!(ids[0], request_id("r", "a", "b", 1));
    }

    #[test]
    fn numbers_in_a_row_are_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
        assert!(ranges(&[]).is_empty());
    }
}
