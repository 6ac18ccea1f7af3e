//! Users, passwords and certificates.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use super::super::super::suite::{eventually, try_look};
use super::*;

/// Waits until the engine answers with such a fault.
async fn fails(engine: &Engine, such: impl Fn(&EngineFault) -> bool) {
    let mut last = None;
    eventually(async || {
        last = swap_one(engine, vec![put(&name("fails"), ABSENT, b"one")]).await.err();
        last.as_ref().is_some_and(&such)
    })
    .await;
}

#[tokio::test]
async fn users_come_in_with_their_passwords_only() {
    let server = Server::start(&[]);
    let rights = ["~tidegate:*", "~suite:*", "~fails", "&*", "+@all"];
    let user = [&["acl", "setuser", "gate", "on", ">s3cret@:/"][..], &rights].concat();
    assert_eq!(server.ask(&user).trim(), "OK");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "s3cret@:/\n").expect("a file");
    let password = format!("password = \"file:{}\"", file.path().display());
    let url = [server.url()];

    let good = engine(&url, &format!("user = \"gate\"\n{password}"));
    ready(&good).await;
    place(&good, &name("suite:login"), b"one").await;
    let in_url = format!("redis://gate:s3cret%40%3A%2F@127.0.0.1:{}", server.port());
    ready(&engine(&[in_url], "")).await;

    // Not its names.
    let told = swap_one(&good, vec![put(&name("other"), ABSENT, b"one")]).await;
    assert!(
        matches!(&told, Err(EngineFault::Refused(text)) if text.contains("NOPERM")),
        "{told:?}"
    );
    ready(&good).await;

    let refused = |fault: &EngineFault| matches!(fault, EngineFault::Refused(_));
    fails(&engine(&url, &format!("user = \"nobody\"\n{password}")), refused).await;
    let wrong = format!("redis://gate:wrong@127.0.0.1:{}", server.port());
    fails(&engine(&[wrong], ""), refused).await;
    server.ask(&["config", "set", "requirepass", "other"]);
    fails(
        &engine(&url, ""),
        |fault| matches!(fault, EngineFault::Refused(text) if text.contains("NOAUTH")),
    )
    .await;
}

#[tokio::test]
async fn somebody_who_may_not_publish_still_counts() {
    let server = Server::start(&[]);
    let user = ["acl", "setuser", "default", "resetchannels"];
    assert_eq!(server.ask(&user).trim(), "OK");
    let engine = engine(&[server.url()], "");
    ready(&engine).await;
    let mut change = put(&name("mute"), ABSENT, b"one");
    change.write.as_mut().expect("a write").frees = true;
    done(swap_one(&engine, vec![change]).await);
}

/// An authority and what it signed, in a folder.
struct Papers {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Papers {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let papers = Self { folder: tempfile::tempdir().expect("a folder"), issuer };
        std::fs::write(papers.path("ca.pem"), papers.issuer.pem()).expect("a file");
        papers
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Signs for `name`: `who.pem` and `who.key`.
    fn sign(&self, who: &str, name: &str) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        // Whoever is called as its issuer is called has signed for itself, to OpenSSL.
        params.distinguished_name.push(DnType::CommonName, who);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        std::fs::write(self.path(&format!("{who}.pem")), certificate.pem()).expect("a file");
        std::fs::write(self.path(&format!("{who}.key")), key.serialize_pem()).expect("a file");
    }
}

#[tokio::test]
async fn certificates_are_shown_and_checked() {
    let papers = Papers::new();
    papers.sign("server", "127.0.0.1");
    papers.sign("client", "tidegate");
    let server = Server::start_with(|port| {
        let files = [
            ("--tls-port", port.to_string()),
            ("--port", "0".to_owned()),
            ("--tls-cert-file", papers.text("server.pem")),
            ("--tls-key-file", papers.text("server.key")),
            ("--tls-ca-cert-file", papers.text("ca.pem")),
            ("--tls-auth-clients", "yes".to_owned()),
        ];
        files.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    });
    let url = [format!("rediss://127.0.0.1:{}", server.port())];
    let ca = format!("ca = {:?}", papers.path("ca.pem"));
    let client = |cert: &str, key: &str| {
        format!("{ca}\ncert = {:?}\nkey = {:?}", papers.path(cert), papers.path(key))
    };
    let good = engine(&url, &client("client.pem", "client.key"));
    ready(&good).await;
    let one = name("tls");
    let version = place(&good, &one, b"one").await;
    assert_eq!(look(&good, &one).await.version, version);
    // Messages come over TLS, too.
    good.watch(&one);
    assert_eq!(good.freed().await, one);

    let unreachable =
        |fault: &EngineFault| matches!(fault, EngineFault::Unreachable(text) if text != WAITING);
    // Nobody we trust has signed for the server; nobody it trusts has signed for us.
    fails(&engine(&url, ""), unreachable).await;
    fails(&engine(&url, &ca), unreachable).await;
    let other = Papers::new();
    other.sign("client", "tidegate");
    let stranger = format!(
        "{ca}\ncert = {:?}\nkey = {:?}",
        other.path("client.pem"),
        other.path("client.key")
    );
    fails(&engine(&url, &stranger), unreachable).await;
    let plain = [format!("redis://127.0.0.1:{}", server.port())];
    fails(&engine(&plain, ""), unreachable).await;
    assert!(try_look(&good, &[one]).await.is_ok());

    for (cert, key) in [("client.pem", "server.key"), ("none.pem", "client.key")] {
        assert!(try_engine(&url, &client(cert, key)).is_err(), "{cert} {key}");
    }
    assert!(try_engine(&url, &format!("cert = {:?}", papers.path("client.pem"))).is_err());
}

/// What an engine says before it has tried.
const WAITING: &str = "it has not been connected to yet";

#[tokio::test]
async fn what_is_wrong_with_a_url_is_told_without_the_password() {
    for url in ["redis://me:pass@:x", "http://me:pass@a", "rediss://me:pass@a/#insecure", "::"] {
        let told = try_engine(&[url.to_owned()], "").err().expect("no engine");
        assert!(told.contains("url") && !told.contains("pass"), "{told}");
    }
}
