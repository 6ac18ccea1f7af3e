//! Nodes into a configuration: which keys there are and what types they have.
//!
//! As in envoyproxy/ratelimit the keys are looked through first, wherever they stand, and then the
//! fields are read; a known key in the wrong place is overlooked, but for those of our own. Whether
//! the values make sense is for `tree.rs`.

use super::error::Problem;
use super::scalar::{Scalar, Shown};
use super::source::{DescriptorNode, DomainNode, Metadata, MetadataValue, RateLimitNode};
use super::yaml::{self, Node, Value};

const METADATA: &str = "metadata";
const KEYS: [&str; 18] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    METADATA,
    LIMIT,
    ALGORITHM,
];
const LIMIT: &str = "limit";
const ALGORITHM: &str = "algorithm";

type Pairs = [(Node, Node)];

/// Reads a file.
pub(super) fn read(text: &str) -> Result<DomainNode, Problem> {
    let Some(root) = yaml::parse(text)? else { return Ok(DomainNode::default()) };
    let pairs = match &root.value {
        Value::Map(pairs) => pairs.as_slice(),
        Value::Scalar { text, plain } if Scalar::of(text, *plain) == Scalar::Null => &[],
        _ => return Err(wrong(&root, "the file", "a map")),
    };
    check_keys(pairs)?;
    let fields = Fields(pairs);
    fields.without_ours()?;
    Ok(DomainNode { domain: fields.text("domain")?, descriptors: descriptors(&fields)? })
}

fn wrong(node: &Node, name: &str, wanted: &str) -> Problem {
    Problem::Loading(format!("yaml: line {}: {name} is not {wanted}", node.line))
}

fn check_keys(pairs: &Pairs) -> Result<(), Problem> {
    for (key, value) in pairs {
        let Some(name) = text_of(key) else {
            return Err(Problem::KeyNotText(Shown(key).to_string()));
        };
        if !KEYS.contains(&name) {
            return Err(Problem::UnknownKey(name.to_owned()));
        }
        match &value.value {
            // Its keys are the operator's own.
            _ if name == METADATA => {}
            Value::Map(pairs) => check_keys(pairs)?,
            Value::List(items) => {
                for item in items {
                    let Value::Map(pairs) = &item.value else {
                        return Err(Problem::ListOfOther(Shown(item).to_string()));
                    };
                    check_keys(pairs)?;
                }
            }
            Value::Scalar { text, plain } => match Scalar::of(text, *plain) {
                Scalar::Float(_) => return Err(Problem::UnfitValue),
                Scalar::Int(int) if i64::try_from(int).is_err() => {
                    return Err(Problem::UnfitValue);
                }
                _ => {}
            },
        }
    }
    Ok(())
}

fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar { text, plain } => match Scalar::of(text, *plain) {
            Scalar::Text(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// The fields of a map. A field that is null is as one that is missing.
struct Fields<'a>(&'a Pairs);

impl<'a> Fields<'a> {
    fn node(&self, name: &str) -> Option<&'a Node> {
        let (_, node) = self.0.iter().rev().find(|(key, _)| text_of(key) == Some(name))?;
        let is_null = matches!(&node.value, Value::Scalar { text, plain }
            if Scalar::of(text, *plain) == Scalar::Null);
        (!is_null).then_some(node)
    }

    /// A text as it is written, even if it looks like a number.
    fn optional_text(&self, name: &str) -> Result<Option<String>, Problem> {
        match self.node(name) {
            None => Ok(None),
            Some(Node { value: Value::Scalar { text, .. }, .. }) => Ok(Some(text.clone())),
            Some(node) => Err(wrong(node, name, "a text")),
        }
    }

    fn text(&self, name: &str) -> Result<String, Problem> {
        Ok(self.optional_text(name)?.unwrap_or_default())
    }

    fn scalar(&self, name: &str) -> Option<(&'a Node, Option<Scalar<'a>>)> {
        let node = self.node(name)?;
        let Value::Scalar { text, plain } = &node.value else { return Some((node, None)) };
        Some((node, Some(Scalar::of(text, *plain))))
    }

    fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.scalar(name) {
            None => Ok(false),
            Some((_, Some(Scalar::Bool(value)))) => Ok(value),
            Some((node, _)) => Err(wrong(node, name, "true or false")),
        }
    }

    fn amount(&self, name: &str) -> Result<u32, Problem> {
        let Some((node, scalar)) = self.scalar(name) else { return Ok(0) };
        let Some(Scalar::Int(int)) = scalar else {
            return Err(wrong(node, name, "a whole number"));
        };
        u32::try_from(int).map_err(|_| wrong(node, name, "from 0 to 4294967295"))
    }

    fn map(&self, name: &str) -> Result<Option<Fields<'a>>, Problem> {
        match self.node(name) {
            None => Ok(None),
            Some(Node { value: Value::Map(pairs), .. }) => Ok(Some(Fields(pairs))),
            Some(node) => Err(wrong(node, name, "a map")),
        }
    }

    fn maps(&self, name: &str) -> Result<Vec<Fields<'a>>, Problem> {
        let Some(node) = self.node(name) else { return Ok(Vec::new()) };
        let Value::List(items) = &node.value else { return Err(wrong(node, name, "a list")) };
        let map = |item: &'a Node| match &item.value {
            Value::Map(pairs) => Ok(Fields(pairs)),
            _ => Err(wrong(item, name, "a list of maps")),
        };
        items.iter().map(map).collect()
    }

    /// A limit that is overlooked lets everything pass, so a wrong place is an error.
    fn without_ours(&self) -> Result<(), Problem> {
        let misplaced = [LIMIT, ALGORITHM].into_iter().find(|name| self.node(name).is_some());
        misplaced.map_or(Ok(()), |name| Err(Problem::Misplaced(name)))
    }
}

fn descriptors(fields: &Fields<'_>) -> Result<Vec<DescriptorNode>, Problem> {
    fields.maps("descriptors")?.iter().map(descriptor).collect()
}

fn descriptor(fields: &Fields<'_>) -> Result<DescriptorNode, Problem> {
    fields.without_ours()?;
    Ok(DescriptorNode {
        key: fields.text("key")?,
        value: fields.text("value")?,
        rate_limit: fields.map("rate_limit")?.map(|limit| rate_limit(&limit)).transpose()?,
        descriptors: descriptors(fields)?,
        shadow_mode: fields.flag("shadow_mode")?,
        quota_mode: fields.flag("quota_mode")?,
        detailed_metric: fields.flag("detailed_metric")?,
        value_to_metric: fields.flag("value_to_metric")?,
        share_threshold: fields.flag("share_threshold")?,
        metadata: fields.map(METADATA)?.map(|pairs| metadata(pairs.0)),
    })
}

fn rate_limit(fields: &Fields<'_>) -> Result<RateLimitNode, Problem> {
    Ok(RateLimitNode {
        unit: fields.text("unit")?,
        requests_per_unit: fields.amount("requests_per_unit")?,
        unlimited: fields.flag("unlimited")?,
        name: fields.text("name")?,
        replaces: fields
            .maps("replaces")?
            .iter()
            .map(|it| it.text("name"))
            .collect::<Result<_, _>>()?,
        limit: fields.optional_text(LIMIT)?,
        algorithm: fields.optional_text(ALGORITHM)?,
    })
}

fn metadata(pairs: &Pairs) -> Metadata {
    pairs.iter().map(|(key, value)| (Shown(key).to_string(), metadata_value(value))).collect()
}

fn metadata_value(node: &Node) -> MetadataValue {
    match &node.value {
        Value::Map(pairs) => MetadataValue::Map(metadata(pairs)),
        Value::List(items) => MetadataValue::List(items.iter().map(metadata_value).collect()),
        Value::Scalar { text, plain } => match Scalar::of(text, *plain) {
            Scalar::Null => MetadataValue::Null,
            Scalar::Bool(value) => MetadataValue::Bool(value),
            // A number of the protocol is a double, so large ones lose digits there, too.
            #[expect(clippy::cast_precision_loss, reason = "the protocol has doubles only")]
            Scalar::Int(value) => MetadataValue::Number(value as f64),
            Scalar::Float(value) => MetadataValue::Number(value),
            Scalar::Text(text) => MetadataValue::Text(text.to_owned()),
        },
    }
}
