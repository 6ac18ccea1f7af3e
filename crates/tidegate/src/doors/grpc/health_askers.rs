//! Which clients ask after the server's health and have yet to hear that the door closes. It
//! decides nothing: the door waits for them as long as it likes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The connections of a door on which its health was asked after.
#[derive(Debug, Default)]
pub(super) struct HealthAskers {
    is_closing: AtomicBool,
    /// Connections that were told last that all is well.
    unaware: AtomicUsize,
}

impl HealthAskers {
    /// From now on answers say that the door closes.
    pub(super) fn close(&self) {
        self.is_closing.store(true, SeqCst);
    }

    /// Whether none believes that all is well.
    pub(super) fn all_know(&self) -> bool {
        self.unaware.load(SeqCst) == 0
    }
}

/// One connection among them.
#[derive(Debug)]
pub(super) struct HealthAsker {
    all: Arc<HealthAskers>,
    is_unaware: AtomicBool,
}

impl HealthAsker {
    /// A connection that has not asked yet.
    pub(super) fn new(all: &Arc<HealthAskers>) -> Self {
        Self { all: all.clone(), is_unaware: AtomicBool::new(false) }
    }

    /// Whether what is asked now is answered with the end.
    pub(super) fn is_closing(&self) -> bool {
        self.all.is_closing.load(SeqCst)
    }

    /// A question was answered, which came when the door was closing or was not.
    pub(super) fn answered(&self, was_closing: bool) {
        match (self.is_unaware.swap(!was_closing, SeqCst), was_closing) {
            (true, true) => self.all.unaware.fetch_sub(1, SeqCst),
            (false, false) => self.all.unaware.fetch_add(1, SeqCst),
            _ => return,
        };
    }
}

impl Drop for HealthAsker {
    fn drop(&mut self) {
        self.answered(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_asked_before_the_end_must_hear_of_it_or_leave() {
        let all = Arc::new(HealthAskers::default());
        let [silent, one, two] = [0; 3].map(|_| HealthAsker::new(&all));
        for asker in [&one, &one, &two] {
            asker.answered(asker.is_closing());
        }
        all.close();
        assert!(!all.all_know());
        one.answered(one.is_closing());
        one.answered(one.is_closing());
        assert!(!all.all_know());
        drop(two);
        assert!(all.all_know());
        drop((silent, one));
        assert!(all.all_know());
    }
}
