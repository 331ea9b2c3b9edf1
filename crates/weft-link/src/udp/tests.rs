use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use super::*;
use crate::limits::{NOTICES_MAX, PIECES_MAX, QUOTED_MAX_BYTES, ROUTES_MAX};
use crate::segment::Segment;

fn link(ipv6: bool) -> UdpLink {
    link_with(ipv6, &Config::default())
}

fn link_with(ipv6: bool, config: &Config) -> UdpLink {
    let ip = if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    UdpLink::open(SocketAddr::new(ip, 0), config).unwrap()
}

/// Long enough that only a loss reaches it. On loopback a datagram is mostly there when the send returns, but the kernel
/// may leave it to another thread of its own.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
/// Polls in which a link looks at all of its sockets.
const EVERYWHERE: usize = 20;

/// A port that nobody receives at, and that no other test gets meanwhile: a connected socket hears its peer only, which
/// is itself.
fn nobody(ipv6: bool) -> (UdpSocket, SocketAddr) {
    let ip: std::net::IpAddr = if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    socket.connect(address).unwrap();
    (socket, address)
}

/// Receives until something is there.
fn arrive(link: &mut UdpLink, sink: &mut dyn FnMut(Incoming<'_>)) -> usize {
    loop {
        // Not every poll looks at all sockets.
        let mut polls = (0..EVERYWHERE).map(|_| link.receive(sink).unwrap());
        if let Some(got) = polls.find(|got| *got > 0) {
            return got;
        }
        let descriptor = link.descriptor().unwrap();
        assert!(crate::wait::wait_readable(descriptor, PATIENCE).unwrap(), "it did not arrive");
    }
}

/// Receives until `count` datagrams are there, and no more.
fn collect(link: &mut UdpLink, count: usize) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    while datagrams.len() < count {
        arrive(link, &mut |incoming| {
            assert!(!incoming.marked);
            datagrams.extend(incoming.datagrams().map(|datagram| datagram.to_vec()));
        });
    }
    for _ in 0..EVERYWHERE {
        assert_eq!(link.receive(&mut |_| panic!("one too many")).unwrap(), 0);
    }
    datagrams
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

#[test]
fn one_datagram_in_pieces() {
    for ipv6 in [false, true] {
        let (mut a, mut b) = (link(ipv6), link(ipv6));
        let pieces = [Segment::from_slice(b"he"), Segment::from_slice(b""), Segment::from_slice(b"llo")];
        let outgoing =
            Outgoing { path: (b.local()).into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false };
        assert_eq!(a.send(&[outgoing]).unwrap(), 1);
        let mut from = None;
        let got = arrive(&mut b, &mut |incoming| {
            assert_eq!(incoming.bytes, b"hello");
            assert_eq!(incoming.segment_bytes, 0);
            from = Some(incoming.path);
        });
        assert_eq!((got, from), (1, Some(a.local().into())));
        assert_eq!(b.receive(&mut |_| panic!("nothing was sent")).unwrap(), 0);
    }
}

#[test]
fn the_kernel_cuts_and_joins() {
    for (ipv6, offload) in [(false, true), (true, true), (false, false)] {
        let config = Config { offload, ..Config::default() };
        let (mut a, mut b) = (link_with(ipv6, &config), link_with(ipv6, &config));
        let bytes = pattern(10 * 1400 + 17);
        let (front, back) = bytes.split_at(1000);
        let pieces = [Segment::from_slice(front), Segment::from_slice(back)];
        let outgoing =
            Outgoing { path: (b.local()).into(), pieces: &pieces, segment_bytes: 1400, class: 0, may_fragment: false };
        assert_eq!(a.send(&[outgoing]).unwrap(), 1);
        assert_eq!(a.offloads(), offload);
        let expected: Vec<_> = bytes.chunks(1400).map(<[u8]>::to_vec).collect();
        assert_eq!(collect(&mut b, 11), expected);
    }
}

#[test]
fn what_is_more_than_one_call_takes_is_cut_first() {
    let (mut a, mut b) = (link(false), link(false));
    // More bytes, more datagrams and more pieces than the kernel takes.
    let bytes = pattern(200_000);
    let whole = [Segment::from_slice(&bytes)];
    let small: Vec<_> = bytes.iter().take(PIECES_MAX + 1).map(std::slice::from_ref).map(Segment::from_slice).collect();
    let batch = [
        Outgoing { path: (b.local()).into(), pieces: &whole, segment_bytes: 4096, class: 0, may_fragment: false },
        Outgoing { path: (b.local()).into(), pieces: &small, segment_bytes: 10, class: 0, may_fragment: false },
        Outgoing { path: (b.local()).into(), pieces: &small, segment_bytes: 0, class: 0, may_fragment: false },
    ];
    assert_eq!(a.send(&batch).unwrap(), 3);
    let mut expected: Vec<_> = bytes.chunks(4096).map(<[u8]>::to_vec).collect();
    expected.extend(bytes[..=PIECES_MAX].chunks(10).map(<[u8]>::to_vec));
    expected.push(bytes[..=PIECES_MAX].to_vec());
    assert_eq!(collect(&mut b, expected.len()), expected);
}

#[test]
fn a_kernel_that_refuses_to_cut_is_asked_once() {
    let (mut a, mut b) = (link(false), link(false));
    // The kernel does not cut for a socket that sends without checksums.
    socket::set(&a.socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    let bytes = pattern(5000);
    let pieces = [Segment::from_slice(&bytes)];
    let outgoing =
        Outgoing { path: (b.local()).into(), pieces: &pieces, segment_bytes: 1300, class: 0, may_fragment: false };
    let expected: Vec<_> = bytes.chunks(1300).map(<[u8]>::to_vec).collect();
    for batch in [[outgoing].as_slice(), &[outgoing, outgoing]] {
        assert_eq!(a.send(batch).unwrap(), batch.len());
        assert!(!a.offloads());
        assert_eq!(collect(&mut b, 4 * batch.len()), vec![expected.clone(); batch.len()].concat());
    }
    assert_eq!(a.counters(), Counters::default());
}

#[test]
fn joining_goes_off_and_on_without_loss_or_confusion() {
    let (mut a, mut b) = (link(false), link(false));
    let bytes = pattern(40 * 1300);
    let pieces = [Segment::from_slice(&bytes)];
    let expected: Vec<_> = bytes.chunks(1300).map(<[u8]>::to_vec).collect();
    for _ in 0..3 {
        let outgoing =
            Outgoing { path: (b.local()).into(), pieces: &pieces, segment_bytes: 1300, class: 0, may_fragment: false };
        for _ in 0..2 {
            assert_eq!(a.send(&[outgoing]).unwrap(), 1);
            assert_eq!(collect(&mut b, 40), expected);
        }
        // Now that large ones have come, they are joined.
        assert_eq!(a.send(&[outgoing]).unwrap(), 1);
        let mut size = 0;
        assert_eq!(arrive(&mut b, &mut |incoming| size = incoming.segment_bytes), 1);
        assert_eq!(size, 1300);
        for _ in 0..10_000 {
            assert_eq!(b.receive(&mut |_| panic!("nothing was sent")).unwrap(), 0);
        }
    }
}

#[test]
fn a_batch_goes_to_several() {
    let mut a = link(false);
    let mut others: Vec<_> = (0..3).map(|_| link(false)).collect();
    let bytes: Vec<_> = (0..100u8).map(|number| [number]).collect();
    let pieces: Vec<_> = bytes.iter().map(|byte| [Segment::from_slice(byte)]).collect();
    let batch: Vec<_> = pieces
        .iter()
        .enumerate()
        .map(|(index, pieces)| Outgoing {
            path: (others[index % 3].local()).into(),
            pieces,
            segment_bytes: 0,
            class: 0,
            may_fragment: false,
        })
        .collect();
    assert_eq!(a.send(&batch).unwrap(), 100);
    for (index, link) in others.iter_mut().enumerate() {
        let expected: Vec<_> = (0..100u8).filter(|number| *number as usize % 3 == index).map(|n| vec![n]).collect();
        assert_eq!(collect(link, expected.len()), expected);
    }
}

#[test]
fn too_big_names_the_destination_and_takes_what_is_before_it() {
    for ipv6 in [false, true] {
        let (mut a, mut b) = (link(ipv6), link(ipv6));
        let bytes = pattern(70_000);
        let small = [Segment::from_slice(b"small")];
        let large = [Segment::from_slice(&bytes)];
        let batch = [
            Outgoing { path: (b.local()).into(), pieces: &small, segment_bytes: 0, class: 0, may_fragment: false },
            Outgoing { path: (b.local()).into(), pieces: &large, segment_bytes: 0, class: 0, may_fragment: false },
            Outgoing { path: (b.local()).into(), pieces: &small, segment_bytes: 0, class: 0, may_fragment: false },
        ];
        assert_eq!(a.send(&batch).unwrap(), 1);
        let to = b.local();
        assert!(matches!(a.send(&batch[1..]), Err(SendError::TooBig { path: told }) if told == to.into()));
        assert_eq!(a.send(&batch[2..]).unwrap(), 1);
        assert_eq!(collect(&mut b, 2), [b"small", b"small"]);
        // A segment that is too long does not cost the link its offload.
        let cut = Outgoing { path: to.into(), pieces: &large, segment_bytes: 65_530, class: 0, may_fragment: false };
        assert!(matches!(a.send(&[cut]), Err(SendError::TooBig { .. })));
        assert!(a.offloads());
        assert_eq!(a.counters(), Counters::default());
    }
}

#[test]
fn unreachable_is_skipped_and_counted() {
    let (mut a, mut b) = (link(false), link(false));
    let pieces = [Segment::from_slice(b"x")];
    let other_family: SocketAddr = "[::1]:9".parse().unwrap();
    let no_port = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let to =
        |to: SocketAddr| Outgoing { path: to.into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false };
    assert_eq!(a.send(&[to(b.local()), to(other_family), to(no_port), to(b.local())]).unwrap(), 4);
    assert_eq!(a.counters().skipped, 2);
    assert_eq!(collect(&mut b, 2).len(), 2);
    // Nobody listens there (any more): that is no error of the link, now or later.
    let (_nobody, gone) = nobody(false);
    for _ in 0..3 {
        assert_eq!(a.send(&[to(gone)]).unwrap(), 1);
        assert_eq!(a.receive(&mut |_| panic!("nobody answers")).unwrap(), 0);
    }
}

/// Receives until the network has said something.
fn notice(link: &mut UdpLink) -> Notice {
    loop {
        let mut polls = (0..EVERYWHERE).map(|_| {
            assert_eq!(link.receive(&mut |_| panic!("nobody answers")).unwrap(), 0);
            link.poll_notice()
        });
        if let Some(notice) = polls.find_map(|notice| notice) {
            return notice;
        }
        let descriptor = link.descriptor().unwrap();
        assert!(crate::wait::wait_readable(descriptor, PATIENCE).unwrap(), "the kernel says nothing");
    }
}

#[test]
fn a_port_that_is_nobodys_is_told_of_and_costs_others_nothing() {
    for (ipv6, favourite) in [(false, false), (true, false), (false, true), (true, true)] {
        let config = Config { favourite, ..Config::default() };
        let (mut a, mut b) = (link_with(ipv6, &config), link(ipv6));
        let (_nobody, gone) = nobody(ipv6);
        let bytes = pattern(3000);
        let pieces = [Segment::from_slice(&bytes)];
        let to = |to: SocketAddr| Outgoing {
            path: to.into(),
            pieces: &pieces,
            segment_bytes: 1000,
            class: 0,
            may_fragment: false,
        };
        // Often enough to make the one who is gone a favourite.
        for _ in 0..100 {
            assert_eq!(a.send(&[to(gone)]).unwrap(), 1);
            assert_eq!(notice(&mut a).path.remote, gone);
            while a.poll_notice().is_some() {}
        }
        assert_eq!(a.favourite.socket_to(gone).is_some(), favourite);
        for round in 0..30 {
            assert_eq!(a.send(&[to(gone)]).unwrap(), 1);
            // The error of that one stands against the socket now. The next ones go out all the same, alone or in a batch.
            let batch = vec![to(b.local()); 1 + round % 3];
            assert_eq!(a.send(&batch).unwrap(), batch.len());
            assert_eq!(collect(&mut b, 3 * batch.len()).len(), 3 * batch.len());
            let told = notice(&mut a);
            assert_eq!((told.path.remote, told.quoted()), (gone, &bytes[..QUOTED_MAX_BYTES]));
            while a.poll_notice().is_some() {}
        }
        assert_eq!(a.counters().skipped, 0);
        // Nothing is left that would keep a sleeper awake.
        let fd = std::os::fd::AsRawFd::as_raw_fd(&a.descriptor().unwrap());
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as told.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 0) }, 0);
    }
}

#[test]
fn notices_that_nobody_asks_for_are_forgotten() {
    let mut a = link(false);
    let pieces = [Segment::from_slice(b"anybody?")];
    let nobodies: Vec<_> = (0..3 * NOTICES_MAX).map(|_| nobody(false)).collect();
    for (_, gone) in &nobodies {
        assert_eq!(
            a.send(&[Outgoing {
                path: (*gone).into(),
                pieces: &pieces,
                segment_bytes: 0,
                class: 0,
                may_fragment: false
            }])
            .unwrap(),
            1
        );
        assert_eq!(a.receive(&mut |_| panic!("nobody answers")).unwrap(), 0);
    }
    assert!(std::iter::from_fn(|| a.poll_notice()).count() <= NOTICES_MAX);
}

#[test]
fn mtu_of_loopback() {
    let mut v4 = link(false);
    let (to, limit) = (v4.local(), 65_507);
    assert_eq!((v4.mtu(to.into()), v4.mtu(to.into())), (limit, limit));
    assert!((1232..=limit).contains(&v4.mtu("[::1]:9".parse::<SocketAddr>().unwrap().into())));
    let mut v6 = link(true);
    assert_eq!(v6.mtu(v6.local().into()), 65_536 - 48);
    // What it says does fit.
    for mut link in [v4, v6] {
        let bytes = pattern(link.mtu(link.local().into()) as usize);
        let pieces = [Segment::from_slice(&bytes)];
        let outgoing =
            Outgoing { path: (link.local()).into(), pieces: &pieces, segment_bytes: 0, class: 0, may_fragment: false };
        assert_eq!(link.send(&[outgoing]).unwrap(), 1);
        assert_eq!(collect(&mut link, 1), [bytes]);
    }
}

#[test]
fn few_routes_are_remembered() {
    let mut link = link(false);
    for host in 1..=3 * ROUTES_MAX as u8 {
        let to = SocketAddr::new(Ipv4Addr::new(127, 0, 0, host).into(), 9);
        assert_eq!(link.mtu(to.into()), 65_507);
    }
    assert_eq!(link.mtu(SocketAddr::new(Ipv4Addr::new(127, 0, 0, 1).into(), 9).into()), 65_507);
}

#[test]
fn marks_and_classes_are_carried() {
    for ipv6 in [false, true] {
        let config = Config { dscp: [0, 10, 46, 63], ..Config::default() };
        let mut a = link_with(ipv6, &config);
        let mut b = link(ipv6);
        let pieces = [Segment::from_slice(b"x")];
        let batch = [0, 1, 2, 3, 9].map(|class| Outgoing {
            path: (b.local()).into(),
            pieces: &pieces,
            segment_bytes: 0,
            class,
            may_fragment: false,
        });
        assert_eq!(a.send(&batch).unwrap(), 5);
        assert_eq!(collect(&mut b, 5).len(), 5);

        // A router would set CE; here a plain socket does.
        let plain = socket::open(a.local()).unwrap();
        let (level, name) =
            if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
        socket::set(&plain, level, name, 0b11).unwrap();
        socket::connect(&plain, b.local()).unwrap();
        let plain = UdpSocket::from(plain);
        // Of lone, small datagrams some are asked about; once one was marked, and among large ones, all are.
        let mut marks = 0;
        let mut receive = |bytes: &[u8]| {
            plain.send(bytes).unwrap();
            assert_eq!(arrive(&mut b, &mut |incoming| marks += usize::from(incoming.marked)), 1);
            assert_eq!(b.receive(&mut |_| panic!("one was sent")).unwrap(), 0);
            marks
        };
        let small = (0..20).map(|_| receive(b"small")).last().unwrap();
        assert!((1..20).contains(&small));
        assert_eq!(receive(b"small"), small + 1);
        assert_eq!(receive(&[7; 4000]), small + 2);
    }
}

#[test]
fn any_bytes_of_any_length_arrive() {
    let mut link = link(false);
    let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
    let lengths = [1, 0, 7, 1232, 9000, 65_507, 2, 0, 3];
    for length in lengths {
        plain.send_to(&pattern(length), link.local()).unwrap();
    }
    let mut seen = HashMap::new();
    while seen.values().sum::<usize>() < lengths.len() {
        arrive(&mut link, &mut |incoming| *seen.entry(incoming.bytes.len()).or_insert(0) += 1);
    }
    assert_eq!(seen.get(&0), Some(&2));
    assert_eq!(seen.values().sum::<usize>(), lengths.len());
}

#[test]
fn a_favourite_is_found_used_and_changed() {
    for ipv6 in [false, true] {
        let (mut a, mut b, mut c) = (link(ipv6), link(ipv6), link(ipv6));
        let to_a = a.local();
        let ping = |from: &mut UdpLink, to: SocketAddr, bytes: &[u8]| {
            let (head, tail) = bytes.split_at(bytes.len() / 2);
            let pieces = [Segment::from_slice(head), Segment::from_slice(tail)];
            assert_eq!(
                from.send(&[Outgoing {
                    path: to.into(),
                    pieces: &pieces,
                    segment_bytes: 0,
                    class: 0,
                    may_fragment: false
                }])
                .unwrap(),
                1
            );
        };
        let readable = |link: &UdpLink| {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&link.descriptor().unwrap());
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, as told.
            unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
        };
        for peer in [0, 1, 0] {
            let (peer, other) = if peer == 0 { (&mut b, &mut c) } else { (&mut c, &mut b) };
            for round in 0..200u8 {
                ping(&mut a, peer.local(), &[round; 40]);
                assert_eq!(only(peer), (to_a, vec![round; 40]));
                // Both the favourite and everybody else are heard, also by a sleeper.
                assert!(!readable(&a));
                ping(peer, to_a, b"favourite");
                while !readable(&a) {}
                assert_eq!(only(&mut a), (peer.local(), b"favourite".to_vec()));
                ping(other, to_a, b"other");
                while !readable(&a) {}
                assert_eq!(only(&mut a), (other.local(), b"other".to_vec()));
            }
            assert!(a.favourite.socket_to(peer.local()).is_some());
            // A batch for the favourite, with one that is too big in it.
            let (long, short) = (pattern(70_000), [Segment::from_slice(b"x")]);
            let long = [Segment::from_slice(&long)];
            let to = |pieces| Outgoing {
                path: (peer.local()).into(),
                pieces,
                segment_bytes: 0,
                class: 0,
                may_fragment: false,
            };
            let batch = [to(&short), to(&short), to(&long)];
            assert_eq!(a.send(&batch).unwrap(), 2);
            assert!(matches!(a.send(&batch[2..]), Err(SendError::TooBig { .. })));
            assert_eq!(collect(peer, 2), [b"x", b"x"]);
        }
        // The port is not shared with anybody.
        assert!(UdpLink::open(to_a, &Config::default()).is_err());
        // A favourite that has gone is no error. Its port is kept from others, who would hear what is meant for it.
        let gone = b.local();
        drop(b);
        let kept = UdpSocket::bind(gone).unwrap();
        kept.connect(gone).unwrap();
        ping(&mut a, gone, b"anybody?");
        while a.counters().reported == 0 {
            assert_eq!(a.receive(&mut |_| panic!("nobody answers")).unwrap(), 0);
            std::thread::yield_now();
        }
        ping(&mut a, gone, b"really?");
        ping(&mut a, c.local(), b"still there");
        assert_eq!(only(&mut c).1, b"still there");
    }
}

/// The one datagram that is there, on whichever socket.
fn only(link: &mut UdpLink) -> (SocketAddr, Vec<u8>) {
    let mut only = None;
    arrive(link, &mut |incoming| only = Some((incoming.path.remote, incoming.bytes.to_vec())));
    for _ in 0..EVERYWHERE {
        assert_eq!(link.receive(&mut |_| panic!("one too many")).unwrap(), 0);
    }
    only.unwrap()
}

#[test]
fn a_link_goes_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    let boxed: Box<dyn Link> = Box::new(link(false));
    is_send(&boxed);
    assert!(boxed.descriptor().is_some());
}
