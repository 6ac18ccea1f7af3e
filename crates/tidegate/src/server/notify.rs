//! What the server tells the supervisor that has started it (systemd's `sd_notify` protocol):
//! that it is ready, reads its configuration again, stops, and lives.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent. A supervisor that cannot be reached
//! keeps the server from nothing.

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

/// Every door is open, after a start or a reload.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A configuration is put into effect; [`ready`] follows.
pub(super) fn reloading() {
    // The time is for units with `Type=notify-reload`.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]);
    }
}

/// The doors close.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping: open requests are answered")]);
}

/// What is shown beside the unit.
pub(super) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// Says again and again that the runtime still turns, if the supervisor watches for that.
pub(super) fn keep_alive() {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else {
        return;
    };
    tokio::spawn(async move {
        let mut ticks = interval(limit / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            tell(&[NotifyState::Watchdog]);
        }
    });
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager could not be notified");
    }
}
