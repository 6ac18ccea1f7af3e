//! Canaries of administration: they use new keys over the HTTP door, look at them here, and forget
//! them.

use std::io::BufReader;

use serde_json::{Value, json};

use super::http::exchange;
use super::{Canary, Named, PER_LISTENER, Wrong, failed, same};
use crate::ask::post;
use crate::net::Stream;
use crate::seed::Random;
use crate::server::{Doors, USES};

pub(super) fn add(doors: &Doors, canaries: &mut Vec<Named>) {
    for number in 0..PER_LISTENER {
        let name = format!("admin-{number}");
        let canary = Admin { doors: doors.clone(), name: name.clone(), connections: None };
        canaries.push((name, Box::new(canary)));
    }
}

struct Admin {
    doors: Doors,
    name: String,
    /// To the HTTP door, and here.
    connections: Option<[BufReader<Stream>; 2]>,
}

impl Admin {
    fn connect(&self) -> Result<[BufReader<Stream>; 2], Wrong> {
        let open = |address| Stream::connect(&Into::into(address)).map(BufReader::new);
        let http = open(self.doors.http).map_err(failed("connect to the HTTP door"))?;
        Ok([http, open(self.doors.admin).map_err(failed("connect"))?])
    }
}

/// Looks at a key: how many uses are left, and how many were asked for.
fn look(admin: &mut BufReader<Stream>, key: &str, used: u64) -> Result<(), Wrong> {
    let path = key.replace(' ', "%20");
    let request = format!("GET /v1/keys/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (status, body) = exchange(admin, &[request.into_bytes()])?.remove(0);
    let limit = &body["limits"][0];
    let found = [&limit["key"], &limit["remaining"], &body["stats"]["requests"]];
    let expected = [Value::from(key), Value::from(USES - used), Value::from(used)];
    same("status of a look", status, 200)?;
    same("a look", found, expected.each_ref())
}

impl Canary for Admin {
    fn ask(&mut self, random: &mut Random) -> Result<(), Wrong> {
        let [mut http, mut admin] = match self.connections.take() {
            Some(connections) => connections,
            None => self.connect()?,
        };
        let key = format!("canary {} {:016x}", self.name, random.next());
        let uses = random.below(USES as usize + 1);
        let takes = vec![post("/v1/check", json!({ "key": key })); uses];
        for (status, _) in exchange(&mut http, &takes)? {
            same("a use", status, 200)?;
        }
        look(&mut admin, &key, uses as u64)?;
        let path = key.replace(' ', "%20");
        let forget = format!("DELETE /v1/keys/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let (status, _) = exchange(&mut admin, &[forget.into_bytes()])?.remove(0);
        same("forgetting a key", status, 204)?;
        look(&mut admin, &key, 0)?;
        self.connections = Some([http, admin]);
        Ok(())
    }
}
