//! Drawing of `top`.

use std::collections::VecDeque;

use pillarbox::{Peeked, Timestamp};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table, TableState, Wrap};
use unicode_width::UnicodeWidthStr;

use super::model::{Dialog, Model, Page, Rates, Row, Sort, Status};
use crate::commands::peek;
use crate::output::{text, time};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const HELP: &str = "\
↑ ↓  j k     select            Enter  show messages
g G          first, last       Esc    back, or quit
s            sort by           p      purge the queue
r            count now         q      quit

in/s and out/s are messages sent and removed per second.
in flight: delivered, with a lease. delayed: not ready yet.
oldest: age of the next message. depth: all messages, over time.";

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().fg(Color::DarkGray);

/// Spaces between two columns.
const GAP: u16 = 2;

/// Column of a table, shown completely or not at all.
struct ScreenColumn {
    heading: String,
    /// Minimum width.
    width: u16,
    is_right: bool,
    /// Lower is more important.
    rank: u8,
    color: Option<Color>,
}

impl ScreenColumn {
    fn new(heading: impl Into<String>, width: u16, rank: u8) -> Self {
        Self { heading: heading.into(), width, is_right: false, rank, color: None }
    }

    fn right(self) -> Self {
        Self { is_right: true, ..self }
    }

    fn color(self, color: Color) -> Self {
        Self { color: Some(color), ..self }
    }

    /// Makes the column as wide as its widest cell.
    fn widen(&mut self, rows: &[Vec<String>], index: usize) {
        let widest = rows.iter().map(|row| row[index].width()).max().unwrap_or(0);
        self.width = self.width.max(u16::try_from(widest).unwrap_or(u16::MAX));
    }

    fn cell(&self, text: &str) -> Cell<'static> {
        let width = usize::from(self.width);
        let text = if self.is_right { format!("{text:>width$}") } else { text.to_owned() };
        match self.color {
            Some(color) => Cell::from(text).style(Style::new().fg(color)),
            None => Cell::from(text),
        }
    }
}

/// Returns the columns that fit into a width, in order: the most important ones, and at least one.
fn fitting(columns: &[ScreenColumn], width: u16) -> Vec<usize> {
    let mut by_rank: Vec<usize> = (0..columns.len()).collect();
    by_rank.sort_by_key(|index| columns[*index].rank);
    let (mut fitting, mut used) = (Vec::new(), 0_u16);
    for index in by_rank {
        let gap = if fitting.is_empty() { 0 } else { GAP };
        used = used.saturating_add(gap).saturating_add(columns[index].width);
        if used > width && !fitting.is_empty() {
            break;
        }
        fitting.push(index);
    }
    fitting.sort_unstable();
    fitting
}

/// Returns a table of the columns that fit. The last one gets the remaining width.
fn table(columns: &[ScreenColumn], rows: &[Vec<String>], width: u16) -> Table<'static> {
    let shown = fitting(columns, width);
    let last = columns.len() - 1;
    let widths = shown.iter().map(|index| match *index == last {
        true => Constraint::Min(columns[*index].width),
        false => Constraint::Length(columns[*index].width),
    });
    let cells = |cells: &[String]| -> Vec<Cell<'static>> {
        shown.iter().map(|index| columns[*index].cell(&cells[*index])).collect()
    };
    let headings: Vec<_> = columns.iter().map(|column| column.heading.clone()).collect();
    let heading: Vec<_> = cells(&headings).into_iter().map(|cell| cell.style(BOLD)).collect();
    Table::new(rows.iter().map(|row| TableRow::new(cells(row))), widths)
        .header(TableRow::new(heading).style(BOLD))
        .column_spacing(GAP)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let [top, main, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(header(model, top.width), top);
    match &model.page {
        Page::Queues => queues(frame, main, model),
        Page::Messages { queue, messages, selected } => match messages.as_deref() {
            Some(list) => inspect(frame, main, queue.as_str(), list, *selected),
            None => frame.render_widget(Paragraph::new("loading …"), main),
        },
    }
    frame.render_widget(footer(model, bottom.width), bottom);
    if let Some(dialog) = &model.dialog {
        draw_dialog(frame, dialog);
    }
}

/// Returns the header: URL, totals and interval. The URL is cut in a narrow terminal.
fn header(model: &Model, width: u16) -> Line<'static> {
    let messages: u64 = model.rows.iter().map(|row| row.counts.total()).sum();
    let queues = text::count(model.rows.len() as u64, "queue");
    let messages = text::count(messages, "message");
    let every = time::show(model.every);
    let numbers = format!("   {queues}, {messages}   every {every}");
    let width = usize::from(width).saturating_sub(numbers.width()).max(8);
    Line::styled(format!("{}{numbers}", text::shorten(&model.url, Some(width))), BOLD)
}

fn footer(model: &Model, width: u16) -> Line<'static> {
    let keys = match (&model.status, &model.page) {
        (Some(Status::Failed(text)), _) => {
            let text = text::printable(text).into_owned();
            return Line::styled(text, Style::new().fg(Color::Red));
        }
        (Some(Status::Done(text)), _) => {
            return Line::styled(text.clone(), Style::new().fg(Color::Green));
        }
        (None, Page::Queues) => "Enter messages   p purge   s sort   ? help   q quit",
        (None, Page::Messages { .. }) => "↑ ↓ select   Esc back   p purge   ? help   q quit",
    };
    let keys = if keys.width() > width.into() { "? help   q quit" } else { keys };
    Line::styled(keys, FAINT)
}

fn queues(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    if model.rows.is_empty() {
        frame.render_widget(Paragraph::new("no queues yet"), area);
        return;
    }
    let mark = |heading: &str, sort: Sort| {
        if model.sort == sort { format!("{heading} ▾") } else { heading.to_owned() }
    };
    let mut rows: Vec<_> = model.rows.iter().map(queue_row).collect();
    let is_flow = model.counts_sends();
    let mut columns = vec![
        ScreenColumn::new(mark("QUEUE", Sort::Name), 7, 0),
        ScreenColumn::new(mark("READY", Sort::Ready), 7, 1).right(),
        ScreenColumn::new("IN FLIGHT", 9, 2).right(),
        ScreenColumn::new("DELAYED", 7, 3).right(),
        ScreenColumn::new(mark("OLDEST", Sort::Oldest), 8, 4).right(),
        ScreenColumn::new(if is_flow { "IN/S" } else { "CHANGE" }, 8, 5).right().color(Color::Cyan),
        ScreenColumn::new("OUT/S", 8, 6).right().color(Color::Green),
        ScreenColumn::new("DEPTH", 8, 7).color(Color::Yellow),
    ];
    if !is_flow {
        columns.remove(6);
        rows.iter_mut().for_each(|row| drop(row.remove(6)));
    }
    for index in 0..columns.len() - 1 {
        columns[index].widen(&rows, index);
    }
    columns[0].width = name_width(&columns, area.width);
    let width = usize::from(columns[0].width);
    for row in &mut rows {
        row[0] = text::shorten(&row[0], Some(width)).into_owned();
    }
    let mut state = TableState::new().with_selected(Some(model.selected));
    frame.render_stateful_widget(table(&columns, &rows, area.width), area, &mut state);
}

/// Returns the width of the names: as wide as needed up to a limit, but leaving space for the counts.
fn name_width(columns: &[ScreenColumn], width: u16) -> u16 {
    const COUNTS: usize = 4;
    const MAX_WIDTH: u16 = 40;
    const MIN_WIDTH: u16 = 10;
    let counts: u16 = columns[1..COUNTS].iter().map(|column| column.width + GAP).sum();
    let max = width.saturating_sub(counts).clamp(MIN_WIDTH, MAX_WIDTH);
    columns[0].width.min(max)
}

/// Returns a queue as a row: name, counts, age, rates and depth over time.
fn queue_row(row: &Row) -> Vec<String> {
    let counts = &row.counts;
    let age = counts.oldest_age.map_or_else(|| "-".to_owned(), time::show);
    let [rate_in, rate_out] = match row.rates {
        None => ["-".to_owned(), "-".to_owned()],
        Some(Rates::Flow { sent, removed }) => [text::rate(sent), text::rate(removed)],
        Some(Rates::Change(rate)) => {
            let sign = if rate < 0.0 { "-" } else { "+" };
            [format!("{sign}{}", text::rate(rate.abs())), String::new()]
        }
    };
    vec![
        row.name.to_string(),
        counts.ready.to_string(),
        counts.in_flight.to_string(),
        counts.delayed.to_string(),
        age,
        rate_in,
        rate_out,
        sparkline(&row.history),
    ]
}

/// Returns the depth over time, scaled from zero to its maximum.
pub(crate) fn sparkline(history: &VecDeque<u64>) -> String {
    let max = history.iter().copied().max().unwrap_or(0).max(1);
    let bar = |depth: &u64| BARS[(*depth as f64 / max as f64 * 7.0).round() as usize];
    history.iter().map(bar).collect()
}

fn inspect(frame: &mut Frame<'_>, area: Rect, queue: &str, messages: &[Peeked], selected: usize) {
    let [list, detail] =
        Layout::vertical([Constraint::Percentage(55), Constraint::Fill(1)]).areas(area);
    let block = Block::bordered().title(format!(" {queue} "));
    if messages.is_empty() {
        frame.render_widget(Paragraph::new("no messages").block(block), area);
        return;
    }
    let now = Timestamp::now();
    let rows: Vec<Vec<_>> = messages
        .iter()
        .map(|peeked| {
            let [state, id, deliveries, sent, size, body] = peek::cells(peeked, now);
            // The end of an id distinguishes it; the whole id is shown below.
            let id = format!("…{}", &id[24..]);
            vec![state, id, deliveries, sent, size, body]
        })
        .collect();
    let mut columns = [
        ScreenColumn::new("STATE", 5, 0),
        ScreenColumn::new("ID", 13, 5),
        ScreenColumn::new("DELIVERIES", 10, 4).right(),
        ScreenColumn::new("SENT", 8, 2),
        ScreenColumn::new("SIZE", 7, 3).right(),
        ScreenColumn::new("BODY", 12, 1),
    ];
    for index in 0..columns.len() - 1 {
        columns[index].widen(&rows, index);
    }
    let table = table(&columns, &rows, list.width.saturating_sub(2)).block(block);
    let mut state = TableState::new().with_selected(Some(selected));
    frame.render_stateful_widget(table, list, &mut state);
    if let Some(peeked) = messages.get(selected) {
        let block = Block::bordered().title(" message ");
        let text = Paragraph::new(describe(peeked)).wrap(Wrap { trim: false }).block(block);
        frame.render_widget(text, detail);
    }
}

fn describe(peeked: &Peeked) -> Vec<Line<'static>> {
    let message = &peeked.message;
    let mut lines = vec![
        Line::from(format!("id        {}", message.id)),
        Line::from(format!("sent      {}", message.enqueued_at)),
    ];
    if let Some(reply_to) = &message.reply_to {
        lines.push(Line::from(format!("reply to  {}", text::printable(reply_to))));
    }
    for (name, value) in message.attributes.iter() {
        lines
            .push(Line::from(format!("attr      {}", text::printable(&format!("{name}={value}")))));
    }
    lines.push(Line::default());
    match std::str::from_utf8(&message.body) {
        Ok(body) => {
            // Limited, since it is drawn repeatedly.
            let body = text::beginning(body);
            let shown = body.lines().take(200);
            lines.extend(shown.map(|line| Line::from(text::printable(line).into_owned())));
        }
        Err(_) => lines.push(Line::from(text::preview(&message.body))),
    }
    lines
}

fn draw_dialog(frame: &mut Frame<'_>, dialog: &Dialog) {
    let (title, text) = match dialog {
        Dialog::Help => (" help ", HELP.to_owned()),
        Dialog::Purge { queue, messages } => {
            let messages = text::count(*messages, "message");
            (" purge ", format!("Delete {messages} of '{queue}'?\n\ny: yes   any other key: no"))
        }
    };
    let area = frame.area();
    let width = text.lines().map(|line| line.chars().count()).max().unwrap_or(0) as u16 + 4;
    let width = width.min(area.width);
    let inside = usize::from(width).saturating_sub(2).max(1);
    let height: usize = text.lines().map(|line| line.width().div_ceil(inside).max(1)).sum();
    // Wrapping between words may need additional lines.
    let height = if usize::from(width) < area.width.into() { height + 2 } else { height + 5 };
    let height = u16::try_from(height).unwrap_or(u16::MAX).min(area.height);
    let area = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, area);
    let text = Paragraph::new(text).wrap(Wrap { trim: false });
    frame.render_widget(text.block(Block::bordered().title(title)), area);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use pillarbox::Counts;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::*;

    fn shown(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        terminal.backend().to_string()
    }

    fn model() -> Model {
        let mut model = Model::new("memory:".to_owned(), Duration::from_secs(1));
        let start = Instant::now();
        for tick in 0..6 {
            let orders = Counts::new(tick * 7, 2, 1).with_sent(Some(tick * 100));
            let orders = orders.with_oldest_age(Some(Duration::from_secs(75)));
            let mail = Counts::new(0, 0, 0).with_sent(Some(0));
            let counted = [("orders", orders), ("mail", mail)]
                .map(|(name, counts)| (name.parse().unwrap(), counts));
            model.counted(start + Duration::from_secs(tick), counted.into(), &[]);
        }
        model
    }

    #[test]
    fn queues_are_shown_with_rates_ages_and_sparklines() {
        insta::assert_snapshot!(shown(&model(), 100, 6));
    }

    #[test]
    fn help_and_questions_are_shown_over_the_page() {
        let mut model = model();
        model.key(KeyCode::Char('?'));
        insta::assert_snapshot!(shown(&model, 90, 14));
        model.key(KeyCode::Esc);
        model.key(KeyCode::Down);
        model.key(KeyCode::Char('p'));
        assert!(shown(&model, 90, 14).contains("Delete 38 messages of 'orders'?"));
    }

    #[test]
    fn a_narrow_terminal_shows_whole_columns_and_prefers_counts() {
        let mut model = model();
        let long = "a-queue-with-a-very-long-name-that-says-it-all";
        let counts = Counts::new(1_234_567_890, 20, 3).with_sent(Some(0));
        model.counted(Instant::now(), vec![(long.parse().unwrap(), counts)], &[]);
        for (width, headings, row) in [
            (100, "QUEUE ▾ READY IN FLIGHT DELAYED OLDEST IN/S", "20 3 - -"),
            (80, "QUEUE ▾ READY IN FLIGHT DELAYED", "20 3"),
            (60, "QUEUE ▾ READY IN FLIGHT DELAYED", "20 3"),
            (45, "QUEUE ▾ READY IN FLIGHT DELAYED", "20 3"),
            (30, "QUEUE ▾ READY", ""),
        ] {
            let screen = shown(&model, width, 6);
            let words = |line: &str| {
                let words: Vec<_> = line.trim_matches('"').split_whitespace().collect();
                words.join(" ")
            };
            assert_eq!(words(screen.lines().nth(1).unwrap()), headings, "{width}: {screen}");
            let shown = words(screen.lines().find(|line| line.contains("a-queue")).unwrap());
            let (name, counts) = shown.split_once("… ").unwrap();
            assert!(long.starts_with(name) && name.len() >= 9, "{width}: {screen}");
            assert_eq!(counts, format!("1234567890 {row}").trim(), "{width}: {screen}");
        }
        model.key(KeyCode::Char('?'));
        let help = shown(&model, 40, 30);
        assert!(help.contains("over time."), "{help}");
    }

    #[test]
    fn a_terminal_can_have_any_size() {
        let mut model = model();
        for key in [KeyCode::Null, KeyCode::Char('?'), KeyCode::Esc, KeyCode::Enter] {
            model.key(key);
            for (width, height) in [(1, 1), (3, 2), (20, 5), (300, 100)] {
                shown(&model, width, height);
            }
        }
    }

    #[test]
    fn a_sparkline_is_scaled_from_zero_to_the_maximum() {
        assert_eq!(sparkline(&[0, 1, 2, 4].into()), "▁▃▅█");
        assert_eq!(sparkline(&[0, 0].into()), "▁▁");
        assert_eq!(sparkline(&VecDeque::new()), "");
    }
}
