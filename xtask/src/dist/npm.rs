//! The packages for npm. People install `cove-mcp`, a starter that has the program of each platform as an optional
//! dependency. The program's package is a version of the same name, so one name in the registry is enough. No package
//! runs a script when it is installed.

use serde_json::{Value, json};

use super::package_files::{EXECUTABLE, PackageFiles, READABLE};
use super::program::BuildTarget;
use super::{NAME, ReleaseParts, SUMMARY};

const STARTER: &str = include_str!("../../../packaging/npm/cove-mcp.js");

/// Returns the names of the files and their contents; the one with the program has to be published first.
pub(super) fn packages(parts: &ReleaseParts) -> Result<[(String, Vec<u8>); 2], String> {
    let program_version = program_version(&parts.version, parts.target);
    let mut program = manifest(&program_version);
    program["os"] = json!(["linux"]);
    program["cpu"] = json!([parts.target.node()]);
    let mut files = package(parts, &program);
    files.add("package/bin/cove", EXECUTABLE, &parts.program);
    files.add("package/NOTICE", READABLE, &parts.notice);

    let mut starter = manifest(&parts.version);
    starter["bin"] = json!({"cove": "bin/cove-mcp.js", "cove-mcp": "bin/cove-mcp.js"});
    starter["engines"] = json!({"node": ">=18"});
    starter["optionalDependencies"] = optional_dependencies(&parts.version);
    let mut starter = package(parts, &starter);
    starter.add("package/bin/cove-mcp.js", EXECUTABLE, STARTER);
    Ok([
        (format!("{NAME}-{program_version}.tgz"), files.tar_gz()?),
        (format!("{NAME}-{}.tgz", parts.version), starter.tar_gz()?),
    ])
}

/// The platforms that are published. The starter asks for each; npm takes the one that fits.
const PUBLISHED: [BuildTarget; 1] = [BuildTarget::X86];

fn optional_dependencies(version: &str) -> Value {
    let pair = |target: BuildTarget| {
        let alias = format!("{NAME}-linux-{}", target.node());
        (alias, Value::from(format!("npm:{NAME}@{}", program_version(version, target))))
    };
    Value::Object(PUBLISHED.into_iter().map(pair).collect())
}

fn program_version(version: &str, target: BuildTarget) -> String {
    format!("{version}-linux-{}", target.node())
}

fn manifest(version: &str) -> Value {
    json!({"name": NAME, "version": version, "description": SUMMARY, "license": "MIT", "keywords": ["mcp", "sandbox"]})
}

fn package(parts: &ReleaseParts, manifest: &Value) -> PackageFiles {
    let mut files = PackageFiles::new(parts.time, parts.effort);
    files.add("package/package.json", READABLE, format!("{manifest:#}\n"));
    files.add("package/LICENSE", READABLE, &parts.licence);
    files.add("package/README.md", READABLE, &parts.description);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_another_version_of_the_same_name() {
        let dependencies = optional_dependencies("1.2.3");
        assert_eq!(dependencies, json!({"cove-mcp-linux-x64": "npm:cove-mcp@1.2.3-linux-x64"}));
        assert!(STARTER.contains("cove-mcp-linux-${process.arch}"), "the starter looks for that name");
    }
}
