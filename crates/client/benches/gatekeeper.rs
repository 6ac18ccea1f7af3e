//! What a gatekeeper costs, printed for people to judge.
//!
//! First `decide` beside a bare lookup in the table that it uses, with a million identifiers known
//! and a peer that takes the accounting: interleaved rounds on one thread, the medians of its CPU
//! time and their ratio; once with each question after the end of the one before, and once with as
//! many at a time as the processor likes. Then an axum hello-world with and without the layer, in
//! instructions per request as callgrind counts them, the sending of accounting included; for that
//! the program runs itself under valgrind, by turns.
//! `cargo bench -p tidegate-client -- decide`, or `layer`, runs one of both.

use std::env;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use http::header::AUTHORIZATION;
use rustix::time::{ClockId, clock_gettime};
use tidegate_client::gatekeeper::{Config, Decision, Domain, GATHER, Gatekeeper, Master};
use tidegate_client::layer::GatekeeperLayer;
use tokio::time::Instant;
use tower::Layer;

const IDENTIFIERS: usize = 1_000_000;
/// Decisions between two looks at the clock: as many as are gathered in a millisecond when an
/// application is very busy.
const CHUNK: usize = 1_000;
const ROUNDS: usize = 300;
/// Longer than a round takes.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(5);
/// The bytes of an address in dots.
const NAME_BYTES_MAX: usize = 15;
/// A step that visits all identifiers in an order without neighbours.
const STRIDE: usize = 611_953;

/// Requests of the short and of the long run under callgrind; the difference is counted.
const REQUESTS: (usize, usize) = (1_000, 5_000);
const CONNECTIONS: usize = 8;
/// Turns of both: how often a runtime goes to sleep is not the same in all.
const TURNS: usize = 5;
/// Clients that are delayed while others are served.
const DELAYED: usize = 100;

fn main() {
    let words: Vec<String> = env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        [] => {
            decide();
            layer();
        }
        ["decide"] => decide(),
        ["layer"] => layer(),
        ["serve", accounting, gather_us] => serve(accounting, gather_us),
        _ => eprintln!("nothing, `decide` or `layer`"),
    }
}

/// A master that shakes hands, takes everything and says nothing.
fn sink() -> SocketAddr {
    let door = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = door.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in door.incoming().flatten() {
            thread::spawn(move || swallow(stream));
        }
    });
    address
}

fn swallow(mut stream: TcpStream) -> Option<()> {
    stream.write_all(&tidegate_wire::zmtp::greeting()).ok()?;
    stream.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\0\x01\x01").ok()?;
    let mut room = vec![0; 1 << 20];
    while stream.read(&mut room).ok()? > 0 {}
    None
}

fn config(accounting: SocketAddr) -> Config {
    // Nobody speaks here: control is not what is measured.
    let master = Master::new(format!("tcp://{accounting}"), "tcp://127.0.0.1:1", ["api"]);
    Config { max_delay: Duration::ZERO, ..Config::new([master]) }
}

fn name(at: usize) -> String {
    let [_, a, b, c] = (at as u32).to_be_bytes();
    format!("10.{a}.{b}.{c}")
}

fn decide() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    // The task sends between the rounds, not beside them: cores that share their parts would slow
    // each other down, and what sending costs is part of the other figure.
    let config = Config { gather: BETWEEN_ROUNDS, ..config(sink()) };
    let now_ms = config.clock.unix_ms();
    let gatekeeper = runtime.block_on(async {
        let gatekeeper = Gatekeeper::connect(&config).expect("a gatekeeper");
        let api = gatekeeper.domain("api").expect("the domain");
        gatekeeper.heard(api).await;
        gatekeeper
    });
    let api = gatekeeper.domain("api").expect("the domain");
    // Known ones, who are told to come back in an hour; and strangers, who pass.
    let known: Vec<String> = (0..IDENTIFIERS).map(name).collect();
    let strangers: Vec<String> = (0..IDENTIFIERS).map(|at| name(at + (1 << 23))).collect();
    for identifier in &known {
        assert!(gatekeeper.remember(api, identifier.as_bytes(), now_ms + 3_600_000));
    }
    println!("{:>24} {:>12} {:>12} {:>8}", "", "lookup ns", "decide ns", "ratio");
    for way in [Way::OneByOne, Way::Overlapping] {
        for (whom, names, passes) in [("known", &known, false), ("strangers", &strangers, true)] {
            let [waiting, lookup, decide] =
                compare(&gatekeeper, api, names, passes, way).map(median);
            let (lookup, decide) = (lookup - waiting, decide - waiting);
            let label = format!("{}, {whom}", way.name());
            println!("{label:>24} {lookup:>12.1} {decide:>12.1} {:>8.2}", decide / lookup);
        }
    }
    let stats = gatekeeper.stats();
    println!("accounting sent {}, dropped {}", stats.sent, stats.dropped());
}

/// How questions follow each other.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// One is over before the next begins, as requests of an application come: what waiting for
    /// that costs is measured apart and taken off.
    OneByOne,
    /// The processor may look up the next while it still waits for the last.
    Overlapping,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::OneByOne => "one by one",
            Way::Overlapping => "overlapping",
        }
    }

    /// Asks about all of them and expects the same answer. Nanoseconds for each, of this thread:
    /// the task that sends and the peer that takes it have threads of their own.
    fn time(self, chunk: &[Room], ask: &dyn Fn(&[u8]) -> bool, expected: bool) -> f64 {
        let begin = clock_gettime(ClockId::ThreadCPUTime);
        for (len, name) in chunk {
            assert!(ask(&name[..*len]) == expected);
            if self == Way::OneByOne {
                // The fence waits for what was written; the loads of the next pass it, but none
                // passes a look at the clock.
                fence(SeqCst);
                black_box(clock_gettime(ClockId::Monotonic));
            }
        }
        let end = clock_gettime(ClockId::ThreadCPUTime);
        let ns = (end.tv_sec - begin.tv_sec) * 1_000_000_000 + (end.tv_nsec - begin.tv_nsec);
        ns as f64 / chunk.len() as f64
    }
}

/// An identifier and its length. An application has just read whom it decides on: fetching names
/// from a list of a million is no part of what is measured.
type Room = (usize, [u8; NAME_BYTES_MAX]);

/// Nanoseconds for nothing but the way itself, for each lookup with it and for each decision with
/// it, one of all three from every round.
fn compare(
    gatekeeper: &Gatekeeper,
    api: Domain,
    names: &[String],
    passes: bool,
    way: Way,
) -> [Vec<f64>; 3] {
    let mut at = 0;
    let mut chunk: Vec<Room> = Vec::new();
    let mut timed = |ask: &dyn Fn(&[u8]) -> bool, expected: bool| {
        chunk.clear();
        for _ in 0..CHUNK {
            at = (at + STRIDE) % IDENTIFIERS;
            let name = names[at].as_bytes();
            let mut room = [0; NAME_BYTES_MAX];
            room[..name.len()].copy_from_slice(name);
            chunk.push((name.len(), room));
        }
        way.time(&chunk, ask, expected)
    };
    let known = |name: &[u8]| gatekeeper.until_ms(api, name).is_some();
    let accepts = |name: &[u8]| matches!(gatekeeper.decide_in(api, name), Decision::Accept);
    let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        // Whoever comes first after a sleep finds cold caches: that is neither of the two, and each
        // of them goes before the other as often as after it.
        timed(&known, !passes);
        rounds[0].push(timed(&|name: &[u8]| !black_box(name).is_empty(), true));
        for turn in [round, round + 1] {
            match turn % 2 {
                0 => rounds[1].push(timed(&known, !passes)),
                _ => rounds[2].push(timed(&accepts, passes)),
            }
        }
        // The task sends while nobody looks.
        while !drained(gatekeeper) {
            thread::sleep(Duration::from_millis(1));
        }
    }
    rounds
}

fn drained(gatekeeper: &Gatekeeper) -> bool {
    let stats = gatekeeper.stats();
    stats.sent + stats.dropped() >= stats.accepted + stats.rejected
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// The application, in a process of its own. Without an endpoint it has no layer.
fn serve(accounting: &str, gather_us: &str) {
    // The C library's calls are cheaper in a process with one thread, which few applications are.
    thread::spawn(thread::park);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        let router = Router::new().route("/", get(|| async { "Hello, World!" }));
        let router = router.route("/end", get(end));
        let Ok(accounting) = accounting.parse::<SocketAddr>() else {
            axum::serve(listener, router).await.expect("it serves");
            return;
        };
        let gather = Duration::from_micros(gather_us.parse().expect("microseconds"));
        let config = Config { gather, ..config(accounting) };
        let gatekeeper = Gatekeeper::connect(&config).expect("a gatekeeper");
        let api = gatekeeper.domain("api").expect("the domain");
        for at in 0..DELAYED {
            gatekeeper.remember(api, name(at).as_bytes(), config.clock.unix_ms() + 3_600_000);
        }
        gatekeeper.heard(api).await;
        let layer = GatekeeperLayer::new(gatekeeper, "api", |head| {
            Some(head.headers.get(&AUTHORIZATION)?.as_bytes().into())
        });
        // With its state, as `axum::serve` gives it to a router: without, handlers are built anew
        // for every request.
        let app = layer.layer(router.with_state::<()>(()));
        let app = axum::ServiceExt::<Request>::into_make_service(app);
        axum::serve(listener, app).await.expect("it serves");
    });
}

/// The last request: callgrind writes its sum when the program ends.
#[expect(clippy::disallowed_methods, reason = "a program that is measured ends when it is told")]
async fn end() -> &'static str {
    std::process::exit(0)
}

/// One run of the application: how long it took to answer, and what callgrind counted.
struct Run {
    seconds: f64,
    instructions: u64,
}

fn run(accounting: Option<SocketAddr>, gather: Duration, requests: usize, counted: bool) -> Run {
    let program = env::current_exe().expect("its own name");
    let mut command = if counted {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    let accounting = accounting.map_or("none".to_owned(), |address| address.to_string());
    command.args(["serve", &accounting, &gather.as_micros().to_string()]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("valgrind is installed: `make setup-bench`");
    let seconds = load(&mut child, requests);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
    let instructions = collected.and_then(|number| number.trim().parse().ok()).unwrap_or(0);
    assert!(!counted || instructions > 0, "callgrind counted nothing: {text}");
    Run { seconds, instructions }
}

/// Sends the requests over a few connections, each answered before its next.
fn load(child: &mut Child, requests: usize) -> f64 {
    let request = |number: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\
             Authorization: user-{number:010}\r\n\r\n"
        )
    };
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    output.read_line(&mut line).expect("its address");
    let address = line.trim();
    let connect = || {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream
    };
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect()).collect();
    let begin = Instant::now();
    for round in 0..requests / CONNECTIONS {
        for (number, stream) in streams.iter_mut().enumerate() {
            let request = request(round * CONNECTIONS + number);
            stream.write_all(request.as_bytes()).expect("a request");
        }
        for stream in &mut streams {
            let mut answer = [0; 512];
            let mut held = 0;
            while !answer[..held].ends_with(b"Hello, World!") {
                let count = stream.read(&mut answer[held..]).expect("an answer");
                assert!(count > 0, "the answer is whole");
                held += count;
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    streams[0].write_all(b"GET /end HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the end");
    let _ = streams[0].read(&mut [0; 512]);
    seconds
}

fn layer() {
    let sink = sink();
    // Valgrind makes everything slow except the time. What is gathered in a millisecond is gathered
    // in as much longer there, so that the same number of requests shares one write.
    let native = run(Some(sink), GATHER, 20_000, false).seconds / 20_000.0;
    let slow = run(Some(sink), GATHER, REQUESTS.0, true).seconds / REQUESTS.0 as f64;
    let gather = GATHER.mul_f64((slow / native).max(1.0));
    println!("under valgrind {:.0} times slower: gathering {gather:?}", slow / native);
    let per_request = |accounting| {
        let [short, long] =
            [REQUESTS.0, REQUESTS.1].map(|count| run(accounting, gather, count, true).instructions);
        (long - short) as f64 / (REQUESTS.1 - REQUESTS.0) as f64
    };
    let turns = (0..TURNS).map(|_| (per_request(None), per_request(Some(sink))));
    let (without, with): (Vec<f64>, Vec<f64>) = turns.unzip();
    let (without, with) = (median(without), median(with));
    println!("instructions per request: without {without:.0}, with the layer {with:.0}");
    println!("the layer adds {:.0}, {:.2} %", with - without, (with / without - 1.0) * 100.0);
}
