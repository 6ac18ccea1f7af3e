//! Key templates: `path={path} client={client}`, parsed once and filled in for each request. The
//! proxy and the HTTP door share them.
//!
//! A template has one part for each entry of the key, separated by spaces, and at most one
//! placeholder in a part: so two different requests never share a key by accident. The path is
//! counted in its normal form, see `tidegate_wire::path`. The key builder of the core crate encodes
//! bytes that a key cannot hold.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hyper::header::{HeaderMap, HeaderName};
use hyper::{Method, Uri};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tidegate_core::key::{KeyBuilder, KeyTooLong};
use tidegate_wire::path;

/// The template where none is configured: every path is a resource of its own.
const USUAL: &str = "path={path}";
/// The most parts that a template may have.
const PARTS_MAX: usize = 8;

/// How the key of a request is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// Absent for a word.
    name: Option<String>,
    before: String,
    place: Option<Placeholder>,
    after: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Placeholder {
    Path,
    RawPath,
    Prefix(usize),
    Client,
    Method,
    Header(HeaderName),
}

/// What a template may use of a request.
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) client: IpAddr,
}

/// Two buffers that a loop uses for every key.
#[derive(Default)]
pub(crate) struct Scratch {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Template {
    /// Whether keys depend on the address of the client.
    pub(crate) fn asks_for_client(&self) -> bool {
        self.parts.iter().any(|part| part.place == Some(Placeholder::Client))
    }

    /// Whether keys depend on the path.
    pub(crate) fn asks_for_path(&self) -> bool {
        use Placeholder::{Path, Prefix, RawPath};
        let path = |place: &Placeholder| matches!(place, Path | RawPath | Prefix(_));
        self.parts.iter().any(|part| part.place.as_ref().is_some_and(path))
    }

    /// Writes the key of a request in the domain `name`.
    pub(crate) fn fill<'s>(
        &self,
        name: &str,
        asked: &Asked<'_>,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8], KeyTooLong> {
        let Scratch { key, value } = scratch;
        let mut builder = KeyBuilder::new(key, name.as_bytes());
        for part in &self.parts {
            part.write(asked, value);
            builder = match &part.name {
                Some(name) => builder.entry(name.as_bytes(), value),
                None => builder.word(value),
            };
        }
        builder.finish()
    }
}

impl Part {
    /// Writes the value of this part for a request into `out`.
    fn write(&self, asked: &Asked<'_>, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.before.as_bytes());
        if let Some(place) = &self.place {
            place.write(asked, out);
        }
        out.extend_from_slice(self.after.as_bytes());
    }
}

impl Placeholder {
    fn write(&self, asked: &Asked<'_>, out: &mut Vec<u8>) {
        use std::io::Write as _;
        let path = asked.uri.path().as_bytes();
        match self {
            Placeholder::RawPath => out.extend_from_slice(path),
            Placeholder::Path | Placeholder::Prefix(_) => {
                let start = out.len();
                if path::is_plain(path) {
                    out.extend_from_slice(path);
                } else {
                    path::normalise(path, out);
                }
                let counted = self.counted(&out[start..]);
                out.truncate(start + counted);
            }
            // Writing to memory does not fail.
            Placeholder::Client => drop(write!(out, "{}", asked.client)),
            Placeholder::Method => out.extend_from_slice(asked.method.as_str().as_bytes()),
            Placeholder::Header(name) => {
                for (at, value) in asked.headers.get_all(name).iter().enumerate() {
                    // Several lines of a field mean the same as one line with commas.
                    out.extend_from_slice(if at > 0 { b", " } else { b"" });
                    out.extend_from_slice(value.as_bytes());
                }
            }
        }
    }

    /// How many bytes of a path in its normal form are counted.
    fn counted(&self, path: &[u8]) -> usize {
        let Placeholder::Prefix(segments) = self else { return path.len() };
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes.map(|(at, _)| at).nth(*segments).unwrap_or(path.len())
    }
}

/// Says what is wrong with a template, then on a line of its own what would be right.
impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(' ').map(part).collect::<Result<Vec<_>, _>>()?;
        if parts.len() > PARTS_MAX {
            return Err(format!("{} entries are too many\nkeep at most {PARTS_MAX}", parts.len()));
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

fn part(text: &str) -> Result<Part, String> {
    if text.is_empty() {
        return Err(format!("an entry of the key is empty\nwrite entries like \"{USUAL}\""));
    }
    if text.contains(|c: char| c.is_control()) {
        return Err("a key has no control characters\nremove them".to_owned());
    }
    let open = text.find('{').unwrap_or(text.len());
    let (name, value) = match text.split_once('=') {
        Some((name, value)) if name.len() < open => (Some(name.to_owned()), value),
        _ => (None, text),
    };
    let Some((before, rest)) = value.split_once('{') else {
        return match value.contains('}') {
            true => Err(format!("\"{text}\" has an unmatched brace\nremove it")),
            false => Ok(Part { name, before: value.to_owned(), place: None, after: String::new() }),
        };
    };
    let Some((place, after)) = rest.split_once('}') else {
        return Err(format!("a brace in \"{text}\" is not closed\nwrite it like \"{USUAL}\""));
    };
    if before.contains('}') || after.contains(['{', '}']) {
        let remedy = "give each placeholder an entry of its own: \"method={method} path={path}\"";
        return Err(format!("\"{text}\" has more than one placeholder\n{remedy}"));
    }
    let place = Some(placeholder(place)?);
    Ok(Part { name, before: before.to_owned(), place, after: after.to_owned() })
}

fn placeholder(text: &str) -> Result<Placeholder, String> {
    let (kind, of) = text.split_once(':').map_or((text, None), |(kind, of)| (kind, Some(of)));
    match (kind, of) {
        ("path", None) => Ok(Placeholder::Path),
        ("raw_path", None) => Ok(Placeholder::RawPath),
        ("client", None) => Ok(Placeholder::Client),
        ("method", None) => Ok(Placeholder::Method),
        ("prefix", Some(count)) => match count.parse() {
            Ok(count @ 1..=100) => Ok(Placeholder::Prefix(count)),
            _ => Err(format!(
                "\"{count}\" is not a number of segments\nwrite {{prefix:2}}, 1 to 100"
            )),
        },
        ("header", Some(name)) => {
            HeaderName::from_str(name).map(Placeholder::Header).map_err(|_| {
                format!("\"{name}\" is not the name of a header\nwrite {{header:X-API-Key}}")
            })
        }
        _ => {
            let known = "{path}, {raw_path}, {prefix:2}, {client}, {method}, {header:NAME}";
            Err(format!("\"{{{text}}}\" is not a placeholder for keys\nknown here: {known}"))
        }
    }
}

impl Default for Template {
    fn default() -> Self {
        let place = Some(Placeholder::Path);
        let part = Part { name: Some("path".into()), before: "".into(), place, after: "".into() };
        Self { text: USUAL.to_owned(), parts: vec![part] }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl JsonSchema for Template {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KeyTemplate".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Entries of the key, separated by spaces. They may contain {path}, \
                            {raw_path}, {prefix:2}, {client}, {method} and {header:NAME}.",
            "type": "string"
        })
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn key(template: &str, uri: &str) -> String {
        let template: Template = template.parse().unwrap_or_else(|wrong| panic!("{wrong}"));
        let mut headers = HeaderMap::new();
        headers.append("x-key", HeaderValue::from_static("a b"));
        headers.append("x-many", HeaderValue::from_static("1"));
        headers.append("x-many", HeaderValue::from_static("2"));
        let asked = Asked {
            method: &Method::POST,
            uri: &uri.parse().unwrap(),
            headers: &headers,
            client: [192, 0, 2, 7].into(),
        };
        let mut scratch = Scratch::default();
        let key = template.fill("my api", &asked, &mut scratch);
        key.map_or_else(|wrong| wrong.to_string(), |key| String::from_utf8_lossy(key).into_owned())
    }

    #[test]
    fn the_usual_key_is_the_path_in_its_normal_form() {
        assert_eq!(Template::default(), USUAL.parse().unwrap());
        for (uri, path) in [
            ("/", "/"),
            ("/a", "/a"),
            ("/a/", "/a/"),
            ("/a?b=c", "/a"),
            ("/%61%2Fb", "/a/b"),
            ("/a%20b", "/a%20b"),
            ("/a%2520b", "/a%2520b"),
            ("/a%0Ab=c", "/a%0Ab=c"),
            ("/../a/./b//c", "/a/b/c"),
            ("//a", "/a"),
            ("/%2e/a", "/a"),
            ("/x/..%2Fa", "/a"),
            ("/100%", "/100%25"),
            ("/%zz%4", "/%25zz%254"),
            ("http://host/x", "/x"),
            ("*", "*"),
        ] {
            assert_eq!(key(USUAL, uri), format!("my%20api path={path}"), "{uri}");
        }
    }

    #[test]
    fn every_placeholder_is_filled_in() {
        for (template, expected) in [
            ("client={client} method={method}", "client=192.0.2.7 method=POST"),
            ("{method} path={path}", "POST path=/a/b/c"),
            ("key={header:X-Key}", "key=a%20b"),
            ("key={header:x-many}", "key=1,%202"),
            ("key={header:x-none}", "key="),
            ("under={prefix:1}", "under=/a"),
            ("under={prefix:2}", "under=/a/b"),
            ("under={prefix:9}", "under=/a/b/c"),
            ("all", "all"),
            ("v=1-{method}-x", "v=1-POST-x"),
            ("a=b=c", "a=b=c"),
        ] {
            assert_eq!(key(template, "/a/b/c"), format!("my%20api {expected}"), "{template}");
        }
    }

    #[test]
    fn prefixes_are_of_the_normal_form_and_raw_paths_are_as_sent() {
        for (template, uri, expected) in [
            ("under={prefix:2}", "//a/./b/c", "under=/a/b"),
            ("under={prefix:1}", "/%61%2Fb", "under=/a"),
            ("under={prefix:1}", "/x/../a/b", "under=/a"),
            ("under={prefix:1}", "/a/", "under=/a"),
            ("v=1{prefix:1}-", "//a/b", "v=1/a-"),
            ("raw={raw_path}", "//a/./%62?c", "raw=//a/./%2562"),
            ("v=1{raw_path}-", "//a", "v=1//a-"),
        ] {
            assert_eq!(key(template, uri), format!("my%20api {expected}"), "{template} {uri}");
        }
    }

    #[test]
    fn a_key_that_would_be_too_long_is_an_error() {
        let path = format!("/{}", "x".repeat(1100));
        assert_eq!(key(USUAL, &path), KeyTooLong.to_string());
    }

    #[test]
    fn templates_that_mean_nothing_are_errors() {
        for (template, wrong) in [
            ("", "an entry of the key is empty"),
            ("path={path}  client={client}", "an entry of the key is empty"),
            ("path={pth}", "\"{pth}\" is not a placeholder for keys"),
            ("path={path", "a brace in \"path={path\" is not closed"),
            ("path=path}", "\"path=path}\" has an unmatched brace"),
            ("a={method}{path}", "\"a={method}{path}\" has more than one placeholder"),
            ("a={prefix:0}", "\"0\" is not a number of segments"),
            ("a={header:b@d}", "\"b@d\" is not the name of a header"),
            ("a b c d e f g h i", "9 entries are too many"),
        ] {
            let error = template.parse::<Template>().unwrap_err();
            assert_eq!(error.lines().next(), Some(wrong));
        }
    }
}
