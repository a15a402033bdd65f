//! State of `top` and effects of keys: no terminal, no backend, no clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pillarbox::{Counts, Error, Peeked, QueueName};
use ratatui::crossterm::event::KeyCode;

/// Number of counts in the sparkline.
const HISTORY: usize = 40;

/// Action that a key or the timer triggers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TopAction {
    None,
    Quit,
    Count,
    Inspect(QueueName),
    Purge(QueueName),
}

/// Page that is shown.
#[derive(Debug)]
pub(crate) enum Page {
    Queues,
    Messages { queue: QueueName, messages: Option<Vec<Peeked>>, selected: usize },
}

/// Dialog over the page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Dialog {
    Help,
    Purge { queue: QueueName, messages: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Name,
    Ready,
    Oldest,
}

/// A queue over time.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: QueueName,
    pub(crate) counts: Counts,
    /// Numbers of messages over time, the newest last.
    pub(crate) history: VecDeque<u64>,
    pub(crate) rates: Option<Rates>,
    counted_at: Instant,
}

/// Messages per second, since the previous count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rates {
    /// Sent and removed messages.
    Flow { sent: f64, removed: f64 },
    /// The difference of the two, if the backend does not count sends.
    Change(f64),
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) url: String,
    pub(crate) rows: Vec<Row>,
    pub(crate) page: Page,
    pub(crate) dialog: Option<Dialog>,
    pub(crate) sort: Sort,
    pub(crate) selected: usize,
    /// Last action or error.
    pub(crate) status: Option<Status>,
    pub(crate) every: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Done(String),
    Failed(String),
}

impl Model {
    pub(crate) fn new(url: String, every: Duration) -> Self {
        Self {
            url,
            rows: Vec::new(),
            page: Page::Queues,
            dialog: None,
            sort: Sort::Name,
            selected: 0,
            status: None,
            every,
        }
    }

    /// Returns the queue whose messages are shown.
    pub(crate) fn inspected(&self) -> Option<&QueueName> {
        match &self.page {
            Page::Queues => None,
            Page::Messages { queue, .. } => Some(queue),
        }
    }

    /// Returns whether the backend counts sends, so that both rates are known.
    pub(crate) fn counts_sends(&self) -> bool {
        self.rows.iter().all(|row| row.counts.sent.is_some())
    }

    /// Updates the counts. A queue that is gone is shown as empty while its history has messages. A queue that could
    /// not be counted is shown unchanged, and its error is the status.
    pub(crate) fn counted(
        &mut self,
        at: Instant,
        counted: Vec<(QueueName, Counts)>,
        failed: &[(QueueName, Error)],
    ) {
        let selected_row = self.selected_row().map(|row| row.name.clone());
        let mut rows = std::mem::take(&mut self.rows);
        for (name, counts) in counted {
            let row = match rows.iter().position(|row| row.name == name) {
                Some(index) => rows.swap_remove(index).update(at, counts),
                None => Row::new(at, name, counts),
            };
            self.rows.push(row);
        }
        let is_failed = |row: &Row| failed.iter().any(|(name, _)| *name == row.name);
        let (kept, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_failed);
        self.rows.extend(kept);
        // A queue that is gone is empty, and nothing more was sent to it.
        let gone = rows.into_iter().map(|row| {
            let counts = Counts::default().with_sent(row.counts.sent);
            row.update(at, counts)
        });
        self.rows.extend(gone.filter(|row| row.history.iter().any(|depth| *depth > 0)));
        if matches!(self.status, Some(Status::Failed(_))) {
            self.status = None;
        }
        if let Some((_, error)) = failed.first() {
            self.failed(error.to_string());
        }
        self.sort_rows(selected_row.as_ref());
    }

    pub(crate) fn peeked(&mut self, of: &QueueName, peeked: Vec<Peeked>) {
        if let Page::Messages { queue, messages, selected } = &mut self.page
            && queue == of
        {
            *selected = (*selected).min(peeked.len().saturating_sub(1));
            *messages = Some(peeked);
        }
    }

    pub(crate) fn purged(&mut self, queue: &QueueName, number: u64) {
        self.status = Some(Status::Done(format!("{number} messages of '{queue}' deleted")));
    }

    pub(crate) fn failed(&mut self, text: String) {
        self.status = Some(Status::Failed(text));
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyCode) -> TopAction {
        if let Some(dialog) = self.dialog.take() {
            return match (dialog, key) {
                (_, KeyCode::Char('q')) => TopAction::Quit,
                (Dialog::Purge { queue, .. }, KeyCode::Char('y' | 'Y')) => TopAction::Purge(queue),
                _ => TopAction::None,
            };
        }
        match key {
            KeyCode::Char('q') => return TopAction::Quit,
            KeyCode::Esc if self.inspected().is_none() => return TopAction::Quit,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => self.page = Page::Queues,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.dialog = Some(Dialog::Help),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(10),
            KeyCode::PageUp => self.step(-10),
            KeyCode::Home | KeyCode::Char('g') => self.step(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX),
            KeyCode::Char('r') => return TopAction::Count,
            KeyCode::Char('s') => self.sort_next(),
            KeyCode::Enter | KeyCode::Right => return self.inspect(),
            KeyCode::Char('p') => self.ask_to_purge(),
            _ => {}
        }
        TopAction::None
    }

    fn inspect(&mut self) -> TopAction {
        let (Page::Queues, Some(row)) = (&self.page, self.selected_row()) else {
            return TopAction::None;
        };
        let queue = row.name.clone();
        self.page = Page::Messages { queue: queue.clone(), messages: None, selected: 0 };
        TopAction::Inspect(queue)
    }

    fn ask_to_purge(&mut self) {
        let selected_row = match &self.page {
            Page::Queues => self.selected_row(),
            Page::Messages { queue, .. } => self.rows.iter().find(|row| row.name == *queue),
        };
        self.dialog = selected_row
            .map(|row| Dialog::Purge { queue: row.name.clone(), messages: row.counts.total() });
    }

    fn sort_next(&mut self) {
        self.sort = match self.sort {
            Sort::Name => Sort::Ready,
            Sort::Ready => Sort::Oldest,
            Sort::Oldest => Sort::Name,
        };
        let selected_row = self.selected_row().map(|row| row.name.clone());
        self.sort_rows(selected_row.as_ref());
    }

    /// Sorts the rows and keeps the selection.
    fn sort_rows(&mut self, selected_row: Option<&QueueName>) {
        match self.sort {
            Sort::Name => self.rows.sort_by(|a, b| a.name.cmp(&b.name)),
            Sort::Ready => {
                self.rows.sort_by(|a, b| (b.counts.ready, &a.name).cmp(&(a.counts.ready, &b.name)));
            }
            Sort::Oldest => self.rows.sort_by(|a, b| {
                (b.counts.oldest_age, &a.name).cmp(&(a.counts.oldest_age, &b.name))
            }),
        }
        let index =
            selected_row.and_then(|name| self.rows.iter().position(|row| row.name == *name));
        self.selected = index.unwrap_or(self.selected).min(self.rows.len().saturating_sub(1));
    }

    fn selected_row(&self) -> Option<&Row> {
        self.rows.get(self.selected)
    }

    fn step(&mut self, by: isize) {
        let (selected, length) = match &mut self.page {
            Page::Queues => (&mut self.selected, self.rows.len()),
            Page::Messages { messages, selected, .. } => {
                (selected, messages.as_ref().map_or(0, Vec::len))
            }
        };
        *selected = selected.saturating_add_signed(by).min(length.saturating_sub(1));
    }
}

impl Row {
    fn new(at: Instant, name: QueueName, counts: Counts) -> Self {
        let history = [counts.total()].into();
        Self { name, counts, history, rates: None, counted_at: at }
    }

    /// Updates the queue with new counts.
    fn update(mut self, at: Instant, counts: Counts) -> Self {
        let elapsed = at.saturating_duration_since(self.counted_at);
        self.rates = rates(&self.counts, &counts, elapsed);
        self.history.push_back(counts.total());
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        Self { counts, counted_at: at, ..self }
    }
}

fn rates(before: &Counts, now: &Counts, elapsed: Duration) -> Option<Rates> {
    if elapsed.is_zero() {
        return None;
    }
    let per_second = |number: f64| number / elapsed.as_secs_f64();
    let (Some(sent), Some(removed)) = (now.sent, now.removed()) else {
        return Some(Rates::Change(per_second(now.total() as f64 - before.total() as f64)));
    };
    // A queue that was recreated counts from zero.
    let is_recreated = before.sent.is_none_or(|before| before > sent);
    let before = if is_recreated { Counts::default() } else { *before };
    Some(Rates::Flow {
        sent: per_second((sent - before.sent.unwrap_or(0)) as f64),
        removed: per_second(removed.saturating_sub(before.removed().unwrap_or(0)) as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> QueueName {
        text.parse().unwrap()
    }

    fn model(counts: &[(&str, Counts)]) -> (Model, Instant) {
        let mut model = Model::new("memory:".to_owned(), Duration::from_secs(1));
        let start = Instant::now();
        model.counted(start, counts.iter().map(|(n, counts)| (name(n), *counts)).collect(), &[]);
        (model, start)
    }

    #[test]
    fn rates_are_those_of_sent_and_removed_messages() {
        let before = Counts::new(5, 0, 0).with_sent(Some(100));
        let now = Counts::new(6, 0, 0).with_sent(Some(121));
        let two = Duration::from_secs(2);
        assert_eq!(rates(&before, &now, two), Some(Rates::Flow { sent: 10.5, removed: 10.0 }));
        let uncounted = Counts::new(1, 0, 0);
        assert_eq!(rates(&Counts::new(5, 0, 0), &uncounted, two), Some(Rates::Change(-2.0)));
        let recreated = Counts::new(1, 0, 0).with_sent(Some(3));
        assert_eq!(rates(&before, &recreated, two), Some(Rates::Flow { sent: 1.5, removed: 1.0 }));
        assert_eq!(rates(&before, &now, Duration::ZERO), None);
    }

    #[test]
    fn a_queue_that_is_gone_is_shown_as_empty() {
        let held = |number| Counts::new(number, 0, 0).with_sent(Some(5));
        let (mut model, start) = model(&[("a", held(3)), ("b", held(1)), ("c", held(0))]);
        model.counted(start + Duration::from_secs(1), vec![(name("b"), held(1))], &[]);
        assert_eq!(model.rows.len(), 2, "a queue that was always empty is not kept");
        assert_eq!(model.rows[0].counts.total(), 0);
        assert_eq!(model.rows[0].history, [3, 0]);
        assert_eq!(model.rows[0].rates, Some(Rates::Flow { sent: 0.0, removed: 3.0 }));
        assert!(model.counts_sends());
    }

    #[test]
    fn a_queue_that_cannot_be_counted_is_shown_unchanged_with_its_error() {
        let (mut model, start) = model(&[("a", Counts::new(3, 0, 0)), ("b", Counts::new(1, 0, 0))]);
        let error = Error::Closed { queue: Some(name("a")) };
        let counted = vec![(name("b"), Counts::new(2, 0, 0))];
        model.counted(start + Duration::from_secs(1), counted.clone(), &[(name("a"), error)]);
        assert_eq!([0, 1].map(|row| model.rows[row].counts.ready), [3, 2]);
        assert!(matches!(&model.status, Some(Status::Failed(text)) if text.contains("'a'")));
        model.counted(start + Duration::from_secs(2), counted, &[]);
        assert_eq!((model.rows[0].counts.ready, &model.status), (0, &None));
    }

    #[test]
    fn the_selection_follows_its_queue() {
        let (mut model, start) = model(&[("a", Counts::new(1, 0, 0)), ("b", Counts::new(9, 0, 0))]);
        model.key(KeyCode::Down);
        assert_eq!(model.selected_row().unwrap().name, name("b"));
        model.key(KeyCode::Char('s'));
        assert_eq!((model.sort, model.selected), (Sort::Ready, 0));
        let three = vec![(name("a"), Counts::new(99, 0, 0)), (name("b"), Counts::new(9, 0, 0))];
        model.counted(start + Duration::from_secs(1), three, &[]);
        assert_eq!((model.selected, &model.selected_row().unwrap().name), (1, &name("b")));
        model.key(KeyCode::End);
        model.key(KeyCode::Home);
        assert_eq!(model.selected, 0);
    }

    #[test]
    fn a_purge_needs_confirmation() {
        let (mut model, _) = model(&[("a", Counts::new(3, 0, 0))]);
        assert_eq!(model.key(KeyCode::Char('p')), TopAction::None);
        assert_eq!(model.dialog, Some(Dialog::Purge { queue: name("a"), messages: 3 }));
        assert_eq!(model.key(KeyCode::Char('n')), TopAction::None);
        assert_eq!(model.dialog, None);
        model.key(KeyCode::Char('p'));
        assert_eq!(model.key(KeyCode::Char('y')), TopAction::Purge(name("a")));
    }

    #[test]
    fn keys_open_a_queue_and_go_back() {
        let (mut model, _) = model(&[("a", Counts::new(3, 0, 0))]);
        assert_eq!(model.key(KeyCode::Enter), TopAction::Inspect(name("a")));
        assert_eq!(model.inspected(), Some(&name("a")));
        model.peeked(&name("other"), vec![]);
        assert!(matches!(&model.page, Page::Messages { messages: None, .. }));
        model.peeked(&name("a"), vec![]);
        assert_eq!(model.key(KeyCode::Esc), TopAction::None);
        assert_eq!(model.inspected(), None);
        assert_eq!(model.key(KeyCode::Esc), TopAction::Quit);
    }

    #[test]
    fn an_empty_list_does_not_panic() {
        let (mut model, _) = model(&[]);
        for key in [KeyCode::Down, KeyCode::Up, KeyCode::End, KeyCode::Enter, KeyCode::Char('p')] {
            assert_eq!(model.key(key), TopAction::None);
        }
        assert_eq!(model.dialog, None);
    }

    #[test]
    fn the_history_is_bounded() {
        let (mut model, start) = model(&[("a", Counts::new(0, 0, 0))]);
        for tick in 1..100 {
            let at = start + Duration::from_secs(tick);
            model.counted(at, vec![(name("a"), Counts::new(tick, 0, 0))], &[]);
        }
        assert_eq!(model.rows[0].history.len(), HISTORY);
        assert_eq!(model.rows[0].history.back(), Some(&99));
    }
}
