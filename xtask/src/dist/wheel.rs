//! The wheel. Its scripts are the program itself and a second name for it: `uvx cove-mcp` starts the program that has
//! the name of the package.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::package_files::{EXECUTABLE, PackageFiles, READABLE};
use super::program::BuildTarget;
use super::{NAME, ReleaseParts, SUMMARY};

/// The package's name as file names have it.
const FILE_NAME: &str = "cove_mcp";
const STARTER: &str = include_str!("../../../packaging/wheel/cove-mcp");

/// Returns the name of the file and its content.
pub(super) fn package(parts: &ReleaseParts) -> Result<(String, Vec<u8>), String> {
    let version = version(&parts.version)?;
    let platforms = platforms(parts.target);
    let scripts = format!("{FILE_NAME}-{version}.data/scripts");
    let about = format!("{FILE_NAME}-{version}.dist-info");
    let mut files = PackageFiles::new(parts.time, parts.effort);
    files.add(format!("{scripts}/cove"), EXECUTABLE, &parts.program);
    files.add(format!("{scripts}/cove-mcp"), EXECUTABLE, STARTER);
    files.add(format!("{about}/METADATA"), READABLE, metadata(parts, &version));
    files.add(format!("{about}/WHEEL"), READABLE, tags(&platforms));
    files.add(format!("{about}/licenses/LICENSE"), READABLE, &parts.licence);
    files.add(format!("{about}/licenses/NOTICE"), READABLE, &parts.notice);
    let record = format!("{about}/RECORD");
    let listing = record_of(&files, &record);
    let mut order: Vec<String> = files.iter().map(|(path, _)| path.to_owned()).collect();
    files.add(record.as_str(), READABLE, listing);
    // The last one, as installers want it.
    order.push(record);
    let order: Vec<&str> = order.iter().map(String::as_str).collect();
    let name = format!("{FILE_NAME}-{version}-py3-none-{}.whl", platforms.join("."));
    Ok((name, files.zip(&order)?))
}

/// A static program runs with every C library, so one file serves for all.
fn platforms(target: BuildTarget) -> [String; 3] {
    let architecture = target.architecture();
    ["manylinux_2_17", "manylinux2014", "musllinux_1_1"].map(|system| format!("{system}_{architecture}"))
}

/// The version as Python writes it.
fn version(version: &str) -> Result<String, String> {
    let Some((release, stage)) = version.split_once('-') else { return Ok(version.to_owned()) };
    let stages = [("alpha.", "a"), ("beta.", "b"), ("rc.", "rc")];
    let found = stages.iter().find_map(|(from, to)| Some((to, stage.strip_prefix(from)?)));
    match found.filter(|(_, number)| number.parse::<u32>().is_ok()) {
        Some((stage, number)) => Ok(format!("{release}{stage}{number}")),
        None => Err(format!(
            "could not write `{version}` as a version of Python's\nhint: after `-` only `alpha.N`, `beta.N` and `rc.N`"
        )),
    }
}

fn metadata(parts: &ReleaseParts, version: &str) -> String {
    format!(
        "Metadata-Version: 2.4\n\
         Name: {NAME}\n\
         Version: {version}\n\
         Summary: {SUMMARY}\n\
         License-Expression: MIT\n\
         License-File: LICENSE\n\
         License-File: NOTICE\n\
         Keywords: mcp,agent,sandbox,code\n\
         Classifier: Environment :: Console\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Classifier: Programming Language :: Rust\n\
         Requires-Python: >=3.9\n\
         Description-Content-Type: text/markdown\n\
         \n{}",
        parts.description
    )
}

fn tags(platforms: &[String]) -> String {
    let tags: String = platforms.iter().map(|platform| format!("Tag: py3-none-{platform}\n")).collect();
    format!("Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: false\n{tags}")
}

fn record_of(files: &PackageFiles, record: &str) -> String {
    let line = |(path, content): (&str, &[u8])| {
        format!("{path},sha256={},{}\n", URL_SAFE_NO_PAD.encode(Sha256::digest(content)), content.len())
    };
    let lines: String = files.iter().map(line).collect();
    format!("{lines}{record},,\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_python_s() {
        for (ours, theirs) in [("0.1.0", "0.1.0"), ("1.0.0-rc.2", "1.0.0rc2"), ("1.0.0-alpha.1", "1.0.0a1")] {
            assert_eq!(version(ours).as_deref(), Ok(theirs));
        }
        for wrong in ["1.0.0-next", "1.0.0-rc", "1.0.0-rc.x"] {
            assert!(version(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_file_is_for_both_kinds_of_c_library() {
        let tags = tags(&platforms(BuildTarget::X86));
        for tag in ["py3-none-manylinux_2_17_x86_64", "py3-none-manylinux2014_x86_64", "py3-none-musllinux_1_1_x86_64"]
        {
            assert!(tags.contains(&format!("Tag: {tag}\n")), "{tags}");
        }
    }
}
