//! Tests of what is refused before the server listens, and of the greeting.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;

use insta::assert_snapshot;
use tempfile::TempDir;

use super::*;

fn env(variables: &[(&str, &str)]) -> ProcessEnv {
    let env: BTreeMap<_, _> = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    ProcessEnv { env, cwd: "/".into(), stdin_is_terminal: false }
}

async fn bind_error_text(config: &HttpConfig, state: Option<&Path>, process_env: &ProcessEnv) -> String {
    let error = bind_http(config, state, process_env).await.expect_err("refused");
    assert_eq!(error.kind(), FailureKind::Usage);
    error.report().to_string()
}

#[tokio::test]
async fn first_start_creates_and_shows_a_token_once() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    let first = bind_http(&config(), Some(&state), &env(&[])).await.unwrap();
    let token = std::fs::read_to_string(state.join("tokens")).unwrap();
    let token = token.lines().last().unwrap();
    let (url, words) = (first.url(), first.greeting());
    assert!(url.starts_with("http://127.0.0.1:") && !url.contains(":0/"), "{url}");
    assert!(words.contains(&format!("\"Authorization\": \"Bearer {token}\"")), "{words}");
    assert!(words.contains(&format!("cove install claude-code --url {url}\n")), "{words}");
    let second = bind_http(&config(), Some(&state), &env(&[])).await.unwrap();
    assert!(!second.greeting().contains(token) && second.greeting().contains("state/tokens"));
    assert_ne!(first.address(), second.address());
    assert!(!format!("{first:?}{second:?}").replace(first.greeting(), "").contains(&format!("token: \"{token}")));
    // The shown token is accepted.
    let headers = HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {token}").parse().unwrap())]);
    let place = Arc::new(connection_table::ConnectionTable::new(1, Duration::ZERO)).enter([127, 0, 0, 1].into()).0;
    let admitted = second.front.admit(&place, &headers, Instant::now()).unwrap();
    assert_eq!(admitted.principal, Principal("owner".into()));
}

#[tokio::test]
async fn env_token_replaces_the_token_file() {
    let dir = TempDir::new().unwrap();
    let bound = bind_http(&config(), Some(dir.path()), &env(&[("COVE_TOKEN", ALICE)])).await.unwrap();
    assert!(bound.greeting().contains("`COVE_TOKEN`") && !bound.greeting().contains(ALICE));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    // An empty variable counts as unset.
    bind_http(&config(), Some(dir.path()), &env(&[("COVE_TOKEN", "")])).await.unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_snapshot!(bind_error_text(&config(), None, &env(&[("COVE_TOKEN", "hunter2")])).await, @r"
    could not use the token in `COVE_TOKEN`
    caused by: it is not 16 to 512 letters, digits or `-._~+/=`
    hint: make one with `openssl rand -hex 32`
    ");
    let mut odd = env(&[]);
    odd.env.insert("COVE_TOKEN".into(), std::ffi::OsString::from_vec(vec![0xff; 40]));
    assert!(!bind_error_text(&config(), None, &odd).await.contains('\u{fffd}'));
}

#[tokio::test]
async fn refuses_unsafe_bind_settings() {
    let open = |address: &str| HttpConfig { auth: HttpAuth::None, address: Some(address.parse().unwrap()), ..config() };
    assert_snapshot!(bind_error_text(&open("0.0.0.0:8765"), None, &env(&[])).await, @r"
    could not serve on `0.0.0.0:8765` with `auth` set to `none`
    caused by: anyone who can reach this machine could run code on it
    hint: leave `auth` out, or serve this machine alone with `--http 127.0.0.1:8765`
    ");
    for address in ["[::]:0", "192.0.2.1:0", "[::ffff:127.0.0.1]:0"] {
        bind_error_text(&open(address), None, &env(&[])).await;
    }
    let bound = bind_http(&open("127.0.0.1:0"), None, &env(&[])).await.unwrap();
    assert!(bound.greeting().contains("warning: "));
}

#[tokio::test]
async fn bind_errors_have_hints() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dir = TempDir::new().unwrap();
    let config = |address: &str| HttpConfig { address: Some(address.parse().unwrap()), ..config() };
    let report = bind_error_text(&config(&taken.local_addr().unwrap().to_string()), Some(dir.path()), &env(&[])).await;
    assert!(report.contains("hint: another server listens there"), "{report}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no token for a server that did not start");
    let report = bind_error_text(&config("192.0.2.1:8765"), None, &env(&[])).await;
    assert!(report.contains("hint: choose an address of this machine, such as `127.0.0.1:8765`"), "{report}");
    assert_snapshot!(bind_error_text(&config("127.0.0.1:0"), None, &env(&[])).await, @r"
    could not find a place for the token
    caused by: there is no home directory, so there is no state directory
    hint: name one with `--state-dir`, name a file with `--token-file`, or set `COVE_TOKEN`
    ");
}

#[tokio::test]
async fn many_connections_may_wait_to_be_accepted() {
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap_or(0);
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while waiting.len() < 500.min(most) {
        let connected = timeout(PATIENCE, TcpStream::connect(address)).await;
        waiting.push(connected.expect("the kernel has room for another").unwrap());
    }
}
