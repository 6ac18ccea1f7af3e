//! What a configuration needs outside of its file: certificates, keys and secrets. They are
//! checked before anything is opened, so that all that is missing is reported at once.

use tidegate_core::Nanos;

use super::file::File;
use super::read;
use crate::doors::DoorConfig;
use crate::settings::problem::Problem;
use crate::snapshot;
use crate::stores::remote;
use crate::stores::remote::settings::StoreKind;

/// What is missing or does not fit. `text` is what `file` was read from.
pub(super) fn check(file: &File, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (table, door) in file.named_doors() {
        for (setting, wrong) in door.wrong_files() {
            let place = read::place(text, &format!("{table}.{setting}"));
            let usual = match setting {
                "password" | "users" => "set it, or use another reference",
                _ => {
                    "name a readable PEM file; paths start in the folder that the server is \
                     started in"
                }
            };
            let (wrong, remedy) = wrong.split_once('\n').unwrap_or((&wrong, usual));
            problems.push(Problem::new(place, wrong, remedy));
        }
    }
    problems.extend(store(file, text));
    problems
}

/// Certificates that have expired by `now`: they are shown to clients, which do not take them.
pub(super) fn expired(file: &File, text: &str, now: Nanos) -> Vec<Problem> {
    let expired = |door: &dyn DoorConfig| door.tls().is_some_and(|tls| tls.has_expired(now));
    let tables = file.named_doors().into_iter().filter(|(_, door)| expired(*door));
    let warning = |(table, _)| {
        let place = read::place(text, &format!("{table}.tls.cert"));
        Problem::new(place, "warning: this certificate has expired", "renew it, and reload")
    };
    tables.map(warning).collect()
}

/// What the store needs.
fn store(file: &File, text: &str) -> Option<Problem> {
    let store = &file.store;
    if store.kind == StoreKind::Memory || !store.wrong().is_empty() {
        return None;
    }
    let (place, wrong, remedy) = match store.password.as_ref().map(|secret| secret.reveal()) {
        Some(Err(wrong)) => ("store.password", wrong, "set it, or use another reference"),
        _ => ("store", remote::check(store).err()?, "see [store] in: tidegate config example"),
    };
    Some(Problem::new(read::place(text, place), wrong, remedy))
}

/// Whether snapshots can be kept where the file says. A server looks only when that changes.
pub(super) fn snapshot(file: &File, text: &str) -> Option<Problem> {
    let wrong = snapshot::check(&file.snapshot.as_ref()?.path).err()?;
    let remedy = "name a file in an existing, writable folder";
    Some(Problem::new(read::place(text, "snapshot.path"), wrong.to_string(), remedy))
}
