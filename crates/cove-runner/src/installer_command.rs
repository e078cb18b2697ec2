//! `pip`, `npm` and `apt-get` inside a sandbox without a network: an attempt to fetch packages fails at once, with what
//! is there and what to do. Everything else, such as `pip list` or `npm run`, goes to the program of that name.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::session_packages::NETWORK_VARIABLE;

/// Where the links to this program are, which must not call themselves.
const OWN_FOLDER: &str = "/.cove/bin";
/// Packages that the operator installed for Python and for Node.
const PYTHON_PACKAGES: &str = "/.cove/packages";
const NODE_PACKAGES: &str = "/node_modules";
/// How many packages a message names.
const MAX_NAMED: usize = 20;

/// Runs a command under one of these names, with the arguments of this process. Returns the exit status.
pub fn installer_main(name: &str) -> ExitCode {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    // With rules for the network, the host says what code reaches.
    let may_fetch = [NETWORK_VARIABLE, "PIP_NO_INDEX"].iter().any(|name| std::env::var_os(name).is_some());
    let (message, status) = match fetched_packages(name, &args).filter(|_| !may_fetch) {
        Some(packages) => (refusal(name, &packages), 1),
        None => {
            let search = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::env::split_paths(&search).filter(|folder| folder != Path::new(OWN_FOLDER));
            let programs: Vec<PathBuf> =
                folders.map(|folder| folder.join(name)).filter(|path| path.is_file()).collect();
            for program in programs {
                // Returns only if the program could not be started.
                let _ = Command::new(program).args(std::env::args_os().skip(1)).exec();
            }
            (format!("{name}: not installed in this sandbox\n"), 127)
        }
    };
    // If standard error is closed, there is nowhere else to report it.
    let _ = std::io::stderr().write_all(message.as_bytes());
    ExitCode::from(status)
}

/// Returns the packages that a command would fetch from the network, or None if it fetches nothing.
fn fetched_packages(name: &str, args: &[String]) -> Option<Vec<String>> {
    let mut operands = args.iter().filter(|arg| !arg.starts_with('-'));
    let action = operands.next()?.as_str();
    let operands: Vec<String> = operands.cloned().collect();
    let (actions, offline): (&[&str], &[&str]) = match name {
        "pip" | "pip3" => (&["download", "install", "wheel"], &["--no-index", "--help", "-h"]),
        "npm" => (&["add", "ci", "i", "install", "update"], &["--help", "--offline", "-h"]),
        _ => (&["dist-upgrade", "full-upgrade", "install", "update", "upgrade"], &["--help", "-h"]),
    };
    let is_local = |operand: &String| {
        let is_archive = [".whl", ".zip", ".tar.gz", ".tgz"].iter().any(|ending| operand.ends_with(ending));
        is_archive || operand.starts_with(['.', '/', '~']) || operand.starts_with("file:")
    };
    let stays_here = operands.iter().any(is_local) || args.iter().any(|arg| offline.contains(&arg.as_str()));
    (actions.contains(&action) && !stays_here).then_some(operands)
}

fn refusal(name: &str, packages: &[String]) -> String {
    let what = "no packages can be installed in the sandbox, because it has no network";
    let is_plain =
        |name: &&String| name.len() <= 100 && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-@/=<>".contains(c));
    let wanted: Vec<&str> = packages.iter().filter(is_plain).take(5).map(String::as_str).collect();
    let wanted = if wanted.is_empty() { "NAME".to_owned() } else { wanted.join(" ") };
    let (folder, flag) = match name {
        "npm" => (NODE_PACKAGES, "--node "),
        "pip" | "pip3" => (PYTHON_PACKAGES, ""),
        _ => return format!("{name}: {what}\nhint: use the programs that are there\n"),
    };
    let there = installed(Path::new(folder));
    let there = if there.is_empty() { String::new() } else { format!("; available: {there}") };
    format!("{name}: {what}{there}\nhint: the operator can add packages: `cove packages add {flag}{wanted}`\n")
}

/// Returns the names of the packages in a folder, with their versions if the names of files say so.
fn installed(folder: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(folder) else { return String::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = match folder == Path::new(NODE_PACKAGES) {
        true => names.filter(|name| !name.starts_with('.')).collect(),
        false => names.filter_map(|name| Some(name.strip_suffix(".dist-info")?.replacen('-', " ", 1))).collect(),
    };
    names.sort();
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    names.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Option<&[&str]>) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let name = words.next().unwrap();
        let args: Vec<String> = words.collect();
        let expected = expected.map(|names| names.iter().map(ToString::to_string).collect::<Vec<String>>());
        assert_eq!(fetched_packages(&name, &args), expected, "{line}");
    }

    #[test]
    fn only_commands_that_need_a_network_are_refused() {
        check("pip install pandas", Some(&["pandas"]));
        check("pip3 -q install --upgrade pandas numpy", Some(&["pandas", "numpy"]));
        check("pip install -r requirements.txt", Some(&["requirements.txt"]));
        check("npm install", Some(&[]));
        check("npm i lodash", Some(&["lodash"]));
        check("apt-get install -y jq", Some(&["jq"]));
        check("apt update", Some(&[]));
        for line in [
            "pip",
            "pip list",
            "pip show install",
            "pip --version",
            "pip install ./thing",
            "pip install thing-1.0-py3-none-any.whl",
            "pip install --no-index --find-links wheels thing",
            "pip install --help",
            "pip install -e .",
            "npm run install",
            "npm test",
            "npm install ../thing",
            "npm install --offline lodash",
            "apt list",
        ] {
            check(line, None);
        }
    }

    #[test]
    fn a_refusal_repeats_only_plain_names() {
        let refused = refusal("pip", &["pandas".into(), "x`; rm -rf /`".into()]);
        assert!(refused.ends_with("hint: the operator can add packages: `cove packages add pandas`\n"), "{refused}");
        assert!(refusal("npm", &[]).contains("`cove packages add --node NAME`"));
    }
}
