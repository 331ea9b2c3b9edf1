//! Hosts with links between them: threads in network namespaces of their own. They vanish with their threads and sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// The interface of every link's ends.
const DEVICE: &str = "weft0";

type Job = Box<dyn FnOnce() + Send>;

/// A host.
pub(crate) struct Host {
    jobs: Sender<Job>,
    /// The kernel names a namespace by a thread that is in it.
    thread: String,
    number: u8,
}

impl Host {
    /// A host whose addresses end with `number`, which is not 0.
    pub(crate) fn new(number: u8) -> Host {
        let (jobs, todo) = channel::<Job>();
        let (named, name) = channel();
        thread::spawn(move || {
            // SAFETY: it concerns this thread only, and no memory.
            let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            let error = std::io::Error::last_os_error();
            assert_eq!(entered, 0, "unshare: {error}\nThis test makes network namespaces: it takes root.");
            // SAFETY: no memory is involved.
            named.send(unsafe { libc::gettid() }.to_string()).unwrap();
            todo.into_iter().for_each(|job| job());
        });
        let host = Host { jobs, thread: name.recv().expect("no namespace"), number };
        host.ip(&["link", "set", "lo", "up"]);
        host
    }

    /// Does something on this host: sockets that it opens are here.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        self.jobs.send(Box::new(move || done.send(job()).unwrap())).unwrap();
        result.recv().unwrap()
    }

    pub(crate) fn ip(&self, words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let (told, text) = self.run(move || {
            let output =
                Command::new("ip").args(&words).output().expect("this test uses `ip`: apt-get install iproute2");
            (output.status.success(), format!("ip {}: {output:?}", words.join(" ")))
        });
        assert!(told, "{text}");
        text
    }

    /// Its address on the link that both families share, or on the one behind a router.
    pub(crate) fn address(&self, ipv6: bool, net: u8) -> IpAddr {
        if ipv6 {
            Ipv6Addr::new(0xfd57, 0x4546, 0x5400, u16::from(net), 0, 0, 0, u16::from(self.number)).into()
        } else {
            Ipv4Addr::new(10, 178, net, self.number).into()
        }
    }

    /// Makes its end of a link carry packets of so many bytes.
    pub(crate) fn set_mtu(&self, net: u8, mtu: u32) {
        self.ip(&["link", "set", &device(net), "mtu", &mtu.to_string()]);
    }

    /// Everything that it sends to `to` vanishes, or no longer.
    pub(crate) fn cut(&self, to: IpAddr, cut: bool) {
        let prefix = format!("{to}/{}", if to.is_ipv6() { 128 } else { 32 });
        self.ip(&[family(to), "route", if cut { "add" } else { "delete" }, "blackhole", &prefix]);
    }

    /// What the kernel would say about the way, with what routers have said, or somebody in their name.
    pub(crate) fn route(&self, to: IpAddr) -> String {
        self.ip(&[family(to), "route", "get", &to.to_string()])
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "-6" } else { "-4" }
}

fn device(net: u8) -> String {
    format!("{DEVICE}{net}")
}

/// Joins two hosts by a link of this MTU.
pub(crate) fn join(a: &Host, b: &Host, net: u8, mtu: u32) {
    let (device, mtu) = (device(net), mtu.to_string());
    a.ip(&[
        "link", "add", &device, "mtu", &mtu, "type", "veth", "peer", "name", &device, "mtu", &mtu, "netns", &b.thread,
    ]);
    for host in [a, b] {
        for ipv6 in [false, true] {
            let address = format!("{}/{}", host.address(ipv6, net), if ipv6 { 64 } else { 24 });
            // IPv6 has no links that carry less than 1280 bytes.
            if !ipv6 {
                host.ip(&["address", "add", &address, "dev", &device]);
            } else if mtu.parse::<u32>().unwrap() >= 1280 {
                host.ip(&["address", "add", &address, "dev", &device, "nodad"]);
            }
        }
        host.ip(&["link", "set", &device, "up"]);
    }
    for host in [a, b] {
        while !host.ip(&["link", "show", "dev", &device]).contains("state UP") {
            thread::yield_now();
        }
    }
}

/// Sends packets between the links 0 and 1, of which `a` has the first and `b` the second.
pub(crate) fn route(a: &Host, router: &Host, b: &Host, ipv6: bool) {
    router.run(|| {
        for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{file}"), "1").unwrap();
        }
    });
    for (host, here, there) in [(a, 0, 1), (b, 1, 0)] {
        let net = if ipv6 { format!("fd57:4546:5400:{there}::/64") } else { format!("10.178.{there}.0/24") };
        let via = router.address(ipv6, here);
        host.ip(&[family(via), "route", "add", &net, "via", &via.to_string()]);
    }
}
