//! Interfaces of a pcapng section: what their packets start with, and how they count time.

use super::NANOSECONDS_PER_SECOND;
use super::byte_order::ByteOrder;
use super::error::CaptureError;
use super::link_type::LinkType;

/// Link type, reserved, snapshot length.
pub(super) const FIXED_LENGTH: usize = 8;

const OPTION_END: u16 = 0;
const OPTION_TIME_RESOLUTION: u16 = 9;
const OPTION_TIME_OFFSET: u16 = 14;
const OPTION_HEADER_LENGTH: usize = 4;

/// Microseconds, which hold where the option is absent.
const TIME_RESOLUTION_DEFAULT: u8 = 6;
const TIME_RESOLUTION_IS_BINARY: u8 = 0x80;

const NANOSECOND_EXPONENT: u32 = 9;
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface {
    pub(super) link_type: LinkType,
    /// Zero for no limit.
    pub(super) snapshot_length: u32,
    /// As in the option: a negative power of ten, or of two when the top bit is set.
    time_resolution: u8,
    time_offset_seconds: i64,
}

impl Interface {
    /// Reads the body of an interface description, which stands between the two lengths of its block and is known to
    /// hold the fixed part.
    pub(super) fn parse(order: ByteOrder, body: &[u8], offset: u64) -> Result<Self, CaptureError> {
        let mut interface = Self {
            link_type: LinkType::from_number(order.u16_at(body, 0).unwrap_or_default().into()),
            snapshot_length: order.u32_at(body, 4).unwrap_or_default(),
            time_resolution: TIME_RESOLUTION_DEFAULT,
            time_offset_seconds: 0,
        };
        let mut options = body.get(FIXED_LENGTH..).unwrap_or_default();
        while let (Some(code), Some(length)) = (order.u16_at(options, 0), order.u16_at(options, 2)) {
            if code == OPTION_END {
                break;
            }
            let malformed = CaptureError::InterfaceOption { offset, code, length };
            let end = OPTION_HEADER_LENGTH.saturating_add(length.into());
            let value = options.get(OPTION_HEADER_LENGTH..end).ok_or(malformed)?;
            match (code, value) {
                (OPTION_TIME_RESOLUTION, &[resolution]) => interface.time_resolution = resolution,
                (OPTION_TIME_OFFSET, &[_, _, _, _, _, _, _, _]) => {
                    interface.time_offset_seconds = order.i64_at(value, 0).ok_or(malformed)?;
                }
                // Guessing here would give every packet of the interface a wrong time.
                (OPTION_TIME_RESOLUTION | OPTION_TIME_OFFSET, _) => return Err(malformed),
                _ => {}
            }
            // The body's length is a multiple of four, so the padding is there whenever the value is.
            options = options.get(end.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(interface)
    }

    /// Nanoseconds since 1970, rounded down, or nothing where 64 bits do not hold them.
    pub(super) fn timestamp_ns(&self, ticks: u64) -> Option<u64> {
        let ticks = u128::from(ticks);
        let exponent = u32::from(self.time_resolution & !TIME_RESOLUTION_IS_BINARY);
        // 64 bits times 10^9 stay below 2^94: nothing here overflows, and an exponent is at most 127.
        let since_offset = if self.time_resolution & TIME_RESOLUTION_IS_BINARY != 0 {
            (ticks * u128::from(NANOSECONDS_PER_SECOND)) >> exponent
        } else if let Some(finer) = exponent.checked_sub(NANOSECOND_EXPONENT) {
            // A divisor past 128 bits is greater than any number of ticks.
            10_u128.checked_pow(finer).map_or(0, |divisor| ticks / divisor)
        } else {
            ticks * 10_u128.pow(NANOSECOND_EXPONENT - exponent)
        };
        let offset = i128::from(self.time_offset_seconds) * i128::from(NANOSECONDS_PER_SECOND);
        u64::try_from(offset.checked_add_unsigned(since_offset)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(time_resolution: u8, time_offset_seconds: i64) -> Interface {
        Interface { link_type: LinkType::Ethernet, snapshot_length: 0, time_resolution, time_offset_seconds }
    }

    #[test]
    fn ticks_of_every_resolution_become_nanoseconds() {
        assert_eq!(interface(0, 0).timestamp_ns(3), Some(3_000_000_000));
        assert_eq!(interface(6, 0).timestamp_ns(3), Some(3_000));
        assert_eq!(interface(9, 0).timestamp_ns(u64::MAX), Some(u64::MAX));
        assert_eq!(interface(12, 0).timestamp_ns(3_999), Some(3));
        assert_eq!(interface(0x80 | 10, 0).timestamp_ns(1_536), Some(1_500_000_000));
        for resolution in 0..=u8::MAX {
            interface(resolution, i64::MAX).timestamp_ns(u64::MAX);
            interface(resolution, i64::MIN).timestamp_ns(u64::MAX);
        }
        assert_eq!(interface(127, 0).timestamp_ns(u64::MAX), Some(0));
        assert_eq!(interface(0xff, 0).timestamp_ns(u64::MAX), Some(0));
    }

    #[test]
    fn the_offset_moves_the_time_either_way() {
        assert_eq!(interface(6, 10).timestamp_ns(1), Some(10_000_001_000));
        assert_eq!(interface(0, -10).timestamp_ns(11), Some(1_000_000_000));
        assert_eq!(interface(0, -10).timestamp_ns(9), None);
        assert_eq!(interface(0, 0).timestamp_ns(u64::MAX), None);
    }
}
