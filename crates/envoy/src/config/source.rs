//! A configuration before it is checked, from whatever it was read.
//!
//! YAML files and xDS messages are read into these: what follows is one check and one tree for
//! both. Nothing here is validated.

use std::collections::BTreeMap;

/// One file or one `RateLimitConfig` message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainNode {
    /// The domain.
    pub domain: String,
    /// The first level of the tree.
    pub descriptors: Vec<DescriptorNode>,
}

/// One descriptor of the tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescriptorNode {
    /// The key of the entry.
    pub key: String,
    /// The value of the entry; empty for any value, `*` in it for any run of characters.
    pub value: String,
    /// The limit of descriptors that end here.
    pub rate_limit: Option<RateLimitNode>,
    /// The next level.
    pub descriptors: Vec<DescriptorNode>,
    /// Whether descriptors over the limit pass.
    pub shadow_mode: bool,
    /// Whether descriptors over the limit pass unless all descriptors of this kind are over.
    pub quota_mode: bool,
    /// Whether all values are in the name of the statistics.
    pub detailed_metric: bool,
    /// Whether the value of this entry is in the name of the statistics.
    pub value_to_metric: bool,
    /// Whether all values that match the pattern have one count.
    pub share_threshold: bool,
    /// What answers carry if the rule lets a request pass.
    pub metadata: Option<Metadata>,
}

/// A limit as it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateLimitNode {
    /// The name of the unit, in any case; of an xDS message, that of its number.
    pub unit: String,
    /// How many requests each unit may have.
    pub requests_per_unit: u32,
    /// Whether there is no limit.
    pub unlimited: bool,
    /// The name that answers show and `replaces` means.
    pub name: String,
    /// The names of limits that do not count where this one is matched.
    pub replaces: Vec<String>,
    /// A limit in our own grammar instead of unit and requests, such as `22 per 20s`.
    pub limit: Option<String>,
    /// How uses are counted; fixed windows if nothing is said.
    pub algorithm: Option<String>,
}

/// The entries of a structure of metadata.
pub type Metadata = BTreeMap<String, MetadataValue>;

/// A value of metadata: what `google.protobuf.Value` can hold.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// Nothing.
    Null,
    /// A truth value.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<MetadataValue>),
    /// A structure.
    Map(Metadata),
}
