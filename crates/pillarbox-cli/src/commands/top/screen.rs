//! Drawing.

use std::collections::VecDeque;

use pillarbox::{Peeked, Timestamp};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table, TableState, Wrap};

use super::model::{Dialog, Model, Page, Rates, Row, Sort, Status};
use crate::commands::peek;
use crate::output::{text, time};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const HELP: &str = "\
↑ ↓  j k     choose            Enter  look into the queue
g G          first, last       Esc    back, or quit
s            sort by           p      purge the queue
r            count now         q      quit

in/s and out/s are messages sent and removed per second.
in flight: delivered, and its lease runs. delayed: not yet visible.
oldest: the age of the message that is next. depth: all messages, over time.";

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().fg(Color::DarkGray);

pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let [top, main, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(header(model), top);
    match &model.page {
        Page::Queues => queues(frame, main, model),
        Page::Messages { queue, messages, selected } => match messages.as_deref() {
            Some(list) => inspect(frame, main, queue.as_str(), list, *selected),
            None => frame.render_widget(Paragraph::new("looking …"), main),
        },
    }
    frame.render_widget(footer(model), bottom);
    if let Some(dialog) = &model.dialog {
        ask(frame, dialog);
    }
}

fn header(model: &Model) -> Line<'static> {
    let messages: u64 = model.rows.iter().map(|row| row.counts.total()).sum();
    let queues = text::count(model.rows.len() as u64, "queue");
    let messages = text::count(messages, "message");
    let every = time::show(model.every());
    Line::styled(format!("{}   {queues}, {messages}   every {every}", model.url), BOLD)
}

fn footer(model: &Model) -> Line<'static> {
    match (&model.status, &model.page) {
        (Some(Status::Failed(text)), _) => {
            Line::styled(text::printable(text), Style::new().fg(Color::Red))
        }
        (Some(Status::Done(text)), _) => Line::styled(text.clone(), Style::new().fg(Color::Green)),
        (None, Page::Queues) => {
            Line::styled("Enter look into   p purge   s sort   ? help   q quit", FAINT)
        }
        (None, Page::Messages { .. }) => {
            Line::styled("↑ ↓ choose   Esc back   p purge   ? help   q quit", FAINT)
        }
    }
}

fn queues(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    if model.rows.is_empty() {
        frame.render_widget(Paragraph::new("no queues yet"), area);
        return;
    }
    let mark = |heading: &str, sort: Sort| {
        if model.sort == sort { format!("{heading} ▾") } else { heading.to_owned() }
    };
    let flow = if model.counts_sends() { ["IN/S", "OUT/S"] } else { ["", "CHANGE"] };
    let headings = [
        mark("QUEUE", Sort::Name),
        right(&mark("READY", Sort::Ready), 9),
        right("IN FLIGHT", 9),
        right("DELAYED", 9),
        right(&mark("OLDEST", Sort::Oldest), 8),
        right(flow[0], 9),
        right(flow[1], 9),
        "DEPTH".to_owned(),
    ];
    let longest = model.rows.iter().map(|row| row.name.as_str().len()).max().unwrap_or(0);
    let widths = [
        Constraint::Length(longest.clamp(7, 40) as u16),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Min(8),
    ];
    let table = Table::new(model.rows.iter().map(queue_row), widths)
        .header(TableRow::new(headings).style(BOLD))
        .column_spacing(2)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(Some(model.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn queue_row(row: &Row) -> TableRow<'static> {
    let counts = &row.counts;
    let age = counts.oldest_age.map_or_else(|| "-".to_owned(), time::show);
    let [came, went] = match row.rates {
        None => ["-".to_owned(), "-".to_owned()],
        Some(Rates::Flow { sent, removed }) => [text::rate(sent), text::rate(removed)],
        Some(Rates::Change(rate)) => {
            let sign = if rate < 0.0 { "-" } else { "+" };
            [String::new(), format!("{sign}{}", text::rate(rate.abs()))]
        }
    };
    TableRow::new([
        Cell::from(row.name.to_string()),
        Cell::from(right(&counts.ready.to_string(), 9)),
        Cell::from(right(&counts.in_flight.to_string(), 9)),
        Cell::from(right(&counts.delayed.to_string(), 9)),
        Cell::from(right(&age, 8)),
        Cell::from(right(&came, 9)).style(Style::new().fg(Color::Cyan)),
        Cell::from(right(&went, 9)).style(Style::new().fg(Color::Green)),
        Cell::from(sparkline(&row.history)).style(Style::new().fg(Color::Yellow)),
    ])
}

fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}

/// The depth over time, from nothing to the most there was.
pub(crate) fn sparkline(history: &VecDeque<u64>) -> String {
    let most = history.iter().copied().max().unwrap_or(0).max(1);
    let bar = |depth: &u64| BARS[(*depth as f64 / most as f64 * 7.0).round() as usize];
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
    let rows = messages.iter().map(|peeked| {
        let [state, id, deliveries, sent, size, body] = peek::cells(peeked, now);
        // The end of an id tells it from others; the whole is shown below.
        let id = format!("…{}", &id[24..]);
        TableRow::new([state, id, right(&deliveries, 10), sent, right(&size, 9), body])
    });
    let widths = [
        Constraint::Length(22),
        Constraint::Length(13),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Fill(1),
    ];
    let headings = ["STATE", "ID", "DELIVERIES", "SENT", "     SIZE", "BODY"];
    let table = Table::new(rows, widths)
        .header(TableRow::new(headings).style(BOLD))
        .column_spacing(2)
        .block(block)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
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
            lines.extend(body.lines().take(200).map(|line| Line::from(text::printable(line))));
        }
        Err(_) => lines.push(Line::from(text::preview(&message.body))),
    }
    lines
}

fn ask(frame: &mut Frame<'_>, dialog: &Dialog) {
    let (title, text) = match dialog {
        Dialog::Help => (" help ", HELP.to_owned()),
        Dialog::Purge { queue, messages } => {
            let messages = text::count(*messages, "message");
            (" purge ", format!("Delete {messages} of '{queue}'?\n\ny: yes   any other key: no"))
        }
    };
    let width = text.lines().map(|line| line.chars().count()).max().unwrap_or(0) as u16 + 4;
    let height = text.lines().count() as u16 + 2;
    let area = frame.area();
    let (width, height) = (width.min(area.width), height.min(area.height));
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(title)), place);
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
            model.counted(start + Duration::from_secs(tick), counted.into());
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
    fn a_terminal_of_any_size_will_do() {
        let mut model = model();
        for key in [KeyCode::Null, KeyCode::Char('?'), KeyCode::Esc, KeyCode::Enter] {
            model.key(key);
            for (width, height) in [(1, 1), (3, 2), (20, 5), (300, 100)] {
                shown(&model, width, height);
            }
        }
    }

    #[test]
    fn a_sparkline_goes_from_nothing_to_the_most() {
        assert_eq!(sparkline(&[0, 1, 2, 4].into()), "▁▃▅█");
        assert_eq!(sparkline(&[0, 0].into()), "▁▁");
        assert_eq!(sparkline(&VecDeque::new()), "");
    }
}
