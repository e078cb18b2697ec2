//! The images of the tests, under the names of well-known ones, so that no test needs a registry. One Debian tree,
//! made from the machine's own package sources, serves for all images of systems; two small ones show what an image
//! may lack. They are made once for each state of the list below, and identified by the ids that Docker and Podman
//! compute too.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::api;
use super::tree;
use crate::attempts::{self, ErrorContext};

/// The same value as in the official images.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A fixed time, so that the same content gets the same identifier.
const CREATED: &str = "2026-01-01T00:00:00Z";
const COPY: &str = include_str!("programs/copy.c");
const UPPER: &str = include_str!("programs/upper.c");
/// Raise this when something changes here that the stamp does not contain.
const FORMAT: u32 = 1;

struct TestImage {
    name: &'static str,
    layer: ImageLayer,
    config: fn() -> Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImageLayer {
    /// The Debian tree.
    System,
    /// One static program, and no other file.
    Empty,
    Musl,
}

impl ImageLayer {
    const ALL: [ImageLayer; 3] = [ImageLayer::System, ImageLayer::Empty, ImageLayer::Musl];

    fn file(self) -> &'static str {
        match self {
            ImageLayer::System => "system.tar",
            ImageLayer::Empty => "empty.tar",
            ImageLayer::Musl => "musl.tar",
        }
    }
}

const IMAGES: &[TestImage] = &[
    image("ubuntu:24.04", ImageLayer::System, || json!({"Env": [PATH], "Cmd": ["/bin/bash"]})),
    image("python:3.13-slim", ImageLayer::System, || json!({"Env": [PATH, "LANG=C.UTF-8"], "Cmd": ["python3"]})),
    image("node:22-slim", ImageLayer::System, || json!({"Env": [PATH], "Cmd": ["node"]})),
    image("nginx:1.28", ImageLayer::System, || {
        json!({
            "Env": [PATH],
            "Cmd": ["nginx", "-g", "daemon off;"],
            "ExposedPorts": {"80/tcp": {}},
            "StopSignal": "SIGQUIT",
        })
    }),
    image("cove-tests/empty:1", ImageLayer::Empty, || json!({"Entrypoint": ["/program", "cat"]})),
    image("cove-tests/musl:1", ImageLayer::Musl, || json!({"Entrypoint": ["/upper"]})),
];

const fn image(name: &'static str, layer: ImageLayer, config: fn() -> Value) -> TestImage {
    TestImage { name, layer, config }
}

/// Archives in the format that both engines load.
#[derive(Debug)]
pub(super) struct ImageArchives {
    pub(super) all: ImageArchive,
    /// The small images, which take no time to load.
    pub(super) small: ImageArchive,
}

#[derive(Debug)]
pub(super) struct ImageArchive {
    path: PathBuf,
    /// Identifiers by name.
    identifiers: BTreeMap<String, String>,
}

/// Makes the archives unless they exist.
pub(super) fn prepare(folder: &Path) -> Result<ImageArchives, String> {
    let folder = &folder.join("images");
    let stamp = folder.join("stamp");
    let wanted = self::stamp();
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted)
        && let Ok(archives) = ImageArchives::read(folder)
    {
        return Ok(archives);
    }
    println!("making the images of the tests (300 MB, once)");
    let start = Instant::now();
    let _ = fs::remove_dir_all(folder);
    let layers = folder.join("layers");
    attempts::create_folder(&layers)?;
    let tree = tree::SystemTree { packages: tree::PACKAGES, hooks: &[], time: None };
    tree::make_system_tree(&tree, &layers.join(ImageLayer::System.file()))?;
    make_program(&layers, ImageLayer::Empty)?;
    make_program(&layers, ImageLayer::Musl)?;
    let mut digests = BTreeMap::new();
    for layer in ImageLayer::ALL {
        digests.insert(layer.file(), digest(&layers.join(layer.file()))?);
    }
    archive(folder, "all", |_| true, &digests)?;
    archive(folder, "small", |image| image.layer != ImageLayer::System, &digests)?;
    // The archives contain the layers.
    let _ = fs::remove_dir_all(&layers);
    attempts::write(&stamp, &wanted)?;
    println!("made in {:.0} s", start.elapsed().as_secs_f64());
    ImageArchives::read(folder)
}

/// The archive that contains the Debian tree, as `system.tar`.
pub(super) fn system_image(folder: &Path) -> PathBuf {
    folder.join("images/all.tar")
}

/// Everything that determines the content of the images, verbatim.
fn stamp() -> String {
    let mut stamp = format!("format {FORMAT} for {ARCH}\n{}\n{COPY}{UPPER}", tree::PACKAGES.join(" "));
    for image in IMAGES {
        stamp += &format!("{} {} {}\n", image.name, image.layer.file(), (image.config)());
    }
    stamp
}

impl ImageArchives {
    fn read(folder: &Path) -> Result<Self, String> {
        Ok(ImageArchives { all: ImageArchive::read(folder, "all")?, small: ImageArchive::read(folder, "small")? })
    }
}

impl ImageArchive {
    fn read(folder: &Path, name: &str) -> Result<Self, String> {
        let list = folder.join(format!("{name}.json"));
        let identifiers =
            serde_json::from_str(&attempts::read(&list)?).could_not(format_args!("understand `{}`", list.display()))?;
        let path = folder.join(format!("{name}.tar"));
        if !path.exists() {
            return Err(format!("could not find `{}`", path.display()));
        }
        Ok(ImageArchive { path, identifiers })
    }

    /// Loads the images that the engine does not have yet.
    pub(super) fn load(&self, socket: &Path) -> Result<(), String> {
        if self.missing(socket).is_none() {
            return Ok(());
        }
        let answer = api::send_file(socket, "/images/load", &self.path)?;
        if answer.status != 200 {
            return Err(answer.complaint("POST /images/load"));
        }
        // The engine reports an error in the middle only after the status line, so this looks again.
        match self.missing(socket) {
            None => Ok(()),
            Some(name) => Err(format!(
                "`{name}` is not there after loading\ncaused by: {}",
                String::from_utf8_lossy(&answer.body).trim()
            )),
        }
    }

    pub(super) fn has(&self, identifier: &str) -> bool {
        self.identifiers.values().any(|own| own == identifier)
    }

    /// True if loading this archive creates the tag.
    pub(super) fn gives(&self, tag: &str) -> bool {
        self.identifiers.keys().any(|name| name == tag || full_names(name).iter().any(|full| full == tag))
    }

    fn missing(&self, socket: &Path) -> Option<&str> {
        let is_there = |name: &str, identifier: &str| {
            api::get(socket, &format!("/images/{name}/json")).is_ok_and(|found| found["Id"] == identifier)
        };
        let mut all = self.identifiers.iter();
        all.find(|(name, identifier)| !is_there(name, identifier)).map(|(name, _)| name.as_str())
    }
}

/// Writes `NAME.tar`, and a list of its content beside it.
fn archive(
    folder: &Path,
    name: &str,
    is_in: fn(&TestImage) -> bool,
    digests: &BTreeMap<&str, String>,
) -> Result<(), String> {
    let layers = folder.join("layers");
    let mut members = vec!["manifest.json".to_owned()];
    let mut manifest = Vec::new();
    let mut identifiers = BTreeMap::new();
    for (index, image) in IMAGES.iter().enumerate().filter(|(_, image)| is_in(image)) {
        let config = format!("{index}.json");
        attempts::write(&layers.join(&config), &configuration(image, &digests[image.layer.file()]).to_string())?;
        identifiers.insert(image.name, format!("sha256:{}", digest(&layers.join(&config))?));
        manifest.push(json!({
            "Config": config,
            "RepoTags": full_names(image.name),
            "Layers": [image.layer.file()],
        }));
        members.push(config);
        if !members.iter().any(|member| member == image.layer.file()) {
            members.push(image.layer.file().to_owned());
        }
    }
    attempts::write(&layers.join("manifest.json"), &Value::from(manifest).to_string())?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&layers).arg("-cf").arg(folder.join(format!("{name}.tar"))).args(members);
    tree::run_quietly(&mut tar, "tar")?;
    attempts::write(&folder.join(format!("{name}.json")), &json!(identifiers).to_string())
}

fn configuration(image: &TestImage, digest: &str) -> Value {
    json!({
        "architecture": match ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other },
        "os": "linux",
        "created": CREATED,
        "config": (image.config)(),
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        "history": [{"created": CREATED, "created_by": "cargo xtask"}],
    })
}

/// Docker expands a name without a host to `docker.io`; Podman expands it to `localhost`, unless a user pulled it.
/// Each image has both names, so that either lookup finds it.
fn full_names(name: &str) -> [String; 2] {
    let group = if name.contains('/') { "" } else { "library/" };
    [format!("docker.io/{group}{name}"), format!("localhost/{name}")]
}

fn make_program(layers: &Path, layer: ImageLayer) -> Result<(), String> {
    let folder = layers.join(layer.file()).with_extension("");
    let (source, text, program, arguments): (_, _, _, &[&str]) = match layer {
        ImageLayer::Empty => ("copy.c", COPY, "program", &["-static"]),
        _ => ("upper.c", UPPER, "upper", &[]),
    };
    attempts::create_folder(&folder.join("lib"))?;
    attempts::write(&layers.join(source), text)?;
    let mut compiler = Command::new("musl-gcc");
    compiler.args(arguments).args(["-O2", "-s", "-o"]).arg(folder.join(program)).arg(layers.join(source));
    tree::run_quietly(&mut compiler, "musl-gcc")?;
    let mut members = vec![program];
    if layer == ImageLayer::Musl {
        let loader = format!("lib/ld-musl-{ARCH}.so.1");
        fs::copy(Path::new("/").join(&loader), folder.join(&loader)).could_not(format_args!("copy `/{loader}`"))?;
        members.push("lib");
    }
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&folder).args(["--owner=0", "--group=0", "--mode=755", "-cf"]);
    tar.arg(layers.join(layer.file())).args(members);
    tree::run_quietly(&mut tar, "tar")
}

fn digest(path: &Path) -> Result<String, String> {
    let text = attempts::output(Command::new("sha256sum").arg(path), &format!("sha256sum {}", path.display()))?;
    match text.split(' ').next() {
        Some(digest) if digest.len() == 64 => Ok(digest.to_owned()),
        _ => Err(format!("could not compute the digest of `{}`", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_says_what_it_runs_and_where_it_looks() {
        for image in IMAGES {
            let config = (image.config)();
            assert!(config["Cmd"].is_array() || config["Entrypoint"].is_array(), "{}", image.name);
            // An image with a single program needs no search path.
            assert_eq!(config["Env"][0] == PATH, image.layer == ImageLayer::System, "{}", image.name);
            let described = configuration(image, "0123");
            assert_eq!(described["rootfs"]["diff_ids"], json!(["sha256:0123"]));
        }
    }

    #[test]
    fn names_are_as_users_have_them() {
        assert_eq!(full_names("node:22-slim")[0], "docker.io/library/node:22-slim");
        assert_eq!(full_names("cove-tests/musl:1")[0], "docker.io/cove-tests/musl:1");
        assert_eq!(full_names("cove-tests/musl:1")[1], "localhost/cove-tests/musl:1");
    }

    #[test]
    fn the_stamp_has_all_that_decides() {
        let stamp = stamp();
        for image in IMAGES {
            assert!(stamp.contains(&format!("{} ", image.name)), "{stamp}");
        }
        for part in ["nodejs", "toupper", "daemon off;", ARCH] {
            assert!(stamp.contains(part), "{part}: {stamp}");
        }
    }

    #[test]
    fn half_an_archive_is_none() {
        let folder = std::env::temp_dir().join(format!("cove-images-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("all.json"), "{\"a:1\": \"sha256:1\"}").unwrap();
        let without_tar = ImageArchive::read(&folder, "all");
        fs::write(folder.join("all.tar"), "").unwrap();
        let whole = ImageArchive::read(&folder, "all");
        fs::remove_dir_all(&folder).unwrap();
        assert!(without_tar.is_err());
        let whole = whole.unwrap();
        assert!(whole.has("sha256:1") && !whole.has("sha256:2"));
        assert!(whole.gives("a:1") && whole.gives("localhost/a:1") && !whole.gives("mine/a:1"));
    }
}
