//! `tidegate config` and the command line around it: what a server would refuse is refused before
//! it is started, and links, flags and variables mean what they say.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::program::{Program, binary, command, tidegate};

/// A folder with a configuration in it.
fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.toml");
    fs::write(&path, text).expect("the file can be written");
    (folder, path)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What `config check` and `serve` say of a file that neither takes.
fn check_refused(text: &str, parts: &[&str]) {
    let (_folder, path) = file(text);
    let path = path.to_str().expect("text");
    for words in [["config", "check", path], ["serve", "-c", path]] {
        let out = tidegate(words);
        assert_eq!(out.status.code(), Some(2), "{words:?}: {out:?}");
        for part in parts {
            assert!(stderr(&out).contains(part), "{words:?}: {part} in\n{}", stderr(&out));
        }
    }
}

#[test]
fn what_serve_refuses_is_refused_by_the_check() {
    check_refused(
        "[http]\nlisten = '127.0.0.1:18080'\n[[jarl]]\nservice = 'a'\nlimit = '1/s'\n\
         listen = '0.0.0.0:18080'\n[store]\nkind = 'redis'\n",
        &["127.0.0.1:18080 is taken by [jarl]", "[store] has no url"],
    );
    check_refused(
        "[http]\nlisten = '127.0.0.1:0'\n[store]\nkind = 'redis'\nurl = 'redis://127.0.0.1:1'\n\
         password = 'env:TIDEGATE_NO_SUCH_VARIABLE'\n",
        &["the variable TIDEGATE_NO_SUCH_VARIABLE is not set"],
    );
    check_refused(
        "[http]\nlisten = '127.0.0.1:0'\n[store]\nkind = 'etcd'\nurl = 'http://127.0.0.1:1'\n\
         user = 'a'\npassword = 'file:/nonexistent/password'\n",
        &["/nonexistent/password cannot be read"],
    );
    check_refused(
        "rule:\n  - match: a\n    limit: 1/s\n",
        &["this looks like YAML", "tidegate config example"],
    );
}

#[test]
fn an_empty_password_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("password");
    fs::write(&path, "\n").expect("the file can be written");
    let path = path.display();
    check_refused(
        &format!("[resp]\nlisten = '127.0.0.1:0'\npassword = 'file:{path}'\n"),
        &["the password is empty"],
    );
}

#[test]
fn a_key_that_is_not_that_of_its_certificate_is_refused() {
    let [one, other] = [(); 2].map(|()| {
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate")
    });
    let proxy = |cert: &str, key: &str| {
        format!(
            "[[proxy]]\nname = 'a'\nlisten = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:1'\n\
             tls = {{ cert = '{cert}', key = '{key}' }}\n"
        )
    };
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("the file can be written");
        path.display().to_string()
    };
    let cert = write("cert.pem", &one.cert.pem());
    let key = write("key.pem", &one.signing_key.serialize_pem());
    let wrong = write("wrong.pem", &other.signing_key.serialize_pem());
    let belongs = "name the private key that belongs to the certificate";
    check_refused(&proxy(&cert, &wrong), &["wrong.pem: it does not match ", "t.toml:5:", belongs]);
    check_refused(&proxy(&cert, &cert), &["there is none in the file", "BEGIN PRIVATE KEY"]);
    check_refused(&proxy(&cert, "/nonexistent/key.pem"), &["cannot read the key /nonexistent"]);
    let (_folder, path) = file(&proxy(&cert, &key));
    let out = tidegate(["config", "check", path.to_str().expect("text")]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
}

#[test]
fn a_rule_that_never_decides_is_only_warned_of() {
    let (_folder, path) = file(
        "[http]\n[[rule]]\nname = 'all'\nmatch = 'a*'\nlimit = '1/s'\n\
         [[rule]]\nname = 'some'\nmatch = 'ab*'\nlimit = '2/s'\n",
    );
    let check = || {
        let mut check = command(["config", "check"]);
        check.env("TIDEGATE_CONFIG", &path);
        check.output().expect("the program can be started")
    };
    let out = check();
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let told = stderr(&out);
    assert!(told.contains("t.toml:8:9: warning: ") && told.contains("\"all\""), "{told}");
    assert!(String::from_utf8_lossy(&out.stdout).ends_with("t.toml: ok\n"), "{out:?}");
}

#[test]
fn what_is_shown_holds_no_password() {
    let (_folder, path) =
        file("[http]\n[store]\nkind = 'redis'\nurl = 'redis://me:hunter2@127.0.0.1:6379/0'\n");
    let out = tidegate(["config", "show", path.to_str().expect("text")]);
    let shown = String::from_utf8_lossy(&out.stdout);
    assert!(shown.contains("redis://***@127.0.0.1:6379/0"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn help_by_a_link_is_of_the_links_name() {
    let folder = tempfile::tempdir().expect("a folder");
    for link in ["jarl", "rate"] {
        let path = folder.path().join(link);
        symlink(binary(), &path).expect("a link");
        let out = Command::new(path).arg("--help").output().expect("it starts");
        let page = String::from_utf8_lossy(&out.stdout);
        assert!(page.contains(&format!("Usage: {link} [OPTIONS]")), "{page}");
    }
}

#[test]
fn localhost_is_asked_and_listened_at() {
    let program = Program::serve("[text]\nlisten = 'localhost:0'\n");
    let address = program.address("text");
    assert_eq!(address.ip().to_string(), "127.0.0.1");
    let door = format!("localhost:{}", address.port());
    let out = tidegate(["request", "ping", "--text", &door]);
    assert_eq!(out.stdout, b"pong\n", "{out:?}");
}

#[test]
fn a_certificate_that_has_expired_is_only_warned_of() {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let folder = tempfile::tempdir().expect("a folder");
    let (cert_path, key_path) = (folder.path().join("cert"), folder.path().join("key"));
    fs::write(&key_path, key.serialize_pem()).expect("a file");
    let (cert, key_text) = (cert_path.display(), key_path.display());
    let text = format!(
        "[http]\nlisten = '127.0.0.1:0'\ntls = {{ cert = '{cert}', key = '{key_text}' }}\n"
    );
    for (year, is_expired) in [(2000, true), (4000, false)] {
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let made = params.clone().self_signed(&key).expect("a certificate");
        fs::write(&cert_path, made.pem()).expect("a file");
        let (_folder, path) = file(&text);
        let out = tidegate(["config", "check", path.to_str().expect("text")]);
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        let warned = stderr(&out).contains("t.toml:3:16: warning: this certificate has expired");
        assert_eq!(warned, is_expired, "{}", stderr(&out));
    }
}

#[test]
fn the_page_of_settings_is_what_the_program_prints() {
    let page = include_str!("../../../../docs/configuration.md");
    let printed = tidegate(["config", "reference"]).stdout;
    let remedy = "write it anew: `tidegate config reference > docs/configuration.md`";
    assert!(printed == page.as_bytes(), "docs/configuration.md is not as it should be\n{remedy}");
}
