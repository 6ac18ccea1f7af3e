//! A proxy inside of the test's own process: its real loops and sockets, on a clock that is moved
//! by hand. So a test can stand at the start of a minute.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread;

use serde_json::Value;
use tidegate::clock::Clock;
use tidegate::config::Config;
use tidegate::doors::{DoorConfig as _, Gate, Serving};
use tidegate::limiter::{Limiter, LimiterHandle};
use tidegate::metrics::{Door, Metrics};
use tidegate::records::Records;
use tidegate::server::Process;
use tidegate::settings::listen::ListenAddress;
use tidegate::waiting::{Began, NotAdmitted, WaitRequest, WaiterBounds, WaiterLimit};
use tidegate_core::time::DAY;
use tidegate_core::{Nanos, Now};
use tokio::runtime::{Builder, Runtime};

use super::{Client, eventually};

/// The first moment of a day.
pub(super) const START: Now = Now { mono: 500 * DAY, unix: 20_000 * DAY };

/// How long it takes until a step of the wall clock has been noticed.
pub(super) const NOTICED: Nanos = 1;

/// The proxy `api`, and all that stands behind it.
pub(super) struct House {
    pub(super) clock: Clock,
    pub(super) gate: Gate,
    address: SocketAddr,
    upstream: SocketAddr,
    handle: LimiterHandle,
    waiters: Arc<WaiterLimit>,
    serving: Option<Serving>,
    runtime: Runtime,
}

fn config(upstream: SocketAddr, settings: &str) -> Config {
    // Nobody is cut off, however far the clock is moved.
    let patient = ["head", "idle", "stall", "response", "idle_upstream"]
        .map(|what| format!("{what}_timeout = '300 days'\n"))
        .into_iter()
        .filter(|line| !settings.contains(&line[..line.len() - "'300 days'\n".len()]))
        .collect::<String>();
    let text = format!(
        "[[rule]]\nname = 'probe'\nmatch = 'probe'\nlimit = '1 per 366 days'\n\
         [[proxy]]\nname = 'api'\nlisten = '127.0.0.1:0'\nupstream = 'http://{upstream}'\n\
         {patient}{settings}\n"
    );
    Config::parse("house", &text).unwrap_or_else(|wrong| panic!("{wrong}"))
}

impl House {
    /// Opens a proxy with these settings at `start`.
    pub(super) fn at(clock: Clock, upstream: SocketAddr, settings: &str) -> Self {
        let Config { file, rules, .. } = config(upstream, settings);
        let metrics = Arc::new(Metrics::new());
        let limiter = Limiter::new(clock.clone(), metrics.clone(), rules, file.memory.settings());
        let handle = limiter.handle(Door::Http);
        let process = Process::new(limiter.clone());
        let records = Records::beside(&limiter, 1);
        let gate = Gate::new(limiter, records, metrics, process);
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let (waiting, shutdown) = (gate.waiting.clone(), gate.door.shutdown.clone());
        thread::spawn(move || waiting.keep_waking(&shutdown));
        let bound = file.proxy[0].bind().expect("a free port");
        let ListenAddress::Ip(address) = bound.addresses()[0] else { panic!("an IP address") };
        let serving = Some(bound.serve(gate.clone()));
        let waiters = WaiterLimit::new(&gate.metrics, Door::Http, WaiterBounds::default());
        let house = Self { clock, gate, address, upstream, handle, waiters, serving, runtime };
        let ask = WaitRequest { key: b"probe", cost: 1, max_wait: None, can_end: false };
        let first = house.gate.waiting.begin(&house.handle, &ask, house.clock.now());
        assert!(matches!(first, Began::Done(Ok(_))), "from now on a probe has to wait");
        house
    }

    pub(super) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Sends a request that nobody reads the answer of yet.
    pub(super) fn ask(&self, target: &str) -> Client {
        let mut client = self.client();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        client
    }

    /// Puts other settings of the limit in force.
    pub(super) fn set_limit(&self, settings: &str) {
        self.gate.limiter.install(config(self.upstream, settings).rules);
    }

    /// Moves the clock, and returns once everybody has been woken whose time has come.
    pub(super) fn advance(&self, span: Nanos) {
        let ask = WaitRequest { key: b"probe", cost: 1, max_wait: Some(span), can_end: false };
        let mut probe = pin!(self.gate.waiting.admit(&self.handle, &self.waiters, ask));
        self.runtime.block_on(async {
            let at_once = std::future::poll_fn(|cx| probe.as_mut().poll(cx).map(Some));
            tokio::select! {
                biased;
                passed = at_once => panic!("the probe must wait: {passed:?}"),
                () = std::future::ready(()) => {}
            }
            self.clock.advance(span);
            // Its time is over now, and that is noticed together with everybody else's.
            let passed = probe.as_mut().await;
            assert!(matches!(passed, Err(NotAdmitted::TooLate(_))), "{passed:?}");
        });
    }

    /// Steps the wall clock, and returns once that has been noticed.
    pub(super) fn set_wall(&self, unix: Nanos) {
        self.clock.set_unix(unix);
        self.advance(NOTICED);
    }

    /// Returns once so many requests wait.
    #[track_caller]
    pub(super) fn until_waiting(&self, count: usize) {
        eventually(|| self.gate.waiting.len() == count);
    }

    /// How many requests were let go.
    pub(super) fn allowed(&self) -> usize {
        let page = self.gate.metrics_page();
        let ours = "tidegate_decisions_total{door=\"proxy\",rule=\"proxy:api\",verdict=";
        let count = |verdict: &str| -> usize {
            let mut lines = page.lines().filter_map(|line| line.strip_prefix(ours));
            let found = lines.find_map(|line| line.strip_prefix(&format!("\"{verdict}\"}} ")));
            found.map_or(0, |count| count.parse().expect("a number"))
        };
        // At once, or later.
        count("allow") + count("delay")
    }

    /// What the proxy says of itself.
    pub(super) fn summary(&self) -> Value {
        let report = self.gate.shared.report(Door::Proxy).expect("a proxy has opened");
        let rows: Vec<Value> = serde_json::from_str(&report.rows()).expect("JSON");
        rows.into_iter().next().expect("one proxy")
    }

    /// Closes the door, and returns once everybody is out.
    pub(super) fn close(&mut self) {
        self.gate.door.shutdown.set();
        if let Some(serving) = self.serving.take() {
            self.runtime.block_on(serving.join());
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // A test that fails has clients that nobody waits for.
        self.gate.door.shutdown.set();
    }
}
