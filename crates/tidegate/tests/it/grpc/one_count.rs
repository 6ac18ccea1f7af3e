//! A key has one count, whichever door it is asked through.

use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};

use super::{Client, DOORS, call};
use crate::program::Program;
use crate::{http, resp, text};

#[test]
fn rls_text_http_and_resp_count_together() {
    let rule = "[[rule]]\nname = 'user'\nmatch = 'web user=*'\nlimit = '6 per 300d'\n";
    let program = Program::serve(&[rule, DOORS, "[resp]\nlisten = '127.0.0.1:0'\n"].concat());
    let mut envoy = Client::new(&program);
    let text = text::Client::new(program.address("text"));
    let mut redis = resp::Client::new(&program);
    let check = || {
        let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
        let body = r#"{"key":"web user=a%20b"}"#;
        http::send_to(program.address("http"), "POST", "/v1/check", headers, body)
    };
    let mut left = |remaining: u32| {
        assert_eq!(envoy.ask(call("web", &["user=a b"])), (Ok, vec![(Ok, remaining)]));
    };
    left(5);
    assert_eq!(text.ask("1 over_limit web user=a%20b"), "1 ok N 2.0 6.0 25920000");
    left(3);
    assert_eq!(check().json()["limits"][0]["remaining"], 2);
    // The parameters of CL.THROTTLE do not hold where a rule does: 0 allowed, of 6, 1 is left.
    redis.send(
        b"*5\r\n$11\r\nCL.THROTTLE\r\n$14\r\nweb user=a%20b\r\n$1\r\n9\r\n$1\r\n9\r\n$1\r\n9\r\n",
    );
    let reply = redis.read_until(b":1\r\n");
    assert_eq!(String::from_utf8_lossy(&reply), "*5\r\n:0\r\n:6\r\n:1\r\n");
    left(0);
    assert_eq!(envoy.ask(call("web", &["user=a b"])), (OverLimit, vec![(OverLimit, 0)]));
    assert_eq!(check().status, 429);
    assert!(text.ask("2 over_limit web user=a%20b").starts_with("2 ok Y "));
}
