//! Checks what a container of a Compose file may mount: paths of its own folder, read-only; paths that the operator
//! allowed; volumes of the session. Never a path that gives control over the host.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::super::super::plan::could_be_options;
use super::service::{ServiceContext, as_flag, as_size, as_text, as_texts};
use super::{key_path, keys, shape_error};
use cove_core::error::{Refusal, display_path, display_value};
use cove_core::policy::{AllowedMount, MountAccess, SandboxMount};
use cove_jail::guest::{COVE_FOLDER, TMP, WORKSPACE};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum ServiceMount {
    Bind(SandboxMount),
    /// A volume. Without a name it belongs to this container alone.
    Volume {
        name: Option<String>,
        target: PathBuf,
        access: MountAccess,
    },
    /// A tmpfs, with its `size` in bytes.
    Tmpfs {
        target: PathBuf,
        size: Option<u64>,
        mode: Option<String>,
    },
}

impl ServiceMount {
    pub(in super::super) fn target(&self) -> &Path {
        match self {
            Self::Bind(SandboxMount { target, .. }) | Self::Volume { target, .. } | Self::Tmpfs { target, .. } => {
                target
            }
        }
    }
}

const MAX_MOUNTS: usize = 32;

/// Host paths that are never mounted, nor anything below or above them.
const SYSTEM_PATHS: [&str; 9] =
    ["/proc", "/sys", "/dev", "/run", "/var/run", "/etc", "/boot", "/var/lib/docker", "/var/lib/containers"];

/// The usual names of container engines' sockets.
const ENGINE_SOCKETS: [&str; 4] = ["docker.sock", "podman.sock", "containerd.sock", "crio.sock"];

/// The most entries that are searched for sockets.
const MAX_ENTRIES: usize = 10_000;

/// Checks the `volumes` and `tmpfs` of a service and returns its mounts. Fails if one is refused or a target occurs
/// twice.
pub(super) fn check_mounts(
    volumes: Option<&Value>,
    tmpfs: Option<&Value>,
    service: &ServiceContext<'_>,
) -> Result<Vec<ServiceMount>, Refusal> {
    let check = MountCheck { place: service.key_path("volumes"), service };
    let mut mounts = match volumes {
        None => Vec::new(),
        Some(Value::Array(items)) => items.iter().map(|item| check.parse_entry(item)).collect::<Result<_, _>>()?,
        Some(_) => return Err(shape_error(&check.place)),
    };
    let in_memory = MountCheck { place: service.key_path("tmpfs"), service };
    for text in as_texts(tmpfs, &in_memory.place)? {
        mounts.push(in_memory.parse_tmpfs(&text)?);
    }
    if mounts.len() > MAX_MOUNTS {
        return Err(check.refusal(&format!("has {}", mounts.len()), format!("have {MAX_MOUNTS}")));
    }
    let mut targets = BTreeSet::new();
    match mounts.iter().find(|mount| !targets.insert(mount.target())) {
        Some(twice) => {
            Err(check.refusal(&format!("has two for `{}`", display_path(twice.target())), "give each its own target"))
        }
        None => Ok(mounts),
    }
}

/// Checks the mounts below one key of a service.
struct MountCheck<'a> {
    /// The path of the key, for messages.
    place: String,
    service: &'a ServiceContext<'a>,
}

impl MountCheck<'_> {
    fn refusal(&self, problem: &str, hint: impl Into<String>) -> Refusal {
        Refusal::new(format!("`{}` {problem}", self.place), hint)
    }

    fn parse_entry(&self, item: &Value) -> Result<ServiceMount, Refusal> {
        match item {
            Value::String(text) => self.parse_short(text),
            Value::Object(map) => self.parse_long(map),
            _ => Err(shape_error(&self.place)),
        }
    }

    /// Parses `SOURCE:TARGET:MODE`, where the source and the mode are optional.
    fn parse_short(&self, text: &str) -> Result<ServiceMount, Refusal> {
        let refused = |why: &str, hint| self.refusal(&format!("has `{}`, {why}", display_value(text)), hint);
        let parts: Vec<&str> = text.split(':').collect();
        let (source, target, mode) = match parts[..] {
            [target] => (None, target, "rw"),
            [source, target] => (Some(source), target, "rw"),
            [source, target, mode] => (Some(source), target, mode),
            _ => return Err(refused("which has too many colons", "write it with `source` and `target`")),
        };
        let access = match mode {
            "ro" => MountAccess::ReadOnly,
            "rw" => MountAccess::ReadWrite,
            _ => return Err(refused("whose mode is refused", "write `ro` or `rw`")),
        };
        let target = self.check_target(target)?;
        match source {
            Some(path) if path.starts_with('/') => self.check_bind(path, target, access),
            name => self.check_volume(name, target, access),
        }
    }

    fn parse_long(&self, map: &Map<String, Value>) -> Result<ServiceMount, Refusal> {
        let only = |map: &Map<String, Value>, allowed: &[&str], place: &str| {
            let other = map.keys().find(|key| !allowed.contains(&key.as_str()));
            other.map_or(Ok(()), |other| Err(keys::unknown_key_error(place, other)))
        };
        only(map, &["type", "source", "target", "read_only", "bind", "volume", "tmpfs"], &self.place)?;
        let key_path = |key: &str| key_path(&self.place, key);
        // Propagation is never allowed. `create_host_path` has no effect, because the source must exist.
        for (key, allowed) in
            [("bind", &["create_host_path"][..]), ("volume", &["nocopy"]), ("tmpfs", &["size", "mode"])]
        {
            match map.get(key) {
                None | Some(Value::Null) => {}
                Some(Value::Object(options)) => only(options, allowed, &key_path(key))?,
                Some(_) => return Err(shape_error(&self.place)),
            }
        }
        let part = |key: &str| map.get(key).map(|value| as_text(value, &key_path(key))).transpose();
        let target = self.check_target(part("target")?.unwrap_or_default())?;
        let access = match as_flag(map.get("read_only").filter(|flag| !flag.is_null()), &key_path("read_only"))? {
            true => MountAccess::ReadOnly,
            false => MountAccess::ReadWrite,
        };
        match part("type")?.unwrap_or_default() {
            "bind" => self.check_bind(part("source")?.unwrap_or_default(), target, access),
            "volume" => self.check_volume(part("source")?, target, access),
            "tmpfs" => {
                let size = map.get("tmpfs").and_then(|options| options.get("size")).filter(|size| !size.is_null());
                let size = size.map(|value| as_size(value, &key_path("tmpfs.size"))).transpose()?;
                Ok(ServiceMount::Tmpfs { target, size, mode: None })
            }
            other => {
                let problem = format!("has the type `{}`, which is refused", display_value(other));
                Err(self.refusal(&problem, "write `bind`, `volume` or `tmpfs`"))
            }
        }
    }

    /// Parses `TARGET:OPTION,…`.
    fn parse_tmpfs(&self, text: &str) -> Result<ServiceMount, Refusal> {
        let (target, options) = text.split_once(':').unwrap_or((text, ""));
        let (mut size, mut mode) = (None, None);
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("size", text)) => size = Some(cove_core::units::size(text, 1)?),
                Some(("mode", text)) if text.len() <= 4 && text.bytes().all(|b| (b'0'..b'8').contains(&b)) => {
                    mode = Some(text.to_owned());
                }
                None if ["rw", "exec", "noexec", "nosuid", "nodev"].contains(&option) => {}
                _ => {
                    let problem = format!("has the option `{}`, which is refused", display_value(option));
                    return Err(self.refusal(&problem, "write `size=` and `mode=` alone"));
                }
            }
        }
        Ok(ServiceMount::Tmpfs { target: self.check_target(target)?, size, mode })
    }

    fn check_volume(&self, name: Option<&str>, target: PathBuf, access: MountAccess) -> Result<ServiceMount, Refusal> {
        if let Some(name) = name.filter(|name| !self.service.volumes.contains(*name)) {
            let problem = format!("names the volume `{}`, which is not there", display_value(name));
            return Err(self.refusal(&problem, "add it to `volumes`"));
        }
        Ok(ServiceMount::Volume { name: name.map(str::to_owned), target, access })
    }

    /// Checks a bind mount. Fails if its source gives control over the host, leads out of the permitted folders, or
    /// contains a socket, a device or another mount.
    fn check_bind(&self, source: &str, target: PathBuf, access: MountAccess) -> Result<ServiceMount, Refusal> {
        let rules = self.service.rules;
        let refused = |problem: &str, hint: &str| {
            self.refusal(&format!("shows `{}`, which {problem}", display_value(source)), hint)
        };
        let never = |problem: String| refused(&problem, "remove it; nothing allows it");
        // Check the path as written too: the answer must not depend on which files exist.
        let named = Path::new(source);
        if !named.is_absolute() {
            return Err(refused("is not an absolute path", "write `./` before a path"));
        }
        machine_path_reason(named, rules.socket).map_or(Ok(()), |why| Err(never(why)))?;
        let real = named.canonicalize().map_err(|error| {
            refused(&format!("could not be followed: {error}"), "name a file or directory that exists")
        })?;
        machine_path_reason(&real, rules.socket).map_or(Ok(()), |why| Err(never(why)))?;
        // Podman parses a mount as a line of options.
        if could_be_options(&real) {
            let problem = "has a comma, a quote, a control character or something that is not UTF-8 in its path";
            return Err(refused(problem, "give it another name"));
        }
        let covering = |allowed: &&AllowedMount| real.starts_with(&allowed.directory);
        let allowed = &rules.request.permissions.mounts;
        let is_allowed = allowed.iter().any(|allowed| covering(&allowed));
        if !is_allowed && !real.starts_with(rules.folder) {
            let path = display_path(&real);
            let hint = format!("move it into the folder; the operator can allow it with `--allow-mount {path}`");
            return Err(refused(&format!("leads to `{path}`, out of the image's folder"), &hint));
        }
        if let Some(below) = mounted_below(&real) {
            let problem = format!("has `{}` mounted below it, which would stay writable", display_path(&below));
            return Err(refused(&problem, "mount a directory without another in it"));
        }
        // A directory that the operator allowed by name may be large.
        if !is_free_of_escapes(&real).map_err(never)? && !is_allowed {
            return Err(refused("holds too much to look through", "mount a part of it"));
        }
        // A sandbox could replace an entry of a writable directory with a link elsewhere during the mount.
        let access = match allowed.iter().filter(covering).find(|one| one.access == MountAccess::ReadWrite) {
            None => MountAccess::ReadOnly,
            Some(writable) if real == writable.directory => access,
            Some(writable) => {
                let hint = format!("mount `{}` as a whole", display_path(&writable.directory));
                return Err(refused("is below a writable directory, which is mounted only as a whole", &hint));
            }
        };
        Ok(ServiceMount::Bind(SandboxMount { source: real, target, access }))
    }

    /// Returns the normalised target. Fails if it is not a plain absolute path or belongs to the kernel or to Cove.
    fn check_target(&self, text: &str) -> Result<PathBuf, Refusal> {
        let path = Path::new(text);
        let is_plain = text.starts_with('/')
            && text.len() <= 1024
            && !text.contains([':', ','])
            && !text.contains(char::is_control)
            && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let text = if text.len() > 1 { text.trim_end_matches('/') } else { text };
        let reserved = ["/proc", "/sys", "/dev", COVE_FOLDER].iter().any(|place| path.starts_with(place));
        let own = self.service.is_main && (text == WORKSPACE || text == TMP);
        if !is_plain || reserved || own || text == "/" || text.is_empty() {
            let problem = format!("has the target `{}`, which is refused", display_value(text));
            return Err(self.refusal(&problem, "choose an absolute path that is not the system's nor Cove's"));
        }
        Ok(text.into())
    }
}

/// Checks the mounts of an unresolved file. Fails if a mount without variables shows a host path that nothing allows.
pub(super) fn check_unresolved_mounts(volumes: Option<&Value>, place: &str, folder: &Path) -> Result<(), Refusal> {
    for item in volumes.and_then(Value::as_array).into_iter().flatten() {
        let source = match item {
            Value::String(text) if !text.contains('$') => text.split_once(':').map(|(source, _)| source),
            Value::Object(map) if map.get("type").is_some_and(|kind| kind == "bind") => {
                map.get("source").and_then(Value::as_str).filter(|source| !source.contains('$'))
            }
            _ => None,
        };
        // Any other source is the name of a volume or a path below a home directory.
        let Some(source) = source.filter(|source| source.starts_with(['/', '.'])) else { continue };
        let path = join_lexically(folder, source);
        let real = path.canonicalize().ok();
        let why = [Some(path), real].into_iter().flatten().find_map(|path| machine_path_reason(&path, None));
        if let Some(why) = why {
            let what = format!("`{place}` shows `{}`, which {why}", display_value(source));
            return Err(Refusal::new(what, "remove it; nothing allows it"));
        }
    }
    Ok(())
}

/// Joins two paths without following links, as Compose does.
fn join_lexically(folder: &Path, source: &str) -> PathBuf {
    let mut path = PathBuf::from("/");
    for part in folder.join(source).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => drop(path.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    path
}

/// Returns why a host path must not be mounted, or `None`. `socket` is the engine's socket, if it is on this machine.
fn machine_path_reason(path: &Path, socket: Option<&Path>) -> Option<String> {
    if path == Path::new("/") {
        return Some("is the whole machine".into());
    }
    if has_socket_name(path) {
        return Some("is by its name the socket of a container engine".into());
    }
    if socket == Some(path) {
        return Some("is the socket that makes containers".into());
    }
    for place in SYSTEM_PATHS.map(Path::new) {
        if path.starts_with(place) || place.starts_with(path) {
            return Some(format!("is, or holds, `{}`: it belongs to this machine's system", place.display()));
        }
    }
    let socket = socket?;
    let real = socket.canonicalize().unwrap_or_else(|_| socket.to_owned());
    [socket, &real]
        .iter()
        .any(|socket| socket.starts_with(path))
        .then(|| "is, or holds, the socket that makes containers".into())
}

/// Returns a file system that is mounted below a directory. A read-only mount of the directory does not cover it.
pub(in super::super) fn mounted_below(path: &Path) -> Option<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    mount_points(&table).find(|point| point != path && point.starts_with(path))
}

/// Returns the mount points in the kernel's mount table, with its octal escapes decoded.
fn mount_points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        let mut pieces = field.split(|byte| *byte == b'\\');
        let mut name = pieces.next()?.to_vec();
        for piece in pieces {
            let (number, rest) = piece.split_at_checked(3)?;
            name.push(u8::from_str_radix(std::str::from_utf8(number).ok()?, 8).ok()?);
            name.extend_from_slice(rest);
        }
        Some(PathBuf::from(OsString::from_vec(name)))
    })
}

/// Searches a path, and everything below it, for sockets and devices. Returns false if there is too much to search.
/// Fails with the reason if it finds one.
fn is_free_of_escapes(path: &Path) -> Result<bool, String> {
    let mut left = MAX_ENTRIES;
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(found) = path.symlink_metadata() else { continue };
        let kind = found.file_type();
        if kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
            return Err(format!("is, or holds, `{}`: a socket or a device", display_path(&path)));
        }
        if has_socket_name(&path) {
            return Err(format!("holds `{}`", display_path(&path)));
        }
        if kind.is_dir() {
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                let Some(rest) = left.checked_sub(1) else { return Ok(false) };
                left = rest;
                waiting.push(entry.path());
            }
        }
    }
    Ok(true)
}

/// Returns true for the usual name of an engine's socket.
fn has_socket_name(path: &Path) -> bool {
    path.file_name().is_some_and(|name| ENGINE_SOCKETS.iter().any(|socket| name == *socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_mounts_below_a_directory() {
        let table = b"22 1 0:21 / / rw - ext4 /dev/vda rw\n\
            23 22 0:4 / /srv/with\\040space/sub rw,relatime shared:3 - tmpfs tmpfs rw\n\
            24 22 0:4 / /bad\\9 rw - tmpfs tmpfs rw\nshort\n";
        let found: Vec<PathBuf> = mount_points(table).collect();
        assert_eq!(found, [Path::new("/"), Path::new("/srv/with space/sub")]);
        assert_eq!(mounted_below(Path::new("/proc/self")), None);
        assert!(mounted_below(Path::new("/")).is_some(), "`/proc` is, at least");
    }
}
