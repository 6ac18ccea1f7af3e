//! Client libraries as applications use them, every way to connect; limiters made for Redis; and
//! the examples. What a script prints is compared with what it must have seen.

#[allow(dead_code, reason = "its `main` is for people")]
#[path = "../../../../../examples/resp/rust/limit.rs"]
mod rust_example;

use std::process::Command;

use redis::{Client, Connection, RedisResult, TlsCertificates};

use super::DOOR;
use super::ways::{self, PASSWORD, Way, guarded, said};
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
    ways::each(|way| assert_eq!(way.run(python("resp/redis_py.py")), expected, "{}", way.address));
}

#[test]
fn redis_py_with_the_commands_of_rules() {
    let rules = "[[rule]]\nmatch = 'api:*'\nlimit = '2 per hour'\n\
                 [[rule]]\nmatch = 'job:*'\nlimit = '1 in flight'\n";
    for (protocol, kind) in [("2", "list"), ("3", "dict")] {
        let program = Program::serve(&[rules, DOOR].concat());
        let mut client = python("resp/verbs.py");
        let output = client.args([&url(&program), protocol]).output().expect("a client");
        let expected = format!("{VERBS}MULTI {kind} 1\n");
        assert_eq!(said(&output), expected);
    }
}

/// What each command replies, but for times.
const VERBS: &str = "\
TG.CHECK api:a -> allowed=True limit=2 remaining=1 rule=b'api:*' degraded=False
TG.PEEK api:a 2 -> allowed=False limit=2 remaining=1 rule=b'api:*' degraded=False
TG.MCHECK 1 api:a api:b -> allowed=True limit=2 remaining=0 rule=b'api:*' degraded=False
TG.MCHECK 1 api:a api:b -> allowed=False limit=2 remaining=0 rule=b'api:*' degraded=False
TG.CHECK api:b -> allowed=True limit=2 remaining=0 rule=b'api:*' degraded=False
TG.WAIT api:a 1 1 -> allowed=False limit=2 remaining=0 rule=b'api:*' degraded=False
TG.CHECK api:a 3 -> allowed=False limit=2 remaining=0 rule=b'api:*' degraded=False
TG.CHECK other -> allowed=True limit=None remaining=None rule=None degraded=False
TG.RESET api:a -> 1
TG.RESET api:a -> 0
TG.WAIT api:a -> allowed=True limit=2 remaining=1 rule=b'api:*' degraded=False
TG.HOLD job:a 60000 -> allowed=True limit=1 remaining=0 rule=b'job:*' degraded=False
TG.HOLD job:a 60000 -> allowed=False limit=1 remaining=0 rule=b'job:*' degraded=False
TG.RELEASE 1
TG.RELEASE 0
";

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
    ways::each(|way| assert_eq!(way.run(node("resp/node_redis.js")), expected, "{}", way.address));
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
    ways::each(|way| assert_eq!(way.run(node("resp/ioredis.js")), expected, "{}", way.address));
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
    });
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
throttle 0 16 15 -1 2
set OK
incr 10
pipeline 1
pipeline nil
pipeline 2
delete 3
eval ERR scripts are not supported: use CL.THROTTLE or TG.CHECK
";
    let (open, shut) = (Program::serve(DOOR), guarded(""));
    let port = open.address("resp").port().to_string();
    assert_eq!(said(&Command::new(&client).arg(port).output().expect("a program")), expected);
    let mut through_socket = Command::new(&client);
    through_socket.arg(&shut.paths()[0]).arg(PASSWORD);
    let output = through_socket.output().expect("a program");
    assert_eq!(said(&output), format!("auth OK\n{expected}"));
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
fn examples_take_three_requests_and_refuse_the_fourth() {
    let lines = [
        "request 1: allowed",
        "request 2: allowed",
        "request 3: allowed",
        "request 4: refused, try again in 20 minutes",
    ];
    let expected = lines.join("\n") + "\n";
    let folder = "../../../../examples/resp";
    check(python(&format!("{folder}/python/limit.py")), &Program::serve(DOOR), &expected);
    check(node(&format!("{folder}/node/limit.js")), &Program::serve(DOOR), &expected);
    let program = Program::serve(DOOR);
    assert_eq!(rust_example::run(&url(&program)).expect("the door is open"), lines);
}
