//! Which files and directories of this machine may be mounted in a sandbox, and where. Refuses the paths that would end
//! the isolation; the operator decides about the rest.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::error::{Refusal, display_path};
use crate::policy::{MountAccess, SandboxMount};
use crate::process_env::ProcessEnv;

/// Parses `SOURCE:TARGET`, which is read-only, or `SOURCE:TARGET:rw`. `before` are the mounts that come earlier.
pub fn parse(text: &str, before: &[SandboxMount], env: &ProcessEnv) -> Result<SandboxMount, Refusal> {
    let (rest, access) = match text.strip_suffix(":rw") {
        Some(rest) => (rest, MountAccess::ReadWrite),
        None => (text.strip_suffix(":ro").unwrap_or(text), MountAccess::ReadOnly),
    };
    let form = "write `SOURCE:TARGET`, or `SOURCE:TARGET:rw` for a writable one, such as `./data:/data`";
    // Split from the right, because the name of a source may have a colon.
    let Some((source, target)) = rest.rsplit_once(':').filter(|(source, _)| !source.is_empty()) else {
        return Err(Refusal::of_value(text, "is not a mount", form));
    };
    // Most likely an unknown word after the target.
    if !target.starts_with('/') && rest.matches(':').count() > 1 {
        return Err(Refusal::of_value(text, "is not a mount", form));
    }
    let target = free_target(target, before)?;
    Ok(SandboxMount { source: self::source(source, env)?, target, access })
}

/// A directory from which the operator lets agents and Compose files mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedMount {
    pub directory: PathBuf,
    pub access: MountAccess,
}

impl fmt::Display for AllowedMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match self.access {
            MountAccess::ReadOnly => "",
            MountAccess::ReadWrite => ":rw",
        };
        write!(f, "{}{access}", self.directory.to_string_lossy())
    }
}

/// Parses `DIR`, which is read-only, or `DIR:rw`.
pub fn allowed(text: &str, env: &ProcessEnv) -> Result<AllowedMount, Refusal> {
    let (rest, access) = match text.strip_suffix(":rw") {
        Some(rest) => (rest, MountAccess::ReadWrite),
        None => (text, MountAccess::ReadOnly),
    };
    let directory = source(rest, env)?;
    if !directory.is_dir() {
        let hint = "name a directory, such as `/srv/data`, or `/srv/data:rw`";
        return Err(Refusal::of_value(rest, "is not a directory", hint));
    }
    Ok(AllowedMount { directory, access })
}

/// Checks a mount that an agent asks for against the directories that the operator allows. Links in the source are
/// followed first, so that its real path is what is checked.
pub fn requested(
    source: &str,
    target: &str,
    access: MountAccess,
    allowed: &[AllowedMount],
    before: &[SandboxMount],
    env: &ProcessEnv,
) -> Result<SandboxMount, Refusal> {
    let refusal = |problem: &str, hint: String| Refusal::of_value(source, problem, hint);
    if allowed.is_empty() {
        let hint = "the operator allows a directory with `--allow-mount DIR`; store files with `files` instead";
        return Err(refusal("is not in a directory that may be mounted: none may", hint.into()));
    }
    // A path outside the allowed directories gets the same answer whether or not it exists.
    let found = env.cwd.join(source).canonicalize().ok();
    let covers = |path: &Path, allowed: &AllowedMount| path.starts_with(&allowed.directory);
    let inside = |path: &PathBuf| allowed.iter().any(|allowed| covers(path, allowed));
    let Some(path) = found.filter(inside) else {
        let names: Vec<String> =
            allowed.iter().map(|allowed| format!("`{}`", display_path(&allowed.directory))).collect();
        let hint = format!("mount something below {}", names.join(" or "));
        return Err(refusal("is not in a directory that may be mounted", hint));
    };
    // Below a writable directory, a sandbox could replace the source by a link to elsewhere while Cove mounts it.
    let below_writable = |allowed: &&AllowedMount| {
        allowed.access == MountAccess::ReadWrite && covers(&path, allowed) && path != allowed.directory
    };
    if let Some(writable) = allowed.iter().find(below_writable) {
        let hint = format!("mount `{}` as a whole", display_path(&writable.directory));
        return Err(refusal("is below a writable directory, which is mounted only as a whole", hint));
    }
    if access == MountAccess::ReadWrite
        && !allowed.iter().any(|allowed| allowed.access == access && path == allowed.directory)
    {
        return Err(refusal("may only be mounted read-only", "set `readonly` to true, or leave it out".into()));
    }
    let target = free_target(target, before)?;
    Ok(SandboxMount { source: self::source(&path.to_string_lossy(), env)?, target, access })
}

fn source(text: &str, env: &ProcessEnv) -> Result<PathBuf, Refusal> {
    let refusal = |problem: &str, hint: &str| Refusal::of_value(text, problem, hint);
    let path = real_path(text, env).map_err(|problem| refusal(&problem, "name a file or directory that exists"))?;
    if path.to_string_lossy().contains(char::is_control) {
        return Err(refusal("has a control character in its path", "give it another name"));
    }
    let hint = "copy what the code needs to a directory of its own and mount that";
    refuse_private(&path, env).map_err(|problem| refusal(&problem, hint))?;
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() || metadata.is_file() => Ok(path),
        // A socket or a device leads out of the sandbox.
        _ => Err(refusal("is neither a file nor a directory", "mount a regular file or a directory")),
    }
}

/// Returns the real path of an existing file or directory. The error completes "`PATH` …".
pub fn real_path(text: &str, env: &ProcessEnv) -> Result<PathBuf, String> {
    env.cwd.join(text).canonicalize().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "does not exist".to_owned(),
        _ => format!("could not be followed: {error}"),
    })
}

/// A path that no sandbox may see. A directory that contains it may not be mounted either.
struct PrivatePath {
    path: PathBuf,
    extent: PrivateExtent,
    /// Completes "`PATH` …".
    why: &'static str,
}

/// How much of a path is private.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrivateExtent {
    /// The path, but not what is below it.
    Itself,
    /// The path and everything below it.
    Below,
}

/// Private directories of the system, with everything below them.
const SYSTEM: [&str; 6] = ["/proc", "/sys", "/dev", "/run", "/var/run", "/etc"];

/// Private paths in a home directory, with everything below them.
const CREDENTIALS: [&str; 11] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".config",
    ".azure",
    ".kube",
    // Docker Desktop keeps its socket here too.
    ".docker",
    ".netrc",
    ".git-credentials",
    ".password-store",
    ".local/share/keyrings",
];

/// Refuses a real path that is private, contains a private path or lies in one. The error completes "`PATH` …".
pub fn refuse_private(path: &Path, env: &ProcessEnv) -> Result<(), String> {
    if path == Path::new("/") {
        return Err("is the whole machine".to_owned());
    }
    for private in private_paths(path, env) {
        // Both its name and its real path: `/var/run` is a link to `/run` on most systems, but not on all.
        let real = private.path.canonicalize().unwrap_or_else(|_| private.path.clone());
        for place in [&private.path, &real] {
            let why = private.why;
            if path == place {
                return Err(why.to_owned());
            }
            if private.extent == PrivateExtent::Below && path.starts_with(place) {
                return Err(format!("is in `{}`, which {why}", display_path(place)));
            }
            if place.starts_with(path) {
                return Err(format!("holds `{}`, which {why}", display_path(place)));
            }
        }
    }
    Ok(())
}

fn private_paths(path: &Path, env: &ProcessEnv) -> Vec<PrivatePath> {
    use PrivateExtent::{Below, Itself};
    let mut places = Vec::new();
    let mut add = |path: PathBuf, extent, why| places.push(PrivatePath { path, extent, why });
    for path in SYSTEM {
        add(path.into(), Below, "belongs to this machine's system");
    }
    add("/home".into(), Itself, "holds people's home directories");
    for home in home_directories(path, env) {
        add(home.clone(), Itself, "is a home directory");
        for name in CREDENTIALS {
            add(home.join(name), Below, "may hold credentials");
        }
    }
    if let Some(runtime) = env.directory("XDG_RUNTIME_DIR") {
        add(runtime.to_owned(), Below, "holds the sockets of this machine's services");
    }
    // The directory of such a socket may be shared, as `/tmp` is, so only mounts that contain the socket are refused.
    for name in ["DOCKER_HOST", "CONTAINER_HOST"] {
        let socket = env.env.get(name).and_then(|value| value.to_str()?.strip_prefix("unix://"));
        if let Some(socket) = socket.map(Path::new).filter(|path| path.is_absolute()) {
            add(socket.to_owned(), Itself, "commands a container engine");
        }
    }
    places
}

/// The home directories of the current user, of root, and of the user whose home directory the path lies in.
fn home_directories(path: &Path, env: &ProcessEnv) -> Vec<PathBuf> {
    let mut homes = vec![PathBuf::from("/root")];
    if let Some(home) = env.home() {
        // A home directory that is a link has its credentials where the link leads.
        homes.extend([home.to_owned(), home.canonicalize().unwrap_or_else(|_| home.to_owned())]);
    }
    if let Some(Component::Normal(name)) = path.strip_prefix("/home").ok().and_then(|rest| rest.components().next()) {
        homes.push(Path::new("/home").join(name));
    }
    homes
}

/// Parses a target that no earlier mount has and that is not part of the sandbox's own system.
fn free_target(text: &str, before: &[SandboxMount]) -> Result<PathBuf, Refusal> {
    let hint = "choose a place of its own, such as `/data`, `/mnt/data` or `/workspace/data`";
    let refusal = |problem: &str| Refusal::of_value(text, problem, hint);
    let path = literal_path(text).map_err(|problem| refusal(&problem))?;
    // All reserved paths are at the top, so only `/` contains one.
    let top = match path.components().nth(1) {
        None => return Err(refusal("is the sandbox's root")),
        Some(top) => top.as_os_str().to_string_lossy().into_owned(),
    };
    let reserved = ["proc", "dev", "sys", "usr", "etc", "bin", "sbin", "tmp", "run", ".cove"];
    if reserved.contains(&top.as_str()) || top.starts_with("lib") {
        return Err(refusal("belongs to the sandbox's own system"));
    }
    if path == Path::new("/workspace") {
        return Err(refusal("is the sandbox's own workspace"));
    }
    if before.iter().any(|mount| mount.target == path) {
        let problem = format!("`{}` already shows another mount", display_path(&path));
        return Err(Refusal::new(problem, "give each mount its own target"));
    }
    Ok(path)
}

/// Parses an absolute path without empty, `.` and `..` parts. The error completes "`PATH` …".
pub fn literal_path(text: &str) -> Result<PathBuf, String> {
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
    fn place() -> (TempDir, ProcessEnv) {
        let dir = TempDir::new().unwrap();
        let cwd = dir.path().canonicalize().unwrap();
        for path in ["people/me/project/data", "people/me/.ssh/keys", "people/me/.config/cove", "runtime/x", "a:b"] {
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
        (dir, ProcessEnv { env, cwd, stdin_is_terminal: false })
    }

    #[test]
    fn sources() {
        let (_dir, process_env) = place();
        let _socket = UnixListener::bind(process_env.cwd.join("people/me/project/socket")).unwrap();
        let allowed = ["people/me/project", "./people/me/project/data", "people/me/project/file", "a:b", "/usr"];
        for source in allowed {
            let mount = parse(&format!("{source}:/data"), &[], &process_env).unwrap();
            assert_eq!(mount.source, process_env.cwd.join(source).canonicalize().unwrap(), "`{source}`");
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
            let refusal = parse(&format!("{source}:/data"), &[], &process_env).unwrap_err();
            assert!(refusal.cause.contains(expected), "`{source}`: {}", refusal.cause);
        }
    }

    #[test]
    fn homes_of_others() {
        let (_dir, process_env) = place();
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
            assert_eq!(refuse_private(Path::new(path), &process_env).is_err(), private, "`{path}`");
        }
    }

    #[test]
    fn targets() {
        let (_dir, process_env) = place();
        for target in ["/data", "/mnt/x", "/opt/x", "/srv", "/workspace/data", "/var/data", "/home/x"] {
            let mount = parse(&format!("a:b:{target}"), &[], &process_env).unwrap();
            assert_eq!((mount.target.as_path(), mount.access), (Path::new(target), MountAccess::ReadOnly));
            let mount = parse(&format!("a:b:{target}:rw"), &[], &process_env).unwrap();
            assert_eq!((mount.target.as_path(), mount.access), (Path::new(target), MountAccess::ReadWrite));
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
            let refusal = parse(&format!("people/me/project:{target}"), &[], &process_env).unwrap_err();
            assert!(refusal.cause.contains(expected), "`{target}`: {}", refusal.cause);
        }
    }

    #[test]
    fn forms() {
        let (_dir, process_env) = place();
        for text in ["", ":", "x", ":/data", "a:/data:rx", "a:/data:ro:rw"] {
            let refusal = parse(text, &[], &process_env).unwrap_err();
            assert!(refusal.cause.contains("is not a mount"), "`{text}`: {}", refusal.cause);
        }
        let first = parse("a:b:/data:ro", &[], &process_env).unwrap();
        let refusal = parse("people/me/project:/data", &[first], &process_env).unwrap_err();
        assert_eq!(refusal.cause, "`/data` already shows another mount");
    }
}
