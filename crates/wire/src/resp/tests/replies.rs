//! Replies, in both versions of the protocol.

use super::*;

#[track_caller]
fn written(write: impl FnOnce(&mut Vec<u8>), expected: &str) {
    let mut out = b"before".to_vec();
    write(&mut out);
    assert_eq!(String::from_utf8_lossy(&out), format!("before{expected}"));
}

#[test]
fn replies_of_one_form() {
    written(|out| reply::simple(out, "OK"), "+OK\r\n");
    written(|out| reply::error(out, b"ERR no"), "-ERR no\r\n");
    written(|out| reply::integer(out, 0), ":0\r\n");
    written(|out| reply::integer(out, i64::MAX), ":9223372036854775807\r\n");
    written(|out| reply::integer(out, i64::MIN), ":-9223372036854775808\r\n");
    written(|out| reply::bulk(out, b""), "$0\r\n\r\n");
    written(|out| reply::bulk(out, b"a\r\nb"), "$4\r\na\r\nb\r\n");
    written(|out| reply::bulk_number(out, 120), "$3\r\n120\r\n");
    written(|out| reply::array(out, 12), "*12\r\n");
    written(|out| reply::integers(out, [0, 16, -1]), "*3\r\n:0\r\n:16\r\n:-1\r\n");
    let least = format!(":{}\r\n", i64::MIN).repeat(9);
    written(|out| reply::integers(out, [i64::MIN; 9]), &format!("*9\r\n{least}"));
}

#[test]
fn no_line_break_of_a_client_reaches_an_error() {
    let text = b"ERR unknown command 'a\r\n+OK\r\n'";
    written(|out| reply::error(out, text), "-ERR unknown command 'a  +OK  '\r\n");
}

#[test]
fn replies_of_two_forms() {
    let both = |write: fn(&mut Vec<u8>, ProtocolVersion), second: &str, third: &str| {
        written(|out| write(out, ProtocolVersion::Resp2), second);
        written(|out| write(out, ProtocolVersion::Resp3), third);
    };
    both(reply::null, "$-1\r\n", "_\r\n");
    both(reply::null_array, "*-1\r\n", "_\r\n");
    both(|out, version| reply::map(out, version, 8), "*16\r\n", "%8\r\n");
    both(|out, version| reply::boolean(out, version, true), ":1\r\n", "#t\r\n");
    both(|out, version| reply::boolean(out, version, false), ":0\r\n", "#f\r\n");
    both(
        |out, version| reply::verbatim(out, version, "a:1\r\n"),
        "$5\r\na:1\r\n\r\n",
        "=9\r\ntxt:a:1\r\n\r\n",
    );
    assert_eq!((ProtocolVersion::default().number(), ProtocolVersion::Resp3.number()), (2, 3));
}
