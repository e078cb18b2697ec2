//! TOML in every way that it writes tables.

use super::*;

const KEYS: &[&str] = &["mcp_servers", "cove"];
const TABLE: &str = "[mcp_servers.cove]\ncommand = \"/b/cove\"\nargs = [\"serve\"]\n";

#[track_caller]
fn check(before: &str, after: &str) {
    assert_eq!(set_in(Format::Toml, KEYS, before), after, "from {before}");
}

#[test]
fn appends_a_table() {
    check("", TABLE);
    check("model = \"x\" # mine\n", &format!("model = \"x\" # mine\n\n{TABLE}"));
    check("a = 1", &format!("a = 1\n\n{}", TABLE.trim_end()));
    check("a = 1\r\n", &format!("a = 1\r\n\r\n{}", TABLE.replace('\n', "\r\n")));
    check("\u{feff}a = 1\n", &format!("\u{feff}a = 1\n\n{TABLE}"));
    check("[mcp_servers.a]\ncommand='a'\n", &format!("[mcp_servers.a]\ncommand='a'\n\n{TABLE}"));
    check("mcp_servers.a.command = 'a'\n", &format!("mcp_servers.a.command = 'a'\n\n{TABLE}"));
}

#[test]
fn taking_it_out_gives_the_bytes_that_were_there() {
    for text in [
        "# only words\n",
        "a=1",
        "a=1\n",
        "a=1\n\n",
        "a=1\n\n\n",
        "[mcp_servers]\n",
        "[mcp_servers.a]\ncommand = \"a\" # \"[mcp_servers.cove]\"\n\n  [mcp_servers.a.env]\n  X = \"\"\"\n[mcp_servers.cove]\n\"\"\"\n# end\n",
        "[[x]]\na = [\n  1, # one\n  2,\n]\n[[x]]\nb = { c = 1 }\n",
    ] {
        for line_end in ["\n", "\r\n"] {
            there_and_back(Format::Toml, KEYS, &text.replace('\n', line_end));
            there_and_back(Format::Toml, KEYS, &format!("\u{feff}{}", text.replace('\n', line_end)));
        }
    }
}

#[test]
fn removes_the_entry_wherever_it_stands() {
    let check = |before: &str, after: &str| {
        assert_eq!(removed(Format::Toml, KEYS, before), after, "from {before}");
    };
    check(
        "a = 1\n\n# mine\n[mcp_servers.cove]\ncommand = \"x\"\n# inside\nargs = [\n  \"y\",\n]  # z\n\n[mcp_servers.cove.env]\nA = \"b\"\n\n# next\n[b]\nc = 1\n",
        "a = 1\n\n# mine\n\n# next\n[b]\nc = 1\n",
    );
    check("[mcp_servers]\ncove.command = 'x'\ncove.args = []\na.command = 'y'\n", "[mcp_servers]\na.command = 'y'\n");
    check("mcp_servers.cove.command = 'x'\n[b]\nc = 1\n", "[b]\nc = 1\n");
    check("[mcp_servers]\ncove = { command = 'x' }\n", "[mcp_servers]\n");
    check("[ mcp_servers . \"cove\" ]\ncommand = 'x'", "");
}

#[test]
fn an_entry_of_ours_is_made_right_and_keeps_what_was_added() {
    check(
        "[mcp_servers.cove] # mine\nstartup_timeout_sec = 20\ncommand = '/old/cove'\nargs = [ 'serve', # x\n 'y' ]\n[mcp_servers.cove.env]\nA = \"b\"\n",
        "[mcp_servers.cove] # mine\nstartup_timeout_sec = 20\ncommand = \"/b/cove\"\nargs = [\"serve\"]\n[mcp_servers.cove.env]\nA = \"b\"\n",
    );
    check(
        "[mcp_servers.cove] # mine\ncommand = '/b/cove'\n",
        "[mcp_servers.cove] # mine\nargs = [\"serve\"]\ncommand = '/b/cove'\n",
    );
    check(
        "[mcp_servers]\ncove = { command = 'cove', args = [] }\n",
        "[mcp_servers]\ncove = { command = \"/b/cove\", args = [\"serve\"] }\n",
    );
}

#[test]
fn refuses_files_without_room() {
    let check = |text: &str, part: &str| {
        let cause = refused(Format::Toml, KEYS, text);
        assert!(cause.contains(part), "{text}: {cause}");
    };
    let invalid = ": it is not valid TOML: ";
    check("x = 1\nmcp_servers = { a = { command = 'a' } }\n", "line 2 column 1: the servers are written on one line");
    check("mcp_servers = 'x'\n", "line 1 column 15: `mcp_servers` is a string, not an object");
    check("[[mcp_servers]]\na = 1\n", "line 1 column 1: `mcp_servers` is a list, not an object");
    check("a = 1\na = 2\n", &format!("line 2 column 1{invalid}"));
    check("a = 1\nb = = 2\n", &format!("line 2 column 5{invalid}"));
    check(&format!("a = {}", "[".repeat(100_000)), invalid);
    check(&format!("a = {}1{}", "[".repeat(1_000), "]".repeat(1_000)), invalid);
}
