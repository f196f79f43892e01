//! Tables, built once and shown twice: as aligned text on a terminal and as sortable HTML in the report.

use maud::{Markup, Render, html};
use std::fmt::Write;
use std::io::IsTerminal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    /// Numbers.
    Right,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: String,
    /// In brackets behind the name.
    pub unit: &'static str,
    pub align: Align,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    pub text: String,
    /// The key by which the column is sorted; cells without one sort by their text, after the numbers.
    pub sort: Option<f64>,
    pub strong: bool,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }

    pub fn number(value: f64, decimals: usize) -> Cell {
        // There is no -0 in a table.
        let value = value + 0.0;
        Cell { text: format!("{value:.decimals$}"), sort: Some(value), strong: false }
    }

    /// A count; from a thousand million on it is written in powers of ten.
    pub fn count(n: u64) -> Cell {
        let text = match n {
            0..1_000_000_000 => n.to_string(),
            u64::MAX => format!("over {:.1e}", n as f64),
            _ => format!("{:.2e}", n as f64),
        };
        Cell { text, sort: Some(n as f64), strong: false }
    }

    /// `–` where there is no value.
    pub fn maybe(value: Option<f64>, decimals: usize) -> Cell {
        value.map_or_else(Cell::none, |v| Cell::number(v, decimals))
    }

    pub fn none() -> Cell {
        Cell::text("–")
    }

    pub fn sorted_by(mut self, key: f64) -> Cell {
        self.sort = Some(key);
        self
    }

    pub fn strong(mut self, strong: bool) -> Cell {
        self.strong = strong;
        self
    }

    pub fn with_suffix(mut self, suffix: &str) -> Cell {
        self.text.push_str(suffix);
        self
    }
}

/// Rows shorter than the header are filled with empty cells, longer ones are cut.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
    /// A row of totals below all others, whatever the sorting.
    pub total: Option<Vec<Cell>>,
}

impl Table {
    /// Columns as `(name, unit, alignment)`.
    pub fn new(columns: &[(&str, &'static str, Align)]) -> Table {
        let columns = columns.iter().map(|(name, unit, align)| Column { name: name.to_string(), unit, align: *align }).collect();
        Table { columns, rows: Vec::new(), total: None }
    }

    /// The same with columns of words, which stand left.
    pub fn words(mut self, names: &[&str]) -> Table {
        self.columns.iter_mut().filter(|c| names.contains(&c.name.as_str())).for_each(|c| c.align = Align::Left);
        self
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Aligned text, two spaces between columns, a rule under the header. With `colour`, the header is bold.
    pub fn text(&self, colour: bool) -> String {
        let header: Vec<String> = self.columns.iter().map(Column::title).collect();
        let width = |text: &str| text.chars().count();
        let widths: Vec<usize> = header
            .iter()
            .enumerate()
            .map(|(n, title)| {
                self.rows
                    .iter()
                    .chain(&self.total)
                    .filter_map(|r| r.get(n))
                    .map(|c| width(&one_line(&c.text)))
                    .fold(width(title), usize::max)
            })
            .collect();
        let line = |cells: &mut dyn Iterator<Item = (String, bool)>| {
            let mut out = String::new();
            for (n, (column, size)) in self.columns.iter().zip(&widths).enumerate() {
                let (cell, strong) = cells.next().unwrap_or_default();
                let gap = " ".repeat(size.saturating_sub(width(&cell)));
                let cell = if colour && strong { format!("\x1b[1m{cell}\x1b[0m") } else { cell };
                let between = if n > 0 { "  " } else { "" };
                let _ = match column.align {
                    Align::Left => write!(out, "{between}{cell}{gap}"),
                    Align::Right => write!(out, "{between}{gap}{cell}"),
                };
            }
            out.trim_end().to_string() + "\n"
        };
        let mut out = line(&mut header.iter().map(|h| (h.clone(), true)));
        out += &line(&mut widths.iter().map(|w| ("─".repeat(*w), false)));
        for row in &self.rows {
            out += &line(&mut row.iter().map(|c| (one_line(&c.text), c.strong)));
        }
        if let Some(total) = &self.total {
            out += &line(&mut widths.iter().map(|w| ("─".repeat(*w), false)));
            out += &line(&mut total.iter().map(|c| (one_line(&c.text), c.strong)));
        }
        out
    }

    /// `<table>` whose header buttons sort the rows.
    pub fn html(&self) -> Markup {
        html! {
            div.scroll {
                table.sortable {
                    thead {
                        tr {
                            @for column in &self.columns {
                                th class=[column.align.class()] {
                                    button type="button" { (Text(&column.name)) @if !column.unit.is_empty() { small { "[" (column.unit) "]" } } }
                                }
                            }
                        }
                    }
                    tbody { @for row in &self.rows { (self.html_row(row)) } }
                    @if let Some(total) = &self.total { tfoot { (self.html_row(total)) } }
                }
            }
        }
    }

    fn html_row(&self, row: &[Cell]) -> Markup {
        let cells = row.iter().map(Some).chain(std::iter::repeat(None));
        html! {
            tr {
                @for (column, cell) in self.columns.iter().zip(cells) {
                    td class=[column.align.class()] data-sort=[cell.and_then(|cell| cell.sort)] {
                        @if let Some(cell) = cell { @if cell.strong { strong { (Text(&cell.text)) } } @else { (Text(&cell.text)) } }
                    }
                }
            }
        }
    }
}

impl Column {
    fn title(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{} [{}]", self.name, self.unit) }
    }
}

impl Align {
    fn class(self) -> Option<&'static str> {
        (self == Align::Right).then_some("number")
    }
}

/// Whether standard output may be coloured: a terminal, and `NO_COLOR` unset or empty.
pub fn colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && std::io::stdout().is_terminal()
}

/// Text of a recipe in a page. HTML and XML allow no control characters, not even escaped: they are shown as U+FFFD.
pub struct Text<'a>(pub &'a str);

impl Render for Text<'_> {
    fn render_to(&self, page: &mut String) {
        let shown = |c: char| if c.is_control() && !matches!(c, '\n' | '\r' | '\t') { '\u{fffd}' } else { c };
        self.0.chars().map(shown).collect::<String>().render_to(page);
    }
}

/// A control character in a name must not move the cursor or colour the terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&[("name", "", Align::Left), ("time", "ms", Align::Right)]);
        table.row(vec![Cell::text("softmax"), Cell::number(1.5, 2).strong(true)]);
        table.row(vec![Cell::text("β·γ"), Cell::none()]);
        table
    }

    #[test]
    fn zero_has_no_sign() {
        assert_eq!((Cell::number(-0.0, 1).text, crate::unit::significant(-0.0)), ("0.0".into(), "0".into()));
    }

    #[test]
    fn huge_counts_are_powers_of_ten() {
        let texts = [999_999_999, 12_713_808_150, u64::MAX].map(|n| Cell::count(n).text);
        assert_eq!(texts, ["999999999", "1.27e10", "over 1.8e19"]);
    }

    #[test]
    fn numbers_stand_right() {
        let expected = "name     time [ms]\n───────  ─────────\nsoftmax       1.50\nβ·γ              –\n";
        assert_eq!(sample().text(false), expected);
        assert!(sample().text(true).contains("\x1b[1m1.50\x1b[0m"));
    }

    #[test]
    fn an_empty_table_is_its_header() {
        assert_eq!(Table::new(&[("name", "", Align::Left)]).text(false), "name\n────\n");
    }

    #[test]
    fn html_is_escaped_and_sortable() {
        let mut table = sample();
        table.row(vec![Cell::text("<script>alert('x')</script>"), Cell::number(2.0, 0)]);
        let html = table.html().into_string();
        assert!(html.contains("data-sort=\"1.5\"><strong>1.50</strong>"), "{html}");
        assert!(!html.contains("<script>"));
        assert!(html.contains("&lt;script&gt;alert('x')"));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut table = Table::new(&[("name", "", Align::Left)]);
        table.row(vec![Cell::text("a\x1b[2Jb\nc")]);
        assert!(table.text(false).ends_with("a [2Jb c\n"));
    }
}
