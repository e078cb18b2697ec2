//! What is refused before anything listens, and what a person is told.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;

use insta::assert_snapshot;
use tempfile::TempDir;

use super::*;

fn around(variables: &[(&str, &str)]) -> Surroundings {
    let env: BTreeMap<_, _> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    Surroundings { env, cwd: "/".into(), stdin_is_terminal: false }
}

async fn refused(config: &HttpConfig, state: Option<&Path>, around: &Surroundings) -> String {
    let error = bind_http(config, state, around).await.expect_err("refused");
    assert_eq!(error.kind(), Kind::Usage);
    error.report().to_string()
}

#[tokio::test]
async fn a_token_is_made_and_shown_once() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    let first = bind_http(&config(), Some(&state), &around(&[])).await.unwrap();
    let token = std::fs::read_to_string(state.join("tokens")).unwrap();
    let token = token.lines().last().unwrap();
    let (url, words) = (first.url(), first.greeting());
    assert!(url.starts_with("http://127.0.0.1:") && !url.contains(":0/"), "{url}");
    assert!(words.contains(&format!("\"Authorization\": \"Bearer {token}\"")), "{words}");
    assert!(words.contains(&format!("claude mcp add --transport http cove {url} --header")), "{words}");
    let second = bind_http(&config(), Some(&state), &around(&[])).await.unwrap();
    assert!(!second.greeting().contains(token) && second.greeting().contains("state/tokens"));
    assert_ne!(first.address(), second.address());
    assert!(
        !format!("{first:?}{second:?}").replace(first.greeting(), "").contains(&format!("token: \"{token}"))
    );
    // And it opens.
    let headers = HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {token}").parse().unwrap())]);
    assert_eq!(second.front.admit(&headers, Instant::now()), Ok(&Principal("owner".into())));
}

#[tokio::test]
async fn the_environment_replaces_the_file() {
    let dir = TempDir::new().unwrap();
    let bound = bind_http(&config(), Some(dir.path()), &around(&[("COVE_TOKEN", ALICE)])).await.unwrap();
    assert!(bound.greeting().contains("`COVE_TOKEN`") && !bound.greeting().contains(ALICE));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    // An empty one counts as unset.
    bind_http(&config(), Some(dir.path()), &around(&[("COVE_TOKEN", "")])).await.unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_snapshot!(refused(&config(), None, &around(&[("COVE_TOKEN", "hunter2")])).await, @r"
    could not use the token in `COVE_TOKEN`
    caused by: it is not 16 to 512 letters, digits or `-._~+/=`
    hint: make one with `openssl rand -hex 32`
    ");
    let mut odd = around(&[]);
    odd.env.insert("COVE_TOKEN".into(), std::ffi::OsString::from_vec(vec![0xff; 40]));
    assert!(!refused(&config(), None, &odd).await.contains('\u{fffd}'));
}

#[tokio::test]
async fn unsafe_combinations_are_refused() {
    let open =
        |address: &str| HttpConfig { auth: Auth::None, address: Some(address.parse().unwrap()), ..config() };
    assert_snapshot!(refused(&open("0.0.0.0:8765"), None, &around(&[])).await, @r"
    could not serve on `0.0.0.0:8765` with `auth` set to `none`
    caused by: anyone who can reach this machine could run code on it
    hint: leave `auth` out, or serve this machine alone with `--http 127.0.0.1:8765`
    ");
    for address in ["[::]:0", "192.0.2.1:0", "[::ffff:127.0.0.1]:0"] {
        refused(&open(address), None, &around(&[])).await;
    }
    let bound = bind_http(&open("127.0.0.1:0"), None, &around(&[])).await.unwrap();
    assert!(bound.greeting().contains("warning: "));
}

#[tokio::test]
async fn what_cannot_be_bound_or_kept() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dir = TempDir::new().unwrap();
    let config = |address: &str| HttpConfig { address: Some(address.parse().unwrap()), ..config() };
    let report =
        refused(&config(&taken.local_addr().unwrap().to_string()), Some(dir.path()), &around(&[])).await;
    assert!(report.contains("hint: another server listens there"), "{report}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no token for a server that did not start");
    let report = refused(&config("192.0.2.1:8765"), None, &around(&[])).await;
    assert!(report.contains("hint: choose an address of this machine, such as `127.0.0.1:8765`"), "{report}");
    assert_snapshot!(refused(&config("127.0.0.1:0"), None, &around(&[])).await, @r"
    could not find a place for the token
    caused by: there is no home directory, so there is no state directory
    hint: name one with `--state-dir`, name a file with `--token-file`, or set `COVE_TOKEN`
    ");
}
