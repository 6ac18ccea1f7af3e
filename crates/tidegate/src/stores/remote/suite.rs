//! What every engine must do, asked of real ones: each property is a function of an engine.
//!
//! Names of one property begin alike, and those of one request have a hash tag in common, so that
//! all run on a Cluster, too. An engine's own tests say which server it speaks to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::time::{MINUTE, Nanos, SECOND};

use super::engine::{
    ABSENT, CellChange, Engine, EngineFault, StoredValue, Swapped, Version, Write,
};
use super::engines::PATIENCE;
use crate::clock::Clock;

/// A version that nothing has.
const NOBODYS: Version = i64::MAX as Version;
/// After this much silence something is told again that may have been missed.
const AGAIN: Duration = Duration::from_millis(200);

/// All of them, on an engine that is empty and whose server will be well soon.
pub(crate) async fn every_property(engine: &Engine) {
    ready(engine).await;
    what_is_absent_is_written_and_found(engine).await;
    what_has_changed_is_stale_and_stays(engine).await;
    what_is_only_compared_stays(engine).await;
    what_is_removed_is_absent(engine).await;
    several_are_changed_together_or_not_at_all(engine).await;
    many_requests_are_answered_in_order(engine).await;
    one_of_many_wins(engine).await;
    nothing_is_lost_under_contention(engine).await;
    all_bytes_are_kept(engine).await;
    a_prefix_is_scanned_whole(engine).await;
    living_nodes_are_listed(engine).await;
    watchers_are_told(engine).await;
    nothing_ends_too_early(engine).await;
}

/// Waits until the engine has found its server, or every node of a Cluster of three: these names
/// are in slots of all of them.
pub(crate) async fn ready(engine: &Engine) {
    for number in 0..3 {
        let name = name(&format!("suite:ready:{number}"));
        eventually(async || try_look(engine, std::slice::from_ref(&name)).await.is_ok()).await;
    }
}

/// Asks until it is so.
pub(crate) async fn eventually(mut so: impl AsyncFnMut() -> bool) {
    let asked = async {
        while !so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it comes to be");
}

pub(crate) fn name(text: &str) -> Arc<[u8]> {
    text.as_bytes().into()
}

/// A change that writes, for long enough.
pub(crate) fn put(name: &Arc<[u8]>, seen: Version, value: &[u8]) -> CellChange {
    let write = Write { value: value.to_vec(), lives: MINUTE, keeps: false, frees: false };
    CellChange { name: name.clone(), seen, write: Some(write) }
}

/// A change that only compares.
pub(crate) fn compare(name: &Arc<[u8]>, seen: Version) -> CellChange {
    CellChange { name: name.clone(), seen, write: None }
}

/// What became of one request.
pub(crate) async fn swap_one(
    engine: &Engine,
    request: Vec<CellChange>,
) -> Result<Swapped, EngineFault> {
    let mut results = engine.swap(vec![request]).await;
    assert_eq!(results.len(), 1, "one request, one result");
    results.remove(0).map(|told| told.what)
}

/// The versions of a request that must be done.
#[track_caller]
pub(crate) fn done(swapped: Result<Swapped, EngineFault>) -> Vec<Version> {
    match swapped {
        Ok(Swapped::Done(versions)) => versions,
        other => panic!("not done: {other:?}"),
    }
}

/// What was found by a request that must be stale.
#[track_caller]
pub(crate) fn stale(swapped: Result<Swapped, EngineFault>) -> Vec<StoredValue> {
    match swapped {
        Ok(Swapped::Stale(found)) => found,
        other => panic!("not stale: {other:?}"),
    }
}

/// How these names are.
pub(crate) async fn try_look(
    engine: &Engine,
    names: &[Arc<[u8]>],
) -> Result<Vec<StoredValue>, EngineFault> {
    let request = names.iter().map(|name| compare(name, NOBODYS)).collect();
    match swap_one(engine, request).await? {
        Swapped::Stale(found) => Ok(found),
        other => panic!("nothing has that version, and all of them are in one slot: {other:?}"),
    }
}

/// How this name is.
pub(crate) async fn look(engine: &Engine, name: &Arc<[u8]>) -> StoredValue {
    let mut found = try_look(engine, std::slice::from_ref(name)).await.expect("an answer");
    found.remove(0)
}

/// Writes, whatever is there, and returns the version.
pub(crate) async fn place(engine: &Engine, name: &Arc<[u8]>, value: &[u8]) -> Version {
    let seen = look(engine, name).await.version;
    done(swap_one(engine, vec![put(name, seen, value)]).await)[0]
}

fn found(version: Version, value: &[u8]) -> StoredValue {
    StoredValue { version, value: value.to_vec() }
}

async fn what_is_absent_is_written_and_found(engine: &Engine) {
    let name = name("suite:write");
    assert_eq!(look(engine, &name).await, found(ABSENT, b""));
    let first = done(swap_one(engine, vec![put(&name, ABSENT, b"one")]).await)[0];
    assert_ne!(first, ABSENT);
    assert_eq!(look(engine, &name).await, found(first, b"one"));

    // The same bytes again are another writing.
    let second = done(swap_one(engine, vec![put(&name, first, b"one")]).await)[0];
    assert_ne!(second, first);
    assert_eq!(look(engine, &name).await, found(second, b"one"));
}

async fn what_has_changed_is_stale_and_stays(engine: &Engine) {
    let name = name("suite:stale");
    let first = place(engine, &name, b"one").await;
    let second = place(engine, &name, b"two").await;
    for seen in [ABSENT, first, NOBODYS] {
        let told = stale(swap_one(engine, vec![put(&name, seen, b"three")]).await);
        assert_eq!(told, [found(second, b"two")], "seen {seen}");
    }
    assert_eq!(look(engine, &name).await, found(second, b"two"));

    let nobody = self::name("suite:stale:nobody");
    let told = stale(swap_one(engine, vec![put(&nobody, second, b"three")]).await);
    assert_eq!(told, [found(ABSENT, b"")]);
}

async fn what_is_only_compared_stays(engine: &Engine) {
    let (one, two) = (name("suite:{c}:1"), name("suite:{c}:2"));
    let version = place(engine, &one, b"one").await;
    let changes = vec![compare(&one, version), compare(&two, ABSENT)];
    assert_eq!(done(swap_one(engine, changes).await), [version, ABSENT]);
    assert_eq!(look(engine, &one).await, found(version, b"one"));

    let changes = vec![compare(&one, version), put(&two, ABSENT, b"two")];
    let versions = done(swap_one(engine, changes).await);
    assert_eq!(versions[0], version);
    assert_eq!(look(engine, &two).await, found(versions[1], b"two"));
}

async fn what_is_removed_is_absent(engine: &Engine) {
    let name = name("suite:remove");
    let version = place(engine, &name, b"one").await;
    assert_eq!(done(swap_one(engine, vec![put(&name, version, b"")]).await), [ABSENT]);
    assert_eq!(look(engine, &name).await, found(ABSENT, b""));

    assert_eq!(engine.remove(&name).await, Ok(false));
    let again = place(engine, &name, b"two").await;
    assert_ne!(again, version, "a version does not come back");
    assert_eq!(engine.remove(&name).await, Ok(true));
    assert_eq!(look(engine, &name).await, found(ABSENT, b""));
}

async fn several_are_changed_together_or_not_at_all(engine: &Engine) {
    let names: Vec<_> = (0..5).map(|number| name(&format!("suite:{{s}}:{number}"))).collect();
    let third = place(engine, &names[2], b"three").await;
    let write_all = |third: Version| {
        let seen = |number| if number == 2 { third } else { ABSENT };
        let changes = names.iter().enumerate();
        changes.map(|(number, name)| put(name, seen(number), b"new")).collect::<Vec<_>>()
    };

    let told = stale(swap_one(engine, write_all(ABSENT)).await);
    let expected: Vec<_> = (0..5)
        .map(|number| if number == 2 { found(third, b"three") } else { found(ABSENT, b"") })
        .collect();
    assert_eq!(told, expected);
    assert_eq!(try_look(engine, &names).await, Ok(expected), "nothing is written");

    let versions = done(swap_one(engine, write_all(third)).await);
    let expected: Vec<_> = versions.iter().map(|&version| found(version, b"new")).collect();
    assert_eq!(try_look(engine, &names).await, Ok(expected));
}

async fn many_requests_are_answered_in_order(engine: &Engine) {
    // Every third is stale; some have two names; some are large.
    let request = |number: usize| {
        let value = number.to_string().repeat(if number % 50 == 7 { 5_000 } else { 1 });
        let one = name(&format!("suite:many:{{{number}}}"));
        let seen = if number.is_multiple_of(3) { NOBODYS } else { ABSENT };
        let mut changes = vec![put(&one, seen, value.as_bytes())];
        if number.is_multiple_of(5) {
            let two = name(&format!("suite:many:{{{number}}}:two"));
            changes.push(put(&two, ABSENT, value.as_bytes()));
        }
        changes
    };
    let results = engine.swap((0..300).map(request).collect()).await;
    assert_eq!(results.len(), 300);
    for (number, result) in results.into_iter().enumerate() {
        let changes = request(number);
        let names: Vec<_> = changes.iter().map(|change| change.name.clone()).collect();
        let now = try_look(engine, &names).await.expect("an answer");
        match result.expect("an answer").what {
            Swapped::Done(versions) => {
                assert_ne!(number % 3, 0, "{number} was stale");
                for ((now, version), change) in now.iter().zip(versions).zip(changes) {
                    let value = change.write.expect("a write").value;
                    assert_eq!((now.version, &now.value), (version, &value), "{number}");
                }
            }
            Swapped::Stale(told) => {
                assert_eq!(number % 3, 0, "{number} was as seen");
                assert_eq!(told, vec![StoredValue::default(); names.len()], "{number}");
                assert_eq!(now, told, "{number}: nothing is written");
            }
            broken => panic!("{number}: {broken:?}"),
        }
    }
    assert!(engine.swap(Vec::new()).await.is_empty());
}

async fn one_of_many_wins(engine: &Engine) {
    let name = name("suite:race");
    let requests = (0..100_u8).map(|number| vec![put(&name, ABSENT, &[number])]).collect();
    let mut winners = Vec::new();
    for (number, result) in (0..100_u8).zip(engine.swap(requests).await) {
        if let Swapped::Done(versions) = result.expect("an answer").what {
            winners.push(found(versions[0], &[number]));
        }
    }
    assert_eq!(winners, [look(engine, &name).await]);
}

async fn nothing_is_lost_under_contention(engine: &Engine) {
    const EACH: u64 = 25;
    let name = name("suite:count");
    let count = async || {
        for _ in 0..EACH {
            let mut seen = look(engine, &name).await;
            loop {
                let told = seen.value.try_into().map_or(0, u64::from_le_bytes);
                let change = put(&name, seen.version, &(told + 1).to_le_bytes());
                match swap_one(engine, vec![change]).await.expect("an answer") {
                    Swapped::Done(_) => break,
                    Swapped::Stale(mut found) => seen = found.remove(0),
                    broken => panic!("one name cannot lie apart: {broken:?}"),
                }
            }
        }
    };
    tokio::join!(count(), count(), count(), count());
    assert_eq!(look(engine, &name).await.value, (4 * EACH).to_le_bytes());
}

async fn all_bytes_are_kept(engine: &Engine) {
    let all: Vec<u8> = (0..=255).collect();
    let odd: Arc<[u8]> = [b"suite:bytes:".as_slice(), &all].concat().into();
    let version = place(engine, &odd, &all).await;
    assert_eq!(look(engine, &odd).await, found(version, &all));

    let long: Vec<u8> = all.iter().copied().cycle().take(300_000).collect();
    let name = name("suite:long");
    let version = place(engine, &name, &long).await;
    assert_eq!(look(engine, &name).await, found(version, &long));
}

async fn a_prefix_is_scanned_whole(engine: &Engine) {
    const PREFIX: &str = "suite:scan[a-z]*?\\^:";
    let mut expected = BTreeMap::new();
    let mut requests = Vec::new();
    for number in 0..1_500 {
        let name = name(&format!("{PREFIX}{number}"));
        let value = format!("value {number}").into_bytes();
        requests.push(vec![put(&name, ABSENT, &value)]);
        expected.insert(name.to_vec(), value);
    }
    // What a prefix that is taken for a pattern would find, too.
    for other in ["suite:scan[a-z]*?\\^", "suite:scanb*?\\^:1", "suite:scan[a-z]xx?\\^:1"] {
        requests.push(vec![put(&name(other), ABSENT, b"other")]);
    }
    for result in engine.swap(requests).await {
        done(result.map(|told| told.what));
    }
    let mut seen = BTreeMap::new();
    let mut mark = Some(Vec::new());
    while let Some(from) = mark {
        let (page, next) = engine.scan(PREFIX.as_bytes(), from).await.expect("a page");
        seen.extend(page);
        mark = next;
    }
    assert_eq!(seen, expected);

    let (page, next) = engine.scan(b"suite:nobody:", Vec::new()).await.expect("a page");
    assert!(page.is_empty() && (next.is_none() || next.is_some_and(|mark| !mark.is_empty())));
}

async fn living_nodes_are_listed(engine: &Engine) {
    const SHORT: Nanos = SECOND;
    let beat = async |node: u64, lives: Nanos| {
        let told = engine.beat(node, lives).await.expect("an answer");
        told.what.into_iter().collect::<BTreeSet<u64>>()
    };
    let (first, second, silent) = (1, u64::MAX, 1 << 60);
    assert_eq!(beat(first, MINUTE).await, [first].into());
    assert_eq!(beat(second, MINUTE).await, [first, second].into());
    assert_eq!(beat(second, MINUTE).await, [first, second].into());

    let clock = Clock::system();
    let start = clock.now().mono;
    assert_eq!(beat(silent, SHORT).await, [first, silent, second].into());
    eventually(async || beat(first, MINUTE).await == [first, second].into()).await;
    assert!(clock.now().mono - start >= SHORT, "a node lives as long as it said");

    engine.leave(second).await;
    assert_eq!(beat(first, MINUTE).await, [first].into());
    engine.leave(first).await;
}

/// Gives something back to a name until a watcher of it is told, or of any.
pub(crate) async fn told_of(engine: &Engine, name: &Arc<[u8]>) {
    eventually(async || {
        let seen = look(engine, name).await.version;
        let mut change = put(name, seen, b"less");
        change.write.as_mut().expect("a write").frees = true;
        done(swap_one(engine, vec![change]).await);
        let freed = tokio::time::timeout(AGAIN, engine.freed()).await;
        freed.is_ok_and(|freed| freed.is_empty() || freed == *name)
    })
    .await;
}

async fn watchers_are_told(engine: &Engine) {
    let (one, two) = (name("suite:watch:1"), name("suite:watch:2"));
    engine.watch(&one);
    engine.watch(&one);
    told_of(engine, &one).await;
    engine.watch(&two);
    told_of(engine, &two).await;
    told_of(engine, &one).await;
    engine.unwatch(&one);
    told_of(engine, &two).await;
    engine.unwatch(&two);
}

async fn nothing_ends_too_early(engine: &Engine) {
    const LIVES: Nanos = 1_200_000_001;
    let name = name("suite:expiry");
    let clock = Clock::system();
    let start = clock.now().mono;
    let write = Write { value: b"brief".to_vec(), lives: LIVES, keeps: false, frees: false };
    let change = CellChange { name: name.clone(), seen: ABSENT, write: Some(write) };
    let version = done(swap_one(engine, vec![change]).await)[0];
    // The end that it has is as good: it is neither lost nor brought forward.
    let same = Write { value: b"other".to_vec(), lives: LIVES, keeps: true, frees: false };
    let change = CellChange { name: name.clone(), seen: version, write: Some(same) };
    done(swap_one(engine, vec![change]).await);
    eventually(async || look(engine, &name).await.version == ABSENT).await;
    assert!(clock.now().mono - start >= LIVES, "it is kept as long as was said");

    // What is written again lives as long as the last writing said.
    let brief = Write { value: b"brief".to_vec(), lives: 1, keeps: false, frees: false };
    let change = CellChange { name: name.clone(), seen: ABSENT, write: Some(brief) };
    let version = done(swap_one(engine, vec![change]).await)[0];
    let long = swap_one(engine, vec![put(&name, version, b"long")]).await;
    // It may be gone already: then there is nothing to lengthen.
    if let Ok(Swapped::Done(versions)) = long {
        assert_eq!(look(engine, &name).await, found(versions[0], b"long"));
    }
}
