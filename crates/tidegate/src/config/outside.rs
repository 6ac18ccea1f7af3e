//! What a configuration needs outside of its file: certificates, keys and secrets. They are
//! checked before anything is opened, so that all that is missing is reported at once.

use super::file::File;
use super::read;
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
            let remedy = match setting.starts_with("tls") {
                true => {
                    "name a readable PEM file; paths start in the folder that the server is \
                     started in"
                }
                false => "set it, or name another place",
            };
            problems.push(Problem::new(place, wrong, remedy));
        }
    }
    problems.extend(store(file, text));
    problems
}

/// What the store needs.
fn store(file: &File, text: &str) -> Option<Problem> {
    let store = &file.store;
    if store.kind == StoreKind::Memory || !store.wrong().is_empty() {
        return None;
    }
    let (place, wrong, remedy) = match store.password.as_ref().map(|secret| secret.reveal()) {
        Some(Err(wrong)) => ("store.password", wrong, "set it, or name another place"),
        _ => ("store", remote::check(store).err()?, "see [store] in: tidegate config example"),
    };
    Some(Problem::new(read::place(text, place), wrong, remedy))
}

/// Whether snapshots can be kept where the file says. A server looks only when that changes.
pub(super) fn snapshot(file: &File, text: &str) -> Option<Problem> {
    let wrong = snapshot::check(&file.snapshot.as_ref()?.path).err()?;
    let remedy = "name a file in a folder that is there and can be written to";
    Some(Problem::new(read::place(text, "snapshot.path"), wrong.to_string(), remedy))
}
