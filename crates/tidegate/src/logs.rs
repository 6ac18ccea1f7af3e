//! Log lines on standard error, as text or as JSON. `RUST_LOG` chooses which.
//!
//! The `listening` and `ready` lines are not log lines: `server/` prints those, plain, whatever
//! the level and the form.

use std::io::{self, Write as _};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, reload};

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object per line.
    Json,
}

/// Libraries that warn of what a client sends: any client could fill the log.
const QUIET: [&str; 3] = ["rustls", "h2", "hyper"];

type Lines = Box<dyn Layer<Registry> + Send + Sync>;

/// Chooses the form of the log lines while the process runs.
pub struct Logs {
    form: reload::Handle<Lines, Registry>,
}

impl Logs {
    /// Begins to log as text, by `RUST_LOG`. Only the first call in a process takes effect.
    #[must_use]
    pub fn start() -> Self {
        Self::start_at(None)
    }

    /// The same, at a level that was chosen by `RUST_LOG`.
    #[must_use]
    pub fn start_at(level: Option<LevelFilter>) -> Self {
        let (layer, form) = reload::Layer::new(lines(LogFormat::Text));
        let filter = match level {
            Some(level) => quiet(Targets::new().with_default(level), &[]),
            None => filter(&std::env::var("RUST_LOG").unwrap_or_default()),
        };
        // A library that embeds us may have set a subscriber of its own; it stays.
        let _ = tracing_subscriber::registry().with(layer).with(filter).try_init();
        Self { form }
    }

    /// Changes the form of the lines.
    pub fn set_format(&self, format: LogFormat) {
        if self.form.reload(lines(format)).is_err() {
            tracing::warn!("the format of log lines could not be changed");
        }
    }
}

/// What `RUST_LOG` asks for: levels and `target=level`, separated by commas; info if it asks for
/// nothing. Directives about spans are refused: Tidegate has no spans.
///
/// [`QUIET`] libraries are silent unless a directive names them.
fn filter(directives: &str) -> Targets {
    let understood = |directive: &&str| {
        let parsed = directive.parse::<Targets>();
        let fine = parsed.is_ok() && !directive.contains('[');
        if !fine {
            let _ = writeln!(io::stderr(), "ignoring `{directive}` in RUST_LOG: not target=level");
        }
        fine
    };
    let asked = directives.split(',').filter(|directive| !directive.is_empty());
    let asked: Vec<&str> = asked.filter(understood).collect();
    let usual = Targets::new().with_default(LevelFilter::INFO);
    let chosen = if asked.is_empty() { usual } else { asked.join(",").parse().unwrap_or(usual) };
    quiet(chosen, &asked)
}

/// Silences the libraries that no directive names.
fn quiet(filter: Targets, asked: &[&str]) -> Targets {
    let is_named = |library: &str| asked.iter().any(|directive| directive.starts_with(library));
    let unnamed = QUIET.into_iter().filter(|library| !is_named(library));
    filter.with_targets(unnamed.map(|library| (library, LevelFilter::OFF)))
}

fn lines(format: LogFormat) -> Lines {
    // Standard error may be closed. Telling about that on standard error would be a panic.
    let layer = fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let colour = io::IsTerminal::is_terminal(&io::stderr())
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            layer.with_ansi(colour).boxed()
        }
        LogFormat::Json => layer.json().flatten_event(true).with_ansi(false).boxed(),
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn rust_log_chooses_levels_and_targets() {
        let (ours, other) = ("tidegate::server", "notify::inotify");
        let check = |directives: &str, enabled: [bool; 4]| {
            let filter = filter(directives);
            let asked = [
                (ours, Level::INFO),
                (ours, Level::DEBUG),
                (other, Level::INFO),
                (other, Level::DEBUG),
            ];
            let answers = asked.map(|(target, level)| filter.would_enable(target, &level));
            assert_eq!(answers, enabled, "{directives:?}");
        };
        check("", [true, false, true, false]);
        check("warn", [false; 4]);
        check("off", [false; 4]);
        check("DEBUG", [true; 4]);
        check("notify=debug", [false, false, true, true]);
        check("warn,tidegate=debug", [true, true, false, false]);
        check("tidegate", [true, true, false, false]);
        // What is not understood is left out, and the rest holds.
        check("notify=loud", [true, false, true, false]);
        check("tidegate[span]=debug,,a=b=c,warn", [false; 4]);
    }

    #[test]
    fn libraries_that_warn_of_clients_are_silent_unless_they_are_named() {
        for target in ["rustls::common_state", "h2::proto::ping_pong", "hyper::proto"] {
            let library = target.split(':').next().expect("a name");
            for directives in ["", "info", "warn", "tidegate=debug"] {
                let filter = filter(directives);
                assert!(!filter.would_enable(target, &Level::ERROR), "{target}: {directives:?}");
            }
            for directives in [format!("{library}=debug"), format!("warn,{library}=debug")] {
                let filter = filter(&directives);
                assert!(filter.would_enable(target, &Level::DEBUG), "{target}: {directives:?}");
            }
        }
    }
}
