//! The parse graph: from the first byte of a frame, through tags, extension headers and tunnels, to the protocol.
//!
//! The walk notes every layer and all that the protocol index can match on ([`Seen`]). It trusts no length: a header's
//! claim may shorten what follows, never reach past what is there.

use core::fmt;

use crate::header::{
    Ethernet, EthernetView, GreView, Grh, GrhView, HeaderError, Ipv4, Ipv4View, Ipv6, Ipv6ExtensionView, Ipv6View, Lrh,
    LrhView, TcpView, Udp, UdpView, Vlan, VlanView, Vxlan, VxlanView, ether_type, ip_protocol, link_next_header,
    udp_port,
};
use crate::limits::{LAYERS_MAX, TUNNEL_DEPTH_MAX};
use crate::table::{FrameKind, Link, Outer, Seen, Term, Tunnel};

/// Behind what an LRH's length counts.
const VCRC_LENGTH: usize = 2;

/// A header on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LayerKind {
    /// Ethernet II.
    #[default]
    Ethernet,
    /// A VLAN tag (802.1Q, 802.1ad).
    Vlan,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// An IPv6 extension header.
    Ipv6Extension,
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// VXLAN.
    Vxlan,
    /// GRE.
    Gre,
    /// InfiniBand local route header.
    Lrh,
    /// InfiniBand global route header.
    Grh,
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LayerKind::Ethernet => "Ethernet",
            LayerKind::Vlan => "VLAN",
            LayerKind::Ipv4 => "IPv4",
            LayerKind::Ipv6 => "IPv6",
            LayerKind::Ipv6Extension => "IPv6 extension",
            LayerKind::Udp => "UDP",
            LayerKind::Tcp => "TCP",
            LayerKind::Vxlan => "VXLAN",
            LayerKind::Gre => "GRE",
            LayerKind::Lrh => "LRH",
            LayerKind::Grh => "GRH",
        })
    }
}

/// A layer and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Layer {
    /// Which header.
    pub kind: LayerKind,
    /// Its first byte in the frame.
    pub offset: u32,
}

/// What the walk ended at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The InfiniBand transport follows.
    Transport,
    /// A UDP payload follows.
    Udp,
    /// A TCP payload follows.
    Tcp,
    /// A fragment of an IP datagram: its transport cannot be seen.
    Fragment,
    /// Something that this graph has no node for.
    Other,
}

/// The way through a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// For the protocol index.
    pub seen: Seen,
    /// What the walk ended at.
    pub stop: Stop,
    /// First byte behind the last header.
    pub start: usize,
    /// First byte behind the payload, as the innermost length says; link padding comes after it.
    pub end: usize,
    layers: [Layer; LAYERS_MAX],
    count: u8,
    /// Where the outer headers of checksums lie: link, network, UDP.
    link: Option<u32>,
    network: Option<u32>,
    udp: Option<u32>,
}

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphError {
    /// In this header.
    pub layer: LayerKind,
    /// At this byte of the frame.
    pub offset: usize,
    /// What.
    pub fault: Fault,
}

/// See [`GraphError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The header itself.
    Header(HeaderError),
    /// It claims more bytes than there are, or fewer than it has itself.
    Lies {
        /// Bytes claimed.
        claimed: usize,
        /// Bytes there.
        have: usize,
    },
    /// More than [`LAYERS_MAX`] layers.
    TooManyLayers,
    /// More than [`TUNNEL_DEPTH_MAX`] tunnels in each other.
    TooDeep,
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: ", self.layer, self.offset)?;
        match self.fault {
            Fault::Header(error) => error.fmt(f),
            Fault::Lies { claimed, have } => write!(f, "it claims {claimed} bytes, {have} are there"),
            Fault::TooManyLayers => write!(f, "more than {LAYERS_MAX} layers"),
            Fault::TooDeep => write!(f, "more than {TUNNEL_DEPTH_MAX} tunnels in each other"),
        }
    }
}

impl core::error::Error for GraphError {}

impl Path {
    /// All layers, outermost first.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        self.layers.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// The innermost layer of a kind.
    #[must_use]
    pub fn innermost(&self, kind: LayerKind) -> Option<usize> {
        self.layers().iter().rev().find(|layer| layer.kind == kind).map(|layer| layer.offset as usize)
    }

    /// The bytes of the protocol.
    #[inline]
    #[must_use]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        match frame.get(self.start..self.end) {
            Some(payload) => payload,
            None => nothing(),
        }
    }

    /// The outer headers that checksums cover.
    #[must_use]
    pub fn outer<'a>(&self, frame: &'a [u8]) -> Outer<'a> {
        let cut = |from: Option<u32>, to: Option<u32>| {
            let to = to.map_or(self.start, |to| to as usize);
            from.and_then(|from| frame.get(from as usize..to)).unwrap_or(&[])
        };
        Outer { link: cut(self.link, self.network), network: cut(self.network, self.udp), udp: cut(self.udp, None) }
    }
}

/// The payload of a path with another frame. A call, so that the usual case is a branch and no conditional moves.
#[cold]
fn nothing<'a>() -> &'a [u8] {
    &[]
}

/// The header to read next.
#[derive(Clone, Copy)]
enum Next {
    Ethernet,
    EtherType(u16),
    Vlan,
    Ipv4,
    Ipv6,
    IpProtocol(u8),
    Lrh,
    Grh,
}

/// The walk in progress.
struct Walk<'a> {
    frame: &'a [u8],
    path: Path,
    tunnels: u8,
}

/// Walks a frame.
#[inline]
pub fn walk(link: Link, frame: &[u8]) -> Result<Path, GraphError> {
    let plain = match link {
        Link::Ethernet => plain_ethernet(frame),
        Link::InfiniBand => plain_infiniband(frame),
        Link::Ip => None,
    };
    match plain {
        Some(path) => Ok(path),
        None => walk_any(link, frame),
    }
}

/// The way through a frame of one of the few shapes that most frames have: no tags, no options, no tunnel. `None` for
/// any other, and for whatever is wrong with a frame: [`walk_any`] finds the way, or the words.
#[inline]
fn plain_ethernet(frame: &[u8]) -> Option<Path> {
    const NETWORK: usize = Ethernet::LEN;
    let seen = start(Link::Ethernet);
    match EthernetView::new(frame).ok()?.ethertype() {
        ether_type::IPV4 => {
            let ip = Ipv4View::new(frame.get(NETWORK..)?).ok()?;
            if ip.header_len() != Ipv4::LEN || ip.is_fragment() || ip.protocol() != ip_protocol::UDP {
                return None;
            }
            let seen = seen.with(Term::ETHERTYPE, u64::from(ether_type::IPV4)).with(Term::IP_VERSION, 4);
            plain_udp::<{ NETWORK + Ipv4::LEN }>(frame, NETWORK + usize::from(ip.total_length()), seen, LayerKind::Ipv4)
        }
        ether_type::IPV6 => {
            let ip = Ipv6View::new(frame.get(NETWORK..)?).ok()?;
            if ip.payload_length() == 0 || ip.next_header() != ip_protocol::UDP {
                return None;
            }
            let end = NETWORK + Ipv6::LEN + usize::from(ip.payload_length());
            let seen = seen.with(Term::ETHERTYPE, u64::from(ether_type::IPV6)).with(Term::IP_VERSION, 6);
            plain_udp::<{ NETWORK + Ipv6::LEN }>(frame, end, seen, LayerKind::Ipv6)
        }
        ether_type::ROCE_V1 => {
            let grh = GrhView::new(frame.get(NETWORK..)?).ok()?;
            let start = NETWORK + Grh::LEN;
            let end = start + usize::from(grh.payload_length());
            if end > frame.len() || grh.next_header() != Grh::TRANSPORT {
                return None;
            }
            let seen = seen
                .with(Term::ETHERTYPE, u64::from(ether_type::ROCE_V1))
                .with(Term::IP_VERSION, 6)
                .with(Term::IP_PROTOCOL, u64::from(Grh::TRANSPORT));
            let layers = layers([(LayerKind::Ethernet, 0), (LayerKind::Grh, NETWORK)]);
            let network = Some(NETWORK as u32);
            Some(Path { seen, stop: Stop::Transport, start, end, layers, count: 2, link: None, network, udp: None })
        }
        _ => None,
    }
}

/// UDP at `AT`, in an IP packet that ends at `end`.
#[inline(always)]
fn plain_udp<const AT: usize>(frame: &[u8], end: usize, seen: Seen, network: LayerKind) -> Option<Path> {
    let udp = UdpView::new(frame.get(AT..)?).ok()?;
    let length = usize::from(udp.length());
    if end > frame.len() || AT + length > end || length < Udp::LEN || udp.destination_port() == udp_port::VXLAN {
        return None;
    }
    let seen = seen
        .with(Term::IP_PROTOCOL, u64::from(ip_protocol::UDP))
        .with(Term::UDP_SOURCE, u64::from(udp.source_port()))
        .with(Term::UDP_DESTINATION, u64::from(udp.destination_port()));
    Some(Path {
        seen,
        stop: Stop::Udp,
        start: AT + Udp::LEN,
        end: AT + length,
        layers: layers([(LayerKind::Ethernet, 0), (network, Ethernet::LEN), (LayerKind::Udp, AT)]),
        count: 3,
        link: None,
        network: Some(Ethernet::LEN as u32),
        udp: Some(AT as u32),
    })
}

/// As [`plain_ethernet`], for packets that stay in their subnet.
#[inline]
fn plain_infiniband(frame: &[u8]) -> Option<Path> {
    let lrh = LrhView::new(frame).ok()?;
    let end = usize::from(lrh.pktlen()) * 4 + VCRC_LENGTH;
    if lrh.lnh() != link_next_header::LOCAL || end > frame.len() || end < Lrh::LEN {
        return None;
    }
    let seen = start(Link::InfiniBand).with(Term::IP_PROTOCOL, u64::from(Grh::TRANSPORT));
    let layers = layers([(LayerKind::Lrh, 0)]);
    let (start, link) = (Lrh::LEN, Some(0));
    Some(Path { seen, stop: Stop::Transport, start, end, layers, count: 1, link, network: None, udp: None })
}

/// What is seen before the first header is read.
#[inline(always)]
fn start(link: Link) -> Seen {
    Seen::default()
        .with(Term::LINK, link as u64)
        .with(Term::TUNNEL, Tunnel::None as u64)
        .with(Term::FRAME, FrameKind::Packet as u64)
}

#[inline(always)]
fn layers<const N: usize>(known: [(LayerKind, usize); N]) -> [Layer; LAYERS_MAX] {
    let mut layers = [Layer::default(); LAYERS_MAX];
    for (layer, (kind, offset)) in layers.iter_mut().zip(known) {
        *layer = Layer { kind, offset: offset as u32 };
    }
    layers
}

/// Walks what follows a link header that the graph does not know, given the EtherType in it (cooked captures).
pub fn walk_from(ethertype: u16, rest: &[u8]) -> Result<Path, GraphError> {
    walk_steps(Link::Ip, rest, Next::EtherType(ethertype))
}

/// Walks a frame of any shape.
#[inline(never)]
fn walk_any(link: Link, frame: &[u8]) -> Result<Path, GraphError> {
    let first = match link {
        Link::Ethernet => Next::Ethernet,
        Link::InfiniBand => Next::Lrh,
        Link::Ip if frame.first().is_some_and(|byte| byte >> 4 == 6) => Next::Ipv6,
        Link::Ip => Next::Ipv4,
    };
    walk_steps(link, frame, first)
}

fn walk_steps(link: Link, frame: &[u8], first: Next) -> Result<Path, GraphError> {
    let path = Path {
        seen: start(link),
        stop: Stop::Other,
        start: 0,
        end: frame.len(),
        layers: [Layer::default(); LAYERS_MAX],
        count: 0,
        link: None,
        network: None,
        udp: None,
    };
    let mut walk = Walk { frame, path, tunnels: 0 };
    let mut next = Some(first);
    while let Some(step) = next {
        next = walk.step(step)?;
    }
    Ok(walk.path)
}

impl<'a> Walk<'a> {
    #[inline]
    fn rest(&self) -> &'a [u8] {
        self.frame.get(self.path.start..self.path.end).unwrap_or(&[])
    }

    fn fault(&self, layer: LayerKind, fault: Fault) -> GraphError {
        GraphError { layer, offset: self.path.start, fault }
    }

    /// Notes a layer of `length` bytes and goes behind it.
    #[inline]
    fn enter(&mut self, kind: LayerKind, length: usize) -> Result<(), GraphError> {
        let have = self.path.end - self.path.start;
        if length > have {
            return Err(self.fault(kind, Fault::Header(HeaderError::Truncated { needed: length, have })));
        }
        match self.path.layers.get_mut(usize::from(self.path.count)) {
            Some(layer) => *layer = Layer { kind, offset: self.path.start as u32 },
            None => return Err(self.fault(kind, Fault::TooManyLayers)),
        }
        self.path.count += 1;
        self.path.start += length;
        Ok(())
    }

    /// Shortens what follows: the header at `offset` claims `claimed` bytes from there on.
    #[inline]
    fn claim(&mut self, kind: LayerKind, offset: usize, claimed: usize) -> Result<(), GraphError> {
        let have = self.path.end - offset;
        if claimed > have || offset + claimed < self.path.start {
            return Err(GraphError { layer: kind, offset, fault: Fault::Lies { claimed, have } });
        }
        self.path.end = offset + claimed;
        Ok(())
    }

    fn see(&mut self, term: Term, value: u64) {
        self.path.seen = self.path.seen.with(term, value);
    }

    /// Into a tunnel: what the outer packet said no longer counts.
    fn tunnel(&mut self, kind: LayerKind, tunnel: Tunnel) -> Result<(), GraphError> {
        self.tunnels += 1;
        if self.tunnels > TUNNEL_DEPTH_MAX {
            return Err(self.fault(kind, Fault::TooDeep));
        }
        for term in [Term::ETHERTYPE, Term::IP_VERSION, Term::IP_PROTOCOL, Term::VNI] {
            self.see(term, 0);
        }
        self.see(Term::TUNNEL, tunnel as u64);
        self.path.network = None;
        self.path.udp = None;
        Ok(())
    }

    fn end(&mut self, stop: Stop) -> Result<Option<Next>, GraphError> {
        self.path.stop = stop;
        Ok(None)
    }

    #[inline]
    fn step(&mut self, step: Next) -> Result<Option<Next>, GraphError> {
        match step {
            Next::Ethernet => {
                let view = EthernetView::new(self.rest()).map_err(|e| self.header(LayerKind::Ethernet, e))?;
                self.enter(LayerKind::Ethernet, Ethernet::LEN)?;
                Ok(Some(Next::EtherType(view.ethertype())))
            }
            Next::EtherType(ethertype) => {
                self.see(Term::ETHERTYPE, u64::from(ethertype));
                match ethertype {
                    ether_type::IPV4 => Ok(Some(Next::Ipv4)),
                    ether_type::IPV6 => Ok(Some(Next::Ipv6)),
                    ether_type::ROCE_V1 => Ok(Some(Next::Grh)),
                    tag if ether_type::is_vlan(tag) => Ok(Some(Next::Vlan)),
                    _ => self.end(Stop::Other),
                }
            }
            Next::Vlan => {
                let view = VlanView::new(self.rest()).map_err(|e| self.header(LayerKind::Vlan, e))?;
                self.enter(LayerKind::Vlan, Vlan::LEN)?;
                Ok(Some(Next::EtherType(view.ethertype())))
            }
            Next::Ipv4 => self.ipv4(),
            Next::Ipv6 => self.ipv6(),
            Next::IpProtocol(protocol) => self.ip_protocol(protocol),
            Next::Lrh => self.lrh(),
            Next::Grh => self.grh(),
        }
    }

    #[cold]
    fn header(&self, layer: LayerKind, error: HeaderError) -> GraphError {
        self.fault(layer, Fault::Header(error))
    }

    #[inline]
    fn ipv4(&mut self) -> Result<Option<Next>, GraphError> {
        let offset = self.path.start;
        let view = Ipv4View::new(self.rest()).map_err(|e| self.header(LayerKind::Ipv4, e))?;
        self.enter(LayerKind::Ipv4, view.header_len())?;
        // A length of 0 is what segmentation offload leaves in captures of long packets: then the frame's counts.
        if view.total_length() != 0 {
            self.claim(LayerKind::Ipv4, offset, usize::from(view.total_length()))?;
        }
        self.path.network = Some(offset as u32);
        self.see(Term::IP_VERSION, 4);
        if view.is_fragment() {
            return self.end(Stop::Fragment);
        }
        Ok(Some(Next::IpProtocol(view.protocol())))
    }

    fn ipv6(&mut self) -> Result<Option<Next>, GraphError> {
        let offset = self.path.start;
        let view = Ipv6View::new(self.rest()).map_err(|e| self.header(LayerKind::Ipv6, e))?;
        self.enter(LayerKind::Ipv6, Ipv6::LEN)?;
        // 0: a jumbogram, or segmentation offload as for IPv4.
        if view.payload_length() != 0 {
            self.claim(LayerKind::Ipv6, offset, Ipv6::LEN + usize::from(view.payload_length()))?;
        }
        self.path.network = Some(offset as u32);
        self.see(Term::IP_VERSION, 6);
        let mut next = view.next_header();
        while Ipv6ExtensionView::is_extension(next) {
            let extension = Ipv6ExtensionView::new(next, self.rest());
            let extension = extension.map_err(|e| self.header(LayerKind::Ipv6Extension, e))?;
            self.enter(LayerKind::Ipv6Extension, extension.header_len())?;
            if extension.fragment().is_some_and(|fragment| fragment.offset() != 0 || fragment.more()) {
                return self.end(Stop::Fragment);
            }
            next = extension.next_header();
        }
        Ok(Some(Next::IpProtocol(next)))
    }

    #[inline]
    fn ip_protocol(&mut self, protocol: u8) -> Result<Option<Next>, GraphError> {
        self.see(Term::IP_PROTOCOL, u64::from(protocol));
        match protocol {
            ip_protocol::UDP => self.udp(),
            ip_protocol::TCP => {
                let view = TcpView::new(self.rest()).map_err(|e| self.header(LayerKind::Tcp, e))?;
                self.enter(LayerKind::Tcp, view.header_len())?;
                self.see(Term::TCP_SOURCE, u64::from(view.source_port()));
                self.see(Term::TCP_DESTINATION, u64::from(view.destination_port()));
                self.end(Stop::Tcp)
            }
            ip_protocol::GRE => {
                let view = GreView::new(self.rest()).map_err(|e| self.header(LayerKind::Gre, e))?;
                self.tunnel(LayerKind::Gre, Tunnel::Gre)?;
                self.enter(LayerKind::Gre, view.header_len())?;
                Ok(Some(match view.protocol() {
                    ether_type::TEB => Next::Ethernet,
                    ethertype => Next::EtherType(ethertype),
                }))
            }
            ip_protocol::IPV4 => {
                self.tunnel(LayerKind::Ipv4, Tunnel::Ip)?;
                Ok(Some(Next::Ipv4))
            }
            ip_protocol::IPV6 => {
                self.tunnel(LayerKind::Ipv6, Tunnel::Ip)?;
                Ok(Some(Next::Ipv6))
            }
            _ => self.end(Stop::Other),
        }
    }

    #[inline]
    fn udp(&mut self) -> Result<Option<Next>, GraphError> {
        let offset = self.path.start;
        let view = UdpView::new(self.rest()).map_err(|e| self.header(LayerKind::Udp, e))?;
        self.enter(LayerKind::Udp, Udp::LEN)?;
        self.claim(LayerKind::Udp, offset, usize::from(view.length()))?;
        if view.destination_port() == udp_port::VXLAN {
            // Too short, or without a valid identifier: something else on the same port.
            if let Some(vxlan) = VxlanView::new(self.rest()).ok().filter(VxlanView::vni_valid) {
                self.tunnel(LayerKind::Vxlan, Tunnel::Vxlan)?;
                self.enter(LayerKind::Vxlan, Vxlan::LEN)?;
                self.see(Term::VNI, u64::from(vxlan.vni()));
                return Ok(Some(Next::Ethernet));
            }
        }
        self.path.udp = Some(offset as u32);
        self.see(Term::UDP_SOURCE, u64::from(view.source_port()));
        self.see(Term::UDP_DESTINATION, u64::from(view.destination_port()));
        self.end(Stop::Udp)
    }

    fn lrh(&mut self) -> Result<Option<Next>, GraphError> {
        let offset = self.path.start;
        let view = LrhView::new(self.rest()).map_err(|e| self.header(LayerKind::Lrh, e))?;
        self.enter(LayerKind::Lrh, Lrh::LEN)?;
        self.claim(LayerKind::Lrh, offset, usize::from(view.pktlen()) * 4 + VCRC_LENGTH)?;
        self.path.link = Some(offset as u32);
        match view.lnh() {
            // Nothing between the two has a next-header field, so the LRH speaks for it.
            link_next_header::LOCAL => {
                self.see(Term::IP_PROTOCOL, u64::from(Grh::TRANSPORT));
                self.end(Stop::Transport)
            }
            link_next_header::GLOBAL => Ok(Some(Next::Grh)),
            _ => self.end(Stop::Other),
        }
    }

    fn grh(&mut self) -> Result<Option<Next>, GraphError> {
        let offset = self.path.start;
        let view = GrhView::new(self.rest()).map_err(|e| self.header(LayerKind::Grh, e))?;
        self.enter(LayerKind::Grh, Grh::LEN)?;
        // On InfiniBand the LRH has the length already, with the VCRC that the GRH does not count.
        if self.path.link.is_none() {
            self.claim(LayerKind::Grh, offset, Grh::LEN + usize::from(view.payload_length()))?;
        }
        self.path.network = Some(offset as u32);
        self.see(Term::IP_VERSION, 6);
        self.see(Term::IP_PROTOCOL, u64::from(view.next_header()));
        self.end(if view.next_header() == Grh::TRANSPORT { Stop::Transport } else { Stop::Other })
    }
}
