//! `cargo xtask dist`: everything that is published, from one build of the program. The program is static, loads nothing
//! at run time and names no folder of the machine that built it. The same commit gives the same files, byte for byte:
//! they hold the time of the commit, and nothing of the machine.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::attempts::{self, ErrorContext};
use crate::cargo;

mod debian;
mod image;
mod npm;
mod package_files;
mod program;
mod sbom;
mod third_party;
mod wheel;
#[cfg(test)]
mod workflow;

use package_files::{EXECUTABLE, PackageFiles, PackingEffort, READABLE};
use program::BuildTarget;
use third_party::LinkedPackages;

/// The name in the registries of packages. The program is called `cove`.
const NAME: &str = "cove-mcp";
const SUMMARY: &str = "Code mode for AI agents over MCP: code runs in an isolated sandbox and calls your servers";

/// zsh reads the file at the first Tab and expects the completions of that moment too.
const ZSH_FIRST_TAB: &[u8] = b"_clap_dynamic_completer_cove \"$@\"\n";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DistOptions {
    profile: String,
    out: Option<PathBuf>,
    image: ImageChoice,
}

/// Whether the container image is made too, which takes the package sources of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImageChoice {
    LeftOut,
    Included,
}

impl DistOptions {
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let mut options = Self { profile: "dist".to_owned(), out: None, image: ImageChoice::LeftOut };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match (*argument, arguments.as_slice().first()) {
                ("--image", _) => {
                    options.image = ImageChoice::Included;
                    continue;
                }
                ("--profile", Some(profile @ (&"dist" | &"release"))) => options.profile = (*profile).to_owned(),
                ("--out", Some(folder)) => options.out = Some(PathBuf::from(folder)),
                ("--profile", _) => return Err("`--profile` needs `dist` or `release`".to_owned()),
                ("--out", None) => return Err("`--out` needs a folder".to_owned()),
                (unknown, _) => return Err(format!("could not understand `{unknown}` after `dist`")),
            }
            arguments.next();
        }
        Ok(options)
    }

    /// The programs that packing runs.
    pub(crate) fn programs(&self) -> Vec<&'static str> {
        let image = (self.image == ImageChoice::Included).then_some("mmdebstrap");
        ["xz", "strip"].into_iter().chain(image).collect()
    }
}

/// One release: what every package contains or says.
struct ReleaseParts {
    version: String,
    target: BuildTarget,
    /// Seconds since 1970, of everything in the packages.
    time: u64,
    effort: PackingEffort,
    program: Vec<u8>,
    licence: String,
    /// The licences of what is linked into the program.
    notice: String,
    readme: String,
    /// What the pages of registries show.
    description: String,
    /// By the names of their files.
    man_pages: BTreeMap<String, Vec<u8>>,
    completions: ShellCompletions,
}

struct ShellCompletions {
    bash: Vec<u8>,
    zsh: Vec<u8>,
    fish: Vec<u8>,
}

pub(crate) fn run(options: &DistOptions) -> Result<(), String> {
    let target = BuildTarget::of_this_machine()?;
    let out = options.out.clone().unwrap_or_else(|| target_folder().join("packages"));
    let built = program::build(target, &options.profile)?;
    let effort = if options.profile == "dist" { PackingEffort::Best } else { PackingEffort::Quick };
    let (parts, linked) = ReleaseParts::collect(target, &built, effort)?;
    let mut names = make(&parts, &linked, &out)?;
    if options.image == ImageChoice::Included {
        names.push(image::make(&parts, &out)?);
    }
    write_checksums(&out, &names)?;
    for name in names.iter().map(String::as_str).chain([CHECKSUMS]) {
        let path = out.join(name);
        let size = fs::metadata(&path).could_not(format_args!("find `{}`", path.display()))?.len();
        println!("{:>7.2} MB  {}", size as f64 / 1e6, path.display());
    }
    Ok(())
}

/// For the tests: makes the packages of the program that the tests run, in a folder that holds nothing else.
pub(crate) fn make_for_tests() -> Result<PathBuf, String> {
    let target = BuildTarget::of_this_machine()?;
    let built = program::build(target, "release")?;
    let out = target_folder().join("packages-of-tests");
    // What an earlier version has made must not be found.
    if out.exists() {
        fs::remove_dir_all(&out).could_not(format_args!("remove `{}`", out.display()))?;
    }
    for half in ["first", "second"] {
        let half = out.join(half);
        let (parts, linked) = ReleaseParts::collect(target, &built, PackingEffort::Quick)?;
        let names = make(&parts, &linked, &half)?;
        write_checksums(&half, &names)?;
    }
    Ok(out)
}

const CHECKSUMS: &str = "SHA256SUMS";

/// Packs the program in every way but the image, and returns the names of the files.
fn make(parts: &ReleaseParts, linked: &LinkedPackages, out: &Path) -> Result<Vec<String>, String> {
    attempts::create_folder(out)?;
    let mut names = Vec::new();
    let mut write = |name: String, content: Vec<u8>| {
        let path = out.join(&name);
        fs::write(&path, content).could_not(format_args!("write `{}`", path.display()))?;
        names.push(name);
        Ok::<_, String>(())
    };
    let top = format!("cove-{}-{}-linux", parts.version, parts.target.architecture());
    write(format!("{top}.tar.xz"), tarball(parts, &top).tar_xz()?)?;
    let (name, content) = debian::package(parts)?;
    write(name, content)?;
    let (name, content) = wheel::package(parts)?;
    write(name, content)?;
    for (name, content) in npm::packages(parts)? {
        write(name, content)?;
    }
    let sbom = sbom::document(parts, linked)?;
    write(format!("{top}.cdx.json"), format!("{sbom:#}\n").into_bytes())?;
    Ok(names)
}

impl ReleaseParts {
    fn collect(target: BuildTarget, built: &Path, effort: PackingEffort) -> Result<(Self, LinkedPackages), String> {
        let root = cargo::root();
        let read = |path: &str| attempts::read(&root.join(path));
        let linked = LinkedPackages::read()?;
        let parts = Self {
            version: linked.version()?,
            target,
            time: program::time_of_release()?,
            effort,
            program: program::stripped(built)?,
            licence: read("LICENSE")?,
            notice: linked.notice()?,
            readme: read("README.md")?,
            description: read("packaging/description.md")?,
            man_pages: program::man_pages(built)?,
            completions: ShellCompletions {
                bash: program::completions(built, "bash")?,
                zsh: [&program::completions(built, "zsh")?, ZSH_FIRST_TAB].concat(),
                fish: program::completions(built, "fish")?,
            },
        };
        Ok((parts, linked))
    }
}

/// For people who unpack it under `/usr/local` or `~/.local`.
fn tarball(parts: &ReleaseParts, top: &str) -> PackageFiles {
    let mut files = PackageFiles::new(parts.time, parts.effort);
    let mut add = |path: &str, mode, content: &[u8]| files.add(format!("{top}/{path}"), mode, content);
    add("bin/cove", EXECUTABLE, &parts.program);
    for (name, page) in &parts.man_pages {
        add(&format!("share/man/man1/{name}"), READABLE, page);
    }
    add("share/bash-completion/completions/cove", READABLE, &parts.completions.bash);
    add("share/zsh/site-functions/_cove", READABLE, &parts.completions.zsh);
    add("share/fish/vendor_completions.d/cove.fish", READABLE, &parts.completions.fish);
    for (name, text) in [("LICENSE", &parts.licence), ("NOTICE", &parts.notice), ("README.md", &parts.readme)] {
        add(name, READABLE, text.as_bytes());
    }
    files
}

/// Writes the digests of the files as `sha256sum --check` reads them.
fn write_checksums(out: &Path, names: &[String]) -> Result<(), String> {
    let mut lines = Vec::new();
    for name in names {
        let content = fs::read(out.join(name)).could_not(format_args!("read `{name}`"))?;
        lines.push(format!("{}  {name}\n", hex::encode(Sha256::digest(content))));
    }
    lines.sort_by(|one, other| one[64..].cmp(&other[64..]));
    attempts::write(&out.join(CHECKSUMS), &lines.concat())
}

fn target_folder() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| cargo::root().join("target"), PathBuf::from)
}

/// The text of a value in a JSON document, or an empty one.
fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `dist` inherits the levels that `release` sets for single crates.
    #[test]
    fn the_published_program_is_optimised_everywhere() {
        let text = fs::read_to_string(cargo::root().join("Cargo.toml")).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        let levels = |profile: &str| manifest["profile"][profile]["package"].as_table().unwrap().clone();
        let mut levels_of_dist = levels("release");
        levels_of_dist.extend(levels("dist"));
        for (package, level) in &levels_of_dist {
            assert_eq!(level["opt-level"].as_integer(), Some(3), "{package}");
        }
        assert_eq!(manifest["profile"]["dist"]["opt-level"].as_integer(), Some(3));
    }

    #[test]
    fn options_are_understood() {
        let options = DistOptions::parse(&["--profile", "release", "--out", "/tmp/x", "--image"]).unwrap();
        assert_eq!(options.profile, "release");
        assert_eq!(options.out.as_deref(), Some(Path::new("/tmp/x")));
        assert_eq!(options.image, ImageChoice::Included);
        assert_eq!(DistOptions::parse(&[]).unwrap().profile, "dist");
        for wrong in [&["--profile"][..], &["--profile", "dev"], &["--out"], &["x"]] {
            assert!(DistOptions::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
