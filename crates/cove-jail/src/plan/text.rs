//! A plan as text for people, which `cove explain` prints.

use std::fmt;

use super::{BindAccess, HostIds, JailPlan, LandlockRules, NameLookup, PlanEntry, SandboxUser, TmpfsOptions};
use crate::facts::CgroupFacts;
use crate::guest::MAX_LOCKS;

impl fmt::Display for JailPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SandboxUser { uid, gid } = self.identity.inside;
        let outside = match &self.identity.outside {
            HostIds::Same { user, reason } => {
                format!("{}:{} like your own programs, since {reason}", user.uid, user.gid)
            }
            HostIds::Subordinate { ids, .. } => {
                let last = ids.first_user + ids.count - 1;
                format!("one of {} to {last} that no other sandbox has", ids.first_user)
            }
            HostIds::OneOf { first, count } => {
                format!("one of {first} to {} that no other sandbox has", first + count - 1)
            }
        };
        writeln!(f, "user        {uid}:{gid}, on this machine {outside}")?;
        writeln!(f, "namespaces  user mount pid net ipc uts cgroup; none can be made inside")?;
        let names = match self.names {
            NameLookup::FilesOnly => "",
            NameLookup::Runner => ", where the runner answers names and every port is free to use",
        };
        writeln!(f, "network     none but its own loopback{names}")?;
        writeln!(f, "privileges  no capabilities, no new privileges")?;
        match &self.seccomp {
            Some(program) => writeln!(f, "syscalls    {}", program.summary())?,
            None => writeln!(f, "syscalls    not filtered")?,
        }
        let LandlockRules { read, write, devices } = &self.landlock;
        let [read, write, devices] = [read, write, devices].map(Vec::len);
        writeln!(f, "landlock    read {read}, write {write}, devices {devices} paths, where the kernel has it")?;
        writeln!(f, "limits      {}", limits_line(self))?;
        let rlimits: Vec<String> = self.rlimits.iter().map(|r| format!("{:?} {}", r.resource, r.soft)).collect();
        writeln!(f, "rlimits     {}", rlimits.join(", ").to_lowercase())?;
        writeln!(f, "root        {} tmpfs, then read-only", tmpfs_text(&self.root))?;
        for entry in &self.entries {
            writeln!(f, "            {}", entry_line(entry))?;
        }
        let names: Vec<&str> = self.environment.keys().map(String::as_str).collect();
        writeln!(f, "environment {}", names.join(" "))?;
        write!(f, "program     {} in {}", self.command.join(" "), self.working_directory.display())
    }
}

fn entry_line(entry: &PlanEntry) -> String {
    match entry {
        PlanEntry::Directory { path } => format!("{}  empty", path.display()),
        PlanEntry::Link { path, target } => format!("{}  -> {}", path.display(), target.display()),
        PlanEntry::File { path, content } => format!("{}  generated, {} bytes", path.display(), content.len()),
        PlanEntry::Bind(bind) => {
            let access = match bind.access {
                BindAccess::ReadOnly => "read-only",
                BindAccess::ReadWrite => "read-write",
                BindAccess::Device => "device",
            };
            if bind.source == bind.target {
                format!("{}  {access}", bind.target.display())
            } else {
                format!("{}  {access} from {}", bind.target.display(), bind.source.display())
            }
        }
        PlanEntry::Tmpfs { path, tmpfs } => format!("{}  {} tmpfs", path.display(), tmpfs_text(tmpfs)),
        PlanEntry::Proc { path } => format!("{}  own processes only", path.display()),
    }
}

fn tmpfs_text(tmpfs: &TmpfsOptions) -> String {
    format!("{} ({} files)", size(tmpfs.size), tmpfs.inodes)
}

fn limits_line(plan: &JailPlan) -> String {
    let control = &plan.control;
    let level = control.place.level();
    // Without the runner, which the operator's number does not count.
    let processes = control.pids - 1;
    let memory = size(control.memory);
    let cpus = control.cpus;
    let by = match &control.place {
        CgroupFacts::V2 { .. } | CgroupFacts::V1 { .. } => level.to_owned(),
        CgroupFacts::None { reason } => format!("{level} and rlimits, since {reason}"),
    };
    let cpu_unit = if cpus == 1.0 { "cpu" } else { "cpus" };
    let process_unit = if processes == 1 { "process" } else { "processes" };
    let locks = format!("{MAX_LOCKS} file locks");
    format!("{memory} memory, {cpus} {cpu_unit}, {processes} {process_unit}, {locks}; held by {by}")
}

fn size(bytes: u64) -> String {
    for (unit, step) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= step && bytes.is_multiple_of(step) {
            return format!("{} {unit}", bytes / step);
        }
    }
    format!("{bytes} bytes")
}
