//! What is wrong with a configuration, in envoyproxy/ratelimit's words.
//!
//! Scripts and control planes look for these texts, so they do not change. What that server does
//! not know, such as limits in our own grammar, has texts of our own.

/// A file, or an xDS resource, that cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct ConfigError {
    /// The name that came with the text.
    pub file: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The domain is missing or empty.
    #[error("config file cannot have empty domain")]
    EmptyDomain,
    /// Another file has the domain, and domains are not merged.
    #[error("duplicate domain '{0}' in config file")]
    DuplicateDomain(String),
    /// A descriptor has no key.
    #[error("descriptor has empty key")]
    EmptyKey,
    /// Two descriptors of one level have the same key and value.
    #[error("duplicate descriptor composite key '{0}'")]
    DuplicateDescriptor(String),
    /// The unit is none of SECOND, MINUTE, HOUR, DAY, WEEK, MONTH, YEAR.
    #[error("invalid rate limit unit '{0}'")]
    InvalidUnit(String),
    /// A limit that is unlimited has a unit.
    #[error("should not specify rate limit unit when unlimited")]
    UnlimitedWithUnit,
    /// An entry of `replaces` has no name.
    #[error("should not have an empty replaces entry")]
    EmptyReplaces,
    /// A limit replaces itself.
    #[error("replaces should not contain name of same descriptor")]
    ReplacesItself,
    /// `share_threshold` needs a pattern that values share.
    #[error(
        "share_threshold can only be used with wildcard values (containing '*'), \
         but found key '{0}'"
    )]
    ShareWithoutWildcard(String),
    /// A key that means nothing anywhere in the file.
    #[error("config error, unknown key '{0}'")]
    UnknownKey(String),
    /// A key that is a number, a truth value or null.
    #[error("config error, key is not of type string: {0}")]
    KeyNotText(String),
    /// All lists are lists of maps.
    #[error("config error, yaml file contains list of type other than map: {0}")]
    ListOfOther(String),
    /// A value that is a fraction or too large for a whole number.
    #[error("error checking config")]
    UnfitValue,
    /// The text is not YAML, exceeds a bound, or a value is of the wrong type.
    #[error("error loading config file: {0}")]
    Loading(String),
    /// A limit in our own grammar is wrong.
    #[error("invalid limit '{limit}': {reason}")]
    InvalidLimit {
        /// What was written.
        limit: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A key of our own stands where it would be overlooked.
    #[error("'{0}' is only valid in rate_limit")]
    Misplaced(&'static str),
    /// More levels of descriptors than a request can have entries.
    #[error("descriptors are nested deeper than {max}", max = super::DEPTH_MAX)]
    TooDeep,
}
