//! The server under attack: the real program with every door open, and the rules that canaries and
//! hostile clients meet.
//!
//! Periods are in months wherever a count is checked, so that nothing depends on how long a run
//! takes or on when it starts.

use std::net::SocketAddr;

use tidegate_wire::throttr::ValueSize;

use crate::net::Address;
use crate::program::Program;
use crate::upstream::Upstream;

/// Uses that the rule of canaries at the HTTP and text doors admits for each key.
pub(crate) const USES: u64 = 5;
/// Uses per second that the rule of quotas divides among the streams of a canary.
pub(crate) const QUOTA_PER_S: f64 = 60.0;
/// Uses of `canary-use` that may be in flight.
pub(crate) const IN_FLIGHT: u64 = 2;
/// Requests of each path of canaries that the rejecting proxy lets pass.
pub(crate) const PROXIED: u64 = 3;
/// What a smockron rule delays a client by after its first request.
pub(crate) const DELAY_MS: u64 = 3_600_000;

const RULES: &str = r#"
[[rule]]
match = "canary *"
limit = "5 per 300d"
[[rule]]
match = "canary-quota *"
limit = "60 per 1s burst 60"
[[rule]]
match = "canary-log *"
limit = "5 per 300d"
algorithm = "sliding-log"
[[rule]]
match = "canary-use *"
limit = "2 in flight"
[[rule]]
match = "canary-wait *"
limit = "500 per 1s burst 1"
[[rule]]
match = "reject path=/canary/*"
limit = "3 per 300d"
[[rule]]
match = "wait path=/canary/*"
limit = "200 per 1s burst 2"
[[rule]]
name = "full"
match = "full *"
limit = "1 per 300d"
[[rule]]
match = "wait path=/full*"
limit = "1 per 300d"
[[rule]]
match = "wait path=/slow*"
limit = "2 in flight"
[[rule]]
match = "hostile-use"
limit = "5 in flight"
[[rule]]
match = "stop *"
limit = "1000 per 300d"
[[rule]]
match = "outage *"
limit = "100 per 300d"
on_store_error = "deny"
[[rule]]
match = "bird* *"
limit = "1 per 1h burst 1"
algorithm = "smockron"
"#;

const DOORS: &str = r#"
[text]
listen = "127.0.0.1:0"
[[throttr]]
listen = "127.0.0.1:0"
value_size = 16
[[throttr]]
listen = "127.0.0.1:0"
value_size = 8
[[throttr]]
listen = "127.0.0.1:0"
unix = "throttr-32.sock"
value_size = 32
[[throttr]]
unix = "throttr-64.sock"
value_size = 64
[[jarl]]
service = "Counted"
listen = "127.0.0.1:0"
limit = "1000000 per 300d"
[[jarl]]
service = "Booked"
listen = "127.0.0.1:0"
limit = "1 per 1s"
exact = true
[smockron]
accounting = "tcp://127.0.0.1:0"
control = "tcp://127.0.0.1:0"
[resp]
listen = "127.0.0.1:0"
unix = "resp.sock"
[grpc]
listen = "127.0.0.1:0"
unix = "grpc.sock"
[http]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
max_connections = 4096
[server]
shutdown_grace = "5s"
"#;

/// A proxy; connections to the upstream that are not in use do not stay.
fn proxy(name: &str, upstream: SocketAddr) -> String {
    format!(
        "[[proxy]]\nname = '{name}'\non_limit = '{name}'\nlisten = '127.0.0.1:0'\n\
         upstream = 'http://{upstream}'\nlimit = 'none'\nidle_upstream_timeout = '1s'\n"
    )
}

/// A listener of the Throttr door.
#[derive(Clone, Debug)]
pub(crate) struct Throttr {
    pub(crate) address: Address,
    pub(crate) size: ValueSize,
}

/// Where every door is.
#[derive(Clone, Debug)]
pub(crate) struct Doors {
    pub(crate) text: SocketAddr,
    pub(crate) throttr: Vec<Throttr>,
    pub(crate) counted: SocketAddr,
    pub(crate) booked: SocketAddr,
    pub(crate) accounting: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) waiting: SocketAddr,
    pub(crate) rejecting: SocketAddr,
    pub(crate) resp: Vec<Address>,
    pub(crate) grpc: Vec<Address>,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Doors {
    fn of(program: &Program) -> Self {
        let of = |door: &str| -> Vec<SocketAddr> {
            let told = program.listening().iter().filter(|(name, _)| name == door);
            told.map(|(_, address)| *address).collect()
        };
        let tcp = of("throttr");
        let unix = |name: &str| {
            let path = program.paths().iter().find(|path| path.ends_with(name));
            Address::Unix(path.expect("a socket of this name").clone())
        };
        let listener = |address: Address, size| Throttr { address, size };
        let throttr = vec![
            listener(tcp[0].into(), ValueSize::Bits16),
            listener(tcp[1].into(), ValueSize::Bits8),
            listener(tcp[2].into(), ValueSize::Bits32),
            listener(unix("throttr-32.sock"), ValueSize::Bits32),
            listener(unix("throttr-64.sock"), ValueSize::Bits64),
        ];
        let (jarl, smockron, proxies) = (of("jarl"), of("smockron"), of("proxy"));
        Self {
            text: program.address("text"),
            throttr,
            counted: jarl[0],
            booked: jarl[1],
            accounting: smockron[0],
            control: smockron[1],
            waiting: proxies[0],
            rejecting: proxies[1],
            resp: vec![program.address("resp").into(), unix("resp.sock")],
            grpc: vec![program.address("grpc").into(), unix("grpc.sock")],
            http: program.address("http"),
            admin: program.address("admin"),
        }
    }
}

/// The running server and what stands behind it.
pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) doors: Doors,
    config: String,
    _upstream: Upstream,
}

impl Server {
    /// Starts one; `more` stands at the end of its file.
    pub(crate) fn start(more: &str) -> Self {
        Self::start_with(more, |config| config)
    }

    /// The same, with a file that is changed before the start.
    pub(crate) fn start_with(more: &str, change: impl Fn(String) -> String) -> Self {
        let upstream = Upstream::start();
        let proxies = proxy("wait", upstream.address) + &proxy("reject", upstream.address);
        let config = change([RULES, DOORS, &proxies, more].concat());
        let program = Program::serve(&config);
        let doors = Doors::of(&program);
        Self { program, doors, config, _upstream: upstream }
    }

    /// Ends it cleanly and starts it again in the same folder.
    pub(crate) fn restart(self) -> Self {
        let program = self.program.restart();
        Self { doors: Doors::of(&program), program, ..self }
    }

    /// The file that it was started with.
    pub(crate) fn config(&self) -> &str {
        &self.config
    }
}
