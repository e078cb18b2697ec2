//! Reads the profile as an engine does, and compares it with the same verdicts as the jail's own program.

use serde_json::Value;

use super::{argument_lists, expected};
use crate::seccomp::docker::{HOST_CALLS, SERVICE_CALLS};
use crate::seccomp::{FilterAction, SyscallVerdict, host_profile, sandbox_profile, service_profile, syscalls};

fn holds(argument: &Value, arguments: &[u64; 6]) -> bool {
    assert_eq!(argument["op"], "SCMP_CMP_MASKED_EQ");
    let mask = argument["value"].as_u64().unwrap();
    // Only the null pointer of a query is compared as a whole, and other pointers bit by bit.
    let whole = mask == u64::MAX && argument["valueTwo"] == 0 || mask.is_power_of_two() && argument["index"] == 2;
    assert!(mask <= 0xffff_ffff || whole, "a comparison that looks at the high half");
    arguments[argument["index"].as_u64().unwrap() as usize] & mask == argument["valueTwo"].as_u64().unwrap()
}

/// Returns what the entries decide. They are alternatives, so all that match one call must agree.
fn decide(entries: &[&Value], arguments: &[u64; 6]) -> FilterAction {
    let mut decided = None;
    for entry in entries {
        let args = entry["args"].as_array().map(Vec::as_slice).unwrap_or_default();
        if args.iter().all(|argument| holds(argument, arguments)) {
            let action = match entry["action"].as_str().unwrap() {
                "SCMP_ACT_ALLOW" => FilterAction::Allow,
                "SCMP_ACT_ERRNO" => FilterAction::Errno(entry["errnoRet"].as_u64().unwrap() as u16),
                other => panic!("{other}"),
            };
            assert!(decided.is_none_or(|before| before == action), "{entry} contradicts another entry");
            decided = Some(action);
        }
    }
    decided.unwrap_or(FilterAction::EPERM)
}

#[test]
fn the_sandbox_profile_agrees_with_the_table() {
    let profile: Value = serde_json::from_str(&sandbox_profile()).unwrap();
    let entries = profile["syscalls"].as_array().unwrap();
    let lists = argument_lists();
    for syscall in syscalls() {
        let named = |entry: &&Value| entry["names"].as_array().unwrap().iter().any(|name| name == syscall.name);
        let entries: Vec<&Value> = entries.iter().filter(named).collect();
        assert_eq!(entries.is_empty(), syscall.verdict == SyscallVerdict::Deny, "{}", syscall.name);
        let lists = if matches!(syscall.verdict, SyscallVerdict::Rule(_)) { lists.as_slice() } else { &[[0; 6]] };
        for arguments in lists {
            let (family, protocol) = (arguments[0] as u32, arguments[2] as u32);
            // The profile does not spell out families, protocols and socket options that are rare.
            let spelled_out =
                family <= 63 && (syscall.name != "socket" || ![2, 10, 16].contains(&family) || protocol <= 63);
            let (level, option) = (arguments[1] as u32, arguments[2] as u32);
            let known_option = level <= 511 && (option <= 511 || ![1, 6, 17, 41].contains(&level));
            let wanted = match expected(syscall.verdict, *arguments) {
                FilterAction::Allow if syscall.name == "setsockopt" && !known_option => FilterAction::EPERM,
                FilterAction::DONE if syscall.name == "prlimit64" && level >= 16 => FilterAction::EPERM,
                FilterAction::EAFNOSUPPORT if !spelled_out => FilterAction::EPERM,
                wanted => wanted,
            };
            assert_eq!(decide(&entries, arguments), wanted, "{} {arguments:x?}", syscall.name);
        }
    }
}

#[test]
fn engines_can_read_the_profile() {
    let profile: Value = serde_json::from_str(&sandbox_profile()).unwrap();
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

/// Services may do what a sandbox may do and little more. A container in which Cove runs may do the same, and what
/// making a sandbox needs.
#[test]
fn other_profiles_add_only_the_listed_calls() {
    let entries = |profile: &str| -> Vec<Value> {
        let profile: Value = serde_json::from_str(profile).unwrap();
        profile["syscalls"].as_array().unwrap().clone()
    };
    let entries_for = |entries: &[Value], name: &str| -> Vec<Value> {
        let mut found: Vec<Value> = entries
            .iter()
            .filter(|entry| entry["names"].as_array().unwrap().iter().any(|named| named == name))
            .cloned()
            .collect();
        found.iter_mut().for_each(|entry| entry["names"] = Value::Null);
        found
    };
    let [sandbox, service, host] = [sandbox_profile(), service_profile(), host_profile()].map(|text| entries(&text));
    let adds = |wider: &[Value], narrower: &[Value], added: &[(&str, &str)]| {
        for syscall in syscalls() {
            let found = entries_for(wider, syscall.name);
            match added.iter().any(|(name, _)| *name == syscall.name) {
                false => assert_eq!(found, entries_for(narrower, syscall.name), "{}", syscall.name),
                true => {
                    assert_ne!(syscall.verdict, SyscallVerdict::Allow, "{} needs no entry", syscall.name);
                    assert_eq!(found.len(), 1, "{}: {found:?}", syscall.name);
                    assert!(found[0]["action"] == "SCMP_ACT_ALLOW" && found[0]["args"].is_null(), "{found:?}");
                }
            }
        }
    };
    adds(&service, &sandbox, SERVICE_CALLS);
    adds(&host, &service, HOST_CALLS);
    assert!(HOST_CALLS.is_sorted() && HOST_CALLS.iter().all(|(name, _)| syscalls().iter().any(|s| s.name == *name)));
}

/// Checks the file that people give to Docker and Podman. `COVE_WRITE=1` writes it again.
#[test]
fn the_profile_in_packaging_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/container/seccomp.json");
    let wanted = format!("{}\n", host_profile());
    if std::env::var_os("COVE_WRITE").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    // The order of keys depends on the features of serde_json that other crates of the build turn on.
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert!(
        read(&found) == read(&wanted),
        "`seccomp.json` is stale; `COVE_WRITE=1 cargo test -p cove-jail profile` writes it again"
    );
}
