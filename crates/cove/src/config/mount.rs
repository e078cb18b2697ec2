//! What of this machine a sandbox may be shown, and where. Refuses the places whose loss would end the isolation;
//! what is left is the operator's own choice.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use super::Surroundings;
use super::value::Wrong;
use crate::error::{shown, shown_path};
use crate::policy::{Access, Mount};

/// `SOURCE:TARGET`, read-only; with `:rw` writable.
pub(super) fn parse(text: &str, before: &[Mount], around: &Surroundings) -> Result<Mount, Wrong> {
    let (rest, access) = match text.strip_suffix(":rw") {
        Some(rest) => (rest, Access::ReadWrite),
        None => (text.strip_suffix(":ro").unwrap_or(text), Access::ReadOnly),
    };
    let form = "write `SOURCE:TARGET`, or `SOURCE:TARGET:rw` for a writable one, such as `./data:/data`";
    // From the right: a source may have a colon in its name.
    let Some((source, target)) = rest.rsplit_once(':').filter(|(source, _)| !source.is_empty()) else {
        return Err(Wrong::new(format!("`{}` is not a mount", shown(text)), form));
    };
    let target = match self::target(target) {
        // Most likely a word after the target that we do not know.
        Err(_) if !target.starts_with('/') && rest.matches(':').count() > 1 => {
            return Err(Wrong::new(format!("`{}` is not a mount", shown(text)), form));
        }
        other => other?,
    };
    if before.iter().any(|mount| mount.target == target) {
        return Err(Wrong::new(
            format!("`{}` already shows another mount", shown_path(&target)),
            "give each mount its own target",
        ));
    }
    Ok(Mount { source: self::source(source, around)?, target, access })
}

/// A directory that the operator lets agents mount from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedMount {
    pub directory: PathBuf,
    pub access: Access,
}

impl fmt::Display for AllowedMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match self.access {
            Access::ReadOnly => "",
            Access::ReadWrite => ":rw",
        };
        write!(f, "{}{access}", self.directory.to_string_lossy())
    }
}

/// `DIR`, read-only; with `:rw` writable.
pub(super) fn allowed(text: &str, around: &Surroundings) -> Result<AllowedMount, Wrong> {
    let (rest, access) = match text.strip_suffix(":rw") {
        Some(rest) => (rest, Access::ReadWrite),
        None => (text, Access::ReadOnly),
    };
    let directory = source(rest, around)?;
    if !directory.is_dir() {
        let hint = "name a directory, such as `/srv/data`, or `/srv/data:rw`";
        return Err(Wrong::new(format!("`{}` is not a directory", shown(rest)), hint));
    }
    Ok(AllowedMount { directory, access })
}

/// A mount that an agent asks for, within what the operator allowed. Where the real path of the source leads decides.
pub fn requested(
    source: &str,
    target: &str,
    access: Access,
    allowed: &[AllowedMount],
    before: &[Mount],
    around: &Surroundings,
) -> Result<Mount, Wrong> {
    let refused = |problem: &str, hint: String| Wrong::new(format!("`{}` {problem}", shown(source)), hint);
    if allowed.is_empty() {
        let hint =
            "the operator allows a directory with `--allow-mount DIR`; store files with `files` instead";
        return Err(refused("is not in a directory that may be mounted: none may", hint.into()));
    }
    // Whether it exists is nobody's business outside of what is allowed, so both have the same answer.
    let found = around.cwd.join(source).canonicalize().ok();
    let covers = |path: &Path, allowed: &AllowedMount| path.starts_with(&allowed.directory);
    let inside = |path: &PathBuf| allowed.iter().any(|allowed| covers(path, allowed));
    let Some(path) = found.filter(inside) else {
        let names: Vec<String> =
            allowed.iter().map(|allowed| format!("`{}`", shown_path(&allowed.directory))).collect();
        let hint = format!("mount something below {}", names.join(" or "));
        return Err(refused("is not in a directory that may be mounted", hint));
    };
    // What a sandbox may write below, it could exchange for a link to elsewhere while it is being mounted.
    let below_writable = |allowed: &&AllowedMount| {
        allowed.access == Access::ReadWrite && covers(&path, allowed) && path != allowed.directory
    };
    if let Some(writable) = allowed.iter().find(below_writable) {
        let hint = format!("mount `{}` as a whole", shown_path(&writable.directory));
        return Err(refused("is below a writable directory, which is mounted only as a whole", hint));
    }
    if access == Access::ReadWrite
        && !allowed.iter().any(|allowed| allowed.access == access && path == allowed.directory)
    {
        return Err(refused(
            "may only be mounted read-only",
            "set `readonly` to true, or leave it out".into(),
        ));
    }
    let target = self::target(target)?;
    if before.iter().any(|mount| mount.target == target) {
        return Err(Wrong::new(
            format!("`{}` already shows another mount", shown_path(&target)),
            "give each mount its own target",
        ));
    }
    let path = self::source(&path.to_string_lossy(), around)?;
    Ok(Mount { source: path, target, access })
}

fn source(text: &str, around: &Surroundings) -> Result<PathBuf, Wrong> {
    let wrong =
        |hint: &'static str| move |problem: String| Wrong::new(format!("`{}` {problem}", shown(text)), hint);
    let path = existing(text, around).map_err(wrong("name a file or directory that exists"))?;
    if path.to_string_lossy().contains(char::is_control) {
        return Err(wrong("give it another name")("has a control character in its path".to_owned()));
    }
    refuse_private(&path, around)
        .map_err(wrong("copy what the code needs to a directory of its own and mount that"))?;
    match path.metadata() {
        Ok(found) if found.is_dir() || found.is_file() => Ok(path),
        // A socket or a device leads out of the sandbox.
        _ => {
            Err(wrong("mount a regular file or a directory")("is neither a file nor a directory".to_owned()))
        }
    }
}

/// Where a path really leads; or what is wrong with it.
pub(super) fn existing(text: &str, around: &Surroundings) -> Result<PathBuf, String> {
    around.cwd.join(text).canonicalize().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "does not exist".to_owned(),
        _ => format!("could not be followed: {error}"),
    })
}

/// A place that no sandbox is shown, nor any directory that it lies in.
struct Private {
    path: PathBuf,
    reach: Reach,
    /// Completes "`PATH` …".
    why: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Itself,
    Below,
}

/// Of the system. Everything below them is private too.
const SYSTEM: [&str; 6] = ["/proc", "/sys", "/dev", "/run", "/var/run", "/etc"];

/// Of a home directory. Everything below them is private too.
const CREDENTIALS: [&str; 11] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".config",
    ".azure",
    ".kube",
    // Docker Desktop keeps its socket here as well.
    ".docker",
    ".netrc",
    ".git-credentials",
    ".password-store",
    ".local/share/keyrings",
];

/// Refuses a path, already followed to where it really leads, that is, holds or lies in a private place.
pub(super) fn refuse_private(path: &Path, around: &Surroundings) -> Result<(), String> {
    if path == Path::new("/") {
        return Err("is the whole machine".to_owned());
    }
    for private in private_places(path, around) {
        // Under its own name and where that leads: `/var/run` is a link to `/run` on most systems, not on all.
        let real = private.path.canonicalize().unwrap_or_else(|_| private.path.clone());
        for place in [&private.path, &real] {
            let why = private.why;
            if path == place {
                return Err(why.to_owned());
            }
            if private.reach == Reach::Below && path.starts_with(place) {
                return Err(format!("is in `{}`, which {why}", shown_path(place)));
            }
            if place.starts_with(path) {
                return Err(format!("holds `{}`, which {why}", shown_path(place)));
            }
        }
    }
    Ok(())
}

fn private_places(path: &Path, around: &Surroundings) -> Vec<Private> {
    let mut places: Vec<Private> = SYSTEM
        .iter()
        .map(|path| Private {
            path: path.into(),
            reach: Reach::Below,
            why: "belongs to this machine's system",
        })
        .collect();
    let homes = "holds people's home directories";
    places.push(Private { path: "/home".into(), reach: Reach::Itself, why: homes });
    for home in home_directories(path, around) {
        places.push(Private { path: home.clone(), reach: Reach::Itself, why: "is a home directory" });
        for name in CREDENTIALS {
            let why = "may hold credentials";
            places.push(Private { path: home.join(name), reach: Reach::Below, why });
        }
    }
    if let Some(runtime) = around.directory("XDG_RUNTIME_DIR") {
        let why = "holds the sockets of this machine's services";
        places.push(Private { path: runtime.to_owned(), reach: Reach::Below, why });
    }
    // The directory of such a socket may be shared, as `/tmp` is: only what would show the socket is refused.
    for name in ["DOCKER_HOST", "CONTAINER_HOST"] {
        let socket = around.env.get(name).and_then(|value| value.to_str()?.strip_prefix("unix://"));
        if let Some(socket) = socket.map(Path::new).filter(|path| path.is_absolute()) {
            let why = "commands a container engine";
            places.push(Private { path: socket.to_owned(), reach: Reach::Itself, why });
        }
    }
    places
}

/// The person's, root's, and the one that a path lies in, whoever's it is.
fn home_directories(path: &Path, around: &Surroundings) -> Vec<PathBuf> {
    let mut homes = vec![PathBuf::from("/root")];
    if let Some(home) = around.home() {
        // A home that is a link elsewhere has its credentials there.
        homes.extend([home.to_owned(), home.canonicalize().unwrap_or_else(|_| home.to_owned())]);
    }
    if let Some(Component::Normal(name)) =
        path.strip_prefix("/home").ok().and_then(|rest| rest.components().next())
    {
        homes.push(Path::new("/home").join(name));
    }
    homes
}

fn target(text: &str) -> Result<PathBuf, Wrong> {
    let hint = "choose a place of its own, such as `/data`, `/mnt/data` or `/workspace/data`";
    let wrong = |problem: &str| Wrong::new(format!("`{}` {problem}", shown(text)), hint);
    let path = plain(text).map_err(|problem| wrong(&problem))?;
    // All reserved places are at the top, so nothing but `/` is above one.
    let top = match path.components().nth(1) {
        None => return Err(wrong("is the sandbox's root")),
        Some(top) => top.as_os_str().to_string_lossy().into_owned(),
    };
    let reserved = ["proc", "dev", "sys", "usr", "etc", "bin", "sbin", "tmp", "run", ".cove"];
    if reserved.contains(&top.as_str()) || top.starts_with("lib") {
        return Err(wrong("belongs to the sandbox's own system"));
    }
    if path == Path::new("/workspace") {
        return Err(wrong("is the sandbox's own workspace"));
    }
    Ok(path)
}

/// An absolute path that means what it says: nothing in it can lead elsewhere.
pub(super) fn plain(text: &str) -> Result<PathBuf, String> {
    let Some(rest) = text.strip_prefix('/') else {
        return Err("is not an absolute path".to_owned());
    };
    if !rest.is_empty() && rest.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("has an empty, `.` or `..` part".to_owned());
    }
    if text.contains(char::is_control) {
        return Err("has a control character in it".to_owned());
    }
    Ok(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use tempfile::TempDir;

    use super::*;

    /// A directory with a home, a project in it, and things that must not be shown.
    fn place() -> (TempDir, Surroundings) {
        let dir = TempDir::new().unwrap();
        let cwd = dir.path().canonicalize().unwrap();
        for path in
            ["people/me/project/data", "people/me/.ssh/keys", "people/me/.config/cove", "runtime/x", "a:b"]
        {
            fs::create_dir_all(cwd.join(path)).unwrap();
        }
        fs::create_dir(cwd.join("people/me/project/odd\nname")).unwrap();
        fs::write(cwd.join("people/me/project/file"), "").unwrap();
        fs::write(cwd.join("people/me/.netrc"), "").unwrap();
        symlink("people/me/.ssh", cwd.join("innocent")).unwrap();
        symlink("people/me", cwd.join("me")).unwrap();
        let env = [
            ("HOME", cwd.join("me").into_os_string()),
            ("XDG_RUNTIME_DIR", cwd.join("runtime").into_os_string()),
            ("DOCKER_HOST", format!("unix://{}/engine/docker.sock", cwd.display()).into()),
        ];
        let env: BTreeMap<_, _> = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        fs::create_dir(cwd.join("engine")).unwrap();
        (dir, Surroundings { env, cwd, stdin_is_terminal: false })
    }

    #[test]
    fn sources() {
        let (_dir, around) = place();
        let _socket = UnixListener::bind(around.cwd.join("people/me/project/socket")).unwrap();
        let allowed =
            ["people/me/project", "./people/me/project/data", "people/me/project/file", "a:b", "/usr"];
        for source in allowed {
            let mount = parse(&format!("{source}:/data"), &[], &around).unwrap();
            assert_eq!(mount.source, around.cwd.join(source).canonicalize().unwrap(), "`{source}`");
        }
        let refused = [
            ("/", "is the whole machine"),
            ("/proc", "belongs to this machine's system"),
            ("/proc/self", "is in `/proc`"),
            ("/sys/kernel", "is in `/sys`"),
            ("/dev/null", "is in `/dev`"),
            ("/etc", "belongs to this machine's system"),
            ("/etc/passwd", "is in `/etc`"),
            ("/run", "belongs to this machine's system"),
            ("/var/run", "belongs to this machine's system"),
            ("people/me", "is a home directory"),
            ("me", "is a home directory"),
            ("people", "holds `"),
            (".", "holds `"),
            ("people/me/.ssh", "may hold credentials"),
            ("people/me/.ssh/keys", "may hold credentials"),
            ("innocent", "may hold credentials"),
            ("people/me/project/../.config/cove", "may hold credentials"),
            ("people/me/.netrc", "may hold credentials"),
            ("runtime", "sockets"),
            ("runtime/x", "sockets"),
            ("engine", "commands a container engine"),
            ("people/me/project/socket", "neither a file nor a directory"),
            ("people/me/project/nothing", "does not exist"),
            ("people/me/project/file/x", "could not be followed"),
            ("people/me/project/odd\nname", "a control character"),
        ];
        for (source, expected) in refused {
            let wrong = parse(&format!("{source}:/data"), &[], &around).unwrap_err();
            assert!(wrong.cause.contains(expected), "`{source}`: {}", wrong.cause);
        }
    }

    #[test]
    fn homes_of_others() {
        let (_dir, around) = place();
        for (path, private) in [
            ("/home", true),
            ("/home/you", true),
            ("/home/you/.aws", true),
            ("/home/you/.aws/x", true),
            ("/home/you/project", false),
            ("/root", true),
            ("/root/.ssh", true),
            ("/root/project", false),
            ("/home2", false),
        ] {
            assert_eq!(refuse_private(Path::new(path), &around).is_err(), private, "`{path}`");
        }
    }

    #[test]
    fn targets() {
        let (_dir, around) = place();
        for target in ["/data", "/mnt/x", "/opt/x", "/srv", "/workspace/data", "/var/data", "/home/x"] {
            let mount = parse(&format!("a:b:{target}"), &[], &around).unwrap();
            assert_eq!((mount.target.as_path(), mount.access), (Path::new(target), Access::ReadOnly));
            let mount = parse(&format!("a:b:{target}:rw"), &[], &around).unwrap();
            assert_eq!((mount.target.as_path(), mount.access), (Path::new(target), Access::ReadWrite));
        }
        let refused = [
            ("", "not an absolute path"),
            ("data", "not an absolute path"),
            ("/", "the sandbox's root"),
            ("//", "an empty, `.` or `..` part"),
            ("/data/", "an empty, `.` or `..` part"),
            ("/data//x", "an empty, `.` or `..` part"),
            ("/data/./x", "an empty, `.` or `..` part"),
            ("/data/../etc", "an empty, `.` or `..` part"),
            ("/workspace", "the sandbox's own workspace"),
            ("/data\nx", "a control character"),
            ("/data\u{7f}", "a control character"),
        ];
        let system = [
            "/proc",
            "/proc/x",
            "/dev/shm",
            "/sys",
            "/usr",
            "/usr/local",
            "/etc/x",
            "/bin",
            "/sbin",
            "/lib",
            "/lib64",
            "/libx32/x",
            "/tmp",
            "/tmp/x",
            "/run",
            "/.cove",
            "/.cove/x",
        ];
        let system = system.map(|target| (target, "belongs to the sandbox's own system"));
        for (target, expected) in refused.into_iter().chain(system) {
            let wrong = parse(&format!("people/me/project:{target}"), &[], &around).unwrap_err();
            assert!(wrong.cause.contains(expected), "`{target}`: {}", wrong.cause);
        }
    }

    #[test]
    fn forms() {
        let (_dir, around) = place();
        for text in ["", ":", "x", ":/data", "a:/data:rx", "a:/data:ro:rw"] {
            let wrong = parse(text, &[], &around).unwrap_err();
            assert!(wrong.cause.contains("is not a mount"), "`{text}`: {}", wrong.cause);
        }
        let first = parse("a:b:/data:ro", &[], &around).unwrap();
        let wrong = parse("people/me/project:/data", &[first], &around).unwrap_err();
        assert_eq!(wrong.cause, "`/data` already shows another mount");
    }
}
