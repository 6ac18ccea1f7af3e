//! What hostile clients say to administration: every look, and pages that are not read.

use super::Target;
use crate::server::Doors;

pub(super) fn add(doors: &Doors, targets: &mut Vec<Target>) {
    let looks = [
        "GET /v1/keys/full%20check",
        "DELETE /v1/keys/hostile",
        "GET /v1/records/hostile",
        "GET /v1/rules",
        "GET /v1/rules/full",
        "GET /v1/top",
        "GET /v1/proxies",
        "GET /stats",
        "GET /rlconfig",
        "GET /metrics",
        "GET /readyz",
        "PUT /v1/rules/full",
    ];
    let request = |look: &&str| format!("{look} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    let scripts: Vec<Vec<u8>> = looks.iter().map(request).collect();
    let burdens = scripts.iter().map(|script| script.repeat(100)).collect();
    targets.push(Target { address: doors.admin.into(), scripts, burdens });
}
