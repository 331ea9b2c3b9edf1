//! Messages without tag.

use std::ffi::c_void;

use libc::iovec;
use weft::raw::{Command, Operation};

use crate::abi::*;
use crate::ep::Endpoint;
use crate::guard::{self, Result};
use crate::handle;
use crate::info::DATAGRAM_MAX_BYTES;
use crate::operation::{self, Call, Local, ReceiveCall};

pub(crate) static OPERATIONS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(receive),
    recvv: Some(receive_pieces),
    recvmsg: Some(receive_message),
    send: Some(send),
    sendv: Some(send_pieces),
    sendmsg: Some(send_message),
    inject: Some(inject),
    senddata: Some(send_data),
    injectdata: Some(inject_data),
};

#[inline(always)]
fn transmit(endpoint: &Endpoint, call: &Call) -> Result<usize> {
    if endpoint.is_datagram() {
        return transmit_datagram(endpoint, *call);
    }
    operation::transmit(endpoint, Operation::Send, call, |_| {})
}

/// Datagrams are another operation of the NIC than reliable messages.
#[inline(never)]
fn transmit_datagram(endpoint: &Endpoint, call: Call) -> Result<usize> {
    check_datagram(call.local.length()?)?;
    operation::transmit(endpoint, Operation::Datagram, &call, |_| {})
}

/// A datagram fits in one packet on every path, also where this one could carry more.
fn check_datagram(length: usize) -> Result {
    if length > DATAGRAM_MAX_BYTES { Err(-FI_EMSGSIZE) } else { Ok(()) }
}

/// As `fi_inject`, with what `fill` adds.
#[inline(always)]
fn inject_with(
    ep: *mut fid_ep,
    pointer: *const c_void,
    length: usize,
    peer: fi_addr_t,
    fill: impl Fn(&mut Command),
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        if endpoint.is_datagram() {
            check_datagram(length)?;
            return operation::inject(endpoint, Operation::Datagram, pointer, length, peer, fill);
        }
        operation::inject(endpoint, Operation::Send, pointer, length, peer, fill)
    })
}

unsafe extern "C" fn receive(
    ep: *mut fid_ep,
    pointer: *mut c_void,
    length: usize,
    descriptor: *mut c_void,
    source: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::One { pointer, length, descriptor };
        let flags = endpoint.receive_flags();
        operation::receive(endpoint, &ReceiveCall { local, source, tag: None, context, flags })
    })
}

unsafe extern "C" fn receive_pieces(
    ep: *mut fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    source: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::Many { pieces, descriptors, count };
        let flags = endpoint.receive_flags();
        operation::receive(endpoint, &ReceiveCall { local, source, tag: None, context, flags })
    })
}

unsafe extern "C" fn receive_message(ep: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let (endpoint, message) = unsafe { (handle::of::<Endpoint>(ep)?, message.as_ref().ok_or(-FI_EINVAL)?) };
        let local = Local::Many { pieces: message.msg_iov, descriptors: message.desc, count: message.iov_count };
        let (source, context) = (message.addr, message.context);
        let flags = endpoint.receive_flags_with(flags)?;
        operation::receive(endpoint, &ReceiveCall { local, source, tag: None, context, flags })
    })
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    pointer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    peer: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::One { pointer: pointer.cast_mut(), length, descriptor };
        let flags = endpoint.transmit_flags();
        transmit(endpoint, &Call { local, peer, data: 0, context, flags })
    })
}

unsafe extern "C" fn send_pieces(
    ep: *mut fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::Many { pieces, descriptors, count };
        let flags = endpoint.transmit_flags();
        transmit(endpoint, &Call { local, peer, data: 0, context, flags })
    })
}

unsafe extern "C" fn send_message(ep: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let (endpoint, message) = unsafe { (handle::of::<Endpoint>(ep)?, message.as_ref().ok_or(-FI_EINVAL)?) };
        let local = Local::Many { pieces: message.msg_iov, descriptors: message.desc, count: message.iov_count };
        let (peer, data, context) = (message.addr, message.data, message.context);
        let flags = endpoint.transmit_flags_with(flags)?;
        transmit(endpoint, &Call { local, peer, data, context, flags })
    })
}

unsafe extern "C" fn inject(ep: *mut fid_ep, pointer: *const c_void, length: usize, peer: fi_addr_t) -> isize {
    inject_with(ep, pointer, length, peer, |_| {})
}

unsafe extern "C" fn send_data(
    ep: *mut fid_ep,
    pointer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    data: u64,
    peer: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard::transfer(ep, || {
        // SAFETY: what C gives to a function of an endpoint's table.
        let endpoint = unsafe { handle::of::<Endpoint>(ep)? };
        let local = Local::One { pointer: pointer.cast_mut(), length, descriptor };
        let flags = endpoint.transmit_flags() | FI_REMOTE_CQ_DATA;
        transmit(endpoint, &Call { local, peer, data, context, flags })
    })
}

unsafe extern "C" fn inject_data(
    ep: *mut fid_ep,
    pointer: *const c_void,
    length: usize,
    data: u64,
    peer: fi_addr_t,
) -> isize {
    inject_with(ep, pointer, length, peer, |command| operation::immediate(command, data))
}
