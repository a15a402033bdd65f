//! State of each sample of each experiment, and the rule which of its results counts. Pure.

use std::collections::HashMap;
use std::ops::{Deref, Range};

use pillarbox_core::MessageId;
use pillarbox_runtime::loops::Uuid;

use crate::result::{EvalResult, Status, check_round};

/// Index of a sample of an experiment: experiments one after the other, each with all samples.
pub(crate) type Index = usize;

/// State of a sample in an experiment.
#[derive(Debug, Clone, Default)]
pub(crate) struct SampleState {
    /// Number of times it was sent.
    pub(crate) sent: u32,
    /// Whether the next submission sends it again.
    pub(crate) resubmit: bool,
    /// The result that counts.
    pub(crate) result: Option<ResultSummary>,
}

impl SampleState {
    /// Returns whether the result of its last submission is still missing.
    pub(crate) fn is_awaited(&self) -> bool {
        self.sent > 0 && self.result.is_none_or(|result| result.round < self.sent)
    }
}

/// A result without its contents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResultSummary {
    pub(crate) round: u32,
    pub(crate) status: Status,
    pub(crate) score: Option<f64>,
    pub(crate) latency_ms: Option<f64>,
    /// Position of the whole result in its log.
    pub(crate) position: u64,
}

impl ResultSummary {
    pub(crate) fn of(result: &EvalResult, position: u64) -> Self {
        let scored = result.outcome.as_ref().ok();
        Self {
            round: result.round,
            status: result.status(),
            score: scored.map(|scored| scored.score.value),
            latency_ms: scored.and_then(|scored| scored.latency_ms),
            position,
        }
    }

    /// Returns whether a result of this round could replace it, whatever its contents.
    pub(crate) fn may_be_replaced_in(&self, round: u32) -> bool {
        round > self.round || self.status == Status::DeadLettered
    }

    /// Returns whether this result replaces another one of the same sample.
    ///
    /// The result of the later round counts. Of the same round the first one does, since a worker that died
    /// before its acknowledgement produces a second one; except that a score replaces a dead letter, which was
    /// replayed.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        let is_replayed = other.status == Status::DeadLettered && self.status.is_scored();
        self.round > other.round || self.round == other.round && is_replayed
    }
}

/// States of all samples of all experiments.
#[derive(Debug, Default)]
pub(crate) struct SampleStates {
    states: Vec<SampleState>,
}

impl Deref for SampleStates {
    type Target = [SampleState];

    fn deref(&self) -> &[SampleState] {
        &self.states
    }
}

impl SampleStates {
    /// Grows to a total number of samples.
    pub(crate) fn grow(&mut self, total: usize) {
        self.states.resize(total.max(self.states.len()), SampleState::default());
    }

    /// Returns the number of samples that were sent and whose result is still missing.
    pub(crate) fn awaited(&self) -> usize {
        self.states.iter().filter(|state| state.is_awaited()).count()
    }

    /// Returns whether a result of this round could count, whatever its contents.
    pub(crate) fn may_count(&self, index: Index, round: u32) -> bool {
        self.states[index].result.is_none_or(|other| other.may_be_replaced_in(round))
    }

    /// Records a result, and returns whether it counts.
    pub(crate) fn record(&mut self, index: Index, result: ResultSummary) -> bool {
        let state = &mut self.states[index];
        if state.result.is_some_and(|other| !result.replaces(&other)) {
            return false;
        }
        state.result = Some(result);
        // It was sent, even if the process died before recording that.
        if result.round > state.sent {
            (state.sent, state.resubmit) = (result.round, false);
        }
        true
    }

    /// Records that samples were sent in a round.
    pub(crate) fn sent(&mut self, range: Range<Index>, round: u32) -> Result<(), String> {
        check_round(round)?;
        let states = self.states.get_mut(range.clone());
        let states = states.ok_or_else(|| format!("samples {range:?} do not exist"))?;
        for state in states {
            state.sent = state.sent.max(round);
            state.resubmit = false;
        }
        Ok(())
    }

    /// Returns the samples to send, each with its round.
    pub(crate) fn to_send(&self) -> Vec<(Index, u32)> {
        let states = self.states.iter().enumerate();
        let wanted = states.filter(|(_, state)| state.sent == 0 || state.resubmit);
        wanted.map(|(index, state)| (index, state.sent + 1)).collect()
    }

    /// Marks the samples whose status matches to be sent again, and returns the number of marked samples. The
    /// status of a sample whose result is still missing is `None`.
    pub(crate) fn resubmit(&mut self, matches: impl Fn(Option<Status>) -> bool) -> usize {
        let mut marked = 0;
        for state in self.states.iter_mut().filter(|state| state.sent > 0) {
            let status = state.result.filter(|_| !state.is_awaited()).map(|result| result.status);
            state.resubmit |= matches(status);
            marked += usize::from(state.resubmit);
        }
        marked
    }

    /// Returns all requests that may have been sent, by id.
    pub(crate) fn requests(&self, id: impl Fn(Index, u32) -> Uuid) -> HashMap<Uuid, (Index, u32)> {
        let mut requests = HashMap::with_capacity(self.states.len());
        for (index, state) in self.states.iter().enumerate() {
            // The next round may have been sent too, by a process that was killed before recording it.
            for round in 1..=state.sent + 1 {
                requests.insert(id(index, round), (index, round));
            }
        }
        requests
    }
}

/// Returns the id of a request. It is deterministic, so that a request that was sent just before its process was
/// killed can be sent again.
pub(crate) fn request_id(run_id: &str, experiment: &str, sample_id: &str, round: u32) -> Uuid {
    let key = serde_json::json!(["eval", run_id, experiment, sample_id, round]);
    *MessageId::from_key(&key.to_string()).as_uuid()
}

/// Joins consecutive indices into ranges.
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

    fn summary(round: u32, status: Status) -> ResultSummary {
        ResultSummary { round, status, score: None, latency_ms: None, position: 0 }
    }

    fn states(total: usize) -> SampleStates {
        SampleStates { states: vec![SampleState::default(); total] }
    }

    #[test]
    fn the_first_result_of_a_round_counts_and_that_of_a_later_round_replaces_it() {
        use Status::{DeadLettered, Failed, NotPassed, Passed};
        for (first, second, counts) in [
            (summary(1, Passed), summary(1, NotPassed), false),
            (summary(1, Passed), summary(1, Passed), false),
            (summary(1, Failed), summary(1, Passed), false),
            (summary(1, DeadLettered), summary(1, Passed), true),
            (summary(1, DeadLettered), summary(1, NotPassed), true),
            (summary(1, DeadLettered), summary(1, DeadLettered), false),
            (summary(1, Passed), summary(1, DeadLettered), false),
            (summary(1, Failed), summary(2, Failed), true),
            (summary(2, Failed), summary(1, Passed), false),
        ] {
            let mut states = states(1);
            assert!(states.record(0, first));
            assert_eq!(states.record(0, second), counts, "{first:?} {second:?}");
        }
    }

    #[test]
    fn a_sent_sample_is_sent_again_only_if_it_is_marked() {
        let mut states = states(4);
        assert_eq!(states.to_send(), [(0, 1), (1, 1), (2, 1), (3, 1)]);
        states.sent(0..3, 1).unwrap();
        assert_eq!(states.to_send(), [(3, 1)]);
        assert!(states.sent(3..5, 1).is_err());
        states.record(0, summary(1, Status::Passed));
        states.record(1, summary(1, Status::DeadLettered));
        // A sample that was never sent is sent anyway, and is not marked.
        assert_eq!(states.resubmit(|status| status.is_none()), 1);
        assert_eq!(states.to_send(), [(2, 2), (3, 1)]);
        assert_eq!(states.resubmit(|status| status == Some(Status::DeadLettered)), 2);
        assert_eq!(states.to_send(), [(1, 2), (2, 2), (3, 1)]);
        assert_eq!(states.awaited(), 1);
        states.sent(1..3, 2).unwrap();
        assert_eq!(states.to_send(), [(3, 1)]);
        assert_eq!(states.awaited(), 2);
        // A sample whose new result is still missing is not counted as dead-lettered.
        assert_eq!(states.resubmit(|status| status == Some(Status::DeadLettered)), 0);
        states.record(1, summary(2, Status::Passed));
        assert_eq!(states.awaited(), 1);
        assert_eq!(states.resubmit(|status| status.is_none()), 1);
    }

    #[test]
    fn a_result_proves_that_its_sample_was_sent_even_if_that_was_not_recorded() {
        let mut states = states(2);
        let known = states.requests(|index, round| request_id("r", "e", &index.to_string(), round));
        assert_eq!(known[&request_id("r", "e", "1", 1)], (1, 1));
        states.record(1, summary(1, Status::DeadLettered));
        assert_eq!(states.to_send(), [(0, 1)]);
        // The same for the second round.
        let known = states.requests(|index, round| request_id("r", "e", &index.to_string(), round));
        assert_eq!(known[&request_id("r", "e", "1", 2)], (1, 2));
        states.resubmit(|status| status == Some(Status::DeadLettered));
        states.record(1, summary(2, Status::Passed));
        assert_eq!(states.to_send(), [(0, 1)]);
    }

    #[test]
    fn request_ids_are_unique_whatever_the_names() {
        let ids = [
            request_id("r", "a", "b", 1),
            request_id("r", "a", "b", 2),
            request_id("r", "a\",\"b", "", 1),
            request_id("r", "", "a b", 1),
            request_id("s", "a", "b", 1),
        ];
        for (position, id) in ids.iter().enumerate() {
            assert!(!ids[..position].contains(id));
        }
        assert_eq!(ids[0], request_id("r", "a", "b", 1));
    }

    #[test]
    fn consecutive_indices_are_joined_into_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
        assert!(ranges(&[]).is_empty());
    }
}
