//! The packages in `clients/`: their own tests against the real program, their types, and every
//! example as people run it. What they share is said here: the same server, the same lines.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::http::Reply;
use crate::papers::Papers;
use crate::peers::{go, node_alone, node_modules, python_alone};
use crate::program::Program;
use crate::remote::absent_store;

/// The server that all the tests and examples are written for.
const CONFIG: &str = include_str!("../../../../clients/server.toml");

/// What the examples say, in every language.
const EXAMPLES: [(&str, &str); 3] = [
    (
        "check",
        "login 1: allowed\nlogin 2: allowed\nlogin 3: allowed\n\
         login 4: refused by the rule logins\n",
    ),
    ("wait", "mail 1: sent\nmail 2: not now\n"),
    ("hold", "first job: runs\nsecond job: turned away\nthird job: runs\n"),
];

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients")
}

fn serve(more: &str) -> Program {
    Program::serve(&[&CONFIG.replace(":8080", ":0"), more].concat())
}

/// Runs `command` to its end, and returns what it said.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{:?}: {error}; `make setup-test` installs it", command.get_program())
    });
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}

/// Runs a package's own tests: they ask one server with its counts, one whose store is away, and
/// one that asks for a client's certificate.
#[track_caller]
fn run_tests(mut command: Command) {
    let asked = serve("");
    let degraded = serve(&absent_store("redis://127.0.0.1:2", "1ms"));
    command.env("TIDEGATE_SERVER", asked.url()).env("TIDEGATE_DEGRADED", degraded.url());
    let papers = Papers::new();
    let [cert, key, ca] = ["gate.pem", "gate.key", "ca.pem"].map(|name| papers.path(name));
    papers.sign("gate", "127.0.0.1");
    papers.sign("caller", "caller.example");
    let tls = format!("[http]\ntls = {{ cert = {cert:?}, key = {key:?}, client_ca = {ca:?} }}");
    let closed = Program::serve(&CONFIG.replace(":8080", ":0").replace("[http]", &tls));
    command.env("TIDEGATE_TLS", closed.url().replace("http:", "https:"));
    command.env("TIDEGATE_PAPERS", ca.parent().expect("a folder"));
    run(command.env_remove("TIDEGATE_TIMEOUT_MS"));
}

/// The environment of an example: a machine with much to do is no failure.
fn asking<'a>(command: &'a mut Command, program: &Program) -> &'a mut Command {
    command.env("TIDEGATE_SERVER", program.url()).env("TIDEGATE_TIMEOUT_MS", "30000")
}

/// Runs the examples that only say something; `example` starts the one of this name.
#[track_caller]
fn run_examples(example: impl Fn(&str) -> Command) {
    let program = serve("");
    for (name, expected) in EXAMPLES {
        assert_eq!(run(asking(&mut example(name), &program)), expected, "{name}");
    }
}

/// An example that serves, until the test lets go of it.
struct Served {
    child: Child,
    address: SocketAddr,
}

impl Served {
    #[track_caller]
    fn start(command: &mut Command, program: &Program) -> Self {
        let (lines, writer) = std::io::pipe().expect("a pipe");
        let stderr = writer.try_clone().expect("a pipe");
        let command = asking(command, program).env("PORT", "0").stdin(Stdio::null());
        let child = command.stdout(writer).stderr(stderr).spawn().expect("the example starts");
        // The writing ends that the command keeps would hide the end of the example.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut said = String::new();
        let mut lines = BufReader::new(lines);
        loop {
            let from = said.len();
            let count = lines.read_line(&mut said).expect("text");
            assert!(count > 0, "{command:?} ended: {said}");
            let Some((_, rest)) = said[from..].split_once("http://") else { continue };
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':');
            let address = rest[..end.unwrap_or(rest.len())].parse().expect("an address");
            // What it writes from now on fills no pipe.
            std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
            return Self { child, address };
        }
    }

    fn visit(&self) -> Reply {
        let stream = TcpStream::connect(self.address).expect("the example serves");
        let request = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 192.0.2.1\r\n\
                       Connection: close\r\n\r\n";
        std::io::Write::write_all(&mut &stream, request.as_bytes()).expect("it reads");
        Reply::read(stream)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Visits an example until it refuses, and while Tidegate is away.
#[track_caller]
fn visit_example(mut command: Command) {
    let program = serve("");
    let served = Served::start(&mut command, &program);
    for _ in 0..3 {
        let reply = served.visit();
        assert_eq!(reply.status, 200, "{command:?}: {}", reply.body);
        assert!(reply.body.contains("hello"), "{}", reply.body);
    }
    let refused = served.visit();
    assert_eq!(refused.status, 429, "{command:?}");
    assert_eq!(refused.header("content-type"), "application/problem+json");
    let seconds: u32 = refused.header("retry-after").parse().expect("seconds");
    assert!((1..=1200).contains(&seconds), "{seconds}");
    let told = refused.json();
    assert_eq!((&told["status"], &told["refused_by"]), (&429.into(), &"visits".into()));
    // The address that counted is the one that the visit came from, whatever it said of itself.
    let key = serde_json::json!({"key": "web client=127.0.0.1", "peek": true}).to_string();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let asked = crate::http::send_to(program.address("http"), "POST", "/v1/check", headers, &key);
    assert_eq!(asked.status, 429, "{}", asked.body);
    drop(program.crash());
    assert_eq!(served.visit().status, 200, "{command:?}: a limiter that is away stops nobody");
}

/// The Python package, installed as people install it.
fn python_package() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    // pip builds where the source is, and would leave its files there.
    copy(&clients().join("python"), &folder.path().join("source"));
    let mut pip = python_alone();
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    pip.args(["--no-build-isolation", "--no-deps", "--target", "installed", "./source"]);
    run(pip.current_dir(folder.path()));
    folder
}

fn python_with(package: &TempDir) -> Command {
    let mut command = python_alone();
    command.env("PYTHONPATH", package.path().join("installed"));
    command
}

#[test]
fn python() {
    let package = python_package();
    let source = clients().join("python");
    let mut tests = python_with(&package);
    tests.args(["-m", "unittest"]).current_dir(source.join("tests"));
    run_tests(tests);
    let example = |name: &str| {
        let mut command = python_with(&package);
        command.arg(source.join("examples").join(name).with_extension("py"));
        command
    };
    run_examples(example);
    let said = run(asking(&mut example("asynchronous"), &serve("")));
    assert_eq!(said, "login: allowed\nmail: sent\njob: runs\n");
    visit_example(example("fastapi_app"));
    visit_example(example("django_app"));
    for block in shown("python", "python") {
        run(asking(python_with(&package).arg("-c").arg(block), &serve("")));
    }
}

#[test]
fn python_types() {
    let package = python_package();
    let mut mypy = python_alone();
    mypy.args(["-m", "mypy", "--strict", "src", "examples"]).arg("--cache-dir");
    run(mypy.arg(package.path().join("cache")).current_dir(package.path().join("source")));
}

#[test]
fn typescript() {
    let folder = tempfile::tempdir().expect("a folder");
    let package = folder.path().join("typescript");
    // Packages are looked for beside the source.
    copy(&clients().join("typescript"), &package);
    std::os::unix::fs::symlink(node_modules(), package.join("node_modules")).expect("a link");
    let blocks = shown("typescript", "ts");
    for (at, block) in blocks.iter().enumerate() {
        std::fs::write(package.join(format!("examples/shown_{at}.ts")), block).expect("a file");
    }
    let mut compiler = node_alone();
    run(compiler.arg("node_modules/typescript/bin/tsc").current_dir(&package));
    let mut tests = node_alone();
    tests.args(["--test", "dist/tests/client.test.js", "dist/tests/express.test.js"]);
    tests.current_dir(&package);
    run_tests(tests);
    let example = |name: &str| {
        let mut command = node_alone();
        command.arg(package.join("dist/examples").join(name).with_extension("js"));
        command
    };
    run_examples(example);
    visit_example(example("express_app"));
    for at in 0..blocks.len() {
        run(asking(&mut example(&format!("shown_{at}")), &serve("")));
    }
}

#[test]
fn go_package() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("go");
    copy(&clients().join("go"), &source);
    let mut format = Command::new("gofmt");
    assert_eq!(run(format.args(["-l", "."]).current_dir(&source)), "", "gofmt would change these");
    let mut tests = go();
    // `go test` vets as well.
    tests.args(["test", "-count=1", "-vet=all", "."]).current_dir(&source);
    run_tests(tests);
    std::fs::create_dir(source.join("examples/shown")).expect("a folder");
    std::fs::write(source.join("examples/shown/main.go"), shown_in_go()).expect("a file");
    let built = folder.path().join("built");
    std::fs::create_dir(&built).expect("a folder");
    let mut build = go();
    run(build.args(["build", "-o"]).arg(&built).arg("./examples/...").current_dir(&source));
    let example = |name: &str| Command::new(built.join(name));
    run_examples(example);
    visit_example(example("server"));
    run(asking(&mut example("shown"), &serve("")));
}

/// A program of what the pages show. What serves is compiled, and not run.
fn shown_in_go() -> String {
    let mut program = "package main\nimport (\n\"context\"\n\"log\"\n\"net/http\"\n\"time\"\n\
                       \"tidegate\"\n)\nvar _ http.Handler\nvar _ time.Duration\n"
        .to_owned();
    let mut calls = String::new();
    for (at, block) in shown("go", "go").iter().enumerate() {
        let end = if block.contains("return http.") { "" } else { "return nil\n" };
        let head = format!("func shown{at}(ctx context.Context, client *tidegate.Client) error");
        program += &format!("{head} {{\n{block}{end}}}\n");
        if end.is_empty() {
            calls += &format!("_ = shown{at}\n");
        } else {
            let call = format!("shown{at}(context.Background(), client)");
            calls += &format!("if err := {call}; err != nil {{ log.Fatal(err) }}\n");
        }
    }
    let client = "client, err := tidegate.New(tidegate.Config{})\nif err != nil { log.Fatal(err) }";
    program + &format!("func main() {{\n{client}\n{calls}}}\n")
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("the source") {
        let entry = entry.expect("the source");
        let name = entry.file_name();
        // What people have built there is not the source.
        let is_built = ["dist", "build", "node_modules"].iter().any(|built| name == *built);
        match entry.file_type().expect("the source").is_dir() {
            true if is_built => {}
            true => copy(&entry.path(), &to.join(&name)),
            false => drop(std::fs::copy(entry.path(), to.join(&name)).expect("a copy")),
        }
    }
}

/// The code that the pages show in this language, as it stands there.
fn shown(package: &str, language: &str) -> Vec<String> {
    let pages = [clients().join(package).join("README.md"), clients().join("../docs/clients.md")];
    let text = pages.map(|page| std::fs::read_to_string(page).expect("a page")).concat();
    let opening = format!("```{language}\n");
    let blocks = text.split(&*opening).skip(1);
    let blocks: Vec<_> =
        blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect();
    assert!(blocks.len() > 3, "the pages show little {language}");
    blocks
}
