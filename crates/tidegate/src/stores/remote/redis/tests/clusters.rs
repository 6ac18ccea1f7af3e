//! Clusters whose slots move and whose nodes go away.

use std::sync::Arc;

use super::super::super::suite::{eventually, try_look};
use super::super::common_slot;
use super::super::slots::slot;
use super::*;

/// The node that has the slot of a name.
fn owner<'a>(cluster: &'a Cluster, name: &[u8]) -> &'a Server {
    // As the slots were given out.
    let place = [5_460, 10_922].iter().filter(|&&last| slot(name) > last).count();
    &cluster.nodes[place]
}

fn id(node: &Server) -> String {
    node.ask(&["cluster", "myid"]).trim().to_owned()
}

#[tokio::test]
async fn names_of_several_slots_are_changed_one_after_the_other() {
    let cluster = Cluster::start();
    let engine = engine(&cluster.urls()[..1], "cluster = true");
    ready(&engine).await;
    assert_eq!(common_slot([&b"a{x}"[..], b"b{x}", b"x"]), Some(slot(b"x")));
    assert_eq!(common_slot([&b"a"[..], b"b"]), None);
    let both = |seen: [u64; 2], value: &[u8]| {
        vec![put(&name("a"), seen[0], value), put(&name("b"), seen[1], value)]
    };
    let good = vec![put(&name("c"), ABSENT, b"one")];
    let mut results = engine.swap(vec![both([ABSENT; 2], b"one"), good]).await;
    assert!(results.pop().expect("an answer").is_ok());
    let Ok(Timed { what: Swapped::Done(versions), .. }) = results.remove(0) else {
        panic!("both are absent");
    };
    // The second one is not as seen, and the first is written before that is noticed.
    let wrong = both([versions[0], versions[1] ^ 1], b"two");
    let Some(Ok(Timed { what: Swapped::Broken { written, at, found }, .. })) =
        engine.swap(vec![wrong]).await.pop()
    else {
        panic!("one was not as seen");
    };
    assert_eq!((written, at, found.version), (vec![0], 1, versions[1]));
    let found = try_look(&engine, &[name("a")]).await.expect("an answer");
    assert_ne!(found[0].version, versions[0]);
}

#[tokio::test]
async fn slots_that_move_are_followed() {
    let cluster = Cluster::start();
    let engine = engine(&cluster.urls(), "");
    ready(&engine).await;
    let old: Arc<[u8]> = name("{moving}:old");
    let version = place(&engine, &old, b"one").await;
    let from = owner(&cluster, &old);
    let to = cluster.nodes.iter().find(|node| node.port() != from.port()).expect("another");
    let (slot, from_id, to_id) = (slot(&old).to_string(), id(from), id(to));
    assert_eq!(to.ask(&["cluster", "setslot", &slot, "importing", &from_id]).trim(), "OK");
    assert_eq!(from.ask(&["cluster", "setslot", &slot, "migrating", &to_id]).trim(), "OK");

    // What is still there is found there; what is not there any more is asked for elsewhere.
    assert_eq!(look(&engine, &old).await.version, version);
    let new: Arc<[u8]> = name("{moving}:new");
    let newer = place(&engine, &new, b"two").await;
    let port = to.port().to_string();
    let told = from.ask(&["migrate", "127.0.0.1", &port, "{moving}:old", "0", "5000"]);
    assert_eq!(told.trim(), "OK");
    assert_eq!(look(&engine, &old).await.version, version);

    for node in [to, from] {
        assert_eq!(node.ask(&["cluster", "setslot", &slot, "node", &to_id]).trim(), "OK");
    }
    let found = try_look(&engine, &[old.clone(), new.clone()]).await.expect("an answer");
    assert_eq!([found[0].version, found[1].version], [version, newer]);
    done(swap_one(&engine, vec![put(&old, version, b"three"), put(&new, newer, b"three")]).await);
}

#[tokio::test]
async fn a_node_that_was_killed_is_found_again() {
    let mut cluster = Cluster::start();
    let engine = engine(&cluster.urls(), "");
    ready(&engine).await;
    let names: Vec<_> = (0..30).map(|number| name(&format!("killed:{number}"))).collect();
    for one in &names {
        place(&engine, one, b"one").await;
    }
    engine.watch(&names[0]);
    assert_eq!(engine.freed().await, names[0]);

    cluster.nodes[1].kill();
    let port = cluster.nodes[1].port();
    let lost = names.iter().find(|name| owner(&cluster, name).port() == port).expect("one of 30");
    let look_at = async |name: &Arc<[u8]>| try_look(&engine, std::slice::from_ref(name)).await;
    eventually(async || matches!(look_at(lost).await, Err(EngineFault::Unreachable(_)))).await;

    cluster.nodes[1].start_again();
    cluster.until_well();
    for one in &names {
        eventually(async || look_at(one).await.is_ok()).await;
        place(&engine, one, b"two").await;
    }
}
