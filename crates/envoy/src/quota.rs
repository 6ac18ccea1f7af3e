//! Division of a limit among streams.
