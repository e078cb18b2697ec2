//! What a container of a Compose file is shown: places of its own folder, read-only; places that the operator allowed;
//! volumes of the session. Never what leads to the machine itself.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::member::{Around, size, text, texts};
use super::{Wrong, at, keys, wrong_shape};
use crate::config::AllowedMount;
use crate::error::{shown, shown_path};
use crate::policy::Access;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Mounted {
    Bind {
        source: PathBuf,
        target: String,
        access: Access,
    },
    /// Without a name it is the container's alone.
    Volume {
        name: Option<String>,
        target: String,
        access: Access,
    },
    /// `size` in bytes.
    Memory {
        target: String,
        size: Option<u64>,
        mode: Option<String>,
    },
}

impl Mounted {
    pub(in super::super) fn target(&self) -> &str {
        match self {
            Self::Bind { target, .. } | Self::Volume { target, .. } | Self::Memory { target, .. } => target,
        }
    }
}

const MAX_MOUNTS: usize = 32;

/// Of this machine. What is one of them, in one of them, or holds one of them is never shown.
const SYSTEM: [&str; 9] =
    ["/proc", "/sys", "/dev", "/run", "/var/run", "/etc", "/boot", "/var/lib/docker", "/var/lib/containers"];

/// By these names sockets go that command an engine.
const SOCKETS: [&str; 4] = ["docker.sock", "podman.sock", "containerd.sock", "crio.sock"];

/// Looked through for sockets.
const MAX_ENTRIES: usize = 10_000;

pub(super) fn check(
    volumes: Option<&Value>,
    tmpfs: Option<&Value>,
    around: &Around<'_>,
) -> Result<Vec<Mounted>, Wrong> {
    let mut mounts = Vec::new();
    let place = around.at("volumes");
    match volumes {
        None => {}
        Some(Value::Array(items)) => {
            for item in items {
                mounts.push(match item {
                    Value::String(text) => short(text, &place, around)?,
                    Value::Object(map) => long(map, &place, around)?,
                    _ => return Err(wrong_shape(&place)),
                });
            }
        }
        Some(_) => return Err(wrong_shape(&place)),
    }
    for text in texts(tmpfs, &around.at("tmpfs"))? {
        mounts.push(memory(&text, &around.at("tmpfs"), around)?);
    }
    if mounts.len() > MAX_MOUNTS {
        return Err(Wrong::new(format!("`{place}` has {}", mounts.len()), format!("have {MAX_MOUNTS}")));
    }
    let mut targets = BTreeSet::new();
    match mounts.iter().find(|mount| !targets.insert(mount.target())) {
        Some(twice) => {
            let what = format!("`{place}` has two for `{}`", shown(twice.target()));
            Err(Wrong::new(what, "give each its own target"))
        }
        None => Ok(mounts),
    }
}

/// `SOURCE:TARGET:MODE`, where the first and the last may be missing.
fn short(text: &str, place: &str, around: &Around<'_>) -> Result<Mounted, Wrong> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, mode) = match parts[..] {
        [target] => (None, target, "rw"),
        [source, target] => (Some(source), target, "rw"),
        [source, target, mode] => (Some(source), target, mode),
        _ => {
            let what = format!("`{place}` has `{}`, which has too many colons", shown(text));
            return Err(Wrong::new(what, "write it with `source` and `target`"));
        }
    };
    let access = match mode {
        "ro" => Access::ReadOnly,
        "rw" => Access::ReadWrite,
        _ => {
            let what = format!("`{place}` has `{}`, whose mode is refused", shown(text));
            return Err(Wrong::new(what, "write `ro` or `rw`"));
        }
    };
    let target = self::target(target, place, around)?;
    match source {
        Some(path) if path.starts_with('/') => bind(path, target, access, place, around),
        name => volume(name, target, access, place, around),
    }
}

fn long(map: &Map<String, Value>, place: &str, around: &Around<'_>) -> Result<Mounted, Wrong> {
    let options = |key: &str, allowed: &[&str]| match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(options)) => {
            match options.keys().find(|option| !allowed.contains(&option.as_str())) {
                Some(other) => Err(keys::unknown(&at(place, key), other)),
                None => Ok(Some(options)),
            }
        }
        Some(_) => Err(wrong_shape(place)),
    };
    let known = ["type", "source", "target", "read_only", "bind", "volume", "tmpfs"];
    if let Some(other) = map.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(keys::unknown(place, other));
    }
    let part = |key: &str| map.get(key).map(|value| text(value, &at(place, key))).transpose();
    let target = self::target(part("target")?.unwrap_or_default(), place, around)?;
    let access = match map.get("read_only") {
        None | Some(Value::Null | Value::Bool(false)) => Access::ReadWrite,
        Some(Value::Bool(true)) => Access::ReadOnly,
        Some(_) => return Err(wrong_shape(&at(place, "read_only"))),
    };
    // How it spreads to others is never ours to give; whether a missing source is made does not matter: it must exist.
    options("bind", &["create_host_path"])?;
    options("volume", &["nocopy"])?;
    let tmpfs = options("tmpfs", &["size", "mode"])?;
    match part("type")?.unwrap_or_default() {
        "bind" => bind(part("source")?.unwrap_or_default(), target, access, place, around),
        "volume" => volume(part("source")?, target, access, place, around),
        "tmpfs" => {
            let size = tmpfs.and_then(|options| options.get("size")).filter(|value| !value.is_null());
            let size = size.map(|value| self::size(value, &at(place, "tmpfs.size"))).transpose()?;
            Ok(Mounted::Memory { target, size, mode: None })
        }
        other => {
            let what = format!("`{place}` has the type `{}`, which is refused", shown(other));
            Err(Wrong::new(what, "write `bind`, `volume` or `tmpfs`"))
        }
    }
}

/// `TARGET:OPTION,…`
fn memory(text: &str, place: &str, around: &Around<'_>) -> Result<Mounted, Wrong> {
    let (target, options) = text.split_once(':').unwrap_or((text, ""));
    let (mut size, mut mode) = (None, None);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("size", text)) => size = Some(crate::config::value::size(text, 1)?),
            Some(("mode", text)) if text.len() <= 4 && text.bytes().all(|b| (b'0'..b'8').contains(&b)) => {
                mode = Some(text.to_owned());
            }
            None if ["rw", "exec", "noexec", "nosuid", "nodev"].contains(&option) => {}
            _ => {
                let what = format!("`{place}` has the option `{}`, which is refused", shown(option));
                return Err(Wrong::new(what, "write `size=` and `mode=` alone"));
            }
        }
    }
    Ok(Mounted::Memory { target: self::target(target, place, around)?, size, mode })
}

fn volume(
    name: Option<&str>,
    target: String,
    access: Access,
    place: &str,
    around: &Around<'_>,
) -> Result<Mounted, Wrong> {
    if let Some(name) = name.filter(|name| !around.volumes.contains(*name)) {
        let what = format!("`{place}` names the volume `{}`, which is not there", shown(name));
        return Err(Wrong::new(what, "add it to `volumes`"));
    }
    Ok(Mounted::Volume { name: name.map(str::to_owned), target, access })
}

fn bind(
    source: &str,
    target: String,
    access: Access,
    place: &str,
    around: &Around<'_>,
) -> Result<Mounted, Wrong> {
    let refused = |problem: String, hint: String| {
        Wrong::new(format!("`{place}` shows `{}`, which {problem}", shown(source)), hint)
    };
    let never = |problem: &str| refused(problem.to_owned(), "remove it; nothing allows it".to_owned());
    // By its name too: what is refused must not depend on what there is.
    let named = Path::new(source);
    if !named.is_absolute() {
        return Err(refused("is not an absolute path".into(), "write `./` before a path".into()));
    }
    if let Some(why) = belongs_to_machine(named, around.rules.socket) {
        return Err(never(&why));
    }
    let real = named.canonicalize().map_err(|error| {
        refused(format!("could not be followed: {error}"), "name a file or directory that exists".into())
    })?;
    if let Some(why) = belongs_to_machine(&real, around.rules.socket) {
        return Err(never(&why));
    }
    // Podman reads a mount as a line of options.
    if real.to_str().is_none_or(|path| path.contains([',', '"']) || path.contains(char::is_control)) {
        let what = "has a comma, a quote, a control character or something that is not UTF-8 in its path";
        return Err(refused(what.into(), "give it another name".into()));
    }
    let covering = |allowed: &&AllowedMount| real.starts_with(&allowed.directory);
    let is_allowed = around.rules.mounts.iter().any(|allowed| covering(&allowed));
    if !is_allowed && !real.starts_with(around.rules.folder) {
        let path = shown_path(&real);
        let hint = format!("move it into the folder; the operator can allow it with `--allow-mount {path}`");
        return Err(refused(format!("leads to `{path}`, out of the image's folder"), hint));
    }
    if let Some(below) = mounted_below(&real) {
        let what = format!("has `{}` mounted below it, which would stay writable", shown_path(&below));
        return Err(refused(what, "mount a directory without another in it".into()));
    }
    match leads_out(&real) {
        Found::Nothing => {}
        Found::Way(why) => return Err(never(&why)),
        // What the operator allowed by name may be large.
        Found::TooMuch if is_allowed => {}
        Found::TooMuch => {
            return Err(refused("holds too much to look through".into(), "mount a part of it".into()));
        }
    }
    // What a sandbox may write below, it could exchange for a link to elsewhere while it is being mounted.
    let writable = around.rules.mounts.iter().filter(covering).find(|one| one.access == Access::ReadWrite);
    match writable {
        None => Ok(Mounted::Bind { source: real, target, access: Access::ReadOnly }),
        Some(writable) if real == writable.directory => Ok(Mounted::Bind { source: real, target, access }),
        Some(writable) => {
            let hint = format!("mount `{}` as a whole", shown_path(&writable.directory));
            Err(refused("is below a writable directory, which is mounted only as a whole".into(), hint))
        }
    }
}

/// What is wrong with mounts of a file that Compose has not seen, whatever is allowed: those without a variable that show
/// what is never shown.
pub(super) fn written(volumes: Option<&Value>, place: &str, folder: &Path) -> Result<(), Wrong> {
    for item in volumes.and_then(Value::as_array).into_iter().flatten() {
        let source = match item {
            Value::String(text) if !text.contains('$') => text.split_once(':').map(|(source, _)| source),
            Value::Object(map) if map.get("type").is_some_and(|kind| kind == "bind") => {
                map.get("source").and_then(Value::as_str).filter(|source| !source.contains('$'))
            }
            _ => None,
        };
        let Some(source) = source else { continue };
        // Anything else is the name of a volume, or in somebody's home.
        let Some(path) = source.starts_with(['/', '.']).then(|| joined(folder, source)) else { continue };
        let real = path.canonicalize().ok();
        let why = [Some(path), real].into_iter().flatten().find_map(|path| belongs_to_machine(&path, None));
        if let Some(why) = why {
            let what = format!("`{place}` shows `{}`, which {why}", shown(source));
            return Err(Wrong::new(what, "remove it; nothing allows it"));
        }
    }
    Ok(())
}

/// As Compose does it: by the names alone.
fn joined(folder: &Path, source: &str) -> PathBuf {
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

/// `socket` is the one in use, if it is on this machine.
fn belongs_to_machine(path: &Path, socket: Option<&Path>) -> Option<String> {
    if path == Path::new("/") {
        return Some("is the whole machine".into());
    }
    if path.file_name().is_some_and(|name| SOCKETS.iter().any(|socket| name == *socket)) {
        return Some("is by its name the socket of a container engine".into());
    }
    if socket == Some(path) {
        return Some("is the socket that makes containers".into());
    }
    for place in SYSTEM.map(Path::new) {
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

enum Found {
    Nothing,
    /// Why it is refused.
    Way(String),
    TooMuch,
}

/// A file system mounted below a directory: a read-only mount of the directory does not make it read-only.
pub(in super::super) fn mounted_below(path: &Path) -> Option<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    points(&table).find(|point| point != path && point.starts_with(path))
}

/// Where something is mounted, by the table of the kernel, which writes some characters as numbers.
fn points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
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

/// Looks for sockets and devices, also those in a directory.
fn leads_out(path: &Path) -> Found {
    let mut left = MAX_ENTRIES;
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(found) = path.symlink_metadata() else { continue };
        let kind = found.file_type();
        if kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
            return Found::Way(format!("is, or holds, `{}`: a socket or a device", shown_path(&path)));
        }
        if path.file_name().is_some_and(|name| SOCKETS.iter().any(|socket| name == *socket)) {
            return Found::Way(format!("holds `{}`", shown_path(&path)));
        }
        if kind.is_dir() {
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                left = match left.checked_sub(1) {
                    Some(left) => left,
                    None => return Found::TooMuch,
                };
                waiting.push(entry.path());
            }
        }
    }
    Found::Nothing
}

/// A place inside that is not ours and not the kernel's.
fn target(text: &str, place: &str, around: &Around<'_>) -> Result<String, Wrong> {
    let path = Path::new(text);
    let is_plain = text.starts_with('/')
        && text.len() <= 1024
        && !text.contains([':', ','])
        && !text.contains(char::is_control)
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let text = if text.len() > 1 { text.trim_end_matches('/') } else { text };
    let reserved = ["/proc", "/sys", "/dev", "/.cove"].iter().any(|place| path.starts_with(place));
    let own = around.is_main && (text == "/workspace" || text == "/tmp");
    if !is_plain || reserved || own || text == "/" || text.is_empty() {
        let what = format!("`{place}` has the target `{}`, which is refused", shown(text));
        return Err(Wrong::new(what, "choose an absolute path that is not the system's nor Cove's"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_below_is_found() {
        let table = b"22 1 0:21 / / rw - ext4 /dev/vda rw\n\
            23 22 0:4 / /srv/with\\040space/sub rw,relatime shared:3 - tmpfs tmpfs rw\n\
            24 22 0:4 / /bad\\9 rw - tmpfs tmpfs rw\nshort\n";
        let found: Vec<PathBuf> = points(table).collect();
        assert_eq!(found, [Path::new("/"), Path::new("/srv/with space/sub")]);
        assert_eq!(mounted_below(Path::new("/proc/self")), None);
        assert!(mounted_below(Path::new("/")).is_some(), "`/proc` is, at least");
    }
}
