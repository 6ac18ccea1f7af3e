//! The quota service: what streams are assigned, and when.

use std::collections::BTreeMap;

use tidegate_envoy::proto::quota::rate_limit_quota_response::BucketAction;
use tidegate_envoy::proto::quota::rate_limit_quota_response::bucket_action::BucketAction as Action;
use tidegate_envoy::proto::quota::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use tidegate_envoy::proto::quota::rate_limit_quota_usage_reports::BucketQuotaUsage;
use tidegate_envoy::proto::quota::{BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports};
use tidegate_envoy::proto::strategy::TokenBucket;
use tidegate_envoy::proto::strategy::rate_limit_strategy::{BlanketRule, Strategy};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::DOORS;
use super::series::metrics;
use crate::engines::redis::Server;
use crate::program::Program;
use crate::remote::store;

const RULES: &str = "
[[rule]]
match = 'web user=limited'
limit = '60 per 1s burst 60'
[[rule]]
match = 'web user=denied'
limit = 'deny'
[[rule]]
match = 'web user=quiet'
limit = '1 per 300d'
shadow = true
";

/// One stream, as an Envoy has it.
pub(super) struct Stream {
    runtime: Runtime,
    reports: Sender<RateLimitQuotaUsageReports>,
    answers: Streaming<RateLimitQuotaResponse>,
}

impl Stream {
    pub(super) fn open(program: &Program) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let endpoint = Endpoint::from_shared(format!("http://{}", program.address("grpc")));
        let (reports, sent) = channel(8);
        let answers = runtime.block_on(async {
            let channel = endpoint.expect("an address").connect().await.expect("a connection");
            let mut client = RateLimitQuotaServiceClient::new(channel);
            let answers = client.stream_rate_limit_quotas(ReceiverStream::new(sent)).await;
            answers.expect("a stream").into_inner()
        });
        Self { runtime, reports, answers }
    }

    pub(super) fn report(&self, user: &str, allowed: u64) {
        self.report_bucket(bucket(user), allowed);
    }

    fn report_bucket(&self, bucket: BucketId, allowed: u64) {
        let usage = BucketQuotaUsage {
            bucket_id: Some(bucket),
            num_requests_allowed: allowed,
            ..Default::default()
        };
        let message = RateLimitQuotaUsageReports {
            domain: "web".to_owned(),
            bucket_quota_usages: vec![usage],
        };
        self.send(message);
    }

    pub(super) fn send(&self, message: RateLimitQuotaUsageReports) {
        self.reports.blocking_send(message).expect("the stream is open");
    }

    /// The next message.
    pub(super) fn next(&mut self) -> Option<Vec<BucketAction>> {
        let answer = self.runtime.block_on(self.answers.message());
        answer.ok().flatten().map(|message| message.bucket_action)
    }

    /// The strategy of the first assignment of the next message.
    pub(super) fn strategy(&mut self) -> Strategy {
        let actions = self.next().expect("an answer");
        strategy_of(&actions[0])
    }
}

pub(super) fn bucket(user: &str) -> BucketId {
    let entry = ("user".to_owned(), user.to_owned().into());
    BucketId { bucket: [entry].into_iter().collect() }
}

fn strategy_of(action: &BucketAction) -> Strategy {
    match &action.bucket_action {
        Some(Action::QuotaAssignmentAction(assigned)) => {
            let ttl = assigned.assignment_time_to_live.as_ref().expect("a ttl");
            assert!(ttl.seconds >= 2 && ttl.nanos == 0, "Envoy cuts fractions: {ttl:?}");
            let strategy = assigned.rate_limit_strategy.as_ref().expect("a strategy");
            strategy.strategy.expect("which one")
        }
        other => panic!("{other:?}"),
    }
}

fn program() -> Program {
    Program::serve(&[RULES, DOORS].concat())
}

#[test]
fn blanket_rules_are_told_at_once() {
    let program = program();
    let mut stream = Stream::open(&program);
    for (user, rule) in [
        ("free", BlanketRule::AllowAll),
        ("quiet", BlanketRule::AllowAll),
        ("denied", BlanketRule::DenyAll),
    ] {
        stream.report(user, 0);
        assert_eq!(stream.strategy(), Strategy::BlanketRule(rule.into()), "{user}");
    }
}

#[test]
fn a_limit_is_divided_among_streams_and_taken_from_its_key() {
    let program = program();
    let mut first = Stream::open(&program);
    first.report("limited", 10);
    // Leases of an earlier server may still run: nothing is granted before they have lapsed.
    assert_eq!(first.strategy(), Strategy::BlanketRule(BlanketRule::DenyAll.into()));
    let bucket = |stream: &mut Stream| -> TokenBucket {
        loop {
            stream.report("limited", 10);
            let actions = stream.next().expect("an answer");
            if let Strategy::TokenBucket(bucket) = strategy_of(&actions[actions.len() - 1]) {
                return bucket;
            }
        }
    };
    let alone = bucket(&mut first);
    let interval = alone.fill_interval.as_ref().expect("an interval").seconds as u32;
    let rate = |bucket: &TokenBucket| bucket.tokens_per_fill.expect("a rate") / interval;
    assert!(rate(&alone) > 0 && rate(&alone) <= 57, "95 % of 60 at most: {alone:?}");
    assert!(alone.max_tokens > 0 && alone.max_tokens < 60, "{alone:?}");
    let mut second = Stream::open(&program);
    let other = bucket(&mut second);
    // The first one has been told to do with less by then.
    let fits = (0..20).any(|_| rate(&bucket(&mut first)) + rate(&other) <= 57);
    assert!(fits, "both together are within the limit");
}

#[test]
fn while_the_store_is_away_each_rule_decides() {
    let rule = |policy: &str| {
        format!(
            "[[rule]]
            name = '{policy}'
            match = 'web user={policy}'
            limit = '8 per 1d'
            on_store_error = '{policy}'\n"
        )
    };
    let policies = ["allow", "deny", "local"];
    let mut redis = Server::start(&[]);
    let rules = policies.map(rule).concat();
    let mut program = Program::serve(&[DOORS, &*rules, &*store(&redis.url(), "1m")].concat());
    redis.kill();
    program.wait_for_line(|line| line.contains("the store is away"));
    let mut stream = Stream::open(&program);
    let mut tokens: BTreeMap<String, u32> = BTreeMap::new();
    while tokens.get("allow").is_none_or(|tokens| *tokens <= 16) {
        policies.iter().for_each(|policy| stream.report(policy, 5));
        for action in stream.next().expect("an answer") {
            let id = action.bucket_id.clone().unwrap_or_default().bucket;
            if let Strategy::TokenBucket(bucket) = strategy_of(&action) {
                let user = String::from_utf8_lossy(&id["user"]).into_owned();
                *tokens.entry(user).or_default() += bucket.max_tokens;
            }
        }
    }
    assert_eq!(tokens.get("deny"), None);
    // Five have passed before there was an assignment.
    assert!((1..=3).contains(&tokens["local"]), "this node counts: {tokens:?}");
}

/// Envoy reports such a bucket, and rejects what it is assigned.
#[test]
fn a_bucket_without_entries_gets_nothing() {
    let program = program();
    let mut stream = Stream::open(&program);
    stream.report_bucket(BucketId::default(), 1);
    stream.report("free", 0);
    let actions = stream.next().expect("an answer");
    let told: Vec<_> = actions.into_iter().map(|action| action.bucket_id).collect();
    assert_eq!(told, [Some(bucket("free"))]);
    let line = "tidegate_bad_input_total{door=\"grpc\",reason=\"empty_bucket\"} 1";
    let page = metrics(&program);
    assert!(page.lines().any(|told| told == line), "no {line} in {page}");
}

#[test]
fn streams_end_when_the_door_closes() {
    let mut program = program();
    let mut stream = Stream::open(&program);
    stream.report("free", 0);
    stream.strategy();
    program.signal(rustix::process::Signal::TERM);
    while stream.next().is_some() {}
    assert!(program.exit_status().success());
}

/// Other connections have their own.
#[test]
fn a_connection_has_a_bounded_number_of_streams() {
    const MOST: usize = 32;
    let program = program();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", program.address("grpc")));
        let greedy = endpoint.expect("an address").connect().await.expect("a connection");
        let mut open = Vec::new();
        for number in 0..=MOST {
            let (reports, sent) = channel::<RateLimitQuotaUsageReports>(1);
            let mut client = RateLimitQuotaServiceClient::new(greedy.clone());
            let opened = client.stream_rate_limit_quotas(ReceiverStream::new(sent)).await;
            let refused = opened.as_ref().err().map(tonic::Status::code);
            assert_eq!(refused, (number == MOST).then_some(tonic::Code::ResourceExhausted));
            open.push((reports, opened));
        }
    });
    let mut other = Stream::open(&program);
    other.report("free", 0);
    assert_eq!(other.strategy(), Strategy::BlanketRule(BlanketRule::AllowAll.into()));
    let line = "tidegate_bad_input_total{door=\"grpc\",reason=\"too_many_streams\"} 1";
    let page = metrics(&program);
    assert!(page.lines().any(|told| told == line), "no {line} in {page}");
}
