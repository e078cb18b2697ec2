//! A plan as people read it.

use std::fmt;

use super::{Access, Entry, Outside, Plan, Tmpfs};
use crate::facts::CgroupFacts;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inside = self.identity.inside;
        match &self.identity.outside {
            Outside::Same(user) => {
                writeln!(
                    f,
                    "user        {}:{}, on this machine {}:{}",
                    inside.uid, inside.gid, user.uid, user.gid
                )?;
            }
            Outside::OneOf { first, count } => writeln!(
                f,
                "user        {}:{}, on this machine one of {first} to {} that no other sandbox has",
                inside.uid,
                inside.gid,
                first + count - 1
            )?,
        }
        writeln!(f, "namespaces  user mount pid net ipc uts cgroup; none can be made inside")?;
        writeln!(f, "network     none but its own loopback")?;
        writeln!(f, "privileges  no capabilities, no new privileges")?;
        match &self.seccomp {
            Some(program) => writeln!(f, "syscalls    {}", program.summary())?,
            None => writeln!(f, "syscalls    not filtered")?,
        }
        writeln!(
            f,
            "landlock    read {}, write {}, devices {} paths, where the kernel has it",
            self.landlock.read.len(),
            self.landlock.write.len(),
            self.landlock.devices.len()
        )?;
        writeln!(f, "limits      {}", limits(self))?;
        let rlimits: Vec<String> =
            self.rlimits.iter().map(|r| format!("{:?} {}", r.resource, r.soft)).collect();
        writeln!(f, "rlimits     {}", rlimits.join(", ").to_lowercase())?;
        writeln!(f, "root        {} tmpfs, then read-only", tmpfs(&self.root))?;
        for entry in &self.entries {
            writeln!(f, "            {}", line(entry))?;
        }
        let names: Vec<&str> = self.environment.keys().map(String::as_str).collect();
        writeln!(f, "environment {}", names.join(" "))?;
        write!(f, "program     {} in {}", self.command.join(" "), self.working_directory.display())
    }
}

fn line(entry: &Entry) -> String {
    match entry {
        Entry::Directory { path } => format!("{}  empty", path.display()),
        Entry::Link { path, target } => format!("{}  -> {}", path.display(), target.display()),
        Entry::File { path, content } => format!("{}  made up, {} bytes", path.display(), content.len()),
        Entry::Bind(bind) => {
            let access = match bind.access {
                Access::ReadOnly => "read-only",
                Access::ReadWrite => "read-write",
                Access::Device => "device",
            };
            if bind.source == bind.target {
                format!("{}  {access}", bind.target.display())
            } else {
                format!("{}  {access} from {}", bind.target.display(), bind.source.display())
            }
        }
        Entry::Tmpfs { path, tmpfs: t } => format!("{}  {} tmpfs", path.display(), tmpfs(t)),
        Entry::Proc { path } => format!("{}  own processes only", path.display()),
    }
}

fn tmpfs(tmpfs: &Tmpfs) -> String {
    format!("{} ({} files)", size(tmpfs.size), tmpfs.inodes)
}

fn limits(plan: &Plan) -> String {
    let control = &plan.control;
    let level = control.place.level();
    let by = match &control.place {
        CgroupFacts::V2 { .. } | CgroupFacts::V1 { .. } => level.to_owned(),
        CgroupFacts::None { reason } => format!("{level} and rlimits, since {reason}"),
    };
    format!(
        "{} memory, {} cpus, {} processes; held by {by}",
        size(control.memory),
        control.cpus,
        control.pids - 1
    )
}

fn size(bytes: u64) -> String {
    for (unit, step) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= step && bytes.is_multiple_of(step) {
            return format!("{} {unit}", bytes / step);
        }
    }
    format!("{bytes} bytes")
}
