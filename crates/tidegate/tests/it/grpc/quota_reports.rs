//! Reports of quota streams that are long, because clients of Envoy have chosen long values.

use tidegate_envoy::proto::quota::RateLimitQuotaUsageReports;
use tidegate_envoy::proto::quota::rate_limit_quota_response::bucket_action::BucketAction as Action;
use tidegate_envoy::proto::quota::rate_limit_quota_usage_reports::BucketQuotaUsage;
use tidegate_envoy::proto::strategy::rate_limit_strategy::{BlanketRule, Strategy};

use super::DOORS;
use super::quotas::{Stream, bucket};
use super::series::metrics;
use crate::program::Program;

/// A value as long as Envoy passes on.
const LONG: usize = 60 << 10;

fn report(users: impl Iterator<Item = String>) -> RateLimitQuotaUsageReports {
    let usage = |user: String| BucketQuotaUsage {
        bucket_id: Some(bucket(&user)),
        num_requests_denied: 1,
        ..Default::default()
    };
    let bucket_quota_usages = users.map(usage).collect();
    RateLimitQuotaUsageReports { domain: "web".to_owned(), bucket_quota_usages }
}

/// What the next answers say of so many buckets: how many are abandoned, and how many assigned.
fn told(stream: &mut Stream, buckets: usize) -> (usize, usize) {
    let (mut abandoned, mut assigned) = (0, 0);
    while abandoned + assigned < buckets {
        for action in stream.next().expect("the stream lives") {
            match action.bucket_action.expect("an action") {
                Action::AbandonAction(_) => abandoned += 1,
                Action::QuotaAssignmentAction(_) => assigned += 1,
            }
        }
    }
    (abandoned, assigned)
}

#[track_caller]
fn check_count(program: &Program, reason: &str, times: usize) {
    let line = format!("tidegate_bad_input_total{{door=\"grpc\",reason=\"{reason}\"}} {times}");
    let page = metrics(program);
    assert!(page.lines().any(|told| told == line), "no {line} in {page}");
}

/// One browser can make Envoy have such buckets, and all users of that Envoy need its stream.
#[test]
fn long_values_do_not_end_a_stream() {
    let program = Program::serve(DOORS);
    let mut stream = Stream::open(&program);
    let long = (0..100).map(|number| format!("{number:0LONG$}"));
    stream.send(report(long.chain(["free".to_owned()])));
    assert_eq!(told(&mut stream, 101), (100, 1), "Envoy shall forget them");
    check_count(&program, "bucket_too_long", 100);
    stream.report("free", 1);
    stream.report("other", 1);
    assert_eq!(stream.strategy(), Strategy::BlanketRule(BlanketRule::AllowAll.into()));
}

/// Ids that are just short enough: all of them together would take a gigabyte.
#[test]
fn ids_have_a_budget() {
    const STREAMS: usize = 3;
    const IDS: usize = 3_000;
    let program = Program::serve(DOORS);
    let mut greedy: Vec<Stream> = (0..STREAMS).map(|_| Stream::open(&program)).collect();
    let mut refused = 0;
    for stream in &mut greedy {
        stream.send(report((0..IDS).map(|number| format!("{number:04050}"))));
        let (abandoned, assigned) = told(stream, IDS);
        assert!((1_500..2_500).contains(&assigned), "8 MiB: {assigned}");
        refused += abandoned;
    }
    check_count(&program, "too_many_buckets", refused);
    let mut honest = Stream::open(&program);
    honest.report("free", 1);
    assert_eq!(honest.strategy(), Strategy::BlanketRule(BlanketRule::AllowAll.into()));
}
