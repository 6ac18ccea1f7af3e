//! Log lines on standard error, as text or as JSON. `RUST_LOG` chooses what is told.
//!
//! The `listening` and `ready` lines are not log lines: `server.rs` prints those, plain, whatever
//! the level and the form.

use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
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
    /// For machines: one object a line.
    Json,
}

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

    /// The same, at a level that somebody has chosen over `RUST_LOG`.
    #[must_use]
    pub fn start_at(level: Option<LevelFilter>) -> Self {
        let (layer, form) = reload::Layer::new(lines(LogFormat::Text));
        let usual = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
        let filter = match level {
            Some(level) => EnvFilter::default().add_directive(level.into()),
            None => usual.from_env_lossy(),
        };
        // A library that embeds us may have set a subscriber of its own; it stays.
        let _ = tracing_subscriber::registry().with(layer).with(filter).try_init();
        Self { form }
    }

    /// Changes the form of the lines.
    pub fn set_format(&self, format: LogFormat) {
        if self.form.reload(lines(format)).is_err() {
            tracing::warn!("the form of log lines could not be changed");
        }
    }
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
