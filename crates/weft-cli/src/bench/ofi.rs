//! `weft bench ofi`: Weft as a provider of libfabric, beside the providers in the box, all by `fi_pingpong`.
//!
//! Whatever a message costs in the program, in libfabric and in the C interface is the same for all. One run gives the
//! time of a message, from which both tables come: latency for short messages, bandwidth for long ones. A round is one
//! run of each provider.

use std::io::Write;

use clap::{ArgAction, Args};

use super::job::{LinkKind, Measurement, Operation, Test};
use super::net::{self, Column, ColumnKind, Contender, Machine, NETNS_WITHOUT_UDP, SIZE_MAX_BYTES};
use super::peer::{self, ONE_UNDER_WAY, PING_PONG, PING_PONG_ABSENT, Provider, RXD, RXM, SHM, TCP};
use super::place::Place;
use super::table::{Cell, Report, Row, write_notes};
use super::{Common, one_of, size, up_to};
use crate::Failure;
use crate::plugin::{PATH_VARIABLE, PROVIDER, Plugin, ROAD_VARIABLE, Road};
use crate::process::on_path;

/// What the goals name.
const SIZES_DEFAULT: [usize; 8] = [1, 64, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Messages of this size are in both tables, shorter ones in that of latency, longer ones in that of bandwidth.
const BORDER_BYTES: usize = 4 << 10;

const WEFT: Provider = Provider { name: PROVIDER, endpoint: "rdm" };

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Arguments {
    /// Operation [default: each]
    #[arg(long = "op", value_name = "OP", value_parser = one_of(&[Operation::Send, Operation::Tagged]))]
    operation: Option<Operation>,
    /// Packets, or shared memory [default: each]
    #[arg(long)]
    link: Option<LinkKind>,
    /// Lengths of messages in bytes, also as 64k, 1m or 1g [default: 1, 64, 4k to 4m in fourfold steps]
    #[arg(long, value_name = "N,N,...", action = ArgAction::Set, value_delimiter = ',', value_parser = size(SIZE_MAX_BYTES))]
    sizes: Vec<usize>,
    /// Rounds, of which the median is shown
    #[arg(long, value_name = "N", default_value_t = net::ROUNDS_DEFAULT, value_parser = up_to(net::ROUNDS_MAX))]
    rounds: usize,
    /// Leave Weft out
    #[arg(long)]
    peers_only: bool,
    /// Use two network namespaces joined by a veth pair of MTU 1500 (as root); of --link udp only
    #[arg(long)]
    netns: bool,
    #[command(flatten)]
    common: Common,
}

const AFTER: &str = "\
The same program for everybody, so what is compared is what a program of
libfabric sees: latency up to 4 KiB, bandwidth from 4 KiB on. It has one message
under way: its bandwidth is that of a ping-pong, and it has no message rate.
Nothing is pinned. Weft is found as weft run finds it, and is kept to packets
for --link udp. Who cannot run is named below the tables, with the reason.

Example:
  weft bench ofi --op tagged --link shm --quick";

impl Arguments {
    /// What is measured in one go.
    fn part(&self, operation: Operation, link: LinkKind) -> net::Options {
        let Arguments { ref sizes, rounds, peers_only, common, .. } = *self;
        let sizes = if sizes.is_empty() { SIZES_DEFAULT.to_vec() } else { sizes.clone() };
        net::Options { test: Test::Latency, operation, link, sizes, rounds, quick: common.quick, peers_only }
    }
}

/// `weft bench ofi`.
pub(crate) fn run(options: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    if options.netns && options.link != Some(LinkKind::Udp) {
        return Err(Failure::Usage(NETNS_WITHOUT_UDP.to_string()));
    }
    if !on_path(PING_PONG) {
        return Err(Failure::Told(PING_PONG_ABSENT.to_string()));
    }
    let plugin = if options.peers_only { None } else { Some(Plugin::find().map_err(Failure::Told)?) };
    let place = if options.netns { Place::namespaces()? } else { Place::loopback() };
    let mut machine = Machine::default();
    let mut notes = vec![format!("{ONE_UNDER_WAY}: its bandwidth is that of a ping-pong, and it has no message rate")];
    let mut first = true;
    let json = options.common.json;
    for operation in options.operation.map_or(vec![Operation::Send, Operation::Tagged], |one| vec![one]) {
        for link in options.link.map_or(vec![LinkKind::Shm, LinkKind::Udp], |one| vec![one]) {
            let part = options.part(operation, link);
            let contenders = contenders(plugin.as_ref(), &part, &mut notes);
            let rows = net::rows(&part, &place, &contenders, &mut machine, &mut notes)?;
            let columns = contenders.iter().map(|contender| contender.column()).collect();
            for report in reports(&part, &place, columns, rows) {
                if json {
                    report.write_json_rows(out)?;
                } else {
                    if !first {
                        writeln!(out)?;
                    }
                    report.write(out)?;
                }
                first = false;
                // The next takes minutes.
                out.flush()?;
            }
        }
    }
    notes.extend(machine.notes());
    Ok(write_notes(&notes, json, out)?)
}

/// Weft, then the others of that road that can do the operation.
fn contenders(plugin: Option<&Plugin>, part: &net::Options, notes: &mut Vec<String>) -> Vec<Box<dyn Contender>> {
    let mut contenders = Vec::new();
    if let Some(plugin) = plugin {
        let road = match part.link {
            LinkKind::Shm => Road::Auto,
            LinkKind::Udp => Road::Packets,
        };
        let variables = vec![(PATH_VARIABLE, plugin.path()), (ROAD_VARIABLE, road.name().into())];
        contenders.push(peer::ping_pong(ColumnKind::Weft, WEFT, variables));
    }
    let providers: &[Provider] = match part.link {
        LinkKind::Shm => &[SHM],
        LinkKind::Udp => &[TCP, RXM, RXD],
    };
    for &provider in providers {
        if part.operation == Operation::Tagged && provider.endpoint == "msg" {
            notes.push(format!("tagged: {} has endpoints of type msg only, which know no tags", provider.name));
            continue;
        }
        contenders.push(peer::ping_pong(ColumnKind::Peer, provider, Vec::new()));
    }
    contenders
}

/// The tables of latency and of bandwidth; one without rows is left out.
fn reports(part: &net::Options, place: &Place, columns: Vec<Column>, rows: Vec<Row>) -> Vec<Report> {
    let report = |test, rows: Vec<Row>| Report {
        test,
        operation: part.operation,
        link: part.link,
        place: format!("{}, {}", part.link.title(), place.title()),
        rounds: part.rounds,
        columns: columns.clone(),
        rows,
        notes: Vec::new(),
    };
    let long = rows.iter().filter(|row| row.bytes >= BORDER_BYTES).map(as_bandwidth).collect();
    let short = rows.into_iter().filter(|row| row.bytes <= BORDER_BYTES).collect();
    let reports = [report(Test::Latency, short), report(Test::Bandwidth, long)];
    reports.into_iter().filter(|report| !report.rows.is_empty()).collect()
}

fn as_bandwidth(row: &Row) -> Row {
    let figure =
        |found: &Measurement| Measurement { figure: Test::Bandwidth.figure(row.bytes, found.figure), ..*found };
    let cell = |cell: &Cell| Cell { measurements: cell.measurements.iter().map(figure).collect(), ..cell.clone() };
    Row { bytes: row.bytes, cells: row.cells.iter().map(cell).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parse;

    fn arguments(line: &str) -> Arguments {
        parse(line).unwrap()
    }

    #[test]
    fn options_are_read() {
        let options = arguments("--op tagged --link udp --sizes 1,4k --netns");
        assert_eq!((options.operation, options.link), (Some(Operation::Tagged), Some(LinkKind::Udp)));
        assert_eq!((options.sizes, options.rounds, options.netns), (vec![1, 4096], net::ROUNDS_DEFAULT, true));
        let options = arguments("--quick --rounds 3 --peers-only --json");
        assert_eq!((options.operation, options.link, options.rounds), (None, None, 3));
        assert_eq!(options.part(Operation::Send, LinkKind::Shm).sizes, SIZES_DEFAULT);
        for (wrong, told) in [
            ("--op write", "[possible values: send, tagged]"),
            ("--op", "a value is required for '--op <OP>'"),
            ("--link tcp", "[possible values: udp, shm]"),
            ("--fast", "unexpected argument '--fast'"),
        ] {
            let error = parse::<Arguments>(wrong).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        let refused = run(&arguments("--netns"), &mut Vec::new()).unwrap_err();
        assert!(matches!(refused, Failure::Usage(text) if text == NETNS_WITHOUT_UDP));
    }

    #[test]
    fn one_run_gives_both_tables() {
        let part = arguments("").part(Operation::Send, LinkKind::Shm);
        let mut notes = Vec::new();
        let contenders = contenders(None, &part, &mut notes);
        let columns: Vec<Column> = contenders.iter().map(|contender| contender.column()).collect();
        assert_eq!(columns.iter().map(Column::name).collect::<Vec<_>>(), ["fi_pingpong shm rdm"]);
        let row = |bytes| {
            let found = Measurement { figure: 2.0, iterations: 10, elapsed_us: 40.0, spread: None };
            Row { bytes, cells: vec![Cell { measurements: vec![found], ..Cell::default() }] }
        };
        let reports = reports(&part, &Place::loopback(), columns.clone(), vec![row(1), row(4096), row(65_536)]);
        let shape: Vec<(Test, Vec<usize>)> =
            reports.iter().map(|report| (report.test, report.rows.iter().map(|row| row.bytes).collect())).collect();
        assert_eq!(shape, [(Test::Latency, vec![1, 4096]), (Test::Bandwidth, vec![4096, 65_536])]);
        assert_eq!(reports[1].rows[1].cells[0].measurements[0].figure, 32_768.0);
        assert_eq!(super::reports(&part, &Place::loopback(), columns, vec![row(8)]).len(), 1);
        assert!(notes.is_empty());
    }

    #[test]
    fn who_knows_no_tags_is_named() {
        let part = arguments("").part(Operation::Tagged, LinkKind::Udp);
        let mut notes = Vec::new();
        assert_eq!(contenders(None, &part, &mut notes).len(), 2);
        assert!(notes[0].starts_with("tagged: tcp has endpoints of type msg only"), "{notes:?}");
    }
}
