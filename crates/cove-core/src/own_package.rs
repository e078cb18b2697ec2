//! Cove's package in the registries of npm and Python, and command lines that start it from there.

use std::path::Path;

/// The package's name. Its program is called `cove`.
pub const PACKAGE: &str = "cove-mcp";

/// Programs that fetch a package and start its program.
const PACKAGE_RUNNERS: [&str; 3] = ["npx", "pipx", "uvx"];

/// Returns the arguments of Cove in a command line that starts it from a registry: `serve` of `uvx cove-mcp@1.0.0 serve`.
/// `None` if the command line starts something else.
pub fn args_of_package<'a>(program: &str, args: &'a [String]) -> Option<&'a [String]> {
    let name = Path::new(program).file_name()?.to_str()?;
    if !PACKAGE_RUNNERS.contains(&name) {
        return None;
    }
    let is_package =
        |word: &String| word.strip_prefix(PACKAGE).is_some_and(|rest| rest.is_empty() || rest.starts_with(['@', '=']));
    let rest = args.get(args.iter().position(is_package)? + 1..)?;
    // `pipx run --spec PACKAGE PROGRAM`.
    Some(rest.strip_prefix(&["cove".to_owned()]).unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_cove_behind_a_package_runner() {
        let check = |line: &str, expected: Option<&[&str]>| {
            let mut words = line.split(' ').map(str::to_owned);
            let program = words.next().unwrap();
            let args: Vec<String> = words.collect();
            let found =
                args_of_package(&program, &args).map(|args| args.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(found.as_deref(), expected, "{line}");
        };
        check("uvx cove-mcp@0.1.0 serve", Some(&["serve"]));
        check("/usr/bin/npx -y cove-mcp@0.1.0 serve --memory 1g", Some(&["serve", "--memory", "1g"]));
        check("npx cove-mcp", Some(&[]));
        check("pipx run --spec cove-mcp==0.1.0 cove serve", Some(&["serve"]));
        check("uvx cove-mcp-other serve", None);
        check("uvx mcp-server-time", None);
        check("cove serve", None);
    }
}
