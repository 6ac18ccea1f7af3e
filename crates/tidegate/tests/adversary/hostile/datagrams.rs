//! Datagrams at the text door: questions, damaged ones, and nonsense, whose replies nobody reads.

use std::net::{SocketAddr, UdpSocket};

use crate::seed::Random;

const QUESTIONS: [&str; 7] = [
    "1 over_limit full text",
    "over_limit nobody's",
    "7 ping",
    "get_size",
    "2 get_stats full text",
    r#"3 check_limit {"origin":"ws","ip":"1.2.3.4","ua":"x"}"#,
    "over_limit ",
];

/// Sends so many; every other from a socket that is closed before any reply can come.
pub(crate) fn send(door: SocketAddr, count: usize, random: &mut Random) {
    let Ok(stays) = UdpSocket::bind("127.0.0.1:0") else { return };
    for _ in 0..count {
        let mut datagram = random.pick(&QUESTIONS).as_bytes().to_vec();
        match random.below(4) {
            0 => {
                let at = random.below(datagram.len());
                datagram[at] = random.next() as u8;
            }
            1 => {
                let length = random.below(1_500);
                datagram = random.bytes(length);
            }
            _ => {}
        }
        if random.one_in(2) {
            let _ = stays.send_to(&datagram, door);
        } else if let Ok(leaves) = UdpSocket::bind("127.0.0.1:0") {
            let _ = leaves.send_to(&datagram, door);
        }
    }
}
