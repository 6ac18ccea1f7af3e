//! The etcd engine beside real ones: everything that all engines must do, and what only etcd does.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use etcd_client::proto::{PbTxnOpResponse, PbTxnResponse};
use tidegate_core::time::{MINUTE, SECOND};

use super::super::engine::Engine;
use super::super::engines::PATIENCE;
use super::super::engines::etcd::{Member, three};
use super::super::suite::{
    self, compare, done, eventually, every_property, look, name, place, put, ready, swap_one,
};
use super::*;
use crate::settings::units::Span;

/// An engine for these members, with further settings. It waits longer than usual: a busy machine
/// is no fault of the engine.
fn try_engine(members: &[&Member], more: &str) -> Result<Engine, String> {
    let urls: Vec<String> = members.iter().map(|member| member.url()).collect();
    let text = format!("kind = \"etcd\"\nurl = {urls:?}\n{more}");
    let mut settings: Settings = toml::from_str(&text).expect("settings");
    settings.timeout.get_or_insert(Span(PATIENCE / 10));
    Etcd::new(&settings).map(Engine::Etcd)
}

fn engine(members: &[&Member], more: &str) -> Engine {
    try_engine(members, more).expect("an engine")
}

fn fault(result: Result<Swapped, EngineFault>) -> EngineFault {
    result.expect_err("it cannot be had")
}

#[tokio::test]
async fn one_member_has_every_property() {
    let member = Member::start(&[]);
    every_property(&engine(&[&member], "")).await;
}

#[tokio::test]
async fn three_members_have_every_property() {
    let members = three(&[]);
    every_property(&engine(&members.iter().collect::<Vec<_>>(), "")).await;
}

#[tokio::test]
async fn many_writes_hang_on_few_leases() {
    let member = Member::start(&[]);
    let engine = engine(&[&member], "");
    ready(&engine).await;
    let write = |number: u64| {
        let name = name(&format!("many:{number}"));
        let lives = SECOND + number % 4 * 10 * SECOND;
        let write = Write { value: vec![1], lives, keeps: false, frees: false };
        vec![CellChange { name, seen: ABSENT, write: Some(write) }]
    };
    for result in engine.swap((0..1_000).map(write).collect()).await {
        done(result.map(|told| told.what));
    }
    let leases = member.leases();
    assert!((4..20).contains(&leases.len()), "{leases:?}");
}

#[tokio::test]
async fn a_lease_that_is_gone_is_granted_again() {
    let member = Member::start(&[]);
    let engine = engine(&[&member], "");
    ready(&engine).await;
    let one = name("gone");
    for value in [b"one", b"two"] {
        let version = place(&engine, &one, value).await;
        assert_eq!(look(&engine, &one).await.version, version);
        for lease in member.leases() {
            member.ask(&["lease", "revoke", &lease]);
        }
        assert_eq!(look(&engine, &one).await.version, ABSENT, "it hung on a lease");
    }
}

#[tokio::test]
async fn a_name_that_is_watched_is_told_of_changes_since_the_last_answer() {
    let member = Member::start(&[]);
    let engine = engine(&[&member], "");
    ready(&engine).await;
    // The stream is open when the first name has been told of.
    let first = name("first");
    engine.watch(&first);
    suite::told_of(&engine, &first).await;
    let second = name("second");
    engine.watch(&second);
    // Nothing has asked etcd to watch yet: this thread, the only one, has not let go since.
    member.ask(&["put", "second", "new"]);
    while *engine.freed().await != *second {}
}

#[tokio::test]
async fn a_name_whose_past_etcd_has_forgotten_is_told_of() {
    let member = Member::start(&[]);
    let (here, there) = (engine(&[&member], ""), engine(&[&member], ""));
    ready(&here).await;
    ready(&there).await;
    let (first, second) = (name("first"), name("second"));
    here.watch(&first);
    suite::told_of(&here, &first).await;
    here.unwatch(&first);
    let mut version = ABSENT;
    for _ in 0..5 {
        version = place(&there, &second, b"new").await;
    }
    member.ask(&["compact", &version.to_string()]);
    here.watch(&second);
    while *here.freed().await != *second {}
}

#[tokio::test]
async fn a_member_that_was_killed_is_found_again() {
    let mut member = Member::start(&[]);
    let engine = engine(&[&member], "");
    ready(&engine).await;
    let one = name("killed");
    engine.watch(&one);
    suite::told_of(&engine, &one).await;
    let version = place(&engine, &one, b"one").await;
    member.kill();
    eventually(async || {
        let fault = fault(swap_one(&engine, vec![compare(&one, version)]).await);
        matches!(fault, EngineFault::Unreachable(_))
    })
    .await;
    assert!(matches!(engine.remove(&one).await, Err(EngineFault::Unreachable(_))));
    assert!(matches!(engine.beat(1, MINUTE).await, Err(EngineFault::Unreachable(_))));

    member.start_again();
    ready(&engine).await;
    assert_eq!(look(&engine, &one).await.version, version, "etcd kept it");
    while !engine.freed().await.is_empty() {}
}

#[tokio::test]
async fn a_member_that_is_halted_is_slow_then_away_then_good() {
    let member = Member::start(&[]);
    let engine = engine(&[&member], "timeout = \"200ms\"");
    ready(&engine).await;
    let one = name("halted");
    let version = place(&engine, &one, b"one").await;
    member.halt();
    let told = swap_one(&engine, vec![put(&one, version, b"two")]).await;
    assert_eq!(told, Err(EngineFault::Slow));
    eventually(async || {
        let fault = fault(swap_one(&engine, vec![compare(&one, version)]).await);
        matches!(fault, EngineFault::Unreachable(_))
    })
    .await;
    member.go_on();
    ready(&engine).await;
    // What was asked for may have been done, and nothing else.
    let found = look(&engine, &one).await;
    assert!(found.value == b"two" || found.version == version, "{found:?}");
    place(&engine, &one, b"three").await;
}

/// Adds one to a count until it is told to stop: how often that was done, and how often nobody
/// knows.
async fn count(engine: &Engine, name: &Arc<[u8]>, stop: &AtomicBool) -> (u64, u64) {
    let (mut sure, mut unknown) = (0, 0);
    let mut seen = StoredValue::default();
    while !stop.load(Relaxed) {
        tokio::task::yield_now().await;
        let told = seen.value.clone().try_into().map_or(0, u64::from_le_bytes);
        let change = put(name, seen.version, &(told + 1).to_le_bytes());
        let next = change.write.clone().expect("a write").value;
        match swap_one(engine, vec![change]).await {
            Ok(Swapped::Done(versions)) => {
                sure += 1;
                seen = StoredValue { version: versions[0], value: next };
            }
            Ok(Swapped::Stale(mut found)) => seen = found.remove(0),
            Ok(broken) => panic!("one name cannot lie apart: {broken:?}"),
            Err(_) => unknown += 1,
        }
    }
    (sure, unknown)
}

#[tokio::test]
async fn any_member_may_fall_and_nothing_is_lost() {
    let mut members = three(&[]);
    let engine = engine(&members.iter().collect::<Vec<_>>(), "timeout = \"1s\"");
    ready(&engine).await;
    let (one, stop) = (name("count"), AtomicBool::new(false));
    let advances = async || {
        let before = suite::try_look(&engine, std::slice::from_ref(&one)).await;
        eventually(async || {
            let now = suite::try_look(&engine, std::slice::from_ref(&one)).await;
            now.is_ok_and(|now| Ok(now) != before)
        })
        .await;
    };
    let etcd_error = async {
        advances().await;
        for member in &mut members {
            member.kill();
            advances().await;
            member.start_again();
            advances().await;
        }
        for member in &members {
            member.halt();
            advances().await;
            member.go_on();
        }
        stop.store(true, Relaxed);
    };
    let ((sure, unknown), ()) = tokio::join!(count(&engine, &one, &stop), etcd_error);
    ready(&engine).await;
    let total = u64::from_le_bytes(look(&engine, &one).await.value.try_into().unwrap());
    assert!((sure..=sure + unknown).contains(&total), "{sure} + {unknown}: {total}");
}

#[tokio::test]
async fn a_password_lets_in_and_a_token_is_renewed() {
    let member = Member::start(&["--auth-token-ttl", "1"]);
    for command in [
        "user add root:admin",
        "user grant-role root root",
        "user add tide:water",
        "role add tides",
        "role grant-permission tides readwrite --prefix suite:",
        "role grant-permission tides readwrite --prefix tidegate",
        "user grant-role tide tides",
        "auth enable",
    ] {
        member.ask(&command.split(' ').collect::<Vec<_>>());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "water\n").unwrap();
    let user = format!("user = \"tide\"\npassword = \"file:{}\"", file.path().display());
    let right = engine(&[&member], &user);
    ready(&right).await;
    let one = name("suite:user");
    right.watch(&one);
    suite::told_of(&right, &one).await;
    let version = place(&right, &one, b"one").await;
    let other = swap_one(&right, vec![put(&name("other"), ABSENT, b"x")]).await;
    assert!(matches!(other, Err(EngineFault::Refused(_))), "{other:?}");

    // A token that is not used for a while expires, as this does.
    let lease = member.ask(&["--user", "root:admin", "lease", "grant", "4"]);
    let lease = lease.split(' ').nth(1).expect("a number").to_owned();
    member.ask(&["--user", "root:admin", "put", "expires", "x", "--lease", &lease]);
    eventually(async || member.ask(&["--user", "root:admin", "get", "expires"]).is_empty()).await;
    assert_eq!(look(&right, &one).await.version, version);
    let two = name("suite:user:2");
    right.watch(&two);
    suite::told_of(&right, &two).await;

    std::fs::write(file.path(), "wine").unwrap();
    let wrong = engine(&[&member], &user);
    let nobody = engine(&[&member], "");
    for stranger in [wrong, nobody] {
        eventually(async || {
            let fault = fault(swap_one(&stranger, vec![compare(&one, version)]).await);
            matches!(fault, EngineFault::Refused(_))
        })
        .await;
    }
}

#[tokio::test]
async fn a_user_where_none_is_asked_for_does_no_harm() {
    let member = Member::start(&[]);
    let engine = engine(&[&member], "user = \"tide\"\npassword = \"env:PATH\"");
    ready(&engine).await;
}

/// Certificates for both ends, in a folder.
fn certificates() -> tempfile::TempDir {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    write("ca.pem", ca.pem());
    for end in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        write(&format!("{end}.pem"), params.signed_by(&key, &ca).unwrap().pem());
        write(&format!("{end}-key.pem"), key.serialize_pem());
    }
    folder
}

#[tokio::test]
async fn tls_lets_in_who_shows_a_certificate() {
    let folder = certificates();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let member = Member::start(&[
        "--cert-file",
        &path("server.pem"),
        "--key-file",
        &path("server-key.pem"),
        "--trusted-ca-file",
        &path("ca.pem"),
        "--client-cert-auth",
    ]);
    let (ca, cert, key) = (path("ca.pem"), path("client.pem"), path("client-key.pem"));
    let known = engine(&[&member], &format!("ca = {ca:?}\ncert = {cert:?}\nkey = {key:?}"));
    ready(&known).await;
    let one = name("tls");
    let version = place(&known, &one, b"one").await;
    assert_eq!(look(&known, &one).await.version, version);
    known.watch(&one);
    suite::told_of(&known, &one).await;

    // One without a certificate is not let in, one without the authority does not go in.
    for settings in [format!("ca = {ca:?}"), format!("cert = {cert:?}\nkey = {key:?}")] {
        let unknown = engine(&[&member], &settings);
        eventually(async || {
            let fault = fault(swap_one(&unknown, vec![compare(&one, version)]).await);
            !fault.to_string().contains("not connected yet")
        })
        .await;
    }
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let member = Member::start(&[]);
    for (more, word) in [
        ("user = \"tide\"\npassword = \"env:TIDEGATE_NO_SUCH\"", "TIDEGATE_NO_SUCH"),
        ("user = \"tide\"\npassword = \"file:/no/such\"", "/no/such"),
    ] {
        let error = try_engine(&[&member], more).err().expect(more);
        assert!(error.contains(word), "{error}");
    }
    for (url, word) in [
        ("\"https://127.0.0.1:1\"\nca = \"/no/such\"", "/no/such"),
        ("\"https://127.0.0.1:1\"\ncert = \"/no/such\"", "go together"),
        ("\"redis://127.0.0.1:1\"", "redis://"),
        ("[]", "url"),
    ] {
        let settings = toml::from_str(&format!("kind = \"etcd\"\nurl = {url}")).expect(url);
        let error = Etcd::new(&settings).err().expect(url);
        assert!(error.contains(word), "{error}");
    }
}

#[tokio::test]
async fn what_is_no_etcd_is_told_and_does_not_hang() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        }
    });
    let text = format!("kind = \"etcd\"\nurl = \"http://{address}\"");
    let engine = Etcd::new(&toml::from_str(&text).unwrap()).map(Engine::Etcd).unwrap();
    eventually(async || {
        let fault = fault(swap_one(&engine, vec![compare(&name("x"), ABSENT)]).await);
        !fault.to_string().contains("not connected yet")
    })
    .await;
}

#[test]
fn answers_without_sense_are_garbage() {
    let changes = [put(&name("a"), 7, b"x"), compare(&name("b"), 9)];
    let answer = |succeeded: bool, responses: Vec<Option<PbTxnOpResponse>>| {
        let responses = responses
            .into_iter()
            .map(|response| etcd_client::proto::PbResponseOp { response })
            .collect();
        TxnResponse(PbTxnResponse { header: None, succeeded, responses })
    };
    let range = |key: &str, mod_revision: i64| {
        let value = etcd_client::proto::PbKeyValue {
            key: key.into(),
            mod_revision,
            value: b"v".to_vec(),
            ..Default::default()
        };
        let range = etcd_client::proto::PbRangeResponse { kvs: vec![value], ..Default::default() };
        Some(PbTxnOpResponse::ResponseRange(range))
    };
    let none = || Some(PbTxnOpResponse::ResponseRange(Default::default()));
    let good = swapped(&changes, 12, answer(true, vec![])).unwrap();
    assert_eq!(good, Swapped::Done(vec![12, 9]));
    let found = StoredValue { version: 11, value: b"v".to_vec() };
    let good = swapped(&changes, 12, answer(false, vec![none(), range("b", 11)])).unwrap();
    assert_eq!(good, Swapped::Stale(vec![StoredValue::default(), found]));
    for (revision, bad) in [
        (0, answer(true, vec![])),
        (-1, answer(true, vec![])),
        (12, answer(false, vec![])),
        (12, answer(false, vec![none()])),
        (12, answer(false, vec![none(), None])),
        (12, answer(false, vec![none(), range("a", 11)])),
        (12, answer(false, vec![none(), range("b", 0)])),
        (12, answer(false, vec![none(), range("b", -3)])),
    ] {
        let told = swapped(&changes, revision, bad);
        assert!(matches!(told, Err(EtcdError::Said(EngineFault::Garbage(_)))), "{told:?}");
    }
}

#[test]
fn the_end_of_a_prefix_is_behind_it() {
    assert_eq!(behind(b"foo"), b"fop");
    assert_eq!(behind(b"a\xff\xff"), b"b");
    assert_eq!(behind(b"\xff"), [0]);
    assert_eq!(behind(b""), [0]);
}
