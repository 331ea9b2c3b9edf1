//! What the link alone does.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use weft_link::udp::{Config, UdpLink};
use weft_link::wait::wait_readable;
use weft_link::{Link, Outgoing, Segment, SendError};

use super::hosts::{Host, join};
use super::{ETHERNET, PATIENCE, forge, pattern};

const NOW: Option<Duration> = Some(Duration::ZERO);

fn open(host: &Host, ipv6: bool, config: &Config) -> UdpLink {
    let (local, config) = (SocketAddr::new(host.address(ipv6, 0), 0), config.clone());
    host.run(move || UdpLink::open(local, &config).unwrap())
}

fn send(
    link: &mut UdpLink,
    to: SocketAddr,
    length: usize,
    segment_bytes: usize,
    may_fragment: bool,
) -> Result<usize, SendError> {
    let bytes = pattern(length, 0);
    let pieces = [Segment::from_slice(&bytes)];
    link.send(&[Outgoing { path: to.into(), pieces: &pieces, segment_bytes, class: 0, may_fragment }])
}

/// Lengths of the next datagrams that arrive.
fn lengths(link: &mut UdpLink, count: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    while lengths.len() < count {
        link.receive(&mut |incoming| lengths.extend(incoming.datagrams().map(|datagram| datagram.len()))).unwrap();
        if lengths.len() < count {
            assert!(wait_readable(link.descriptor().unwrap(), Some(PATIENCE)).unwrap(), "{lengths:?}");
        }
    }
    lengths
}

#[test]
fn fragments_are_made_where_they_may_be_and_nowhere_else() {
    for (ipv6, mtu, fits) in [(false, 1000, 972), (false, 300, 512), (true, 1280, 1232)] {
        let (a, b) = (Host::new(1), Host::new(2));
        join(&a, &b, 0, mtu);
        let (mut from, mut to) = (open(&a, ipv6, &Config::default()), open(&b, ipv6, &Config::default()));
        let there = to.local();
        assert_eq!(from.mtu(there.into()), fits);
        let fits = fits as usize;
        for segment in [0, fits] {
            assert_eq!(send(&mut from, there, 4 * fits, segment, segment == 0).unwrap(), 1);
        }
        assert_eq!(lengths(&mut to, 5), [4 * fits, fits, fits, fits, fits]);
        assert!(matches!(send(&mut from, there, fits + 1, 0, false), Err(SendError::TooBig { .. })));
        assert!(matches!(send(&mut from, there, 3 * (fits + 1), fits + 1, false), Err(SendError::TooBig { .. })));
        assert_eq!(send(&mut from, there, 3 * (fits + 1), fits + 1, true).unwrap(), 1);
        assert_eq!(lengths(&mut to, 3), [fits + 1; 3]);
        assert!(from.offloads());
        // The interface changes: what it says next is believed.
        a.set_mtu(0, ETHERNET);
        assert_eq!(send(&mut from, there, fits + 1, 0, false).unwrap(), 1);
        a.set_mtu(0, mtu);
        assert!(matches!(send(&mut from, there, fits + 1, 0, false), Err(SendError::TooBig { .. })));
        assert_eq!(from.mtu(there.into()) as usize, fits);
    }
}

#[test]
fn a_routes_own_mtu_counts_and_what_is_said_of_it_does_not() {
    let (a, b) = (Host::new(1), Host::new(2));
    join(&a, &b, 0, ETHERNET);
    for (ipv6, claimed, headers) in [(false, 600, 28), (true, 1280, 48)] {
        let (mut from, mut to) = (open(&a, ipv6, &Config::default()), open(&b, ipv6, &Config::default()));
        let there = to.local();
        let fits = ETHERNET - headers;
        assert_eq!(send(&mut from, there, 1, 0, false).unwrap(), 1);
        assert_eq!(lengths(&mut to, 1), [1]);
        let victim = from.local();
        b.run(move || forge::too_big(victim, there, claimed));
        while !a.route(there.ip()).contains(&format!("mtu {claimed}")) {
            std::thread::yield_now();
        }
        let mut later = open(&a, ipv6, &Config::default());
        for link in [&mut from, &mut later] {
            assert_eq!(link.mtu(there.into()), fits);
            for segment in [0, fits as usize] {
                let length = if segment == 0 { fits as usize } else { 3 * segment };
                assert_eq!(send(link, there, length, segment, false).unwrap(), 1);
            }
            assert_eq!(lengths(&mut to, 4), [fits as usize; 4]);
        }
        // What the administrator says is known from the beginning.
        let route = format!("{there_ip}/{bits}", there_ip = there.ip(), bits = if ipv6 { 128 } else { 32 });
        a.ip(&["route", "add", &route, "dev", "weft00", "mtu", "1400"]);
        assert_eq!(open(&a, ipv6, &Config::default()).mtu(there.into()), 1400 - headers);
    }
}

#[test]
fn room_is_told_of_when_it_was_missed() {
    let (a, b) = (Host::new(1), Host::new(2));
    join(&a, &b, 0, ETHERNET);
    // Nobody gives up asking for an address.
    a.run(|| std::fs::write("/proc/sys/net/ipv4/neigh/weft00/mcast_solicit", "1000000").unwrap());
    for favourite in [false, true] {
        let config = Config { send_buffer_bytes: 1, favourite, ..Config::default() };
        let mut link = open(&a, false, &config);
        assert!(!wait_readable(link.descriptor().unwrap(), NOW).unwrap());
        // Nobody has this address, so that what is sent there waits to be told whose it is.
        let nobody: SocketAddr = format!("10.178.0.{}:9", 200 + u8::from(favourite)).parse().unwrap();
        a.ip(&["neighbour", "replace", &nobody.ip().to_string(), "dev", "weft00", "nud", "incomplete"]);
        while !matches!(send(&mut link, nobody, 1000, 0, false), Err(SendError::WouldBlock)) {}
        assert!(link.watch_room(true) && link.watch_room(true));
        assert!(!wait_readable(link.descriptor().unwrap(), NOW).unwrap());
        let address = "02:00:00:00:00:01";
        a.ip(&[
            "neighbour",
            "replace",
            &nobody.ip().to_string(),
            "dev",
            "weft00",
            "lladdr",
            address,
            "nud",
            "permanent",
        ]);
        assert!(wait_readable(link.descriptor().unwrap().as_fd(), Some(PATIENCE)).unwrap());
        assert_eq!(send(&mut link, nobody, 1000, 0, false).unwrap(), 1);
        assert!(!link.watch_room(false));
        assert!(!wait_readable(link.descriptor().unwrap(), NOW).unwrap());
    }
}
