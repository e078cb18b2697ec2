//! Settings of the sandbox's root file system and of its Python.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::ProcessEnv;
use cove_core::error::{Refusal, display_path, display_value};
use cove_core::policy::SandboxRoot;
use cove_core::policy::mounts as mount;
use cove_core::search_path::programs;

/// Parses a directory that looks like the root of a Linux system.
pub(super) fn tree(text: &str, env: &ProcessEnv) -> Result<PathBuf, Refusal> {
    let refusal = |problem: &str| {
        Refusal::new(
            format!("`{}` {problem}", display_value(text)),
            "name a directory with the files of a Linux system, such as `/srv/debian`",
        )
    };
    if text.is_empty() {
        return Err(refusal("is not a directory"));
    }
    let path = mount::real_path(text, env).map_err(|problem| refusal(&problem))?;
    if !path.is_dir() {
        return Err(refusal("is not a directory"));
    }
    if path == Path::new("/") {
        return Err(refusal("is this machine's own root"));
    }
    // A home directory with a `bin` would look like a root too.
    mount::refuse_private(&path, env).map_err(|problem| refusal(&problem))?;
    if !["usr", "bin"].iter().any(|name| path.join(name).symlink_metadata().is_ok()) {
        return Err(refusal("has neither `usr` nor `bin`"));
    }
    Ok(path)
}

/// Parses the path of a Python on this machine, or inside the directory that is the root.
pub(super) fn python(text: &str, root: &SandboxRoot, env: &ProcessEnv) -> Result<PathBuf, Refusal> {
    let shown = display_value(text);
    if let SandboxRoot::Tree(tree) = root {
        // Not looked up: links in the tree lead elsewhere on this side of the sandbox.
        return mount::literal_path(text).map_err(|problem| {
            Refusal::new(
                format!("`{shown}` {problem}"),
                format!("write its path inside `{}`, such as `/usr/bin/python3`", display_path(tree)),
            )
        });
    }
    let refusal = |problem: &str| {
        Refusal::new(
            format!("`{shown}` {problem}"),
            "write a python or its folder, such as `python3.12`, `/usr/bin/python3` or `~/project/.venv`",
        )
    };
    // Keeps a link as it is: the Python of a virtual environment is a link, and Python finds its packages beside the
    // link. Collecting the components drops `.` and leaves links and `..` alone.
    let mut path = env.absolute_path(text);
    // A name, as shells look it up.
    if !text.contains('/') {
        let search = env.env.get("PATH").cloned().unwrap_or_default();
        path = programs(text, &search).next().unwrap_or(path);
    }
    path = path.components().collect();
    if path.is_dir() {
        let inside = ["bin/python", "bin/python3"].map(|name| path.join(name));
        path = match inside.into_iter().find(|program| program.exists()) {
            Some(program) => program,
            None => return Err(refusal("is a directory without `bin/python`")),
        };
    }
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(refusal("does not exist")),
        Err(error) => Err(refusal(&format!("could not be looked at: {error}"))),
        Ok(metadata) if !metadata.is_file() => Err(refusal("is not a file")),
        Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => Err(refusal("is not executable")),
        Ok(_) if !is_named_python(&path) => Err(refusal("is not a python: its name does not say so")),
        Ok(_) => Ok(path),
    }
}

/// True if the name of a program is that of a Python. To start any other program, to find out, could do harm.
fn is_named_python(path: &Path) -> bool {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    [path, real.as_path()].iter().any(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ["python", "pypy", "graalpy"].iter().any(|known| name.starts_with(known))
    })
}
