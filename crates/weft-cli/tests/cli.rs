//! `weft` as its users meet it: good files, bad files, wrong words.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's own helpers: a panic is a failed test"
)]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures")
}

fn weft(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// `weft` with `input` on its standard input.
fn weft_on(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // The child may stop reading early; that is its right.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn capture(name: &str) -> Vec<u8> {
    std::fs::read(captures().join(name)).unwrap()
}

fn file(name: &str) -> String {
    captures().join(name).to_str().unwrap().to_string()
}

/// A folder of this process. One of the same number may have failed and left something there.
fn empty_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn the_demo_is_the_main_job() {
    let _alone = SPINNING.lock();
    for arguments in [&[][..], &["demo"]] {
        let output = weft(arguments);
        let shown = text(&output.stdout);
        assert!(output.status.success(), "{}\n{shown}", text(&output.stderr));
        assert!(shown.starts_with("weft demo: two NICs in two processes"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() < 100), "{shown}");
        let rows = shown.lines().skip_while(|line| !line.starts_with("operation ")).take_while(|line| !line.is_empty());
        assert_eq!(rows.count(), 27, "{shown}");
        let ends = shown.lines().find(|line| line.starts_with("all ")).unwrap();
        let checks: u32 = ends.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(checks > 1000 && ends.contains(" checks passed, "), "{ends}");
    }
    assert_eq!(weft(&["demo", "now"]).status.code(), Some(2));
    assert_eq!(weft(&["demo-partner"]).status.code(), Some(2));
}

/// In a network of its own, in which the loopback is down at first.
#[test]
fn a_demo_without_a_loopback_says_what_to_do() {
    let inside = |script: &str| {
        let weft = env!("CARGO_BIN_EXE_weft");
        Command::new("unshare").args(["-rn", "sh", "-c", script, "sh", weft]).output().unwrap()
    };
    if !inside("true").status.success() {
        eprintln!("no network namespace can be made here: nothing was tested");
        return;
    }
    let output = inside("\"$1\" demo");
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.starts_with("weft: demo: the loopback interface does not work (127.0.0.1: "), "{told}");
    assert!(told.contains("ip link set lo up"), "{told}");
    // Where there is no IPv4, IPv6 does.
    let _alone = SPINNING.lock();
    let output = inside("ip link set lo up && ip address del 127.0.0.1/8 dev lo && \"$1\" demo");
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}\n{shown}", text(&output.stderr));
    assert!(shown.contains(" [::1]:") && shown.contains(" checks passed, "), "{shown}");
}

#[test]
fn more_threads_than_there_can_be_are_refused() {
    let output = weft(&["sim", "faults", "--seeds", "1", "--threads", "100000"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("100000 is not in 0..=1024"), "{}", text(&output.stderr));
    // More than there is work for are not started.
    let output = weft(&["sim", "faults", "--seeds", "4", "--threads", "1024"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains(" on 4 threads"), "{}", text(&output.stdout));
}

#[test]
fn a_demo_that_loses_its_other_half_says_so() {
    let _alone = SPINNING.lock();
    // Until its first words are read it stands still: it cannot be done before its other half is killed.
    let (mut reader, writer) = full_stream();
    let demo = Command::new(env!("CARGO_BIN_EXE_weft")).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let other = children(&demo, 1).remove(0);
    assert!(Command::new("kill").args(["-KILL", &other]).status().unwrap().success());
    let mut shown = Vec::new();
    reader.read_to_end(&mut shown).unwrap();
    let output = demo.wait_with_output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.starts_with("weft: demo: "), "{told}");
    assert!(!text(&shown).contains("checks passed"));
}

#[test]
fn json_has_the_promised_keys() {
    for name in ["rxe_rc_write.pcap", "rxe_ipv6_rc_all.pcap", "siw_crc_p2p_rping3500.pcap"] {
        let output = weft(&["decode", &file(name), "--json"]);
        assert!(output.status.success());
        let shown = text(&output.stdout);
        assert!(shown.lines().count() > 10);
        for line in shown.lines().filter(|line| !line.contains("\"protocol\":\"none\"")) {
            for key in [
                "frame", "protocol", "opcode", "command", "queue", "sequence", "key", "address", "length", "icrc",
                "fields",
            ] {
                assert!(line.contains(&format!("\"{key}\":")), "{key} in {line}");
            }
            assert!(line.contains("\"icrc\":\"good\"") || line.contains("\"protocol\":\"mpa\""), "{line}");
        }
    }
    let line = text(&weft(&["decode", &file("rxe_rc_write.pcap"), "--json"]).stdout);
    let third = line.lines().nth(2).unwrap();
    for part in [
        "\"frame\":3,",
        "\"opcode\":\"RC RDMA WRITE Only\"",
        "\"queue\":18,",
        "\"key\":860,",
        "\"length\":1,",
        "\"reth.length\":1",
    ] {
        assert!(third.contains(part), "{part} in {third}");
    }
}

#[test]
fn gzip_pcapng_and_standard_input_give_the_same() {
    let plain = weft(&["decode", &file("rxe_rc_atomic.pcap")]).stdout;
    assert_eq!(plain, weft_on(&["decode", "-"], &capture("rxe_rc_atomic.pcap")).stdout);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    Write::write_all(&mut gzip, &capture("rxe_rc_atomic.pcap")).unwrap();
    let zipped = gzip.finish().unwrap();
    assert_eq!(plain, weft_on(&["decode", "-"], &zipped).stdout);
    let pcapng = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weft-wire/tests/fixtures/capture_rc_atomic.pcapng");
    assert_eq!(plain, weft(&["decode", pcapng.to_str().unwrap()]).stdout);
    // What comes before the damage is shown, then the damage is told.
    let mut rest_lost = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    Write::write_all(&mut rest_lost, &capture("rxe_rc_atomic.pcap")).unwrap();
    let stored = rest_lost.finish().unwrap();
    let cut = weft_on(&["decode", "-"], &stored[..stored.len() - 100]);
    assert_eq!((cut.status.code(), text(&cut.stdout).lines().count()), (Some(1), 4));
    assert!(!cut.stderr.is_empty());
    let mut again = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    Write::write_all(&mut again, &zipped).unwrap();
    let twice = weft_on(&["decode", "-"], &again.finish().unwrap());
    assert!(text(&twice.stderr).contains("gzip inside of gzip"));
}

#[test]
fn a_summary_counts() {
    let shown = text(&weft(&["decode", &file("rxe_rc_send.pcap"), "--summary"]).stdout);
    let row = shown.lines().find(|line| line.contains("RC SEND Middle")).unwrap();
    assert_eq!(row.split_whitespace().rev().take(3).collect::<Vec<_>>(), ["0", "1024", "4"]);
    assert!(shown.ends_with("16 frames, 2940 bytes\n"), "{shown}");
}

#[test]
fn a_file_cut_anywhere_still_shows_what_is_whole() {
    let whole = capture("rxe_rc_badkey.pcap");
    for length in 0..whole.len() {
        let output = weft_on(&["decode", "-"], &whole[..length]);
        let packets = text(&output.stdout).lines().count();
        let (first, second) = (24 + 16 + 138, 24 + 16 + 138 + 16 + 62);
        let expected = usize::from(length >= first) + usize::from(length >= second);
        assert_eq!(packets, expected, "{length} bytes");
        let between = [24, first, second].contains(&length);
        assert_eq!(output.status.success(), between, "{length}: {}", text(&output.stderr));
        assert_eq!(output.stderr.is_empty(), between);
    }
}

#[test]
fn bad_files_get_a_clear_word() {
    for (input, wanted) in [
        (&b""[..], "the file is empty"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0", "not a pcap or pcapng file"),
        (b"#!/bin/sh\necho hello\n", "not a pcap or pcapng file"),
    ] {
        let output = weft_on(&["decode", "-"], input);
        assert_eq!(output.status.code(), Some(1));
        let told = text(&output.stderr);
        assert!(told.starts_with("weft: -: ") && told.contains(wanted), "{told}");
    }
    let mut huge = capture("rxe_rc_badkey.pcap");
    huge[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    let told = text(&weft_on(&["decode", "-"], &huge).stderr);
    assert!(told.contains("4294967295") && told.contains("262144"), "{told}");
    let missing = weft(&["decode", "/nonexistent/file.pcap"]);
    assert!(text(&missing.stderr).contains("/nonexistent/file.pcap: No such file"));
}

#[test]
fn a_bad_packet_is_marked_and_the_rest_is_decoded() {
    let mut bytes = capture("rxe_rc_write.pcap");
    let packet = |number: usize| {
        let mut at = 24;
        for _ in 1..number {
            at += 16 + u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        }
        at + 16
    };
    let (lies, flipped, version, opcode) = (packet(2), packet(3), packet(5), packet(7));
    bytes[lies + 16] = 0xff; // IPv4 total length
    bytes[flipped + 50] ^= 0x01; // somewhere in the headers
    bytes[version + 43] |= 0x03; // BTH version
    bytes[opcode + 42] = 0x1f; // no such opcode
    let shown = text(&weft_on(&["decode", "-"], &bytes).stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 20);
    assert!(lines[1].contains("[broken: IPv4 at byte 14: it claims"), "{}", lines[1]);
    assert!(lines[2].contains("[icrc bad: 0x"), "{}", lines[2]);
    assert!(lines[4].contains("[not decoded: RC RDMA WRITE Only: `bth.version == 0` does not hold]"), "{}", lines[4]);
    assert!(lines[6].contains("[not decoded: unknown opcode 0x1f]"), "{}", lines[6]);
    let good = weft_on(&["decode", "-"], &capture("rxe_rc_write.pcap"));
    let good = text(&good.stdout);
    for (number, (line, good)) in lines.iter().zip(good.lines()).enumerate() {
        assert_eq!(*line == good, ![1, 2, 4, 6].contains(&number), "line {number}");
    }
    let json = text(&weft_on(&["decode", "-", "--json"], &bytes).stdout);
    assert!(
        json.lines().all(|line| line.contains("\"icrc\":\"") && line.contains("\"address\":")),
        "keys are always there"
    );
    assert_eq!(json.matches("\"checksums\":{\"icrc\":\"bad\"}").count(), 1);
    assert_eq!(json.matches("\"error\":").count(), 3);
}

#[test]
fn infiniband_is_read_from_erf_records() {
    let shown = text(&weft(&["decode", &file("erf_infiniband.pcap")]).stdout);
    let lines: Vec<&str> = shown.lines().collect();
    for (number, wanted) in [
        "    0.000000           LID 2 → LID 1           InfiniBand    30 RC SEND Only queue=0xd38e43 ",
        "    0.001000     2001:db8::2 → 2001:db8::1     InfiniBand    94 RC RDMA WRITE Only with Immediate ",
        "    0.002000           LID 2 → LID 1           InfiniBand    30 RC Acknowledge ",
        "    0.003000     2001:db8::2 → 2001:db8::1     InfiniBand    90 UD SEND Only ",
        "    0.004000           LID 2 → LID 1           InfiniBand    54 RC FetchAdd ",
        "    0.005000           LID 2 → LID 1           InfiniBand    42 RC SEND Only ",
        "    0.006000           LID 2 → LID 1           InfiniBand    42 RC SEND Only ",
        "    0.007000           LID 2 → LID 1           raw 0x88b5    18 (no RDMA)",
        "    0.008000           LID 2 → LID 1           raw IPv6      50 (no RDMA)",
        "    0.009000       192.0.2.2 → 192.0.2.1       RoCEv2        78 RC RDMA READ Request ",
        "    0.010000     2001:db8::2 → 2001:db8::1     RoCEv2        82 RC Acknowledge ",
        "    0.011000               - → -               ERF type 25     6 (no RDMA)",
        "    0.012000               - → -               -             50 [broken: LRH at byte 0: it claims 50 bytes, \
         20 are there; the capture kept 20 of 50 bytes (snap length)]",
    ]
    .into_iter()
    .enumerate()
    {
        let line = lines[number];
        assert!(line.starts_with(&format!("{:>5}{wanted}", number + 1)), "{line}");
        assert_eq!(line.contains("[vcrc bad: "), [5, 6].contains(&number), "{line}");
        assert_eq!(line.contains("[icrc bad: "), number == 6, "{line}");
    }
    assert_eq!(lines.len(), 13);
    let json = text(&weft(&["decode", &file("erf_infiniband.pcap"), "--json"]).stdout);
    for (both, count) in [("good\",\"vcrc\":\"good", 5), ("good\",\"vcrc\":\"bad", 1), ("bad\",\"vcrc\":\"bad", 1)] {
        assert_eq!(json.matches(&format!("\"checksums\":{{\"icrc\":\"{both}\"}}")).count(), count, "{both}");
    }
    assert!(json.starts_with("{\"frame\":1,\"time\":1700000000.995999990,\"frame_length\":30,"), "{json}");
}

#[test]
fn a_damaged_erf_record_is_marked_and_the_rest_is_decoded() {
    let mut bytes = capture("erf_infiniband.pcap");
    // Its length, to less than its header.
    bytes[24 + 16 + 10..24 + 16 + 12].copy_from_slice(&15u16.to_be_bytes());
    let output = weft_on(&["decode", "-"], &bytes);
    let shown = text(&output.stdout);
    assert!(output.status.success() && shown.lines().count() == 13, "{shown}");
    let wanted = "    1 [broken: the ERF record at offset 24 cannot be read: it claims 15 bytes, but its headers alone \
                  take 16]\n";
    assert!(shown.starts_with(wanted), "{shown}");
}

#[test]
fn infiniband_packets_are_written_as_erf_which_wireshark_reads() {
    let folder = empty_folder("infiniband");
    let (erf, plain) = (folder.join("erf.pcap"), folder.join("plain.pcap"));
    let erf = erf.to_str().unwrap();
    for opcode in ["RC SEND Only", "RC Acknowledge"] {
        let made = weft(&["encode", "infiniband", opcode, "--out", erf]);
        assert!(made.status.success(), "{}", text(&made.stderr));
    }
    let bytes = std::fs::read(erf).unwrap();
    assert_eq!(bytes[20..24], 197u32.to_le_bytes(), "the link type");
    assert_eq!(bytes[24 + 16 + 8], 21, "the type of the record");
    let shown = text(&weft(&["decode", erf, "--json"]).stdout);
    assert_eq!(shown.matches("\"checksums\":{\"icrc\":\"good\",\"vcrc\":\"good\"}").count(), 2, "{shown}");
    // The same packets without records around them are of link type 247.
    let mut file = bytes[..24].to_vec();
    file[20] = 247;
    let mut rest = &bytes[24..];
    while let Some((header, behind)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let shorter = (length as u32 - 16).to_le_bytes();
        file.extend([&header[..8], &shorter, &shorter, &behind[16..length]].concat());
        rest = &behind[length..];
    }
    std::fs::write(&plain, file).unwrap();
    let plain = plain.to_str().unwrap();
    assert_eq!(text(&weft(&["decode", plain, "--json"]).stdout), shown);
    let refused = weft(&["encode", "infiniband", "RC SEND Only", "--out", plain]);
    assert!(text(&refused.stderr).contains("link type"), "{}", text(&refused.stderr));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn wrong_words_get_usage() {
    for (arguments, wanted) in [
        (&["frobnicate"][..], "weft: unrecognized subcommand 'frobnicate'"),
        (&["decode"], "required arguments were not provided:\n  <FILE>"),
        (&["decode", "a", "b"], "unexpected argument 'b' found"),
        (
            &["decode", "a", "--jason"],
            "unexpected argument '--jason' found\n\n  tip: a similar argument exists: '--json'",
        ),
        (&["decode", "a", "--json", "--summary"], "'--json' cannot be used with '--summary'"),
        (&["decode", "a", "--session", "x"], "invalid value 'x' for '--session <PORT>'"),
        (&["decode", "a", "--protocols"], "a value is required for '--protocols <DIR>'"),
        (&["protocol"], "  list   List the protocols\n  show   Show"),
        (&["encode", "roce-v2"], "required arguments were not provided:\n  <OPCODE>"),
        (&["info", "twice"], "unexpected argument 'twice' found"),
        (&["info", "--fast"], "unexpected argument '--fast' found"),
        (&["bench"], "  lat     Latency"),
        (&["bench", "lat", "--sizes", "x"], "`x` is no size"),
        (&["bench", "ofi", "--op", "swim"], "[possible values: send, tagged]"),
        (&["bench", "bw", "--op", "swim"], "[possible values: send, tagged, write, read, atomic]"),
        (&["bench-node", "weft"], "is for `weft bench` alone"),
    ] {
        let output = weft(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(wanted), "{}", text(&output.stderr));
    }
    assert!(text(&weft(&["protocol", "show", "roce-v3"]).stderr).contains("there is no protocol `roce-v3`; known:"));
    for asks in [&["help"][..], &["--help"], &["-h"]] {
        assert!(text(&weft(asks).stdout).contains("\n  decode       Show the RDMA packets"));
    }
    assert!(text(&weft(&["decode", "--help"]).stdout).contains("Usage: weft decode [OPTIONS] <FILE>"));
    for asks in [&["help", "bench"][..], &["bench", "--help"]] {
        assert!(text(&weft(asks).stdout).contains("\n  lat     Latency"));
    }
    assert!(text(&weft(&["bench", "lat", "-h"]).stdout).contains("Usage: weft bench lat [OPTIONS]"));
    assert!(text(&weft(&["encode", "iwarp", "Send", "--out", "x.pcap"]).stderr).contains("TCP stream"));
    let other = weft(&["encode", "roce-v2", "RC SEND Only", "bth.opcode=5"]);
    assert!(other.status.success() && text(&other.stderr).contains("note: not decoded again"));
    assert_eq!(weft(&["encode", "roce-v2", "0x+4"]).status.code(), Some(1));
    let odd = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let output = Command::new(env!("CARGO_BIN_EXE_weft")).arg("decode").arg(odd).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a name that is not UTF-8 is no panic");
}

#[test]
fn a_session_is_learned_from_its_set_up() {
    let folder = empty_folder("weft-cli");
    let pcap = folder.join("srdma.pcap");
    let pcap = pcap.to_str().unwrap();
    let write =
        ["encode", "srdma", "WRITE", "remote.address=0x1000", "remote.key=99", "--payload", "data", "--out", pcap];
    assert!(weft(&write).status.success());
    assert!(text(&weft(&["decode", pcap]).stdout).contains("(no RDMA)"), "nobody said that these ports are a session");
    assert!(text(&weft(&["decode", pcap, "--session", "49154"]).stdout).contains("SRDMA"));
    assert!(weft(&["encode", "srdma", "HELLO", "--out", pcap]).status.success());
    assert!(weft(&write).status.success());
    let shown = text(&weft(&["decode", pcap]).stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[1].contains("SRDMA") && lines[1].contains("HELLO"), "{shown}");
    assert!(lines[2].contains("WRITE") && lines[2].contains("addr=0x1000"), "{shown}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Appends a bundle to `pcap`, of entries in hex with the length that each says it has.
fn add_bundle(pcap: &str, entries: &[(usize, &str)]) {
    let payload = entries.iter().fold("0x".to_string(), |all, (length, entry)| all + &format!("{length:04x}") + entry);
    let made = weft(&["encode", "srdma", "Bundle", "--payload", &payload, "--out", pcap]);
    assert!(made.status.success(), "{}", text(&made.stderr));
}

#[test]
fn the_packets_of_a_bundle_are_shown_one_by_one() {
    let folder = empty_folder("weft-bundle");
    let pcap = folder.join("bundle.pcap");
    let pcap = pcap.to_str().unwrap();
    // Opcode, flags and handle, destination; the rest of the transport header is zero.
    let transport = |opcode: &str, destination: &str| format!("{opcode}000000{destination}{}", "00".repeat(24));
    let acknowledge = transport("30", "00000011") + &"00".repeat(24);
    let send = transport("01", "00000022") + &"00".repeat(12) + "776566742100";
    let hello = transport("40", "00000000") + "5352444d412f5731" + &"00".repeat(16);
    let unknown = transport("ff", "00000000");
    let half = transport("01", "00000033");
    add_bundle(pcap, &[(56, &acknowledge), (50, &send)]);
    add_bundle(pcap, &[(56, &hello), (32, &unknown), (32, &half), (32, &half), (400, &send)]);

    let shown = text(&weft(&["decode", pcap, "--session", "49154"]).stdout);
    let lines: Vec<&str> = shown.lines().collect();
    let wanted = [
        ("    1 ", " Bundle len=110"),
        ("    1 ", "   1: Acknowledge queue=0x11 "),
        ("    1 ", "   2: SEND queue=0x22 "),
        ("    2 ", " Bundle len="),
        ("    2 ", "[broken: bundle, entry 1: a set-up packet must come alone]"),
        ("    2 ", "   2: [not decoded: "),
        ("    2 ", "   3: [not decoded: "),
        ("    2 ", "   4: [not decoded: "),
        ("    2 ", "[broken: bundle, entry 5: the entry at byte 180 takes 402 bytes, 52 are left]"),
    ];
    assert_eq!(lines.len(), wanted.len(), "{shown}");
    for (line, (number, part)) in lines.iter().zip(wanted) {
        assert!(line.starts_with(number) && line.contains(part), "{part} in {line}");
        assert!(!line.contains("bad"), "{line}");
    }

    let json = text(&weft(&["decode", pcap, "--session", "49154", "--json"]).stdout);
    let json: Vec<&str> = json.lines().collect();
    assert_eq!(json.len(), wanted.len());
    assert!(json[0].contains("\"command\":\"bundle\"") && !json[0].contains("\"entry\""), "{}", json[0]);
    assert!(json[0].contains("\"icrc\":\"good\"") && json[0].contains("\"session.bundle\":1"), "{}", json[0]);
    assert!(json[2].contains("\"entry\":2,") && json[2].contains("\"opcode\":\"SEND\""), "{}", json[2]);
    assert!(json[2].contains("\"icrc\":\"none\"") && json[2].contains("\"payload_length\":6,"), "{}", json[2]);
    assert!(json[2].contains("\"session.bundle\":0"), "{}", json[2]);
    assert!(json[5].contains("\"entry\":2,") && json[5].contains("\"error\":"), "{}", json[5]);

    let summary = text(&weft(&["decode", pcap, "--session", "49154", "--summary"]).stdout);
    let count = |name: &str| {
        let line = summary.lines().find(|line| line.contains(&format!(" {name} "))).unwrap_or_else(|| panic!("{name}"));
        line.split(name).nth(1).unwrap().split_whitespace().next().unwrap().to_string()
    };
    let counts = ["Bundle", "SEND", "Acknowledge", "(not decoded)", "(broken)"].map(count);
    assert_eq!(counts, ["2", "1", "1", "3", "2"], "{summary}");
    assert!(summary.contains("\n2 frames, "), "{summary}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_definition_may_take_tcp_segments_by_their_port() {
    let folder = empty_folder("weft-tcp");
    let definition = "name = \"seven\"\ntitle = \"Seven\"\n[[recognise]]\ntcp_destination = 7174\n\
        [select]\nfields = [\"h.letter\"]\n[header.h]\nbytes = 1\n[header.h.fields]\nletter = { bit = 0, width = 8 }\n\
        [[opcode]]\ncode = 0x4d\nname = \"Em\"\nheaders = [\"h\"]\ncommand = \"control\"\n";
    std::fs::write(folder.join("seven.toml"), definition).unwrap();
    let with = ["--protocols", folder.to_str().unwrap()];
    let shown = text(&weft(&["decode", &file("siw_nocrc_rping200.pcap"), with[0], with[1]]).stdout);
    let request = shown.lines().find(|line| line.contains("Seven")).unwrap();
    assert!(request.contains(" Em "), "{request}");
    // It is no packet that can be made by itself, and weft says so.
    let made = weft(&["encode", "seven", "Em", with[0], with[1]]);
    assert_eq!(made.status.code(), Some(1));
    assert!(text(&made.stderr).contains("cannot build the headers that its rule wants (tcp_destination = 7174)"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn every_opcode_can_be_made() {
    for protocol in ["srdma"] {
        let shown = text(&weft(&["protocol", "show", protocol]).stdout);
        let opcodes = shown.split("\nopcodes\n").nth(1).unwrap();
        for line in opcodes.lines().skip(1) {
            let code = line.split_whitespace().next().unwrap();
            let made = weft(&["encode", protocol, code, "--payload", "abcdefgh"]);
            assert!(made.status.success(), "{protocol} {line}: {}", text(&made.stderr));
        }
    }
}

/// Held by tests whose processes spin: on few cores they would wait for each other's time slices.
static SPINNING: Mutex<()> = Mutex::new(());

/// The cells of the table's row for `bytes`.
fn bench_row(shown: &str, bytes: &str) -> Vec<String> {
    let rows = shown.lines().map(|line| line.split_whitespace().map(str::to_string).collect::<Vec<_>>());
    rows.into_iter().find(|cells| cells.first().is_some_and(|first| first == bytes)).unwrap()
}

#[test]
fn info_says_what_is_there_and_why_the_rest_is_not() {
    let plain = weft(&["info"]);
    let shown = text(&plain.stdout);
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    for section in ["memory", "copies between processes", "network", "libfabric provider", "limits"] {
        assert!(shown.lines().any(|line| line == section), "{shown}");
    }
    // Each kind has a line that says present, or absent and why.
    for kind in ["system", "emulated", "cuda", "rocm", "level-zero"] {
        let line = shown.lines().find_map(|line| line.trim_start().strip_prefix(kind)).unwrap().trim_start();
        let why = line.strip_prefix("absent: ").map(str::len);
        assert!(line.starts_with("present") || why.is_some_and(|length| length > 5), "{shown}");
    }
    let json = text(&weft(&["info", "--json"]).stdout);
    assert_eq!(json.lines().count(), 1);
    for part in [r#""memory":{"system":{"present":true"#, r#""cuda":{"present":"#, r#""copies":["#, r#""limits":{"#] {
        assert!(json.contains(part), "{json}");
    }
}

#[test]
fn the_benchmark_has_a_figure_from_every_peer() {
    let _alone = SPINNING.lock();
    let output = weft(&["bench", "lat", "--sizes", "8", "--rounds", "1", "--quick", "--peers-only"]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let heads: Vec<Vec<&str>> = shown.lines().skip(1).take(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(heads[0], ["fi_pingpong", "fi_pingpong", "fi_pingpong", "ucx_perftest", "bare"], "{shown}");
    assert_eq!(heads[1], ["tcp", "tcp;ofi_rxm", "udp;ofi_rxd", "tcp", "UDP"], "{shown}");
    let row = bench_row(&shown, "8");
    assert_eq!(row.len(), 6, "{shown}");
    assert!(row[1..].iter().all(|cell| cell.parse::<f64>().is_ok_and(|figure| figure > 0.0)), "{shown}");
}

#[test]
fn a_peer_that_is_not_installed_is_told_of() {
    let _alone = SPINNING.lock();
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["bench", "lat", "--sizes", "8,1m", "--rounds", "1", "--quick", "--peers-only", "--json"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let shown = text(&output.stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!((output.status.code(), lines.len()), (Some(0), 3), "{}", text(&output.stderr));
    assert!(lines[0].contains("\"best_peer\":null"), "{shown}");
    assert!(!lines[0].contains("\"median\":null"), "bare UDP is always there: {shown}");
    assert!(lines[1].contains("\"median\":null"), "but a megabyte is no datagram: {shown}");
    for install in ["apt-get install libfabric-bin", "apt-get install ucx-utils", "up to 65507 bytes"] {
        assert!(lines[2].contains(install), "{shown}");
    }
}

#[test]
fn the_benchmark_of_shared_memory_has_peers_and_limits() {
    let _alone = SPINNING.lock();
    let bench = |test: &str, operation: &str, sizes: &str, path: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(["bench", test, "--link", "shm", "--op", operation, "--sizes", sizes, "--rounds", "1"]);
        command.args(["--quick", "--peers-only"]);
        command.envs(path.map(|path| ("PATH", path)));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let figures = |row: &[String]| row[1..].iter().all(|cell| cell.parse::<f64>().is_ok_and(|figure| figure > 0.0));

    let shown = bench("lat", "tagged", "8", None);
    let heads: Vec<Vec<&str>> = shown.lines().skip(1).take(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(heads[1], ["shm", "posix,cma", "posix", "sysv", "memcpy", "line"], "{shown}");
    assert!(figures(&bench_row(&shown, "8")), "{shown}");
    assert!(shown.contains("note: cache line before and after runs: "), "{shown}");

    // Without any peer the limits are still there, and it is said what is absent and that nobody could be pinned.
    for (test, operation, limits) in
        [("lat", "send", &["memcpy", "line"][..]), ("bw", "write", &["memcpy"]), ("rate", "read", &["lines"])]
    {
        let shown = bench(test, operation, "64", Some("/nonexistent"));
        let heads: Vec<&str> = shown.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(heads, limits, "{shown}");
        let row = bench_row(&shown, "64");
        assert!(row.len() == limits.len() + 1 && figures(&row), "{shown}");
        for install in ["libfabric-bin", "ucx-utils", "util-linux"] {
            assert!(shown.contains(&format!("apt-get install {install}")), "{shown}");
        }
    }
}

#[test]
fn providers_of_libfabric_are_measured_and_who_fails_is_named() {
    let _alone = SPINNING.lock();
    // A plug-in that libfabric cannot load: the others have their figures, and it is said that Weft has none.
    let folder = empty_folder("bench-ofi");
    let plugin = folder.join("libweft-fi.so");
    std::fs::write(&plugin, "no library").unwrap();
    let bench = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(["bench", "ofi", "--quick", "--rounds", "1", "--sizes", "1,4k"]).args(arguments);
        command.env("WEFT_PLUGIN", &plugin).output().unwrap()
    };
    let output = bench(&["--op", "send", "--link", "shm"]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let tables: Vec<&str> =
        shown.lines().filter(|line| line.starts_with("lat: ") || line.starts_with("bw: ")).collect();
    assert_eq!(tables.len(), 2, "{shown}");
    let row = bench_row(&shown, "1");
    assert!(row.len() == 4 && row[1] == "-" && row[2].parse::<f64>().is_ok_and(|figure| figure > 0.0), "{shown}");
    assert!(shown.contains("note: fi_pingpong weft rdm: 1 bytes: failed: "), "{shown}");
    assert!(shown.contains("it has no message rate"), "{shown}");

    // Over the network, with tags; an object for each size and table, then the notes.
    let output = bench(&["--op", "tagged", "--link", "udp", "--peers-only", "--json"]);
    let shown = text(&output.stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!((output.status.code(), lines.len()), (Some(0), 4), "{shown}{}", text(&output.stderr));
    for provider in ["tcp;ofi_rxm", "udp;ofi_rxd"] {
        assert!(
            lines[0].contains(&format!("\"fi_pingpong {provider} rdm\":{{\"kind\":\"peer\",\"median\":")),
            "{shown}"
        );
    }
    assert!(!shown.contains("\"median\":null"), "{shown}");
    assert!(lines[3].contains("tcp has endpoints of type msg only"), "{shown}");

    let absent = bench(&["--op", "write"]);
    assert_eq!(absent.status.code(), Some(2));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let absent = command.args(["bench", "ofi"]).env("PATH", "/nonexistent").output().unwrap();
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent.stderr).contains("apt-get install libfabric-bin"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn messages_of_device_memory_are_measured_and_verified() {
    let _alone = SPINNING.lock();
    let common = ["bench", "device", "--kind", "emulated", "--sizes", "8,4096", "--rounds", "1", "--quick"];
    let output = weft(&[&common[..], &["--link", "shm", "--memory", "device-device", "--op", "send"]].concat());
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("send over shm, from emulated memory to emulated memory"), "{shown}");
    for bytes in ["8", "4096"] {
        let row = bench_row(&shown, bytes);
        assert!(row.len() == 7 && row[1..].iter().all(|cell| cell.parse::<f64>().is_ok()), "{shown}");
    }
    // Every operation, between every two kinds of memory, over both roads; a line for each size.
    let output = weft(&[&common[..], &["--json"]].concat());
    let shown = text(&output.stdout);
    assert_eq!((output.status.code(), shown.lines().count()), (Some(0), 36), "{shown}{}", text(&output.stderr));
    assert!(
        shown.starts_with(r#"{"test":"device","op":"send","link":"shm","memory":"device-device","kind":"emulated""#)
    );
    assert!(shown.lines().all(|line| line.contains(r#""weft_to_plain_copy_us":"#)), "{shown}");

    // A kind that is absent is a clear word, not a crash.
    let absent =
        Command::new(env!("CARGO_BIN_EXE_weft")).args(["bench", "device", "--kind", "level-zero"]).output().unwrap();
    let told = text(&absent.stderr);
    assert!(absent.status.success() || told.starts_with("weft: level-zero: "), "{told}");
}

#[test]
fn namespaces_are_made_and_removed_or_refused_in_clear_words() {
    let _alone = SPINNING.lock();
    let child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["bench", "lat", "--sizes", "8", "--rounds", "1", "--quick", "--peers-only", "--netns"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let prefix = format!("weft-bench-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        let row = bench_row(&text(&output.stdout), "8");
        assert!(row[1..].iter().all(|cell| cell.parse::<f64>().is_ok()), "{}", text(&output.stdout));
    } else {
        // As another user than root, or where a container forbids it.
        let told = text(&output.stderr);
        assert!(told.starts_with("weft: --netns: ip netns add ") && told.contains("(it takes root)"), "{told}");
    }
    let names =
        std::fs::read_dir("/run/netns").map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    assert!(!names.iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)));
}

#[test]
fn what_is_killed_leaves_no_process() {
    let _alone = SPINNING.lock();
    // Neither ends by itself: the one has a thousand rounds to go, the other's words are not read.
    let bench = ["bench", "lat", "--sizes", "8", "--peers-only", "--rounds", "1000"];
    for (arguments, count) in [(&bench[..], 2), (&["demo"], 1)] {
        let (_reader, writer) = full_stream();
        let mut weft = Command::new(env!("CARGO_BIN_EXE_weft"));
        let mut weft = weft.args(arguments).stdout(writer).stderr(Stdio::null()).spawn().unwrap();
        let left = children(&weft, count);
        weft.kill().unwrap();
        weft.wait().unwrap();
        for id in left {
            // Gone, or dead and only waiting for whoever adopted it.
            let dead =
                || std::fs::read_to_string(format!("/proc/{id}/stat")).map_or(true, |stat| stat.contains(") Z "));
            until(dead);
        }
    }
}

/// A way for output on which whoever writes waits until it is read: it is full of zeros.
fn full_stream() -> (UnixStream, OwnedFd) {
    let (reader, mut writer) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    let zeros = [0; 4096];
    for length in [zeros.len(), 1] {
        while writer.write(&zeros[..length]).is_ok() {}
    }
    writer.set_nonblocking(false).unwrap();
    (reader, writer.into())
}

/// Waits until a process has so many children, and each is the program that it is to become: before that, nobody has told
/// the kernel with whom it shall die. Gives their ids.
fn children(parent: &Child, count: usize) -> Vec<String> {
    let file = format!("/proc/{0}/task/{0}/children", parent.id());
    let words = |id: &str| std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let begun = |id: &String| {
        let theirs = words(id);
        !theirs.is_empty() && !theirs.starts_with(b"setpriv\0") && theirs != words(&parent.id().to_string())
    };
    let mut found = Vec::new();
    until(|| {
        let shown = std::fs::read_to_string(&file).unwrap_or_default();
        found = shown.split_whitespace().map(str::to_string).collect();
        found.len() == count && found.iter().all(begun)
    });
    found
}

/// Waits; the bound is far beyond what anything here takes, and ends what hangs.
fn until(mut holds: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds() {
        assert!(started.elapsed().as_secs() < 600);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
