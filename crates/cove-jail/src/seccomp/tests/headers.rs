//! Compares the table with the kernel headers of this machine: a new kernel's call has to be classified before it is
//! refused or allowed by accident.

use std::collections::BTreeMap;
use std::fs;

use crate::seccomp::{Arch, syscalls};

/// Returns the calls that a header for 64-bit machines defines, by name.
fn defined(header: &str) -> BTreeMap<String, u32> {
    let mut calls = BTreeMap::new();
    for line in header.lines() {
        let mut words = line.split_whitespace();
        let (Some("#define"), Some(name), Some(number)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        // Calls that differ by word size are defined as `__NR3264_x` and get their name further down.
        let Some(name) = name.strip_prefix("__NR_").or_else(|| name.strip_prefix("__NR3264_")) else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        match name {
            // Markers, not calls; and the form of sync_file_range for other architectures.
            "syscalls" | "arch_specific_syscall" | "sync_file_range2" => {}
            // Second forms with a 64-bit time, for 32-bit machines.
            _ if (403..=423).contains(&number) => {}
            "fstatat" => _ = calls.insert("newfstatat".into(), number),
            _ => _ = calls.insert(name.into(), number),
        }
    }
    calls
}

/// Compares the table with the first of these headers that exists. `fewest` guards against a header that this test
/// misreads as almost empty.
fn check(arch: Arch, paths: &[&str], fewest: usize) {
    let Some((path, header)) = paths.iter().find_map(|path| Some((path, fs::read_to_string(path).ok()?))) else {
        println!("skipped: no kernel header for {arch:?} at {}", paths.join(", "));
        return;
    };
    let calls = defined(&header);
    assert!(calls.len() >= fewest, "{path} defines only {} calls", calls.len());
    for (name, number) in &calls {
        let known = syscalls().iter().find(|syscall| syscall.name == name);
        assert_eq!(
            known.and_then(|syscall| syscall.number(arch)),
            Some(*number),
            "{path} defines `{name}`; hint: classify it in syscalls.txt"
        );
    }
    // The other way round: within the range that the header covers, the table has no call that the header lacks.
    let newest = calls.values().max().copied().unwrap_or_default();
    for syscall in syscalls() {
        // x86_64 got these calls in the middle of its numbers, perhaps after this header was written.
        let squeezed_in = ["uprobe", "uretprobe"].contains(&syscall.name);
        if syscall.number(arch).is_some_and(|number| number <= newest) && !squeezed_in {
            assert!(calls.contains_key(syscall.name), "{path} does not define `{}`", syscall.name);
        }
    }
}

#[test]
fn x86_64_numbers_agree_with_the_kernel_header() {
    check(Arch::X86_64, &["/usr/include/x86_64-linux-gnu/asm/unistd_64.h"], 340);
}

#[test]
fn aarch64_numbers_agree_with_the_kernel_header() {
    check(Arch::Aarch64, &["/usr/include/asm-generic/unistd.h"], 290);
}
