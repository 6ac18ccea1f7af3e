//! YAML text into nodes that keep what was written: the text of a scalar, and whether it is quoted.
//!
//! envoyproxy/ratelimit takes `value: 007` as the text `007`, so scalars get a type where they are
//! read and not before. Aliases are copied, under bounds: no text makes a tree that is deeper than
//! [`DEPTH_MAX`] or heavier than [`WEIGHT_MAX`]. Nothing here knows what the nodes mean.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle};

use super::error::Problem;

/// The longest file.
pub(super) const FILE_BYTES_MAX: usize = 4 << 20;
/// The deepest nesting: a descriptor is a list and a map, so this is more than enough of them.
pub(super) const DEPTH_MAX: usize = 100;
/// The most that a tree may weigh once its aliases are copied: about its bytes in memory.
pub(super) const WEIGHT_MAX: usize = 64 << 20;
/// What a node weighs beside its text.
const NODE_WEIGHT: usize = 64;

/// A node and the line on which it begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Scalar {
        text: String,
        /// Neither quoted nor a block nor tagged as text: it may be a number or the like.
        plain: bool,
    },
    List(Vec<Node>),
    /// Pairs in the order of the file. Of two with one key the later holds.
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// What the node weighs, and how many levels it has.
    fn measure(&self) -> (usize, usize) {
        let sum =
            |one: (usize, usize), other: (usize, usize)| (one.0 + other.0, one.1.max(other.1));
        let (weight, height) = match &self.value {
            Value::Scalar { text, .. } => (text.len(), 0),
            Value::List(items) => items.iter().map(Node::measure).fold((0, 0), sum),
            Value::Map(pairs) => {
                pairs.iter().map(|(k, v)| sum(k.measure(), v.measure())).fold((0, 0), sum)
            }
        };
        (weight + NODE_WEIGHT, height + 1)
    }
}

/// A list or map that has not ended. The keys and values of a map alternate.
struct Open {
    line: usize,
    anchor: usize,
    is_map: bool,
    items: Vec<Node>,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    /// What aliases stand for, with its weight and height.
    anchors: HashMap<usize, (Node, usize, usize)>,
    weight: usize,
    root: Option<Node>,
}

/// Reads the first document of a text, as envoyproxy/ratelimit does; `None` if there is none.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Problem> {
    if text.len() > FILE_BYTES_MAX {
        return Err(Problem::Loading(format!("yaml: longer than {FILE_BYTES_MAX} bytes")));
    }
    let mut builder = Builder::default();
    for next in Parser::new_from_str(text) {
        let (event, span) = next.map_err(|error| at(error.marker().line(), &error.info()))?;
        if event == Event::DocumentEnd {
            break;
        }
        builder.take(event, span.start.line())?;
    }
    Ok(builder.root)
}

fn at(line: usize, message: &str) -> Problem {
    Problem::Loading(format!("yaml: line {line}: {message}"))
}

impl Builder {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), Problem> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                let plain = style == ScalarStyle::Plain && !is_text;
                let node = Node { line, value: Value::Scalar { text: text.into_owned(), plain } };
                self.spend(node.measure().0, line)?;
                self.finish(node, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(false, anchor, line),
            Event::MappingStart(_, anchor, _) => self.begin(true, anchor, line),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else { return Ok(()) };
                let value = if open.is_map { pairs(open.items)? } else { Value::List(open.items) };
                self.finish(Node { line: open.line, value }, open.anchor)
            }
            Event::Alias(anchor) => {
                let Some((_, weight, height)) = self.anchors.get(&anchor) else {
                    return Err(at(line, "an anchor contains itself"));
                };
                let (weight, height) = (*weight, *height);
                self.spend(weight, line)?;
                self.check_depth(height, line)?;
                let node = self.anchors[&anchor].0.clone();
                self.finish(node, 0)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, is_map: bool, anchor: usize, line: usize) -> Result<(), Problem> {
        self.spend(NODE_WEIGHT, line)?;
        self.check_depth(1, line)?;
        self.open.push(Open { line, anchor, is_map, items: Vec::new() });
        Ok(())
    }

    fn finish(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        if anchor != 0 {
            let (weight, height) = node.measure();
            self.spend(weight, node.line)?;
            self.anchors.insert(anchor, (node.clone(), weight, height));
        }
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.root = Some(node),
        }
        Ok(())
    }

    fn spend(&mut self, weight: usize, line: usize) -> Result<(), Problem> {
        self.weight += weight;
        let fits = self.weight <= WEIGHT_MAX;
        if fits { Ok(()) } else { Err(at(line, "the document with its aliases is too large")) }
    }

    fn check_depth(&self, height: usize, line: usize) -> Result<(), Problem> {
        let fits = self.open.len() + height <= DEPTH_MAX;
        if fits { Ok(()) } else { Err(at(line, &format!("nested deeper than {DEPTH_MAX}"))) }
    }
}

/// The pairs of a map, those of its merge keys (`<<`) first, so that its own hold.
fn pairs(items: Vec<Node>) -> Result<Value, Problem> {
    let (mut own, mut merged) = (Vec::new(), Vec::new());
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        let is_merge = matches!(&key.value, Value::Scalar { text, plain: true } if text == "<<");
        if !is_merge {
            own.push((key, value));
            continue;
        }
        let sources = match value.value {
            Value::List(sources) => sources,
            _ => vec![value],
        };
        // The first of several maps holds, and what comes later in the list of pairs holds.
        for source in sources.into_iter().rev() {
            let Value::Map(pairs) = source.value else {
                let message = "map merge requires map or sequence of maps as the value";
                return Err(at(source.line, message));
            };
            merged.extend(pairs);
        }
    }
    merged.append(&mut own);
    Ok(Value::Map(merged))
}
