//! What the server tells the supervisor that started it.

use std::os::unix::net::UnixDatagram;

use rustix::process::Signal;

use crate::program::{DOORS, PATIENCE, Program, command};

/// A supervisor, as systemd is one.
struct Supervisor(UnixDatagram);

impl Supervisor {
    /// The next message that is no sign of life.
    fn told(&self) -> String {
        loop {
            let message = self.message();
            if message != "WATCHDOG=1\n" {
                return message;
            }
        }
    }

    fn message(&self) -> String {
        let mut buffer = [0; 4096];
        let length = self.0.recv(&mut buffer).expect("a message in time");
        String::from_utf8(buffer[..length].to_vec()).expect("text")
    }
}

fn start(watchdog_usec: &str) -> (Supervisor, Program) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let config = folder.path().join("tidegate.toml");
    std::fs::write(&config, DOORS).expect("a file");
    let mut serve = command(["serve", "--config"]);
    serve.arg(config).current_dir(folder.path());
    serve.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", watchdog_usec);
    (Supervisor(socket), Program::spawn(serve, folder))
}

#[test]
fn a_supervisor_hears_of_start_reload_and_stop() {
    let (supervisor, mut program) = start("");
    assert_eq!(supervisor.told(), "READY=1\nSTATUS=serving\n");
    program.wait_until_ready();
    program.signal(Signal::HUP);
    let reloading = supervisor.told();
    let time = reloading
        .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
        .and_then(|rest| rest.strip_suffix("\nSTATUS=reloading\n"));
    assert!(time.is_some_and(|time| time.parse::<u64>().is_ok()), "{reloading}");
    assert_eq!(supervisor.told(), "READY=1\nSTATUS=serving\n");

    program.write_config("nonsense");
    assert!(supervisor.told().starts_with("RELOADING=1\n"));
    let told = supervisor.told();
    assert!(told.starts_with("READY=1\nSTATUS=serving; the last reload failed"), "{told}");

    program.signal(Signal::TERM);
    assert!(supervisor.told().starts_with("STOPPING=1\n"));
    assert!(program.exit_status().success());
}

#[test]
fn a_supervisor_that_watches_gets_signs_of_life() {
    let (supervisor, _program) = start("20000");
    while supervisor.message() != "WATCHDOG=1\n" {}
    while supervisor.message() != "WATCHDOG=1\n" {}
}
