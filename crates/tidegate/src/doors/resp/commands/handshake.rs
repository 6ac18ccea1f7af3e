//! How a connection begins and ends: the client's user, protocol and name.

use tidegate_core::time::SECOND;
use tidegate_wire::resp::{ProtocolVersion, number, reply};

use super::counters::SYNTAX;
use super::{Call, Flow};
use crate::doors::io::listener::Peer;
use crate::doors::resp::credentials::DEFAULT_USER;
use crate::doors::resp::session::RespClient;

/// A connection that has given so many wrong passwords is closed.
const WRONG_PASSWORDS_MAX: u32 = 10;
/// The level of Redis that is spoken.
pub(super) const REDIS_VERSION: &str = "7.4.0";
/// The longest name of a client, of its library, and of that one's version.
const NAME_BYTES_MAX: usize = 1024;
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the \
    default user. Are you sure your configuration is correct?";

/// `AUTH [user] password`
pub(super) fn auth(call: &mut Call<'_>) -> Flow {
    let (user, password) = match call.arguments.len() {
        2 if !call.handler.settings.credentials.has_default() => return call.error(NO_PASSWORD),
        2 => (DEFAULT_USER, call.argument(1)),
        3 => (call.argument(1), call.argument(2)),
        _ => return call.bad_input("arity", SYNTAX),
    };
    match log_in(call, user, password) {
        Ok(()) => call.ok(),
        Err(flow) => flow,
    }
}

/// Authenticates the client, or answers that it may not come in.
fn log_in(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Result<(), Flow> {
    if call.handler.settings.credentials.permit(user, password) {
        (call.client.is_authenticated, call.client.wrong_passwords) = (true, 0);
        return Ok(());
    }
    call.bad_input("bad_password", WRONG_PASSWORD);
    call.client.wrong_passwords += 1;
    let too_many = call.client.wrong_passwords >= WRONG_PASSWORDS_MAX;
    Err(if too_many { Flow::Close } else { Flow::Done })
}

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`
pub(super) fn hello(call: &mut Call<'_>) -> Flow {
    let count = call.arguments.len();
    let mut version = call.version();
    if count > 1 {
        version = match number::strict(call.argument(1)) {
            Some(2) => ProtocolVersion::Resp2,
            Some(3) => ProtocolVersion::Resp3,
            Some(_) => return call.error("NOPROTO unsupported protocol version"),
            None => {
                let text = "ERR Protocol version is not an integer or out of range";
                return call.bad_input("number", text);
            }
        };
    }
    let (mut login, mut name) = (None, None);
    let mut at = 2;
    while at < count {
        if call.is_word(at, "auth") && at + 2 < count {
            login = Some((call.argument(at + 1), call.argument(at + 2)));
            at += 3;
        } else if call.is_word(at, "setname") && at + 1 < count {
            if !is_name(call.argument(at + 1)) {
                return call.error(&wrong_name("Client names"));
            }
            name = Some(call.argument(at + 1));
            at += 2;
        } else {
            let option = call.argument(at);
            return call.error_about("ERR Syntax error in HELLO option '", option, "'");
        }
    }
    if let Some((user, password)) = login
        && let Err(flow) = log_in(call, user, password)
    {
        return flow;
    }
    if !call.client.is_authenticated {
        let text = "NOAUTH HELLO must be called with the client already authenticated";
        return call.bad_input("not_authenticated", text);
    }
    if let Some(name) = name {
        call.client.name = name.into();
    }
    call.client.version = version;
    introduce(call);
    Flow::Done
}

/// Describes the server.
fn introduce(call: &mut Call<'_>) {
    let (version, id) = (call.version(), call.client.id);
    let out = &mut *call.out;
    let text = |out: &mut Vec<u8>, name: &str, value: &str| {
        reply::bulk(out, name.as_bytes());
        reply::bulk(out, value.as_bytes());
    };
    reply::map(out, version, 8);
    text(out, "server", "redis");
    text(out, "version", REDIS_VERSION);
    reply::bulk(out, b"proto");
    reply::integer(out, version.number());
    reply::bulk(out, b"id");
    reply::integer(out, id as i64);
    text(out, "mode", "standalone");
    text(out, "role", "master");
    reply::bulk(out, b"modules");
    reply::array(out, 0);
    text(out, "tidegate", env!("CARGO_PKG_VERSION"));
}

/// `QUIT`
pub(super) fn quit(call: &mut Call<'_>) -> Flow {
    call.ok();
    Flow::Close
}

/// `RESET`: as though the client had just connected.
pub(super) fn reset(call: &mut Call<'_>) -> Flow {
    call.client.version = ProtocolVersion::default();
    call.client.name = Box::default();
    call.client.transaction = None;
    call.client.is_authenticated = !call.handler.settings.credentials.are_required();
    reply::simple(call.out, "RESET");
    Flow::Done
}

/// `SELECT 0`: there is one database.
pub(super) fn select(call: &mut Call<'_>) -> Flow {
    match number::strict(call.argument(1)) {
        Some(0) => call.ok(),
        _ => call.error("ERR DB index is out of range"),
    }
}

/// `CLIENT NO-EVICT|NO-TOUCH ON|OFF`: nothing here depends on it.
pub(super) fn client_switch(call: &mut Call<'_>) -> Flow {
    if call.is_word(2, "on") || call.is_word(2, "off") { call.ok() } else { call.error(SYNTAX) }
}

/// `CLIENT REPLY ON`
pub(super) fn client_reply(call: &mut Call<'_>) -> Flow {
    if call.is_word(2, "on") { call.ok() } else { call.error(SYNTAX) }
}

/// `CLIENT ID`
pub(super) fn client_id(call: &mut Call<'_>) -> Flow {
    let id = call.client.id;
    call.integer(id as i64)
}

/// `CLIENT GETNAME`
pub(super) fn client_getname(call: &mut Call<'_>) -> Flow {
    match &call.client.name {
        name if name.is_empty() => reply::null(call.out, call.client.version),
        name => reply::bulk(call.out, name),
    }
    Flow::Done
}

/// `CLIENT INFO`
pub(super) fn client_info(call: &mut Call<'_>) -> Flow {
    let line = describe(call.client, call.now().mono);
    reply::verbatim(call.out, call.version(), &line);
    Flow::Done
}

/// `CLIENT LIST [TYPE type | ID id …]`: lists the asking client alone.
pub(super) fn client_list(call: &mut Call<'_>) -> Flow {
    let is_listed = match call.arguments.len() {
        2 => true,
        4 if call.is_word(2, "type") => {
            let known = ["normal", "master", "replica", "slave", "pubsub"];
            match known.iter().position(|kind| call.is_word(3, kind)) {
                Some(position) => position == 0,
                None => {
                    return call.error_about("ERR Unknown client type '", call.argument(3), "'");
                }
            }
        }
        4.. if call.is_word(2, "id") => {
            let ids = call.arguments.iter().skip(3).map(number::strict);
            let Some(ids) = ids.collect::<Option<Vec<i64>>>() else {
                return call.bad_input("number", "ERR Invalid client ID");
            };
            ids.contains(&(call.client.id as i64))
        }
        _ => return call.error(SYNTAX),
    };
    if is_listed {
        return client_info(call);
    }
    reply::verbatim(call.out, call.version(), "");
    Flow::Done
}

/// `CLIENT SETNAME name`
pub(super) fn client_setname(call: &mut Call<'_>) -> Flow {
    let name = call.argument(2);
    if !is_name(name) {
        return call.error(&wrong_name("Client names"));
    }
    call.client.name = name.into();
    call.ok()
}

/// `CLIENT SETINFO LIB-NAME|LIB-VER text`
pub(super) fn client_setinfo(call: &mut Call<'_>) -> Flow {
    let text = call.argument(3);
    let (is_name_given, what) = match () {
        () if call.is_word(2, "lib-name") => (true, "lib-name"),
        () if call.is_word(2, "lib-ver") => (false, "lib-ver"),
        () => return call.error_about("ERR Unrecognized option '", call.argument(2), "'"),
    };
    if !is_name(text) {
        return call.error(&wrong_name(what));
    }
    if is_name_given {
        call.client.library = text.into();
    } else {
        call.client.library_version = text.into();
    }
    call.ok()
}

/// Whether a name has neither blanks nor control bytes, nor what is not ASCII. Nor may it be longer
/// than any name: names are kept with the connection, and no bound on bytes counts them.
fn is_name(name: &[u8]) -> bool {
    name.len() <= NAME_BYTES_MAX && name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

fn wrong_name(what: &str) -> String {
    format!("ERR {what} cannot contain spaces, newlines or special characters.")
}

/// A line about a connection.
fn describe(client: &RespClient, now: u64) -> String {
    let address = match client.peer {
        Peer::Tcp(address) => address.to_string(),
        Peer::Unix => "unix:0".to_owned(),
    };
    let RespClient { id, name, library, library_version, version, connected_at, .. } = client;
    format!(
        "id={id} addr={address} name={} age={} db=0 resp={} lib-name={} lib-ver={}\n",
        String::from_utf8_lossy(name),
        now.saturating_sub(*connected_at) / SECOND,
        version.number(),
        String::from_utf8_lossy(library),
        String::from_utf8_lossy(library_version),
    )
}
