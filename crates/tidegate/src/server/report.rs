//! What a reload changed, as the log shows it.

use super::open_doors::Moved;
use super::process::Difference;

/// The most names of one kind that a line shows.
const NAMES_MAX: usize = 20;

/// What was changed.
pub(super) struct Report {
    pub(super) rules: Difference,
    pub(super) doors: Moved,
}

impl Report {
    /// One line for all of it. What did not change is not mentioned.
    pub(super) fn log(&self, file: &str) {
        let Difference { added, removed, changed, anew, from_store, .. } = &self.rules;
        tracing::info!(
            file,
            rules_added = shown(added),
            rules_removed = shown(removed),
            rules_changed = shown(changed),
            counts_begin_anew = shown(anew),
            counts_from_store = shown(from_store),
            doors_opened = shown(&self.doors.opened),
            doors_closed = shown(&self.doors.closed),
            "configuration reloaded"
        );
    }
}

/// One line for a configuration that came over xDS.
pub(super) fn log_update(rules: &Difference, version: &str, domains: usize) {
    let Difference { added, removed, changed, anew, .. } = rules;
    tracing::info!(
        version,
        domains,
        rules_added = shown(added),
        rules_removed = shown(removed),
        rules_changed = shown(changed),
        counts_begin_anew = shown(anew),
        "xDS configuration in force"
    );
}

fn shown(names: &[String]) -> Option<String> {
    let more = names.len().saturating_sub(NAMES_MAX);
    let mut text = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    (!names.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let names = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>();
        assert_eq!(shown(&[]), None);
        assert_eq!(shown(&names(2)).as_deref(), Some("0, 1"));
        assert!(shown(&names(NAMES_MAX + 3)).is_some_and(|text| text.ends_with("19 and 3 more")));
    }
}
