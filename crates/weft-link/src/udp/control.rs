//! Control messages beside a datagram: traffic class and segment size.

use libc::{c_int, cmsghdr};

/// Bytes of control messages of one send or receive: a segment size and a traffic class, with room to spare.
const ROOM: usize = 64;
/// Header of a control message with its padding.
// SAFETY: only arithmetic on the length.
const HEADER: usize = unsafe { libc::CMSG_LEN(0) } as usize;

const _: () = {
    // SAFETY: only arithmetic on the length.
    assert!(unsafe { 2 * libc::CMSG_SPACE(size_of::<c_int>() as u32) } as usize <= ROOM);
};

/// Low two bits of the traffic class.
const ECN_MASK: u8 = 0b11;
/// Congestion experienced (RFC 3168).
const ECN_CE: u8 = 0b11;

/// Room for the control messages of one datagram.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Control {
    bytes: [u8; ROOM],
}

/// What came with a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Beside {
    /// Size of the datagrams that were joined; 0 when none were.
    pub(super) segment_bytes: usize,
    /// Marked with congestion.
    pub(super) marked: bool,
}

impl Control {
    pub(super) const ROOM: usize = ROOM;

    pub(super) const fn new() -> Control {
        Control { bytes: [0; ROOM] }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.bytes.as_mut_ptr().cast()
    }

    /// Writes what a send needs; gives the bytes used, 0 when it needs nothing.
    #[inline]
    pub(super) fn fill(&mut self, segment_bytes: u16, traffic_class: Option<u8>, ipv6: bool) -> usize {
        let mut at = 0;
        if segment_bytes != 0 {
            at = self.put(at, libc::SOL_UDP, libc::UDP_SEGMENT, &segment_bytes.to_ne_bytes());
        }
        if let Some(class) = traffic_class {
            let (level, kind) =
                if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
            at = self.put(at, level, kind, &c_int::from(class).to_ne_bytes());
        }
        at
    }

    /// Writes one message at `at`; gives where the next one goes.
    fn put(&mut self, at: usize, level: c_int, kind: c_int, data: &[u8]) -> usize {
        // SAFETY: only arithmetic on the length.
        let (length, space) = unsafe { (libc::CMSG_LEN(data.len() as u32), libc::CMSG_SPACE(data.len() as u32)) };
        let Some(message) = self.bytes.get_mut(at..at + space as usize) else { return at };
        message.fill(0);
        // SAFETY: all bytes zero is a valid header.
        let mut header: cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = length as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        // SAFETY: `message` has room for a header, as `CMSG_SPACE` counts it, and the write needs no alignment.
        unsafe { message.as_mut_ptr().cast::<cmsghdr>().write_unaligned(header) };
        if let Some(to) = message.get_mut(HEADER..HEADER + data.len()) {
            to.copy_from_slice(data);
        }
        at + space as usize
    }

    /// Reads what the kernel wrote.
    #[inline]
    pub(super) fn read(&self, length: usize) -> Beside {
        let mut beside = Beside::default();
        for (kind, data) in messages(self.bytes.get(..length).unwrap_or(&[])) {
            match kind {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    beside.segment_bytes = data.first_chunk().map_or(0, |size| c_int::from_ne_bytes(*size)) as usize;
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    beside.marked = data.first().is_some_and(|class| class & ECN_MASK == ECN_CE);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    let class = data.first_chunk().map_or(0, |class| c_int::from_ne_bytes(*class)) as u8;
                    beside.marked = class & ECN_MASK == ECN_CE;
                }
                _ => {}
            }
        }
        beside
    }
}

/// The control messages that the kernel wrote: level and kind, and the data.
#[inline]
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = ((c_int, c_int), &[u8])> {
    std::iter::from_fn(move || {
        if bytes.len() < HEADER {
            return None;
        }
        // SAFETY: at least a header's bytes are there, any bytes are a valid one, and the read needs no alignment.
        let header = unsafe { bytes.as_ptr().cast::<cmsghdr>().read_unaligned() };
        #[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
        let data = bytes.get(HEADER..header.cmsg_len as usize)?;
        // SAFETY: only arithmetic on the length.
        let space = unsafe { libc::CMSG_SPACE(data.len() as u32) } as usize;
        bytes = bytes.get(space..).unwrap_or(&[]);
        Some(((header.cmsg_level, header.cmsg_type), data))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for ipv6 in [false, true] {
            let mut control = Control::new();
            assert_eq!(control.fill(0, None, ipv6), 0);
            let length = control.fill(1400, Some(0xb8 | ECN_CE), ipv6);
            assert!(length > 0 && length <= Control::ROOM);
            // A send says UDP_SEGMENT where a receive says UDP_GRO: the size is not read back, the mark is.
            assert_eq!(control.read(length), Beside { segment_bytes: 0, marked: true });
            let length = control.fill(0, Some(0xb8 | 0b10), ipv6);
            assert!(!control.read(length).marked);
        }
        let mut control = Control::new();
        let length = control.put(0, libc::SOL_UDP, libc::UDP_GRO, &1400i32.to_ne_bytes());
        assert_eq!(control.read(length).segment_bytes, 1400);
    }

    #[test]
    fn any_bytes_can_be_read() {
        for fill in 0..=255u8 {
            let control = Control { bytes: [fill; ROOM] };
            for length in 0..=ROOM + 1 {
                control.read(length);
            }
        }
    }
}
