//! A changed configuration: noticed, read again, and handed to the server.
//!
//! The folder is watched and not the file: editors rename a new file over the old one, and
//! mounted ConfigMaps swap a link. What counts is the text: an event that did not change it is
//! no reload. The same holds for the files of a folder that the configuration names. Putting a
//! configuration into effect is the server's work.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify_debouncer_full::notify::event::{AccessKind, AccessMode};
use notify_debouncer_full::notify::{EventKind, RecommendedWatcher, RecursiveMode};
use notify_debouncer_full::{
    DebounceEventResult, DebouncedEvent, Debouncer, NoCache, new_debouncer_opt, notify,
};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc::{self, Receiver};

use crate::config::{Config, ConfigSource};
use crate::settings::files;
use crate::settings::problem::Problems;

/// Writers are given this long to finish before the file is read.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Knows where the configuration comes from and what it said last, and watches the folders where
/// it lies.
pub(super) struct Reloader {
    named: Option<PathBuf>,
    source: ConfigSource,
    last: Option<String>,
    /// A folder of configuration files beside it, and what those said last.
    beside: Option<PathBuf>,
    last_beside: Option<u64>,
    debouncer: Option<Debouncer<RecommendedWatcher, NoCache>>,
    folders: BTreeSet<PathBuf>,
    changes: Receiver<()>,
}

impl Reloader {
    /// For the named file, else `./tidegate.toml`, else the built-in default. It watches from now
    /// on, so that no change is missed after the first load. Where the system has no watches left,
    /// SIGHUP still works.
    pub(super) fn start(named: Option<PathBuf>) -> Self {
        // One waiting note is enough: the file is read as it is by then.
        let (notes, changes) = mpsc::channel(1);
        let on_events = move |events: DebounceEventResult| {
            if events.is_ok_and(|events| events.iter().any(matters)) {
                let _ = notes.try_send(());
            }
        };
        let config = notify::Config::default();
        let debouncer = new_debouncer_opt(DEBOUNCE, None, on_events, NoCache, config)
            .inspect_err(|error| tracing::warn!(%error, "file changes are not noticed"))
            .ok();
        let source = ConfigSource::find(named.as_deref());
        let folders = BTreeSet::new();
        let (last, beside, last_beside) = (None, None, None);
        let mut reloader =
            Self { named, source, last, beside, last_beside, debouncer, folders, changes };
        reloader.follow();
        reloader
    }

    /// Where the configuration comes from.
    pub(super) fn source(&self) -> &ConfigSource {
        &self.source
    }

    /// Reads the configuration again, changed or not.
    pub(super) fn load(&mut self) -> Result<Config, Problems> {
        if self.source == ConfigSource::BuiltIn {
            // A file may have come since. The other way round, a file that went away is a
            // mistake: it must not open the default doors.
            self.source = ConfigSource::find(self.named.as_deref());
        }
        self.follow();
        let text = self.source.text()?;
        let config = Config::load(&self.source.name(), &text);
        self.last = Some(text);
        self.look_beside(config.as_ref().ok());
        config
    }

    /// Notes which folder a configuration names, and what its files say.
    fn look_beside(&mut self, config: Option<&Config>) {
        if let Some(config) = config {
            self.beside = config.file.folder_beside().map(Path::to_owned);
            self.follow();
        }
        self.last_beside = self.beside.as_deref().map(fingerprint);
    }

    /// Reads the configuration again if its text is another than the last, right or wrong.
    fn load_if_changed(&mut self) -> Option<Result<Config, Problems>> {
        self.follow();
        let text = match self.source.text() {
            Ok(text) => Some(text),
            Err(problems) if self.last.take().is_some() => return Some(Err(problems)),
            Err(_) => None,
        };
        let is_same =
            text == self.last && self.beside.as_deref().map(fingerprint) == self.last_beside;
        if text.is_none() || is_same {
            return None;
        }
        self.last = text;
        let text = self.last.as_deref().unwrap_or_default();
        let config = Config::load(&self.source.name(), text);
        self.look_beside(config.as_ref().ok());
        Some(config)
    }

    /// Watches the folders of the file and of what it is a link to, and no others.
    fn follow(&mut self) {
        let Some(debouncer) = &mut self.debouncer else { return };
        let mut wanted = match &self.source {
            ConfigSource::File(path) => folders(path),
            ConfigSource::BuiltIn => BTreeSet::new(),
        };
        wanted.extend(self.beside.iter().map(|it| it.canonicalize().unwrap_or(it.clone())));
        for folder in self.folders.difference(&wanted) {
            // A folder that is gone took its watch with it.
            let _ = debouncer.unwatch(folder);
        }
        for folder in wanted.difference(&self.folders) {
            if let Err(error) = debouncer.watch(folder, RecursiveMode::NonRecursive) {
                tracing::warn!(folder = %folder.display(), %error, "file changes are not noticed");
            }
        }
        self.folders = wanted;
    }

    /// Reads the configuration again on every `hang_up` and on every change of its file, in a task
    /// of its own: a file on a disk that does not answer keeps this task waiting, and neither the
    /// server nor its end.
    pub(super) fn run(mut self, mut hang_up: Signal) -> Receiver<Loaded> {
        let (sender, loaded) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let is_forced = tokio::select! {
                    _ = hang_up.recv() => true,
                    () = self.changed() => false,
                };
                let config = tokio::task::block_in_place(|| match is_forced {
                    true => Some(self.load()),
                    false => self.load_if_changed(),
                });
                let Some(config) = config else { continue };
                let file = self.source.name();
                if sender.send(Loaded { config, file }).await.is_err() {
                    return;
                }
            }
        });
        loaded
    }

    /// Returns when something changed in the folders; never, if nothing can be watched.
    async fn changed(&mut self) {
        if self.changes.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

/// A configuration that was read again.
pub(super) struct Loaded {
    pub(super) config: Result<Config, Problems>,
    /// Where it comes from.
    pub(super) file: String,
}

/// Reading the file makes events too; they must not lead to reading it again.
fn matters(event: &DebouncedEvent) -> bool {
    match event.event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

/// What the files of a folder say, in a number that changes with it. What is no file counts too, by
/// why it cannot be read: it may be an error of the configuration.
fn fingerprint(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let mut hasher = DefaultHasher::new();
    for path in paths {
        let text = files::read_text(&path).map_err(|error| error.to_string());
        (path, text).hash(&mut hasher);
    }
    hasher.finish()
}

fn folders(path: &Path) -> BTreeSet<PathBuf> {
    let folder_of = |path: &Path| match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let target = path.canonicalize().ok();
    let found = [Some(folder_of(path)), target.map(|target| folder_of(&target))];
    // The same folder by two names is watched once.
    found.into_iter().flatten().map(|folder| folder.canonicalize().unwrap_or(folder)).collect()
}
