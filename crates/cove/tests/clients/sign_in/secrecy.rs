//! Tokens of a sign-in are in its record and in requests to their server. This searches for them everywhere else: in
//! every other file of the home, in all output, in the command lines of all processes, and, as root, in the memory, the
//! environment and the files of every process in the sandbox.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cove_testkit::mcp::{ClientEra, TestStdioClient};
use rustix::process::geteuid;
use serde_json::json;

use super::{AuthorizationServer, FIRST_SIGN_IN, NotesServer, SignInHome};
use crate::judges::OutsideJudges;

/// Uses the server in every way that gives code something, and then waits where the test can look at it.
const CODE: &str = r#"
import os, time
planted = "planted-" + "in-guest-memory"
seen = [mcp.notes.read_note(), repr(mcp.find("note")), repr(mcp.help("notes")), repr(mcp.servers)]
try:
    mcp.notes.write_note(text="x")
except Exception as error:
    seen.append(repr(error) + repr(vars(error)))
open("/workspace/seen", "w").write("\n".join(seen))
print("\n".join(seen))
while not os.path.exists("/workspace/go"):
    time.sleep(0.1)
"#;

#[test]
fn tokens_are_found_nowhere() {
    let test = "tokens_are_found_nowhere";
    let Some(judges) = OutsideJudges::find(test) else { return };
    if !geteuid().is_root() {
        return cove_testkit::skip::skip(test, "not on this machine: reading the memory of others needs root");
    }
    let authority = AuthorizationServer::start(&judges, Duration::from_secs(3600));
    let server = NotesServer::start(&judges, &["oauth", &authority.issuer]);
    let home = SignInHome::new(&judges, &server);
    let watch = CommandLineWatch::start();
    let signed_in = home.run(&["servers", "login", "notes"]);
    assert_eq!(signed_in.code, Some(0), "{signed_in:?}");
    let issued = authority.expect(&FIRST_SIGN_IN).remove(2);
    let pages = home.take_pages();
    let code = pages.last().unwrap()["url"].as_str().unwrap().split("code=").nth(1).unwrap();
    let code = code.split('&').next().unwrap();
    let token = |name: &str| issued[name].as_str().expect("it was issued").to_owned();
    let secrets = [token("access_token"), token("refresh_token"), code.to_owned()];

    let mut client = TestStdioClient::start(home.command(&["serve", "--log-level", "debug"]), ClientEra::Legacy);
    let cell = client.begin_call("execute_code", json!({"code": CODE, "timeout": 120}));
    let found = search_sandbox(client.pid(), &secrets);
    assert!(found.is_empty(), "{found:?}");
    assert!(holds(client.pid(), secrets[0].as_bytes()), "the same search finds the token where it must be");
    let stopped = client.begin("notifications/cancelled", json!({"requestId": cell}));
    let _ = client.answer_within(stopped, Duration::from_secs(1));
    let output = format!("{}{:?}", client.errors(), client.notifications);
    client.close_input();
    client.wait();

    let mut outputs = vec![output, format!("{signed_in:?}")];
    for args in [
        &["tools", "call", "notes.read_note"][..],
        &["tools", "show", "notes", "--json"],
        &["servers", "list", "--json"],
        &["servers", "refresh"],
        &["audit", "--json"],
        &["doctor"],
        &["config", "show"],
    ] {
        outputs.push(format!("{args:?}: {:?}", home.run(args)));
    }
    assert!(outputs.iter().any(|output| output.contains("read_note")), "{outputs:?}");
    outputs.extend(watch.stop());
    for output in &outputs {
        assert!(!secrets.iter().any(|secret| output.contains(secret.as_str())), "{output}");
    }
    let kept = files_with(&home.folder, &secrets);
    let [record] = kept.as_slice() else { panic!("one record has the tokens: {kept:?}") };
    assert!(record.contains("/oauth/"), "{record}");
    let audit = files_with(&home.folder, &["read_note".to_owned()]);
    assert!(audit.iter().any(|file| file.contains("audit")), "this looks where the audit is: {audit:?}");
}

/// Waits until the code runs, and returns where its sandbox has a secret.
fn search_sandbox(server: u32, secrets: &[String]) -> Vec<String> {
    let planted = "planted-in-guest-memory".to_owned();
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(100));
        let guests = descendants(server);
        let has = |pid: &u32, secret: &String| holds(*pid, secret.as_bytes());
        // The code is where it waits once its file is there.
        let waits = guests.iter().any(|pid| Path::new(&format!("/proc/{pid}/root/workspace/seen")).exists());
        if !waits || !guests.iter().any(|pid| has(pid, &planted)) {
            continue;
        }
        let mut found = Vec::new();
        for pid in &guests {
            for (index, secret) in secrets.iter().enumerate().filter(|(_, secret)| has(pid, secret)) {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                found.push(format!("secret {index} ({} bytes) in process {pid}, `{}`", secret.len(), name.trim()));
            }
            found.extend(files_with(Path::new(&format!("/proc/{pid}/root/workspace")), secrets));
        }
        return found;
    }
    panic!("the code does not run: {:?}", descendants(server));
}

/// The processes that a process started, and those that they started.
fn descendants(of: u32) -> Vec<u32> {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in fs::read_dir("/proc").expect("there is a /proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut known = vec![of];
    let mut next = 0;
    while next < known.len() {
        let parent = known[next];
        known.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    known.split_off(1)
}

/// Returns true if a process has these bytes in its memory, its environment or its command line.
fn holds(pid: u32, bytes: &[u8]) -> bool {
    let is_in = |hay: &[u8]| hay.windows(bytes.len()).any(|window| window == bytes);
    for name in ["environ", "cmdline"] {
        if fs::read(format!("/proc/{pid}/{name}")).is_ok_and(|text| is_in(&text)) {
            return true;
        }
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(mut memory) = fs::File::open(format!("/proc/{pid}/mem")) else { return false };
    maps.lines().any(|line| {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = words.nth(3).unwrap_or_default();
        let bounds = range
            .split_once('-')
            .and_then(|(start, end)| Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?)));
        // Only what can be written can hold something new; the kernel's own pages cannot be read.
        let Some((start, end)) = bounds.filter(|_| rights.starts_with("rw") && !path.starts_with("[v")) else {
            return false;
        };
        let mut piece = vec![0; usize::try_from(end - start).unwrap_or_default()];
        memory.seek(SeekFrom::Start(start)).is_ok() && memory.read_exact(&mut piece).is_ok() && is_in(&piece)
    })
}

/// The files below a folder that contain one of these texts.
fn files_with(folder: &Path, texts: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        if kind.as_ref().is_ok_and(|kind| kind.is_dir()) {
            found.extend(files_with(&path, texts));
        } else if kind.is_ok_and(|kind| kind.is_file()) {
            let bytes = fs::read(&path).unwrap_or_default();
            let has = |text: &String| bytes.windows(text.len()).any(|window| window == text.as_bytes());
            if texts.iter().any(has) {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// Collects the command lines of all processes for as long as it runs.
struct CommandLineWatch {
    seen: Arc<Mutex<HashSet<String>>>,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl CommandLineWatch {
    fn start() -> Self {
        let (seen, ends) = (Arc::<Mutex<HashSet<String>>>::default(), Arc::new(AtomicBool::new(false)));
        let (kept, is_over) = (Arc::clone(&seen), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for entry in fs::read_dir("/proc").expect("there is a /proc").flatten() {
                    if let Ok(line) = fs::read(entry.path().join("cmdline"))
                        && !line.is_empty()
                    {
                        let line = String::from_utf8_lossy(&line).replace('\0', " ");
                        kept.lock().unwrap().insert(line);
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { seen, ends, thread }
    }

    /// Returns what it saw, which includes the sign-in itself.
    fn stop(self) -> Vec<String> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic");
        let seen: Vec<String> = self.seen.lock().unwrap().drain().collect();
        assert!(seen.iter().any(|line| line.contains("servers login notes")), "{seen:?}");
        seen
    }
}
