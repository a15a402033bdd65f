//! Aligned tables.

use unicode_width::UnicodeWidthStr;

use super::Style;
use super::text::{printable, shorten};

/// Table whose columns are as wide as their widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Column {
    heading: &'static str,
    right: bool,
}

/// Spaces between two columns.
const GAP: usize = 2;

impl Table {
    /// Creates a table. A heading that starts with `>` makes its column right-aligned.
    pub(crate) fn new(headings: &[&'static str]) -> Self {
        let columns = headings.iter().map(|heading| match heading.strip_prefix('>') {
            Some(heading) => Column { heading, right: true },
            None => Column { heading, right: false },
        });
        Self { columns: columns.collect(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.map(|cell| printable(&cell).into_owned()).into());
    }

    /// Renders the table. If it is wider than `width`, the last column is cut.
    pub(crate) fn render(&self, width: Option<usize>, style: Style) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].width());
                cells.chain([self.columns[column].heading.width()]).max().unwrap_or(0)
            })
            .collect();
        let headings: Vec<_> =
            self.columns.iter().map(|column| column.heading.to_owned()).collect();
        let mut text = style.heading(self.line(&headings, &widths, width)).to_string();
        text.push('\n');
        for row in &self.rows {
            text.push_str(&self.line(row, &widths, width));
            text.push('\n');
        }
        text
    }

    fn line(&self, cells: &[String], widths: &[usize], width: Option<usize>) -> String {
        let mut line = String::new();
        let last = cells.len() - 1;
        for (index, cell) in cells.iter().enumerate() {
            let padding = widths[index].saturating_sub(cell.width());
            if self.columns[index].right {
                line.extend(std::iter::repeat_n(' ', padding));
                line.push_str(cell);
            } else if index == last {
                let room = width.map(|width| width.saturating_sub(line.width()).max(10));
                line.push_str(&shorten(cell, room));
            } else {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', padding));
            }
            if index < last {
                line.extend([' '; GAP]);
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_the_last_is_cut() {
        let mut table = Table::new(&["QUEUE", ">READY", "BODY"]);
        table.row(["orders".to_owned(), "7".to_owned(), "short".to_owned()]);
        table.row(["日本".to_owned(), "1234567".to_owned(), "much too long for it".to_owned()]);
        let text = table.render(Some(30), Style::plain());
        assert_eq!(
            text,
            "QUEUE     READY  BODY\n\
             orders        7  short\n\
             日本    1234567  much too lon…\n"
        );
        assert!(table.render(None, Style::plain()).contains("much too long for it\n"));
    }
}
