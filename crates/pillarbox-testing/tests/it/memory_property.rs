//! The memory backend agrees with the ledger over random commands.
//!
//! It is built on the ledger, so this shows that the layers around it lose nothing, and that the property test
//! finds defects, on queues that are broken on purpose.

use pillarbox_core::{Mailboxes, MemoryBackend};
use pillarbox_testing::{Subject, property};

use crate::broken::Breakage;

async fn memory() -> Subject {
    Subject::with_paused_time(Mailboxes::new(MemoryBackend::new()))
}

#[test]
fn the_memory_backend_agrees_with_the_ledger() {
    property::check(500, 60, memory);
}

#[test]
fn a_backend_with_a_clock_of_its_own_can_be_compared() {
    // Real time, few cases, like the test of a server.
    property::check(6, 12, || async { Subject::new(Mailboxes::new(MemoryBackend::new())) });
}

/// The property test fails on the broken queue, with a history of few lines.
#[track_caller]
fn finds(breakage: Breakage) -> String {
    let outcome = std::panic::catch_unwind(|| {
        property::check(500, 60, || async {
            Subject::with_paused_time(crate::broken::backend(breakage))
        });
    });
    let panic = outcome.expect_err("the property test finds the breakage");
    let text = panic.downcast_ref::<String>().expect("a text").clone();
    let steps = text.lines().filter(|line| line.contains(". ")).count();
    assert!(steps <= 6, "not shrunk to a short history:\n{text}");
    text
}

#[test]
fn it_finds_a_queue_that_accepts_stale_receipts() {
    let text = finds(Breakage::AcceptsStale);
    assert!(text.contains("the backend and the ledger disagree"), "{text}");
    assert!(text.contains("  3. r1 "), "{text}");
}

#[test]
fn it_finds_a_queue_that_forgets_ids() {
    finds(Breakage::ForgetsIds);
}

#[test]
fn it_finds_a_queue_that_loses_nacked_messages() {
    finds(Breakage::LosesNacked);
}

#[test]
fn it_finds_a_queue_that_reverses_a_batch() {
    finds(Breakage::Reverses);
}

#[test]
fn it_finds_a_queue_that_resets_delivery_counts() {
    finds(Breakage::ResetsCount);
}

#[test]
fn it_finds_a_queue_that_takes_nacks_for_unsettled_deliveries() {
    let text = finds(Breakage::TakesNacksForUnsettled);
    assert!(text.contains("(1 unsettled") && text.contains("(0 unsettled"), "{text}");
}

#[test]
fn it_finds_a_queue_that_reports_duplicates_as_stored() {
    finds(Breakage::CallsAllNew);
}

#[test]
fn it_finds_a_queue_that_counts_releases() {
    let text = finds(Breakage::CountsReleases);
    assert!(text.contains("1 uncounted") && text.contains("0 uncounted"), "{text}");
}

#[test]
fn it_finds_a_queue_that_forgets_starts() {
    let text = finds(Breakage::ForgetsStarts);
    assert!(text.contains("(1 unsettled") && text.contains("(0 unsettled"), "{text}");
}

#[test]
fn it_finds_a_queue_that_does_not_extend() {
    finds(Breakage::DoesNotExtend);
}

#[test]
fn it_finds_a_queue_that_forgets_attributes() {
    let text = finds(Breakage::ForgetsAttributes);
    assert!(text.contains("but not as it was sent"), "{text}");
}

#[test]
fn it_finds_a_queue_that_forgets_what_was_sent() {
    finds(Breakage::ForgetsSent);
}
