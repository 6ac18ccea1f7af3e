//! Client libraries as applications use them, every way to connect; limiters made for Redis; and
//! the examples. What a script prints is compared with what it must have seen.

#[allow(dead_code, reason = "its `main` is for people")]
#[path = "../../../../../examples/resp/rust/limit.rs"]
mod rust_example;

use std::process::Command;

use redis::{Client, Connection, RedisResult, TlsCertificates, Value};

use super::ways::{self, Way, said};
use super::{DOOR, by_rule};
use crate::peers::{node, python};
use crate::program::Program;

#[test]
fn redis_py() {
    let expected = "\
ping True
throttle [0, 16, 15, -1, 2]
crab [1, 15, 14, 2, 0]
incr 1 5 4
expire [1, True]
plain [2, True, -1]
set True b'text' True
nx None 1
missing None -2
bytes True b'\\r\\n'
delete 6
info 0 standalone
eval scripts are not supported: use CL.THROTTLE or TG.CHECK
pipeline True
transaction True 1
name True
asyncio 16
async [1, True, 2]
";
    ways::each(|way| way.check(python("resp/redis_py.py"), expected));
}

#[test]
fn node_redis() {
    let expected = "\
ping PONG
throttle [0,16,15,-1,2]
incr 1 5 4
multi [1,1]
pipeline [2,1,-1]
set OK text
nx null 1
missing null -2
many true
name a-test
delete 4
eval ERR scripts are not supported: use CL.THROTTLE or TG.CHECK
";
    ways::each(|way| way.check(node("resp/node_redis.js"), expected));
}

#[test]
fn ioredis() {
    let expected = "\
ping PONG
throttle [0,16,15,-1,2]
incr 1 5 4
multi [[null,1],[null,1]]
pipeline [[null,2],[null,1],[null,-1]]
set OK text
nx null 1
missing null -2
many true
name a-test
delete 4
eval ERR scripts are not supported: use CL.THROTTLE or TG.CHECK
";
    ways::each(|way| way.check(node("resp/ioredis.js"), expected));
}

fn connect(way: &Way) -> RedisResult<Connection> {
    let (address, protocol) = (&way.address, way.protocol);
    let password = if way.password.is_empty() { "" } else { "default:s3cret@" };
    if let Some(path) = address.strip_prefix('/') {
        let url = format!("redis+unix:///{path}?pass={}&protocol=resp{protocol}", way.password);
        return Client::open(url)?.get_connection();
    }
    let url = address.replace("://", &format!("://{password}")) + "/?protocol=resp" + protocol;
    if way.authority.is_empty() {
        return Client::open(url)?.get_connection();
    }
    let root_cert = Some(std::fs::read(&way.authority).expect("a file"));
    Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert })?.get_connection()
}

#[test]
fn redis_rs() {
    ways::each(|way| {
        let mut connection =
            connect(way).unwrap_or_else(|error| panic!("{}: {error}", way.address));
        let mut throttle = redis::cmd("CL.THROTTLE");
        throttle.arg("u").arg(&[15, 30, 60, 1]);
        let reply: (i64, i64, i64, i64, i64) = throttle.query(&mut connection).expect("a reply");
        assert_eq!(reply, (0, 16, 15, -1, 2));
        let mut pipeline = redis::pipe();
        pipeline.incr("c", 1).expire("c", 5).ignore().incr("c", 4);
        assert_eq!(pipeline.query(&mut connection), Ok((1, 5)));
        assert_eq!(pipeline.atomic().query(&mut connection), Ok((6, 10)));
        let mut set = redis::cmd("SET");
        let set = set.arg("s").arg(&b"\r\n\xff"[..]).arg("EX").arg(3600);
        assert_eq!(set.query(&mut connection), Ok("OK".to_owned()));
        let value: Vec<u8> = redis::cmd("GET").arg("s").query(&mut connection).expect("a value");
        assert_eq!(value, b"\r\n\xff");
        let mut delete = redis::cmd("DEL");
        assert_eq!(delete.arg(&["u", "c", "s", "nobody"]).query(&mut connection), Ok(3));
        let script = redis::cmd("EVAL").arg("return 1").arg(0).query::<i64>(&mut connection);
        let error = script.expect_err("there are no scripts");
        assert_eq!(error.detail(), Some("scripts are not supported: use CL.THROTTLE or TG.CHECK"));
        by_rule::converse(way.protocol, |line| {
            let mut words = line.split(' ');
            let mut command = redis::cmd(words.next().expect("a command"));
            match command.arg(words.collect::<Vec<_>>()).query::<Value>(&mut connection) {
                Ok(reply) => shown(&reply),
                Err(error) => format!("error {}", error.detail().unwrap_or_default()),
            }
        });
    });
}

/// A reply in the notation of `by_rule.rs`.
fn shown(reply: &Value) -> String {
    let all = |values: Vec<&Value>| values.into_iter().map(shown).collect::<Vec<_>>().join(" ");
    match reply {
        Value::Nil => "nil".to_owned(),
        Value::Okay => "OK".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Boolean(boolean) => boolean.to_string(),
        Value::SimpleString(text) => text.clone(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(values) => format!("[{}]", all(values.iter().collect())),
        Value::Map(pairs) => {
            format!("{{{}}}", all(pairs.iter().flat_map(|(name, value)| [name, value]).collect()))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn redis_rs_multiplexed() {
    let program = Program::serve(DOOR);
    let client = Client::open(format!("redis://{}/?protocol=resp3", program.address("resp")));
    let connection = client.expect("a URL").get_multiplexed_async_connection().await;
    let connection = connection.expect("the door is open");
    let asked = (0..20).map(|_| {
        let mut connection = connection.clone();
        tokio::spawn(async move {
            let mut throttle = redis::cmd("CL.THROTTLE");
            throttle.arg("u").arg(&[15, 1, 3600]);
            let reply: (u64, i64, i64, i64, i64) =
                throttle.query_async(&mut connection).await.unwrap();
            reply.0
        })
    });
    let mut limited = 0;
    for task in asked.collect::<Vec<_>>() {
        limited += task.await.expect("a reply");
    }
    assert_eq!(limited, 4);
}

#[test]
fn hiredis() {
    let folder = tempfile::tempdir().expect("a folder");
    let client = folder.path().join("client");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/resp/hiredis.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", source, "-lhiredis", "-o"]).arg(&client);
    said(&compiler.output().expect("`make setup-test` installs hiredis"));
    let expected = "\
ping PONG
throttle [0 16 15 -1 2]
set OK
incr 10
pipeline 1
pipeline nil
pipeline 2
delete 3
eval error ERR scripts are not supported: use CL.THROTTLE or TG.CHECK
";
    ways::each(|way| {
        // Debian's hiredis 0.14 has neither RESP3 nor TLS; redis-cli's own has both.
        if way.protocol == "2" && way.authority.is_empty() {
            let auth = if way.password.is_empty() { "" } else { "auth OK\n" };
            way.check(Command::new(&client), &[auth, expected].concat());
        }
    });
}

fn url(program: &Program) -> String {
    format!("redis://{}", program.address("resp"))
}

#[track_caller]
fn check(mut client: Command, program: &Program, expected: &str) {
    assert_eq!(said(&client.arg(url(program)).output().expect("a client")), expected);
}

#[test]
fn limiters_that_need_no_scripts_work_and_others_say_what_to_do() {
    let program = Program::serve(DOOR);
    let expected = "\
one ['served', 'served', 'limited']
another ['served']
cache True False 2 2
";
    check(python("resp/django_view.py"), &program, expected);
    let expected = "limits scripts are not supported: use CL.THROTTLE or TG.CHECK\n";
    check(python("resp/needs_lua.py"), &program, expected);
    let no_scripts = r#""ERR scripts are not supported: use CL.THROTTLE or TG.CHECK""#;
    let worked = r#"["taken, 1 remain","taken, 0 remain","refused, 0 remain"]"#;
    let expected = format!(
        "RateLimiterRedisNonAtomic {worked}\n\
         RateLimiterRedis [{no_scripts},{no_scripts},{no_scripts}]\n"
    );
    check(node("resp/rate_limiter_flexible.js"), &program, &expected);
    assert_eq!(super::bad_input(&program, "script"), 4);
}

#[test]
fn examples_refuse_the_fourth_request_and_the_second_login() {
    let lines = [
        "request 1: allowed",
        "request 2: allowed",
        "request 3: allowed",
        "request 4: refused, try again in 20 minutes",
        "login 1: allowed",
        "login 2: refused, try again in 60 minutes",
    ];
    let expected = lines.join("\n") + "\n";
    let folder = "../../../../examples/resp";
    let file = include_str!("../../../../../examples/resp.toml");
    let file =
        file.replace("127.0.0.1:6380", "127.0.0.1:0").replace("127.0.0.1:8090", "127.0.0.1:0");
    let serve = || Program::serve(&file);
    check(python(&format!("{folder}/python/limit.py")), &serve(), &expected);
    check(node(&format!("{folder}/node/limit.js")), &serve(), &expected);
    let program = serve();
    assert_eq!(rust_example::run(&url(&program)).expect("the door is open"), lines);
}
