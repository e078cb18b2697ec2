//! The profile, read as an engine reads it, against the same verdicts as the jail's own program.

use serde_json::Value;

use super::{argument_lists, expected};
use crate::seccomp::{Action, Verdict, docker_json, syscalls};

fn holds(argument: &Value, arguments: &[u64; 6]) -> bool {
    assert_eq!(argument["op"], "SCMP_CMP_MASKED_EQ");
    let mask = argument["value"].as_u64().unwrap();
    assert!(mask <= 0xffff_ffff, "a comparison that looks at the high half");
    arguments[argument["index"].as_u64().unwrap() as usize] & mask == argument["valueTwo"].as_u64().unwrap()
}

/// Entries are alternatives, so those that match one call must agree.
fn decide(entries: &[&Value], arguments: &[u64; 6]) -> Action {
    let mut decided = None;
    for entry in entries {
        let args = entry["args"].as_array().map(Vec::as_slice).unwrap_or_default();
        if args.iter().all(|argument| holds(argument, arguments)) {
            let action = match entry["action"].as_str().unwrap() {
                "SCMP_ACT_ALLOW" => Action::Allow,
                "SCMP_ACT_ERRNO" => Action::Errno(entry["errnoRet"].as_u64().unwrap() as u16),
                other => panic!("{other}"),
            };
            assert!(decided.is_none_or(|before| before == action), "{entry} contradicts another entry");
            decided = Some(action);
        }
    }
    decided.unwrap_or(Action::EPERM)
}

#[test]
fn the_profile_says_what_the_table_says() {
    let profile: Value = serde_json::from_str(&docker_json()).unwrap();
    let entries = profile["syscalls"].as_array().unwrap();
    let lists = argument_lists();
    for syscall in syscalls() {
        let named =
            |entry: &&Value| entry["names"].as_array().unwrap().iter().any(|name| name == syscall.name);
        let entries: Vec<&Value> = entries.iter().filter(named).collect();
        assert_eq!(entries.is_empty(), syscall.verdict == Verdict::Deny, "{}", syscall.name);
        let lists = if matches!(syscall.verdict, Verdict::Rule(_)) { lists.as_slice() } else { &[[0; 6]] };
        for arguments in lists {
            let (family, protocol) = (arguments[0] as u32, arguments[2] as u32);
            // What no kernel has is not spelled out.
            let spelled_out = family <= 63 && (syscall.name != "socket" || family != 16 || protocol <= 63);
            let wanted = match expected(syscall.verdict, *arguments) {
                Action::EAFNOSUPPORT if !spelled_out => Action::EPERM,
                wanted => wanted,
            };
            assert_eq!(decide(&entries, arguments), wanted, "{} {arguments:x?}", syscall.name);
        }
    }
}

#[test]
fn engines_can_read_the_profile() {
    let profile: Value = serde_json::from_str(&docker_json()).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    assert_eq!(profile["defaultErrnoRet"], 1);
    for arch in profile["archMap"].as_array().unwrap() {
        assert_eq!(arch["subArchitectures"].as_array().map(Vec::len), Some(0), "the other ABIs stay closed");
    }
    for entry in profile["syscalls"].as_array().unwrap() {
        for name in entry["names"].as_array().unwrap() {
            assert!(syscalls().iter().any(|syscall| syscall.name == name), "{name}");
        }
        // runc reads two conditions on one argument as alternatives.
        let args = entry["args"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut indices: Vec<u64> = args.iter().map(|argument| argument["index"].as_u64().unwrap()).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), args.len(), "{entry}");
    }
}
