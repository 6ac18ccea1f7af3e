//! Batches of datagrams: the one file of this door that hands raw pointers to the kernel.
//!
//! Everything here is a thin, safe wrapper around `recvmmsg`, `sendmmsg` and `setsockopt`. Buffers
//! are allocated once. Nothing here knows a byte of the protocol or decides which datagrams to
//! answer.
#![allow(
    unsafe_code,
    reason = "std has no batched datagrams; one call for 64 of them is what pays"
)]

use std::io::{self, IoSlice};
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_void};

/// Datagrams that one system call takes or gives.
pub(super) const BATCH: usize = 64;

/// Bytes of a receive buffer for one datagram. A longer one is cut by the kernel and marked as cut.
const ALONE_BYTES: usize = 1024;

/// Bytes of a receive buffer for joined datagrams: as many as the kernel ever joins. The last line
/// keeps buffers from beginning a power of two apart, where they would compete for the cache.
const JOINED_BYTES: usize = 65_536 + 64;

/// Bytes of a control buffer: room for an address of ours and a segment size.
const CONTROL_BYTES: usize = 64;

/// Bytes of the longest socket address in use, `sockaddr_in6`.
const ADDRESS_BYTES: usize = mem::size_of::<libc::sockaddr_in6>();

const CONTROL_HEADER: usize = mem::size_of::<libc::cmsghdr>();

/// A socket address as the kernel writes it. Compared byte for byte, never parsed on the way
/// from a request to its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub(super) struct RawAddress {
    bytes: [u8; ADDRESS_BYTES],
    length: u32,
}

impl RawAddress {
    fn family(&self) -> c_int {
        c_int::from(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]))
    }

    /// The port; 0 where the sender left none to answer to.
    pub(super) fn port(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }

    /// The address without its port, if it is one of the internet.
    pub(super) fn ip(&self) -> Option<IpAddr> {
        match self.family() {
            libc::AF_INET => Some(Ipv4Addr::from(self.array::<4>(4)).into()),
            libc::AF_INET6 => Some(Ipv6Addr::from(self.array::<16>(8)).into()),
            _ => None,
        }
    }

    /// Some bits that differ between clients: the port and the end of the address.
    pub(super) fn mix(&self) -> u64 {
        let tail = if self.family() == libc::AF_INET { 0 } else { 16 };
        let low = u32::from_ne_bytes(self.array::<4>(4 + tail));
        (u64::from(low) << 16) | u64::from(self.port())
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[at..at + N]);
        out
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, length) = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, mem::size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, ADDRESS_BYTES)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self { bytes, length: length as u32 }
    }
}

/// The address of ours that a datagram came to, where the socket was told to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OwnAddress {
    /// The socket is bound to one address, and replies leave from it anyway.
    #[default]
    Bound,
    /// An IPv4 address.
    V4([u8; 4]),
    /// An IPv6 address, and the interface where the address alone would not name it.
    V6([u8; 16], u32),
}

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Control {
    /// Reads which of our addresses a datagram came to.
    fn local(&self, length: usize) -> OwnAddress {
        let found = self.messages(length).find_map(|(level, kind, data)| match (level, kind) {
            // in_pktinfo: interface, our address on it, destination in the header.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) if data.len() >= 12 => {
                Some(OwnAddress::V4([data[4], data[5], data[6], data[7]]))
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if data.len() >= 20 => {
                let mut ip = [0; 16];
                ip.copy_from_slice(&data[..16]);
                // Naming the interface would override routing; only a link-local address
                // means nothing without it.
                let link_local = ip[0] == 0xfe && ip[1] & 0xc0 == 0x80;
                Some(OwnAddress::V6(ip, if link_local { u32_at(data, 16) } else { 0 }))
            }
            _ => None,
        });
        found.unwrap_or_default()
    }

    /// Reads the length of each of several datagrams that came joined.
    fn segment(&self, length: usize) -> Option<usize> {
        self.messages(length).find_map(|(level, kind, data)| {
            let joined = (level, kind) == (libc::SOL_UDP, libc::UDP_GRO) && data.len() >= 4;
            joined.then(|| u32_at(data, 0) as usize).filter(|&bytes| bytes > 0)
        })
    }

    /// The messages in the first `length` bytes: level, kind, data.
    fn messages(&self, length: usize) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
        let mut rest = &self.0[..length.min(CONTROL_BYTES)];
        std::iter::from_fn(move || {
            let header = rest.get(..CONTROL_HEADER)?;
            let word = mem::size_of::<usize>();
            let whole = usize_at(header, 0);
            let data = rest.get(CONTROL_HEADER..whole)?;
            rest = rest.get(aligned(whole)..).unwrap_or_default();
            Some((u32_at(header, word) as c_int, u32_at(header, word + 4) as c_int, data))
        })
    }

    /// Writes the address to leave from and the segment size; returns the bytes in use.
    fn fill(&mut self, from: OwnAddress, segment: Option<u16>) -> usize {
        let mut used = 0;
        match from {
            OwnAddress::Bound => {}
            OwnAddress::V4(ip) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip);
                used = self.put(used, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            OwnAddress::V6(ip, interface) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip);
                info[16..].copy_from_slice(&interface.to_ne_bytes());
                used = self.put(used, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
        if let Some(bytes) = segment {
            used = self.put(used, libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
        }
        used
    }

    fn put(&mut self, at: usize, level: c_int, kind: c_int, data: &[u8]) -> usize {
        let word = mem::size_of::<usize>();
        let whole = CONTROL_HEADER + data.len();
        let out = &mut self.0[at..at + aligned(whole)];
        out[..word].copy_from_slice(&whole.to_ne_bytes());
        out[word..word + 4].copy_from_slice(&level.to_ne_bytes());
        out[word + 4..word + 8].copy_from_slice(&kind.to_ne_bytes());
        out[CONTROL_HEADER..whole].copy_from_slice(data);
        at + aligned(whole)
    }
}

/// Control messages follow each other at whole words.
fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(mem::size_of::<usize>())
}

fn usize_at(bytes: &[u8], at: usize) -> usize {
    let mut word = [0; mem::size_of::<usize>()];
    word.copy_from_slice(&bytes[at..at + mem::size_of::<usize>()]);
    usize::from_ne_bytes(word)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn blank_headers() -> Box<[libc::mmsghdr]> {
    // SAFETY: `mmsghdr` is a plain C structure of integers and pointers, for which all zeroes is
    // a valid value (null pointers, no lengths).
    let blank: libc::mmsghdr = unsafe { mem::zeroed() };
    vec![blank; BATCH].into_boxed_slice()
}

/// A fixed number of packet buffers and what the kernel said about what is in them.
pub(super) struct ReceiveBuffers {
    /// All packet buffers, one behind the other.
    buffers: Box<[u8]>,
    /// Bytes of each packet buffer.
    buffer_bytes: usize,
    names: Box<[RawAddress]>,
    controls: Box<[Control]>,
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    /// Bytes of each control buffer that the kernel may write; 0 where nothing was asked for.
    control_bytes: usize,
}

impl ReceiveBuffers {
    /// Allocates all buffers. `locals`: whether the socket reports the address a datagram came to;
    /// `joined`: whether it gives datagrams joined.
    pub(super) fn new(locals: bool, joined: bool) -> Self {
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let buffer_bytes = if joined { JOINED_BYTES } else { ALONE_BYTES };
        Self {
            buffers: vec![0; BATCH * buffer_bytes].into_boxed_slice(),
            buffer_bytes,
            names: vec![RawAddress::default(); BATCH].into_boxed_slice(),
            controls: vec![Control([0; CONTROL_BYTES]); BATCH].into_boxed_slice(),
            headers: blank_headers(),
            vectors: vec![vector; BATCH].into_boxed_slice(),
            control_bytes: if locals || joined { CONTROL_BYTES } else { 0 },
        }
    }

    /// Waits for a datagram as long as the socket's timeout says (not at all unless `wait`), then
    /// takes those that are there, [`BATCH`] at most. Returns how many.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, wait: bool) -> io::Result<usize> {
        let buffers = self.buffers.chunks_exact_mut(self.buffer_bytes);
        for (at, (header, buffer)) in self.headers.iter_mut().zip(buffers).enumerate() {
            let vector = &mut self.vectors[at];
            vector.iov_base = buffer.as_mut_ptr().cast();
            vector.iov_len = buffer.len();
            let message = &mut header.msg_hdr;
            message.msg_name = self.names[at].bytes.as_mut_ptr().cast();
            message.msg_namelen = ADDRESS_BYTES as u32;
            message.msg_iov = vector;
            message.msg_iovlen = 1;
            message.msg_control = self.controls[at].0.as_mut_ptr().cast();
            message.msg_controllen = self.control_bytes as _;
            message.msg_flags = 0;
        }
        let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        // SAFETY: `headers` has BATCH entries. Each points to a name, a vector, a control buffer
        // and (through the vector) a packet buffer that `self` owns, set just above with their true
        // sizes, distinct for each entry, and borrowed exclusively through `&mut self` until the
        // call returns. The descriptor is open for as long as `socket` is borrowed. A null timeout
        // is allowed.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                BATCH as u32,
                flags as _,
                ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (name, header) in self.names.iter_mut().zip(&*self.headers).take(received) {
            name.length = header.msg_hdr.msg_namelen.min(ADDRESS_BYTES as u32);
        }
        Ok(received)
    }

    /// What is in buffer `at` of the last batch, or `None` if it did not fit.
    pub(super) fn bytes(&self, at: usize) -> Option<&[u8]> {
        let header = &self.headers[at];
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let start = at * self.buffer_bytes;
        self.buffers.get(start..start + header.msg_len as usize)
    }

    /// The datagrams in buffer `at` of the last batch, in the order in which they were sent: one,
    /// or several of one length, of which the last may be shorter. `None` as for [`Self::bytes`].
    #[inline]
    pub(super) fn datagrams(&self, at: usize) -> Option<impl Iterator<Item = &[u8]>> {
        let bytes = self.bytes(at)?;
        let length = self.segment(at).unwrap_or(usize::MAX);
        let (first, rest) = bytes.split_at(bytes.len().min(length));
        Some(std::iter::once(first).chain(rest.chunks(length)))
    }

    fn segment(&self, at: usize) -> Option<usize> {
        // Nothing is said of a datagram that came alone, and of none where nothing was asked for.
        let said: usize = self.headers[at].msg_hdr.msg_controllen as _;
        if said == 0 || self.control_bytes == 0 { None } else { self.controls[at].segment(said) }
    }

    /// The sender of what is in buffer `at` of the last batch.
    pub(super) fn sender(&self, at: usize) -> &RawAddress {
        &self.names[at]
    }

    /// Which of our addresses the datagrams in buffer `at` of the last batch came to.
    pub(super) fn local(&self, at: usize) -> OwnAddress {
        if self.control_bytes == 0 {
            return OwnAddress::Bound;
        }
        self.controls[at].local(self.headers[at].msg_hdr.msg_controllen as _)
    }
}

/// One send: a datagram, or several of one length to one receiver.
#[derive(Clone, Copy)]
pub(super) struct Transmit<'a> {
    /// The receiver.
    pub(super) to: &'a RawAddress,
    /// Our address to leave from.
    pub(super) from: OwnAddress,
    /// The length at which the kernel cuts the parts, joined, into datagrams.
    pub(super) segment: Option<u16>,
    /// The bytes.
    pub(super) parts: &'a [IoSlice<'a>],
}

impl<'a> Transmit<'a> {
    /// One datagram from wherever the socket is bound.
    pub(super) fn new(to: &'a RawAddress, parts: &'a [IoSlice<'a>]) -> Self {
        Self { to, from: OwnAddress::Bound, segment: None, parts }
    }
}

/// What the kernel needs beside the messages themselves to send a batch.
pub(super) struct SendHeaders {
    controls: Box<[Control]>,
    headers: Box<[libc::mmsghdr]>,
}

impl SendHeaders {
    /// Allocates all buffers.
    pub(super) fn new() -> Self {
        Self {
            controls: vec![Control([0; CONTROL_BYTES]); BATCH].into_boxed_slice(),
            headers: blank_headers(),
        }
    }

    /// Sends `messages` ([`BATCH`] at most). One that the kernel refuses is passed to `refused` by
    /// its position, and the rest go on.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        messages: &[Transmit<'_>],
        mut refused: impl FnMut(usize, io::Error),
    ) {
        let messages = &messages[..messages.len().min(BATCH)];
        for (at, message) in messages.iter().enumerate() {
            let control = &mut self.controls[at];
            let control_bytes = control.fill(message.from, message.segment);
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = message.to.bytes.as_ptr().cast_mut().cast::<c_void>();
            header.msg_namelen = message.to.length;
            header.msg_iov = message.parts.as_ptr().cast_mut().cast::<libc::iovec>();
            header.msg_iovlen = message.parts.len() as _;
            header.msg_control =
                if control_bytes == 0 { ptr::null_mut() } else { control.0.as_mut_ptr().cast() };
            header.msg_controllen = control_bytes as _;
        }
        let mut next = 0;
        while next < messages.len() {
            let rest = &mut self.headers[next..messages.len()];
            // SAFETY: `rest` is a slice of headers set just above. Names and parts are borrowed by
            // `messages`, which outlives the call, with their true lengths (`length` is at most
            // ADDRESS_BYTES); `IoSlice` is documented to have the layout of `iovec`. The kernel
            // only reads through these pointers. Control buffers belong to `self`, borrowed
            // exclusively. The descriptor is open for as long as `socket` is borrowed.
            let sent = unsafe {
                libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0)
            };
            match usize::try_from(sent) {
                Ok(sent) if sent > 0 => next += sent,
                _ => {
                    // Only the first of the rest can have failed: what came before it is counted
                    // as sent, and what comes after was not tried.
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        refused(next, error);
                        next += 1;
                    }
                }
            }
        }
    }
}

/// Asks the socket to say which of our addresses each datagram came to.
pub(super) fn report_locals(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    if v6 {
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
    } else {
        set_option(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
    }
}

/// Whether the kernel can cut one send into several datagrams. One that cannot would ignore the
/// wish and send them joined, so it must be asked first.
pub(super) fn can_segment(socket: BorrowedFd<'_>) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Asks the socket to give datagrams of one length from one sender joined, as the network device
/// or a sender on this machine has joined them.
pub(super) fn receive_joined(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, an integer that lives until the call
    // returns; the kernel only reads it. The descriptor is open while `socket` is borrowed.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            mem::size_of::<c_int>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
