//! The report of a network benchmark: one table, or one JSON object a line.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::job::{LinkKind, Measurement, Operation, Spread, Test};
use super::memory;
use super::net::{Column, ColumnKind};
use crate::json::{Object, decimal};

const BYTES_WIDTH: usize = 8;
const COLUMN_WIDTH_MIN: usize = 10;
const RATIO_WIDTH: usize = 9;
/// Decimals of a figure in JSON.
pub(crate) const DIGITS: usize = 4;

/// All that a benchmark found.
pub(crate) struct Report {
    pub(crate) test: Test,
    pub(crate) operation: Operation,
    pub(crate) link: LinkKind,
    pub(crate) place: String,
    pub(crate) rounds: usize,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

/// What was found for one size; a cell for each column.
pub(crate) struct Row {
    pub(crate) bytes: usize,
    pub(crate) cells: Vec<Cell>,
}

/// The rounds of one contender at one size.
#[derive(Clone, Default)]
pub(crate) struct Cell {
    pub(crate) measurements: Vec<Measurement>,
    /// How long a cache line took before and after each of them, in µs; empty where that was not looked at.
    pub(crate) lines_us: Vec<[f64; 2]>,
    /// It cannot do this, or failed in some round; a note says which.
    pub(crate) given_up: bool,
}

impl Cell {
    /// The round whose figure is the median.
    fn median(&self) -> Option<&Measurement> {
        let mut sorted: Vec<&Measurement> = self.measurements.iter().collect();
        sorted.sort_by(|one, other| one.figure.total_cmp(&other.figure));
        sorted.get(sorted.len() / 2).copied()
    }

    /// The lines around the measurements of others, as measurements of one who did nothing else.
    pub(crate) fn of_lines(cells: &[Cell]) -> Cell {
        let lines = cells.iter().flat_map(|cell| cell.lines_us.iter().flatten());
        let measurement =
            |figure: &f64| Measurement { figure: *figure, iterations: 1, elapsed_us: *figure, spread: None };
        Cell { measurements: lines.map(measurement).collect(), ..Cell::default() }
    }

    /// The median of what each measurement was in terms of the lines around it: processors may move between runs, and
    /// then both change.
    fn in_lines(&self) -> Option<f64> {
        let around = |(found, lines): (&Measurement, &[f64; 2])| 2.0 * found.figure / lines.iter().sum::<f64>();
        let mut ratios: Vec<f64> = self.measurements.iter().zip(&self.lines_us).map(around).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied()
    }
}

/// How the first named stands to the others.
struct Ratios {
    best_peer: Option<(String, f64)>,
    weft: Option<f64>,
    /// Weft's to each limit's, in the order of the columns.
    weft_to_limits: Vec<(Column, Option<f64>)>,
}

impl Ratios {
    fn weft_to_peer(&self) -> Option<f64> {
        Some(self.weft? / self.best_peer.as_ref()?.1)
    }
}

impl Report {
    fn has_weft(&self) -> bool {
        self.columns.iter().any(|column| column.kind == ColumnKind::Weft)
    }

    fn ratios(&self, row: &Row) -> Ratios {
        let mut ratios = Ratios { best_peer: None, weft: None, weft_to_limits: Vec::new() };
        let mut weft_in_lines = None;
        for (column, cell) in self.columns.iter().zip(&row.cells) {
            let figure = cell.median().map(|median| median.figure);
            if column.kind == ColumnKind::Limit {
                // Weft's column is the first.
                let plain = ratios.weft.zip(figure).map(|(weft, limit)| weft / limit);
                let ratio = if *column == memory::LINE { weft_in_lines } else { plain };
                ratios.weft_to_limits.push((*column, ratio));
            }
            let Some(figure) = figure else { continue };
            match column.kind {
                ColumnKind::Weft => {
                    ratios.weft = Some(figure);
                    weft_in_lines = cell.in_lines();
                }
                ColumnKind::Limit => {}
                ColumnKind::Peer => {
                    let best = ratios.best_peer.as_ref().map_or(figure, |(_, best)| self.test.better(*best, figure));
                    if ratios.best_peer.is_none() || best == figure {
                        ratios.best_peer = Some((column.name(), figure));
                    }
                }
            }
        }
        ratios
    }

    /// Writes the table, the spread of single messages where it is known, and the notes.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let title = match (self.test, self.operation.answers()) {
            (Test::Latency, false) => "latency in µs, half a round trip",
            (Test::Latency, true) => "latency in µs, a whole round trip",
            (Test::Bandwidth, _) => "bandwidth in MB/s (10^6 bytes)",
            (Test::Rate, _) => "million messages a second",
        };
        let Report { operation, place, rounds, .. } = self;
        writeln!(out, "{}: {title}; {}, {place}, medians of {rounds} rounds", self.test.name(), operation.name())?;
        self.write_head(out)?;
        for row in &self.rows {
            write!(out, "{:>BYTES_WIDTH$}", row.bytes)?;
            for (column, cell) in self.columns.iter().zip(&row.cells) {
                let figure = cell.median().map(|median| median.figure);
                write!(out, "  {:>width$}", self.show(figure), width = column.width())?;
            }
            let ratios = self.ratios(row);
            if self.has_weft() {
                let to_limits = ratios.weft_to_limits.iter().map(|(_, ratio)| *ratio);
                for ratio in std::iter::once(ratios.weft_to_peer()).chain(to_limits) {
                    let ratio = ratio.map_or_else(|| "-".to_string(), |ratio| format!("{ratio:.2}"));
                    write!(out, "  {ratio:>RATIO_WIDTH$}")?;
                }
            }
            writeln!(out)?;
        }
        self.write_spreads(out)?;
        write_notes(&self.notes, false, out)
    }

    fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        let words = |column: &Column| [column.program, column.over, column.how];
        let limits = || self.columns.iter().filter(|column| column.kind == ColumnKind::Limit);
        for (line, [bytes, to_peer]) in [["", "weft /"], ["", "best"], ["bytes", "peer"]].into_iter().enumerate() {
            write!(out, "{bytes:>BYTES_WIDTH$}")?;
            for column in &self.columns {
                let word = words(column).get(line).copied().unwrap_or_default();
                write!(out, "  {word:>width$}", width = column.width())?;
            }
            if self.has_weft() {
                write!(out, "  {to_peer:>RATIO_WIDTH$}")?;
                for limit in limits() {
                    let word = ["weft /", limit.program, limit.over].get(line).copied().unwrap_or_default();
                    write!(out, "  {word:>RATIO_WIDTH$}")?;
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// perftest's columns, for those who time every message: Weft and the bare sockets.
    fn write_spreads(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut head = false;
        for row in &self.rows {
            for (column, cell) in self.columns.iter().zip(&row.cells) {
                let Some(median) = cell.median() else { continue };
                let Some(spread) = median.spread else { continue };
                if !head {
                    writeln!(
                        out,
                        "{:>BYTES_WIDTH$}  {:24} {:>10} {:>8} {:>10} {:>8} {:>8} {:>8}",
                        "bytes",
                        "its median round, µs",
                        "iterations",
                        "t_min",
                        "t_typical",
                        "t_avg",
                        "t_99%",
                        "t_99.9%"
                    )?;
                    head = true;
                }
                writeln!(
                    out,
                    "{:>BYTES_WIDTH$}  {:24} {:>10} {:>8.2} {:>10.2} {:>8.2} {:>8.2} {:>8.2}",
                    row.bytes,
                    column.name(),
                    median.iterations,
                    spread.minimum,
                    spread.typical,
                    median.figure,
                    spread.percentile_99,
                    spread.percentile_99_9
                )?;
            }
        }
        Ok(())
    }

    fn show(&self, figure: Option<f64>) -> String {
        match (figure, self.test) {
            (None, _) => "-".to_string(),
            // There are tens of nanoseconds to tell apart.
            (Some(figure), Test::Latency) if self.link == LinkKind::Shm => format!("{figure:.4}"),
            (Some(figure), Test::Latency) => format!("{figure:.2}"),
            (Some(figure), Test::Bandwidth) => format!("{figure:.1}"),
            (Some(figure), Test::Rate) => format!("{figure:.4}"),
        }
    }

    /// Writes an object for each size, then one with the notes.
    pub(crate) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_json_rows(out)?;
        write_notes(&self.notes, true, out)
    }

    /// Writes an object for each size.
    pub(crate) fn write_json_rows(&self, out: &mut dyn Write) -> io::Result<()> {
        for row in &self.rows {
            let contenders = self.columns.iter().zip(&row.cells);
            let ratios = self.ratios(row);
            let mut object = Object::new();
            object.insert("test".into(), self.test.name().into());
            object.insert("op".into(), self.operation.name().into());
            object.insert("link".into(), self.link.name().into());
            object.insert("place".into(), self.place.as_str().into());
            object.insert("unit".into(), self.test.unit().into());
            object.insert("bytes".into(), row.bytes.into());
            let contenders = contenders.map(|(column, cell)| (column.name(), cell.json(column.kind)));
            object.insert("contenders".into(), contenders.collect());
            object.insert("best_peer".into(), ratios.best_peer.as_ref().map(|(name, _)| name.as_str()).into());
            object.insert("weft_to_best_peer".into(), decimal(ratios.weft_to_peer(), DIGITS));
            for (limit, ratio) in &ratios.weft_to_limits {
                let name = format!("weft_to_{}_{}", limit.program, limit.over.to_lowercase());
                object.insert(name, decimal(*ratio, DIGITS));
            }
            writeln!(out, "{}", Value::Object(object))?;
        }
        Ok(())
    }
}

/// Writes notes as lines, or as one JSON object.
pub(crate) fn write_notes(notes: &[String], json: bool, out: &mut dyn Write) -> io::Result<()> {
    if !json {
        return notes.iter().try_for_each(|note| writeln!(out, "note: {note}"));
    }
    writeln!(out, "{}", json!({ "notes": notes }))
}

impl Cell {
    fn json(&self, kind: ColumnKind) -> Value {
        let median = self.median();
        let decimals = |figures: &mut dyn Iterator<Item = f64>| figures.map(|figure| decimal(figure, DIGITS)).collect();
        let mut object = Object::new();
        let kind = match kind {
            ColumnKind::Weft => "weft",
            ColumnKind::Peer => "peer",
            ColumnKind::Limit => "limit",
        };
        object.insert("kind".into(), kind.into());
        object.insert("median".into(), decimal(median.map(|median| median.figure), DIGITS));
        object.insert("rounds".into(), decimals(&mut self.measurements.iter().map(|found| found.figure)));
        object.insert("iterations".into(), median.map(|median| median.iterations).into());
        if !self.lines_us.is_empty() {
            object.insert("line_before_us".into(), decimals(&mut self.lines_us.iter().map(|[before, _]| *before)));
            object.insert("line_after_us".into(), decimals(&mut self.lines_us.iter().map(|[_, after]| *after)));
        }
        if let Some(Spread { minimum, typical, percentile_99, percentile_99_9 }) = median.and_then(|found| found.spread)
        {
            let names = ["t_min", "t_typical", "t_99", "t_99_9"].into_iter();
            let figures = [minimum, typical, percentile_99, percentile_99_9];
            object.extend(names.zip(figures).map(|(name, figure)| (name.into(), decimal(figure, DIGITS))));
        }
        Value::Object(object)
    }
}

impl Column {
    fn width(&self) -> usize {
        let words = [self.program, self.over, self.how];
        words.iter().map(|word| word.len()).max().unwrap_or(0).max(COLUMN_WIDTH_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(figures: &[f64], spread: Option<Spread>) -> Cell {
        let measurement = |figure: &f64| Measurement { figure: *figure, iterations: 10, elapsed_us: 1.0, spread };
        let measurements = figures.iter().map(measurement).collect();
        Cell { measurements, lines_us: Vec::new(), given_up: figures.is_empty() }
    }

    fn report(test: Test) -> Report {
        let column = |kind, program, over| Column { kind, program, over, how: "x" };
        let spread = Spread { minimum: 1.0, typical: 2.0, percentile_99: 3.0, percentile_99_9: 4.0 };
        Report {
            test,
            operation: Operation::Send,
            link: LinkKind::Udp,
            place: "loopback".to_string(),
            rounds: 3,
            columns: vec![
                column(ColumnKind::Weft, "weft", "udp"),
                column(ColumnKind::Peer, "one", "tcp"),
                column(ColumnKind::Peer, "two", "tcp"),
                column(ColumnKind::Limit, "bare", "UDP"),
            ],
            rows: vec![
                Row {
                    bytes: 8,
                    cells: vec![
                        cell(&[9.0, 4.0, 5.0], Some(spread)),
                        cell(&[10.0, 10.0, 10.0], None),
                        cell(&[20.0, 20.0, 20.0], None),
                        cell(&[4.0, 4.0, 4.0], None),
                    ],
                },
                Row {
                    bytes: 64,
                    cells: vec![cell(&[5.0], None), cell(&[], None), cell(&[10.0], None), cell(&[], None)],
                },
            ],
            notes: vec!["one \"x\"".to_string()],
        }
    }

    #[test]
    fn ratios_are_to_the_best_peer_of_that_test() {
        let latency = report(Test::Latency);
        let ratios = latency.ratios(&latency.rows[0]);
        assert_eq!(ratios.best_peer, Some(("one tcp x".to_string(), 10.0)));
        let to_limit = |ratios: &Ratios| ratios.weft_to_limits[0].1;
        assert_eq!((ratios.weft_to_peer(), to_limit(&ratios)), (Some(0.5), Some(1.25)));
        let rate = report(Test::Rate);
        let ratios = rate.ratios(&rate.rows[0]);
        assert_eq!(ratios.best_peer, Some(("two tcp x".to_string(), 20.0)));
        let ratios = latency.ratios(&latency.rows[1]);
        assert_eq!((ratios.weft_to_peer(), to_limit(&ratios)), (Some(0.5), None));
    }

    #[test]
    fn each_run_is_judged_by_the_lines_around_it() {
        let mut report = report(Test::Latency);
        report.link = LinkKind::Shm;
        report.columns.push(memory::LINE);
        let row = &mut report.rows[0];
        // The processors were near each other in the first round, and far in the others.
        row.cells[0].lines_us = vec![[4.0, 5.0], [1.0, 1.0], [2.0, 2.0]];
        row.cells.push(Cell::of_lines(&row.cells));
        let ratios = report.ratios(&report.rows[0]);
        assert_eq!(ratios.weft_to_limits.len(), 2);
        assert_eq!(ratios.weft_to_limits[1], (memory::LINE, Some(2.5)));
        let mut text = Vec::new();
        report.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let row: Vec<&str> = text.lines().nth(4).unwrap().split_whitespace().collect();
        assert_eq!(row, ["8", "5.0000", "10.0000", "20.0000", "4.0000", "2.0000", "0.50", "1.25", "2.50"]);
        let mut text = Vec::new();
        report.write_json(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(r#""line_before_us":[4.0000,1.0000,2.0000],"line_after_us":[5.0000,1.0000,2.0000]"#));
        assert!(text.contains(r#""weft_to_bare_udp":1.2500,"weft_to_bare_line":2.5000}"#), "{text}");
    }

    #[test]
    fn the_table_has_every_column_and_the_notes() {
        let mut text = Vec::new();
        report(Test::Latency).write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[3], ["bytes", "x", "x", "x", "x", "peer", "UDP"]);
        assert_eq!(rows[4], ["8", "5.00", "10.00", "20.00", "4.00", "0.50", "1.25"]);
        assert_eq!(rows[5], ["64", "5.00", "-", "10.00", "-", "0.50", "-"]);
        assert_eq!(rows[7], ["8", "weft", "udp", "x", "10", "1.00", "2.00", "5.00", "3.00", "4.00"]);
        assert!(text.ends_with("note: one \"x\"\n"), "{text}");
    }

    #[test]
    fn json_has_every_round() {
        let mut text = Vec::new();
        report(Test::Bandwidth).write_json(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains(r#""weft udp x":{"kind":"weft","median":5.0000,"rounds":[9.0000,4.0000,5.0000]"#));
        assert!(lines[0].ends_with(r#""best_peer":"two tcp x","weft_to_best_peer":0.2500,"weft_to_bare_udp":1.2500}"#));
        assert!(lines[1].contains(r#""one tcp x":{"kind":"peer","median":null,"rounds":[],"iterations":null}"#));
        assert_eq!(lines[2], r#"{"notes":["one \"x\""]}"#);
    }
}
