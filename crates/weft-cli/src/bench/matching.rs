//! `weft bench match`: what it costs to match a message, by the number of entries that wait.
//!
//! A match is three calls: a message finds its receive and takes it out, and another receive is posted, so that the
//! depth stays the same (with unexpected messages: a receive finds and takes a message, and another arrives). No entry
//! has a wildcard, all have keys of their own, and each holds eight bytes of the user's.
//!
//! *Random*: entries are taken all over the depth, in an order that nobody can foresee, so that cache misses are part of
//! the cost. *In order*: they are taken as they came. Each call stands alone on a message's way, but nothing keeps the
//! processor from beginning the next match while the last one waits for memory; that is so in a NIC's loop as well. What
//! one miss costs is measured beside it: a chain of loads, each of which needs the one before, over as much memory
//! as that depth uses.
//!
//! *Batches*: random too, and the receives of 32 messages are found before the first is taken, as an engine can do that
//! gets packets in batches. Then the misses of several searches overlap.
//!
//! A round is one pass of each depth, in turn; figures are medians of rounds, and ratios are medians of the ratios within
//! a round, so that a neighbour on the machine hits both sides of them.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use serde_json::json;
use weft_core::address::SourceId;
use weft_core::delivery::matching::{Posted, Unexpected};
use weft_core::hash::Keyed;

use super::Options;
use crate::json::decimal;

const DEPTHS: [usize; 3] = [10, 1000, 100_000];
/// Matches of a pass: each entry of the greatest depth once.
const PASS: usize = 100_000;
/// Messages of a batch, or as many as wait where those are fewer: what a link gives at once.
const BATCH: usize = 32;
pub(super) const ROUNDS_DEFAULT: usize = 51;
const SOURCES: u32 = 64;
/// Memory that matching uses for an entry: the entry with its item, and its share of the table.
const ENTRY_BYTES: usize = 64 + 32 / 3;

/// What was measured.
pub(crate) struct Report {
    rows: Vec<Row>,
    rounds: usize,
}

struct Row {
    structure: &'static str,
    order: &'static str,
    /// For each of [`DEPTHS`].
    figures: Vec<Figure>,
}

/// Nanoseconds a match, and how many times those of the smallest depth in the same round.
struct Figure {
    ns: f64,
    ratio: f64,
}

/// The source of a key by its number.
fn source(key: u32) -> SourceId {
    SourceId(u64::from(key % SOURCES))
}

/// The tag of a key by its number: computed, so that the list of what is to be done stays small beside what is measured.
fn tag(key: u32) -> u64 {
    u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Which key is matched and which one comes in its stead, for a whole pass; after it the entries are those of the start.
struct Tape {
    depth: usize,
    matches: Vec<(u32, u32)>,
}

impl Tape {
    /// Two sets of keys take turns: while those of one are taken, those of the other come.
    fn new(depth: usize, shuffled: bool, random: &mut Random) -> Tape {
        let middle = depth as u32;
        let mut matches = Vec::with_capacity(2 * PASS);
        while matches.len() < PASS {
            for (from, to) in [(0, middle), (middle, 0)] {
                let mut taken: Vec<u32> = (from..from + middle).collect();
                let mut come: Vec<u32> = (to..to + middle).collect();
                if shuffled {
                    random.shuffle(&mut taken);
                    random.shuffle(&mut come);
                }
                matches.extend(taken.into_iter().zip(come));
            }
        }
        Tape { depth, matches }
    }
}

/// Measures both structures in both orders at all depths.
pub(crate) fn measure(options: &Options) -> Result<Report, String> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut rows = Vec::new();
    for (shuffled, order) in [(true, "random"), (false, "in order")] {
        let tapes = DEPTHS.map(|depth| Tape::new(depth, shuffled, &mut random));
        let keyed = || Keyed::new(0x1234_5678_9abc_def1, 0x0fed_cba9_8765_4321);
        let mut posted: Vec<(Posted<u64>, &Tape)> = Vec::new();
        let mut unexpected: Vec<(Unexpected<u64>, &Tape)> = Vec::new();
        for tape in &tapes {
            let mut full = Posted::new(keyed(), tape.depth);
            let mut waiting = Unexpected::new(keyed(), tape.depth);
            for key in 0..tape.depth as u32 {
                full.post(Some(source(key)), tag(key), 0, tag(key)).map_err(|full| full.to_string())?;
                waiting.push(source(key), tag(key), tag(key)).map_err(|full| full.to_string())?;
            }
            posted.push((full, tape));
            unexpected.push((waiting, tape));
        }
        let figures = rounds(options.rounds, &mut posted, |(posted, tape)| pass_posted(posted, tape))?;
        rows.push(Row { structure: "posted", order, figures });
        if shuffled {
            let figures = rounds(options.rounds, &mut posted, |(posted, tape)| pass_batches(posted, tape))?;
            rows.push(Row { structure: "posted", order: "batches", figures });
        }
        let figures = rounds(options.rounds, &mut unexpected, |(waiting, tape)| pass_unexpected(waiting, tape))?;
        rows.push(Row { structure: "unexpected", order, figures });
    }
    let mut chains = DEPTHS.map(|depth| chain(depth * ENTRY_BYTES, &mut random));
    let figures = rounds(options.rounds, &mut chains, |chain| Ok(follow(chain)))?;
    rows.push(Row { structure: "one load", order: "random", figures });
    Ok(Report { rows, rounds: options.rounds })
}

/// Medians over rounds in which each subject has its turn.
fn rounds<S>(
    count: usize,
    subjects: &mut [S],
    mut pass: impl FnMut(&mut S) -> Result<f64, String>,
) -> Result<Vec<Figure>, String> {
    let mut figures = vec![(Vec::new(), Vec::new()); subjects.len()];
    for round in 0..=count {
        let mut base = None;
        for (subject, (all_ns, ratios)) in subjects.iter_mut().zip(&mut figures) {
            let ns = pass(subject)?;
            // The first round warms up.
            if round > 0 {
                all_ns.push(ns);
                ratios.push(ns / *base.get_or_insert(ns));
            }
        }
    }
    Ok(figures.into_iter().map(|(ns, ratios)| Figure { ns: median(ns), ratio: median(ratios) }).collect())
}

#[inline(never)]
fn pass_posted(posted: &mut Posted<u64>, tape: &Tape) -> Result<f64, String> {
    let mut wrong = 0;
    let begin = Instant::now();
    for &(message, receive) in &tape.matches {
        let taken = posted.first(source(message), tag(message)).and_then(|id| posted.remove(id));
        wrong += usize::from(taken != Some(tag(message)));
        let fits = posted.post(Some(source(receive)), tag(receive), 0, tag(receive)).is_ok();
        wrong += usize::from(!fits);
    }
    finish(begin, wrong, tape)
}

/// Finds the receives of a whole batch first. What is found stays right: receives are only taken, and new ones stand
/// behind. Where two messages of a batch found the same one, the second looks again.
#[inline(never)]
fn pass_batches(posted: &mut Posted<u64>, tape: &Tape) -> Result<f64, String> {
    let mut wrong = 0;
    let mut found = [None; BATCH];
    let begin = Instant::now();
    for batch in tape.matches.chunks(BATCH.min(tape.depth)) {
        for (found, &(message, _)) in found.iter_mut().zip(batch) {
            *found = posted.first(source(message), tag(message));
        }
        for (found, &(message, receive)) in found.iter().zip(batch) {
            let mut taken = found.and_then(|id| posted.remove(id));
            if taken.is_none() {
                taken = posted.first(source(message), tag(message)).and_then(|id| posted.remove(id));
            }
            wrong += usize::from(taken != Some(tag(message)));
            wrong += usize::from(posted.post(Some(source(receive)), tag(receive), 0, tag(receive)).is_err());
        }
    }
    finish(begin, wrong, tape)
}

#[inline(never)]
fn pass_unexpected(unexpected: &mut Unexpected<u64>, tape: &Tape) -> Result<f64, String> {
    let mut wrong = 0;
    let begin = Instant::now();
    for &(receive, message) in &tape.matches {
        let taken = unexpected.first(Some(source(receive)), tag(receive), 0).and_then(|id| unexpected.remove(id));
        wrong += usize::from(taken != Some(tag(receive)));
        wrong += usize::from(unexpected.push(source(message), tag(message), tag(message)).is_err());
    }
    finish(begin, wrong, tape)
}

fn finish(begin: Instant, wrong: usize, tape: &Tape) -> Result<f64, String> {
    let ns = begin.elapsed().as_nanos() as f64 / tape.matches.len() as f64;
    if wrong == 0 { Ok(ns) } else { Err(format!("{wrong} matches went wrong: this is a bug")) }
}

/// Cache lines of which each tells the next, in one great circle.
fn chain(bytes: usize, random: &mut Random) -> Vec<[u64; 8]> {
    let mut order: Vec<usize> = (0..bytes.div_ceil(64)).collect();
    random.shuffle(&mut order);
    let mut chain = vec![[0; 8]; order.len()];
    for (from, to) in order.iter().zip(order.iter().cycle().skip(1)) {
        if let Some(line) = chain.get_mut(*from) {
            line[0] = *to as u64;
        }
    }
    chain
}

#[inline(never)]
fn follow(chain: &[[u64; 8]]) -> f64 {
    let mut at = 0;
    let begin = Instant::now();
    for _ in 0..PASS {
        at = chain.get(at as usize).map_or(0, |line| line[0]);
    }
    black_box(at);
    begin.elapsed().as_nanos() as f64 / PASS as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Numbers that no branch predictor foresees, the same in every run (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
    }
}

impl Report {
    /// Writes a table, or with `--json` one object a line.
    pub(crate) fn write(&self, options: &Options, out: &mut dyn Write) -> io::Result<()> {
        if options.json {
            return self.rows.iter().try_for_each(|row| row.write_json(out));
        }
        writeln!(
            out,
            "ns a match (find, remove, and another comes) at a steady depth, medians of {} rounds",
            self.rounds
        )?;
        write!(out, "{:12} {:9}", "structure", "order")?;
        DEPTHS.iter().try_for_each(|depth| write!(out, " {depth:>8}"))?;
        writeln!(out, "   ratio to depth {}", DEPTHS[0])?;
        for row in &self.rows {
            write!(out, "{:12} {:9}", row.structure, row.order)?;
            row.figures.iter().try_for_each(|figure| write!(out, " {:8.1}", figure.ns))?;
            write!(out, "  ")?;
            row.figures.iter().skip(1).try_for_each(|figure| write!(out, " {:5.2}", figure.ratio))?;
            writeln!(out)?;
        }
        writeln!(
            out,
            "one load: each needs the one before, over the memory of that depth ({ENTRY_BYTES} bytes an entry)"
        )
    }
}

impl Row {
    fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        for (depth, Figure { ns, ratio }) in DEPTHS.iter().zip(&self.figures) {
            let object = json!({
                "structure": self.structure,
                "order": self.order,
                "depth": depth,
                "ns": decimal(*ns, 2),
                "ratio": decimal(*ratio, 3),
            });
            writeln!(out, "{object}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_every_depth() {
        let options = Options { rounds: 1, json: true };
        let mut text = Vec::new();
        measure(&options).unwrap().write(&options, &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap().lines().count(), 6 * DEPTHS.len());
    }

    #[test]
    fn a_chain_is_one_circle() {
        let chain = chain(6400, &mut Random(1));
        let mut at = 0;
        let steps = (1..).find(|_| {
            at = chain[at as usize][0];
            at == 0
        });
        assert_eq!((steps, chain.len()), (Some(100), 100));
    }
}
