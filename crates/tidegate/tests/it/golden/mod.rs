//! Golden conversations: every file under `tests/vectors/<door>/`, played by one runner on a clock
//! that stands still.
//!
//! A file may open with settings between two `+++` lines. Then, one thing a line:
//!
//! - `>> request` is sent; several in a row arrive together
//! - `<< reply` is what must come back, in this order; `<<` alone is no reply
//! - `= name` goes on as another client
//! - `@ +100ms` lets time pass; `@ wall -1h` steps the wall clock only
//! - `#` begins a remark
//!
//! How a door writes settings, requests and replies, its adapter says. A new door brings a file
//! with its [`Adapter`] and its name in the list of [`doors!`]; a folder or a file that no adapter
//! claims is an error. The runner plays each file twice: as it is, and with one byte changed in a
//! reply of every exchange. The second time each exchange must fail.

mod jarl;
mod notation;
mod proxy;
mod resp;
mod script;
mod smockron;
mod text;
mod throttr;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::config::Config;
use tidegate::limiter::Limiter;
use tidegate::metrics::Metrics;
use tidegate::stores::memory;
use tidegate_core::Now;
use tidegate_core::rules::RuleSet;
use tidegate_core::time::SECOND;

use self::notation::pass;
use self::script::{Exchange, Mismatch, Script, Step};

/// A moment at which a bucket of 300 seconds begins, so that statistics begin with an empty one.
pub(crate) const START: Now = Now { mono: 1_000 * SECOND, unix: 1_700_000_100 * SECOND };

/// The table that `get_size` talks about.
const MEMORY: memory::Settings = memory::Settings { max_keys: 10_000, max_bytes: 64 << 20 };

/// One door, as the files of its folder speak to it.
trait Adapter {
    /// Sends the requests together and returns every reply that is not as the file says.
    fn exchange(&mut self, exchange: &Exchange) -> Vec<Mismatch>;

    /// Moves the clock as an `@` line says.
    fn pass(&mut self, clock: &Clock, step: &str) {
        pass(clock, step);
    }

    /// Goes on as another client; `name` is what the `=` line says.
    fn connect(&mut self, name: &str) {
        panic!("this door has no other client: = {name}");
    }
}

/// Opens the door for one file, with the file's settings.
type Open = fn(settings: Option<&str>, clock: &Clock) -> Box<dyn Adapter>;

/// A test for each door, and the list of all.
macro_rules! doors {
    ($($door:ident)*) => {
        const DOORS: &[&str] = &[$(stringify!($door)),*];
        $(
            #[test]
            fn $door() {
                check_door(stringify!($door), $door::open);
            }
        )*
    };
}

doors! { jarl proxy resp smockron text throttr }

#[test]
fn every_file_has_an_adapter() {
    for folder in entries(&vectors()) {
        let name = folder.file_name().expect("a name").to_string_lossy();
        assert!(DOORS.contains(&&*name), "no adapter claims {}", folder.display());
        for file in entries(&folder) {
            // Fails for a format that nobody reads.
            Script::of(&name, &file);
        }
    }
}

#[test]
fn a_wrong_reply_is_reported_with_its_place() {
    let text = "# A remark.\n>> ping\n<< pong\n>> ping\n>> ping\n<< gnop\n<<\n";
    let wrong = Script::text("text/a.txt", text).play(text::open).concat();
    let expected = ["gnop", ""].iter().zip([6, 7]);
    let expected = expected.map(|(reply, line)| {
        format!("text/a.txt:{line}: >> ping, ping\n  expected: {reply}\n  got:      pong")
    });
    assert_eq!(wrong, expected.collect::<Vec<_>>());
}

fn check_door(door: &str, open: Open) {
    let files = entries(&vectors().join(door));
    assert!(!files.is_empty(), "{door} has no vectors");
    let mut wrong = Vec::new();
    for file in &files {
        let mut script = Script::of(door, file);
        wrong.extend(script.play(open).concat());
        script.falsify();
        for (exchange, noticed) in script.exchanges().zip(script.play(open)) {
            if noticed.is_empty() {
                let reply = &exchange.replies[0];
                let what = "a wrong reply goes unnoticed";
                wrong.push(format!("{}:{}: {what}: {}", script.place, reply.number, reply.text));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of vectors");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

impl Script {
    /// Plays the file and returns what is not as written, for each exchange.
    fn play(&self, open: Open) -> Vec<Vec<String>> {
        let clock = Clock::manual(START);
        let mut adapter = open(self.settings.as_deref(), &clock);
        let mut wrong = Vec::new();
        for step in &self.steps {
            match step {
                Step::Pass(line) => adapter.pass(&clock, &line.text),
                Step::Connect(line) => adapter.connect(&line.text),
                Step::Exchange(exchange) => {
                    let _place = Place(&self.place, exchange.requests[0].number);
                    let mismatches = adapter.exchange(exchange);
                    wrong.push(mismatches.iter().map(|one| self.report(exchange, one)).collect());
                }
            }
        }
        wrong
    }

    fn report(&self, exchange: &Exchange, wrong: &Mismatch) -> String {
        let sent: Vec<&str> = exchange.requests.iter().map(|line| line.text.as_str()).collect();
        let Mismatch { line, expected, got } = wrong;
        let sent = sent.join(", ");
        format!("{}:{line}: >> {sent}\n  expected: {expected}\n  got:      {got}", self.place)
    }
}

/// Says where a script was when its adapter panicked.
struct Place<'s>(&'s str, usize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("at {}:{}", self.0, self.1);
        }
    }
}

/// A limiter with these rules.
pub(crate) fn limiter(rules: RuleSet, clock: &Clock) -> Arc<Limiter> {
    Limiter::new(clock.clone(), Arc::new(Metrics::new()), rules, MEMORY)
}

/// The configuration that a file opens with.
pub(crate) fn config(settings: &str) -> Config {
    Config::parse("settings of the file", settings).unwrap_or_else(|problems| panic!("{problems}"))
}
