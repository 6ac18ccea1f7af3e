//! Canaries of the HTTP door: checks of new keys whose remaining uses are known, uses in flight
//! that are taken and given back, and waits.

use std::io::{BufReader, Write as _};
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{Canary, Named, PER_LISTENER, Wrong, failed, same};
use crate::ask::post;
use crate::message::Message;
use crate::net::Stream;
use crate::seed::Random;
use crate::server::{Doors, IN_FLIGHT, USES};

/// Every so many questions a canary connects anew.
const CONNECT_EVERY: usize = 15;

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    for number in 0..2 * PER_LISTENER {
        let name = format!("http-{number}");
        let canary = Json { door: doors.http, name: name.clone(), connection: None, asked: 0 };
        canaries.push((name, Box::new(canary)));
    }
}

struct Json {
    door: SocketAddr,
    name: String,
    connection: Option<BufReader<Stream>>,
    asked: usize,
}

/// A status and the body that came with it.
pub(super) type Answer = (u16, Value);

/// Sends requests one behind the other and reads the answer to each.
pub(super) fn exchange(
    connection: &mut BufReader<Stream>,
    requests: &[Vec<u8>],
) -> Result<Vec<Answer>, Wrong> {
    connection.get_mut().write_all(&requests.concat()).map_err(failed("send"))?;
    let mut answers = Vec::new();
    for request in requests {
        let answer = Message::read(connection)
            .ok_or_else(|| format!("no whole answer to {}", String::from_utf8_lossy(request)))?;
        let status = answer.first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let Some(status) = status else { return Err(format!("{:?} is no answer", answer.first)) };
        answers.push((status, serde_json::from_slice(&answer.body).unwrap_or_default()));
    }
    Ok(answers)
}

impl Json {
    /// Uses a new key up and beyond.
    fn check(&self, connection: &mut BufReader<Stream>, random: &mut Random) -> Result<(), Wrong> {
        let key = format!("canary {} {:016x}", self.name, random.next());
        let request = post("/v1/check", json!({ "key": key }));
        let count = USES as usize + 2;
        let at_once = if random.one_in(2) { count } else { 1 };
        let mut answers = Vec::new();
        for requests in vec![request; count].chunks(at_once) {
            answers.extend(exchange(connection, requests)?);
        }
        for (number, (status, body)) in answers.iter().enumerate() {
            let left = USES.saturating_sub(number as u64 + 1);
            let allowed = (number as u64) < USES;
            let limit = &body["limits"][0];
            let found = (*status, &body["allowed"], &limit["key"], &limit["remaining"]);
            let expected = (
                if allowed { 200 } else { 429 },
                &Value::from(allowed),
                &Value::from(key.clone()),
                &Value::from(left),
            );
            same(&format!("use {number} of a new key"), found, expected)?;
        }
        Ok(())
    }

    /// Holds all uses of a key and gives them back.
    fn hold(&self, connection: &mut BufReader<Stream>) -> Result<(), Wrong> {
        let key = format!("canary-use {}", self.name);
        let request = post("/v1/check", json!({ "key": key, "hold_ms": 3_600_000 }));
        let answers = exchange(connection, &vec![request; IN_FLIGHT as usize + 1])?;
        let mut held = Vec::new();
        for (number, (status, body)) in answers.iter().enumerate() {
            let there_is_room = (number as u64) < IN_FLIGHT;
            same("use in flight", *status, if there_is_room { 200 } else { 429 })?;
            held.extend(body["use"].as_str().map(str::to_owned));
        }
        for id in &held {
            let delete = format!("DELETE /v1/uses/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let answers = exchange(connection, &[delete.into_bytes()])?;
            same("giving a use back", answers[0].0, 204)?;
        }
        same("uses held", held.len() as u64, IN_FLIGHT)
    }

    /// Waits for a use, several times.
    fn wait(&self, connection: &mut BufReader<Stream>) -> Result<(), Wrong> {
        let key = format!("canary-wait {}", self.name);
        let request = post("/v1/wait", json!({ "key": key }));
        for (status, body) in exchange(connection, &vec![request; 4])? {
            let found = (status, body["limits"][0]["key"].clone());
            same("waiting for a use", found, (200, Value::from(key.clone())))?;
        }
        Ok(())
    }
}

impl Canary for Json {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        self.asked += 1;
        let kept = self.connection.take().filter(|_| !self.asked.is_multiple_of(CONNECT_EVERY));
        let mut connection = match kept {
            Some(connection) => connection,
            None => BufReader::new(Stream::connect(&self.door.into()).map_err(failed("connect"))?),
        };
        match random.below(3) {
            0 => self.hold(&mut connection)?,
            1 => self.wait(&mut connection)?,
            _ => self.check(&mut connection, random)?,
        }
        self.connection = Some(connection);
        Ok(())
    }
}
