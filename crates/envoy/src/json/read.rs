//! A rate limit request as proto3 JSON has it. Ranges of values are checked, their sense is not.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::proto::{
    descriptor::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry as EntryMessage, RateLimitOverride},
    },
    ratelimit::RateLimitRequest,
    strategy::RateLimitUnit,
};

/// A JSON object. What serde derives for a struct would also take an array of its fields.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapOnly<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for MapOnly<T> {
            type Value = Object<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(MapOnly(PhantomData))
    }
}

type Repeated<T> = Option<Vec<Object<T>>>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Request {
    domain: Option<String>,
    descriptors: Repeated<Descriptor>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Integer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Descriptor {
    entries: Repeated<Entry>,
    limit: Option<Object<Override>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Integer<u64>>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Override {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Integer>,
    unit: Option<Unit>,
}

/// A whole number, as a JSON number of any notation (`1e3`) or as a string of one.
struct Integer<T = u32>(T);

impl<'de, T: TryFrom<i128>> Deserialize<'de> for Integer<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Scalar::deserialize(deserializer)? {
            Scalar::Number(number) => Some(number),
            // The parser of JSON would skip spaces around the number.
            Scalar::Text(text) if text.trim() == text => serde_json::from_str(&text).ok(),
            Scalar::Text(_) => None,
        };
        number
            .and_then(|number| whole(&number))
            .map(Integer)
            .ok_or_else(|| D::Error::custom("expected a whole number within the field's range"))
    }
}

/// An enumeration takes names that it knows and all numbers, as on the wire.
struct Unit(i32);

impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Scalar::deserialize(deserializer)? {
            Scalar::Number(number) => whole(&number),
            Scalar::Text(name) => RateLimitUnit::from_str_name(&name).map(i32::from),
        }
        .map(Unit)
        .ok_or_else(|| D::Error::custom("expected a unit's name or number"))
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a string")]
enum Scalar {
    Number(serde_json::Number),
    Text(String),
}

fn whole<T: TryFrom<i128>>(number: &serde_json::Number) -> Option<T> {
    let whole = match number.as_i128() {
        Some(whole) => whole,
        None => number.as_f64().filter(|float| float.fract() == 0.0)? as i128,
    };
    T::try_from(whole).ok()
}

impl From<Request> for RateLimitRequest {
    fn from(request: Request) -> Self {
        Self {
            domain: request.domain.unwrap_or_default(),
            descriptors: all(request.descriptors),
            hits_addend: request.hits_addend.map_or(0, |hits| hits.0),
        }
    }
}

impl From<Descriptor> for RateLimitDescriptor {
    fn from(descriptor: Descriptor) -> Self {
        Self {
            entries: all(descriptor.entries),
            limit: descriptor.limit.map(|Object(limit)| RateLimitOverride {
                requests_per_unit: limit.requests_per_unit.map_or(0, |amount| amount.0),
                unit: limit.unit.map_or(0, |unit| unit.0),
            }),
            hits_addend: descriptor.hits_addend.map(|hits| hits.0),
            is_negative_hits: descriptor.is_negative_hits.unwrap_or_default(),
        }
    }
}

impl From<Entry> for EntryMessage {
    fn from(entry: Entry) -> Self {
        Self {
            key: entry.key.unwrap_or_default().into(),
            value: entry.value.unwrap_or_default().into(),
        }
    }
}

fn all<T, M: From<T>>(repeated: Repeated<T>) -> Vec<M> {
    repeated.into_iter().flatten().map(|Object(element)| element.into()).collect()
}
