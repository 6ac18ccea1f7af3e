//! Assignments as the protocol has them. Envoy obeys blanket rules and token buckets only.

use prost_types::Duration;
use tidegate_envoy::proto::quota::BucketId;
use tidegate_envoy::proto::quota::rate_limit_quota_response::BucketAction;
use tidegate_envoy::proto::quota::rate_limit_quota_response::bucket_action::{
    AbandonAction, BucketAction as OneAction, QuotaAssignmentAction,
};
use tidegate_envoy::proto::strategy::rate_limit_strategy::{BlanketRule, Strategy};
use tidegate_envoy::proto::strategy::{RateLimitStrategy, TokenBucket};
use tidegate_envoy::quota::Action;

/// Whether an Envoy is told to forget a bucket.
pub(super) fn abandoned(action: Action) -> bool {
    action == Action::Abandon
}

/// What an Envoy is told of one bucket.
pub(super) fn assigned(id: BucketId, action: Action) -> BucketAction {
    let assign = |strategy, ttl_s| {
        OneAction::QuotaAssignmentAction(QuotaAssignmentAction {
            assignment_time_to_live: Some(seconds(ttl_s)),
            rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
        })
    };
    let action = match action {
        Action::AllowAll { ttl_s } => {
            assign(Strategy::BlanketRule(BlanketRule::AllowAll.into()), ttl_s)
        }
        Action::DenyAll { ttl_s } => {
            assign(Strategy::BlanketRule(BlanketRule::DenyAll.into()), ttl_s)
        }
        Action::TokenBucket { max_tokens, tokens_per_fill, fill_interval_s, ttl_s } => {
            let bucket = TokenBucket {
                max_tokens,
                tokens_per_fill: Some(tokens_per_fill),
                fill_interval: Some(seconds(fill_interval_s)),
            };
            assign(Strategy::TokenBucket(bucket), ttl_s)
        }
        Action::Abandon => OneAction::AbandonAction(AbandonAction {}),
    };
    BucketAction { bucket_id: Some(id), bucket_action: Some(action) }
}

fn seconds(seconds: u64) -> Duration {
    Duration { seconds: seconds.cast_signed(), nanos: 0 }
}
