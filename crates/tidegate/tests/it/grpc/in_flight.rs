//! Uses in flight that are taken and ended by calls of the rate limit service.

use tidegate_envoy::proto::ratelimit::RateLimitRequest;
use tidegate_envoy::proto::ratelimit::rate_limit_response::Code::{Ok, OverLimit};

use super::{Client, DOORS, call};
use crate::engines::redis::Server;
use crate::engines::until;
use crate::program::Program;
use crate::{http, remote};

const RULES: &str = "
[[rule]]
name = 'jobs'
match = 'web job=*'
limit = '2 in flight'
[[rule]]
name = 'daily'
match = 'web day=*'
limit = ['2 in flight per day', '9 in flight']
";

fn config(settings: &str) -> String {
    let doors = DOORS.replace("[http]", &format!("counting = 'envoy'\n{settings}\n[http]"));
    [RULES, &doors].concat()
}

fn take(key: &str) -> RateLimitRequest {
    call("web", &[key])
}

fn look(key: &str) -> RateLimitRequest {
    let mut request = call("web", &[key]);
    request.descriptors[0].hits_addend = Some(0);
    request
}

/// What Envoy sends at the end of a request.
fn end(key: &str, uses: u64) -> RateLimitRequest {
    let mut request = call("web", &[key]);
    request.descriptors[0].hits_addend = Some(uses);
    request.descriptors[0].is_negative_hits = true;
    request
}

#[test]
fn uses_are_held_until_they_end_refused_or_not() {
    let program = Program::serve(&config(""));
    let mut client = Client::new(&program);
    assert_eq!(client.ask(take("job=a")), (Ok, vec![(Ok, 1)]));
    assert_eq!(client.ask(take("job=a")), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(look("job=a")), (Ok, vec![(Ok, 0)]));
    let over = client.call(take("job=a")).expect("an answer");
    assert_eq!(over.overall_code(), OverLimit);
    let status = &over.statuses[0];
    let limit = status.current_limit.as_ref().expect("a limit");
    assert_eq!((limit.requests_per_unit, limit.unit, &limit.name[..]), (2, 0, "jobs"));
    assert_eq!(status.limit_remaining, 0);
    assert_eq!(status.duration_until_reset.as_ref().map(|span| span.seconds), Some(1));
    assert_eq!(client.ask(look("job=a")), (OverLimit, vec![(OverLimit, 0)]));
    // The refused one is held, too, until its own end.
    assert_eq!(client.ask(end("job=a", 1)), (Ok, vec![(Ok, 0)]));
    assert_eq!(client.ask(take("job=a")), (OverLimit, vec![(OverLimit, 0)]));
    client.ask(end("job=a", 2));
    assert_eq!(client.ask(take("job=a")), (Ok, vec![(Ok, 0)]));
    // More than there are, twice in one call.
    client.ask(end("job=a", 9));
    client.ask(end("job=a", 9));
    assert_eq!(client.ask(call("web", &["job=a", "job=a"])).1, [(Ok, 1), (Ok, 0)]);
    let answer = client.call(take("day=a")).expect("an answer");
    assert_eq!(answer.statuses[0].current_limit.as_ref().map(|limit| limit.unit), Some(4));
}

#[test]
fn uses_of_other_doors_count_and_are_not_ended() {
    let program = Program::serve(&config(""));
    let mut client = Client::new(&program);
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let body = r#"{"key":"web job=a","hold_ms":1000000}"#;
    let http = program.address("http");
    let hold = || http::send_to(http, "POST", "/v1/check", headers, body);
    let held = hold().json();
    assert_eq!(client.ask(take("job=a")), (Ok, vec![(Ok, 0)]));
    assert_eq!(hold().status, 429);
    client.ask(end("job=a", 5));
    assert_eq!(client.ask(look("job=a")), (Ok, vec![(Ok, 1)]));
    let path = format!("/v1/uses/{}", held["use"].as_str().expect("an id"));
    assert_eq!(http::send_to(http, "DELETE", &path, headers, "").status, 204);
    assert_eq!(client.ask(look("job=a")), (Ok, vec![(Ok, 2)]));
}

#[test]
fn a_limit_of_envoys_files_may_be_in_flight() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "{domain: web, descriptors: [{key: job, rate_limit: {limit: 1 in flight}}]}";
    std::fs::write(folder.path().join("web.yaml"), text).expect("a file");
    let program = Program::serve(&config(&format!("envoy_config = '{}'", folder.path().display())));
    let mut client = Client::new(&program);
    for _ in 0..3 {
        assert_eq!(client.ask(take("job=a")), (Ok, vec![(Ok, 0)]));
        assert_eq!(client.ask(take("job=a")), (OverLimit, vec![(OverLimit, 0)]));
        assert_eq!(client.ask(end("job=a", 2)).0, Ok);
    }
}

#[test]
fn uses_are_held_in_a_store_that_programs_share() {
    let redis = Server::start(&[]);
    let config = [config(""), remote::store(&redis.url(), "60s")].concat();
    let programs = [Program::serve(&config), Program::serve(&config)];
    let [mut one, mut two] = programs.each_ref().map(Client::new);
    assert_eq!(one.ask(take("job=a")), (Ok, vec![(Ok, 1)]));
    assert_eq!(two.ask(take("job=a")), (Ok, vec![(Ok, 0)]));
    assert_eq!(two.ask(take("job=a")), (OverLimit, vec![(OverLimit, 0)]));
    two.ask(end("job=a", 2));
    until(|| two.ask(look("job=a")) == (Ok, vec![(Ok, 1)]));
    one.ask(end("job=a", 1));
    until(|| two.ask(look("job=a")) == (Ok, vec![(Ok, 2)]));
}

#[test]
fn what_is_not_given_back_lapses() {
    let program = Program::serve(&config("hold = '1s'"));
    let mut client = Client::new(&program);
    client.ask(take("job=a"));
    client.ask(take("job=a"));
    until(|| client.ask(look("job=a")) == (Ok, vec![(Ok, 2)]));
}
