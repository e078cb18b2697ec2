//! The sign-in to a server ends with its definition: `servers remove` and `uninstall` revoke its tokens.

use super::*;

/// A home whose Cursor has a server that wants sign-in.
fn with_cursor() -> SignInHome {
    let home = SignInHome::new();
    let entry = json!({"mcpServers": {"notion": {"url": home.server.url(), "headers": {"X-Of": "cursor"}}}});
    fs::create_dir(home.home.path(".cursor")).unwrap();
    fs::write(home.home.path(".cursor/mcp.json"), entry.to_string()).unwrap();
    home
}

/// Signs in to the server, and adopts it if that is wanted.
fn sign_in_and_adopt(home: &SignInHome) {
    let left = home.run(&["install", "cursor", "--adopt"]);
    assert!(
        left.code == Some(1) && left.stdout.contains("run `cove servers login notion`, then this again"),
        "{left:?}"
    );
    SignInHome::sign_in(home.begin_login_to("notion", &[]));
    let adopted = home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(adopted.contains("adopted 1 server with 3 tools"), "{adopted}");
}

#[test]
fn an_uninstall_revokes_the_sign_in_to_an_adopted_server() {
    let home = with_cursor();
    sign_in_and_adopt(&home);
    let planned = home.run(&["uninstall", "cursor", "--dry-run"]);
    let would = "would sign out of `notion`: revoke its tokens where the server can, and delete them\n";
    assert!(planned.stdout.ends_with(would), "{planned:?}");
    assert!(home.server.state().revoked.is_empty() && home.home.path(".config/cove/servers.d/notion.json").exists());
    let done = home.run(&["uninstall", "cursor"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("signed out of `notion`: its tokens are revoked and deleted\n"), "{done:?}");
    assert_eq!(home.server.state().revoked.len(), 2);
    assert!(!home.home.path(".config/cove/servers.d/notion.json").exists());
}

#[test]
fn an_uninstall_goes_on_if_the_tokens_cannot_be_revoked() {
    let home = with_cursor();
    home.server.state().server_metadata.insert("revocation_endpoint".to_owned(), Value::Null);
    sign_in_and_adopt(&home);
    let entry = fs::read_to_string(home.home.path(".cursor/mcp.json.cove-adopted")).unwrap();
    let done = home.run(&["uninstall", "cursor"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("signed out of `notion`: its tokens are deleted, but not revoked: "), "{done:?}");
    assert_eq!(fs::read_to_string(home.home.path(".cursor/mcp.json")).unwrap(), entry);
    let signed_in = fs::read_dir(home.home.path(".local/state/cove/oauth")).unwrap();
    let names: Vec<String> = signed_in.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|name| name.starts_with("notion") && name.ends_with(".json")), "{names:?}");
}

#[test]
fn removing_a_server_revokes_its_sign_in() {
    let home = SignInHome::new();
    home.stdout_of(&["servers", "add", "other", "--url", &home.server.url()]);
    SignInHome::sign_in(home.begin_login_to("other", &[]));
    let removed = home.run(&["servers", "remove", "other"]);
    assert!(removed.stderr.contains("signed out of `other`: its tokens are revoked and deleted\n"), "{removed:?}");
    assert_eq!(home.server.state().revoked.len(), 2);
}

/// Nothing was adopted, so nothing returns, and the file does not have what was never in it.
#[test]
fn an_uninstall_says_what_an_unfinished_adoption_left() {
    let home = with_cursor();
    let file = home.home.path(".cursor/mcp.json");
    let before = fs::read_to_string(&file).unwrap();
    assert_eq!(home.run(&["install", "cursor", "--adopt"]).code, Some(1));
    let text = |said: &str| said.replace(file.to_str().unwrap(), "FILE");
    let planned = home.stdout_of(&["uninstall", "cursor", "--dry-run"]);
    assert_eq!(text(&planned), "would remove `cove` from FILE\nwould remove the definitions of notion\n");
    // As after a kill before Cove's entry came in.
    fs::write(&file, &before).unwrap();
    let planned = home.stdout_of(&["uninstall", "cursor", "--dry-run"]);
    assert_eq!(text(&planned), "`cove` is not in FILE\nwould remove the definitions of notion\n");
    let said = home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!(
        text(&said),
        "`cove` is not in FILE, which was not changed\nno server had been taken out of the file\nremoved from Cove: notion\n"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}
