//! The attack suite: hostile programs as data, in `cases/`. Each names the claim of `docs/security.md` that it tests,
//! and runs as root and as an ordinary user, with the system call filter and without, in sessions that were kept ready,
//! and in containers, also ready ones, of Docker, Podman, Compose and an ordinary user's Podman, among canaries on the host.

mod canary;
mod case;
mod gaps;
mod quotas;
mod run;
mod state;

use std::collections::BTreeSet;

use cove_testkit::containers::TestEngine;

use crate::case::CaseEnvironment;

/// Tests of all cases in one kind of containers, in a module of their own.
macro_rules! in_containers {
    ($module:ident, $way:expr, $($test:ident => $name:literal,)*) => {
        mod $module {
            const WAY: crate::case::CaseEnvironment = $way;

            $(
                #[test]
                fn $test() {
                    let test = concat!(stringify!($module), "::", stringify!($test));
                    crate::run::check_in_container(test, $name, WAY);
                }
            )*
        }
    };
}

/// A test for each case, so that a failure has a name.
macro_rules! cases {
    ($($test:ident => $name:literal,)*) => {
        const CASES: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                run::check($name);
            }
        )*

        in_containers!(docker, super::CaseEnvironment::Container(super::TestEngine::Docker), $($test => $name,)*);
        in_containers!(podman, super::CaseEnvironment::Container(super::TestEngine::Podman), $($test => $name,)*);
    };
}

cases! {
    a01_host_secrets => "A01-host-secrets",
    a02_proc_root => "A02-proc-root",
    a03_host_processes => "A03-host-processes",
    a04_signal_host => "A04-signal-host",
    a05_mount => "A05-mount",
    a06_user_namespace => "A06-user-namespace",
    a07_namespaces => "A07-namespaces",
    a08_chroot => "A08-chroot",
    a09_pivot_root => "A09-pivot-root",
    a10_setuid => "A10-setuid",
    a11_capabilities => "A11-capabilities",
    a12_ptrace => "A12-ptrace",
    a13_io_uring => "A13-io-uring",
    a14_bpf_perf_userfaultfd => "A14-bpf-perf-userfaultfd",
    a15_keyring => "A15-keyring",
    a16_machine => "A16-machine",
    a17_socket_families => "A17-socket-families",
    a18_netlink => "A18-netlink",
    a19_cached_pages => "A19-cached-pages",
    a19_page_cache => "A19-page-cache",
    a20_other_abi => "A20-other-abi",
    a21_terminal => "A21-terminal",
    a22_devices => "A22-devices",
    a23_write_system => "A23-write-system",
    a24_sysctl => "A24-sysctl",
    a25_kernel_info => "A25-kernel-info",
    a26_cgroup => "A26-cgroup",
    a27_descriptors => "A27-descriptors",
    a28_environment => "A28-environment",
    a29_working_directory => "A29-working-directory",
    a30_own_program => "A30-own-program",
    a31_file_handles => "A31-file-handles",
    a32_engine_sockets => "A32-engine-sockets",
    a33_abstract_sockets => "A33-abstract-sockets",
    a34_internet => "A34-internet",
    a35_host_loopback => "A35-host-loopback",
    a36_metadata => "A36-metadata",
    a46_fork_bomb => "A46-fork-bomb",
    a46_processors => "A46-processors",
    a47_closed_sockets => "A47-closed-sockets",
    a47_ended_leader => "A47-ended-leader",
    a47_epoll_watches => "A47-epoll-watches",
    a47_forgotten_pages => "A47-forgotten-pages",
    a47_hidden_sockets => "A47-hidden-sockets",
    a47_memory => "A47-memory",
    a47_nameless_memory => "A47-nameless-memory",
    a47_odd_name => "A47-odd-name",
    a47_pipes => "A47-pipes",
    a47_shared_mapping => "A47-shared-mapping",
    a47_socket_buffers => "A47-socket-buffers",
    a47_tcp_buffers => "A47-tcp-buffers",
    a47_unmapped_pages => "A47-unmapped-pages",
    a48_disk_fill => "A48-disk-fill",
    a49_output_flood => "A49-output-flood",
    a50_cpu_spin => "A50-cpu-spin",
    a50_left_its_group => "A50-left-its-group",
    a51_daemonise => "A51-daemonise",
    a51_orphans => "A51-orphans",
    a52_exit_with_child => "A52-exit-with-child",
    a52_held_output => "A52-held-output",
    a53_archive_bombs => "A53-archive-bombs",
    a54_archive_paths => "A54-archive-paths",
    a64_control_sequences => "A64-control-sequences",
    k01_page_tables => "K01-page-tables",
    k02_landlock_rules => "K02-landlock-rules",
    k02_semaphores => "K02-semaphores",
    k07_leases => "K07-leases",
    k08_copies_on_write => "K08-copies-on-write",
    k08_many_mappings => "K08-many-mappings",
    k10_socket_filters => "K10-socket-filters",
    k22_set_id_bits => "K22-set-id-bits",
    k04_inotify => "K04-inotify",
    k05_user_counts => "K05-user-counts",
    k11_core_limit => "K11-core-limit",
    k24_file_locks => "K24-file-locks",
    k24_locks_of_threads => "K24-locks-of-threads",
}

#[test]
fn every_case_holds_in_compose() {
    let way = CaseEnvironment::ComposedContainer(TestEngine::Docker);
    run::check_all_in_containers("every_case_holds_in_compose", CASES, way);
}

#[test]
fn every_case_holds_in_an_ordinary_users_podman() {
    let way = CaseEnvironment::RootlessContainer;
    run::check_all_in_containers("every_case_holds_in_an_ordinary_users_podman", CASES, way);
}

#[test]
fn every_case_holds_in_ready_containers_of_docker() {
    let way = CaseEnvironment::ReadyContainer(TestEngine::Docker);
    run::check_all_in_containers("every_case_holds_in_ready_containers_of_docker", CASES, way);
}

#[test]
fn every_case_holds_in_ready_containers_of_podman() {
    let way = CaseEnvironment::ReadyContainer(TestEngine::Podman);
    run::check_all_in_containers("every_case_holds_in_ready_containers_of_podman", CASES, way);
}

#[test]
fn every_case_file_is_listed() {
    let listed: BTreeSet<String> = CASES.iter().map(|name| format!("{name}.toml")).collect();
    let found: BTreeSet<String> = std::fs::read_dir(case::folder())
        .expect("there is a folder of cases")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, listed);
}

/// Not a test: the part of one that must run in a process of its own.
#[test]
#[ignore = "started by the cases themselves"]
fn session_child() {
    run::session_child();
}
