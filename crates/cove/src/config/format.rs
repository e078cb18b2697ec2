//! How the values of settings are read and written. A [`ValueFormat`] knows one kind of value; the table in `settings`
//! says which setting has which.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Config, root};
use crate::packages::{PackageKind, PackageRequest};
use cove_core::error::{Refusal, display_value};
use cove_core::keyword::Keyword;
use cove_core::output::OutputLimit;
use cove_core::policy::grants::ToolPattern;
use cove_core::policy::readiness::WarmTarget;
use cove_core::policy::{AllowedMount, mounts as mount};
use cove_core::policy::{MountAccess, SandboxMount, SandboxNetwork, SandboxUser};
use cove_core::process_env::ProcessEnv;
use cove_core::units;
use cove_egress::{EgressRules, PRESETS};
use cove_server::http_config::{self as http, Authority, WebOrigin};
use cove_server::server_config::{self as server, Toolset, Toolsets};
use cove_upstream::definition;
use cove_upstream::discovery::RegistryAddress;
use cove_upstream::secrets::ProgramWords;

/// One way to write a value.
pub(super) struct ValueFormat<T> {
    /// Stands for the value in help.
    pub(super) placeholder: &'static str,
    pub(super) parse: fn(&str, &SettingContext<'_>) -> Result<T, Refusal>,
    /// Writes a value so that `parse` reads it again.
    pub(super) show: fn(&T) -> String,
    /// True if the value begins with a path of this machine.
    pub(super) names_path: bool,
    /// Words to suggest.
    pub(super) choices: fn() -> Vec<&'static str>,
}

/// What the meaning of a value may depend on.
pub(super) struct SettingContext<'a> {
    /// Holds the settings that come earlier in the table.
    pub(super) config: &'a Config,
    /// Relative paths start in its working directory.
    pub(super) env: &'a ProcessEnv,
}

impl<T> ValueFormat<T> {
    const fn new(
        placeholder: &'static str,
        parse: fn(&str, &SettingContext<'_>) -> Result<T, Refusal>,
        show: fn(&T) -> String,
    ) -> Self {
        Self { placeholder, parse, show, names_path: false, choices: Vec::new }
    }

    /// The format of a value that begins with a path.
    const fn path(
        placeholder: &'static str,
        parse: fn(&str, &SettingContext<'_>) -> Result<T, Refusal>,
        show: fn(&T) -> String,
    ) -> Self {
        Self { names_path: true, ..Self::new(placeholder, parse, show) }
    }

    const fn with_choices(self, choices: fn() -> Vec<&'static str>) -> Self {
        Self { choices, ..self }
    }
}

pub(super) const fn keyword<T: Keyword>() -> ValueFormat<T> {
    ValueFormat::new(T::PLACEHOLDER, |text, _| T::parse(text), |keyword| keyword.as_str().to_owned())
        .with_choices(words_of::<T>)
}

fn words_of<T: Keyword>() -> Vec<&'static str> {
    T::ALL.iter().map(|keyword| keyword.as_str()).collect()
}

/// At least `LEAST` bytes.
pub(super) const fn size<const LEAST: u64>() -> ValueFormat<u64> {
    ValueFormat::new("SIZE", |text, _| units::size(text, LEAST), |bytes| units::show_size(*bytes))
}

/// From 1 to `MOST`.
pub(super) const fn number<T: TryFrom<u64> + Display, const MOST: u64>() -> ValueFormat<T> {
    ValueFormat::new("NUMBER", |text, _| units::whole_number(text, MOST), T::to_string)
}

/// Most characters or tokens of output in a result.
const MAX_OUTPUT: u64 = 16_000_000;

pub(super) const OUTPUT_LIMIT: ValueFormat<OutputLimit> = ValueFormat::new(
    "NUMBER",
    |text, _| match text.strip_suffix("tokens") {
        Some(number) => units::whole_number(number.trim_end(), MAX_OUTPUT).map(OutputLimit::Tokens),
        None => units::whole_number(text, MAX_OUTPUT).map(OutputLimit::Characters),
    },
    |limit| match limit {
        OutputLimit::Characters(most) => most.to_string(),
        OutputLimit::Tokens(most) => format!("{most} tokens"),
    },
);

pub(super) const DURATION: ValueFormat<Duration> =
    ValueFormat::new("DURATION", |text, _| units::duration(text), |duration| units::show_duration(*duration));

pub(super) const START_TIMEOUT: ValueFormat<Duration> = ValueFormat::new(
    "DURATION",
    |text, _| definition::parse_start_timeout(text),
    |duration| units::show_duration(*duration),
);

pub(super) const REGISTRY: ValueFormat<RegistryAddress> =
    ValueFormat::new("URL", |text, _| RegistryAddress::parse(text), RegistryAddress::to_string)
        .with_choices(|| vec!["none"]);

/// A program and its arguments, without a shell.
pub(super) const PROGRAM: ValueFormat<ProgramWords> =
    ValueFormat::new("COMMAND", |text, _| ProgramWords::parse(text), ProgramWords::to_string);

pub(super) const CPUS: ValueFormat<f64> = ValueFormat::new("NUMBER", |text, _| units::cpus(text), f64::to_string);

pub(super) const BOOLEAN: ValueFormat<bool> =
    ValueFormat::new("BOOLEAN", |text, _| boolean(text), bool::to_string).with_choices(|| vec!["true", "false"]);

pub(super) const DIRECTORY: ValueFormat<PathBuf> =
    ValueFormat::path("DIR", |text, context| path(text, "directory", context), |path| path_text(path));

pub(super) const FILE: ValueFormat<PathBuf> =
    ValueFormat::path("FILE", |text, context| path(text, "file", context), |path| path_text(path));

pub(super) const ROOTFS: ValueFormat<PathBuf> =
    ValueFormat::path("DIR", |text, context| root::tree(text, context.env), |path| path_text(path));

pub(super) const PYTHON: ValueFormat<PathBuf> = ValueFormat::path(
    "PATH",
    |text, context| root::python(text, &context.config.policy.root, context.env),
    |path| path_text(path),
);

pub(super) const MOUNT: ValueFormat<SandboxMount> = ValueFormat::path(
    "SOURCE:TARGET[:rw]",
    |text, context| mount::parse(text, &context.config.policy.mounts, context.env),
    |mount| {
        let access = match mount.access {
            MountAccess::ReadOnly => "",
            MountAccess::ReadWrite => ":rw",
        };
        format!("{}:{}{access}", path_text(&mount.source), path_text(&mount.target))
    },
);

/// A directory that all sessions write to.
pub(super) const WORKSPACE: ValueFormat<SandboxMount> = ValueFormat::path(
    "DIR",
    |text, context| {
        let allowed = mount::allowed(text, context.env).map_err(|refusal| Refusal {
            hint: "name a directory of its own that exists; `mkdir -p DIR` makes one".to_owned(),
            ..refusal
        })?;
        let mount = format!("{}:/workspace/shared:rw", path_text(&allowed.directory));
        mount::parse(&mount, &context.config.policy.mounts, context.env)
    },
    |mount| path_text(&mount.source),
);

pub(super) const ALLOWED_MOUNT: ValueFormat<AllowedMount> =
    ValueFormat::path("DIR[:rw]", |text, context| mount::allowed(text, context.env), AllowedMount::to_string);

pub(super) const PYTHON_PACKAGE: ValueFormat<PackageRequest> =
    ValueFormat::new("NAME", |text, _| PackageRequest::parse(PackageKind::Python, text), PackageRequest::to_string);

pub(super) const NODE_PACKAGE: ValueFormat<PackageRequest> =
    ValueFormat::new("NAME", |text, _| PackageRequest::parse(PackageKind::Node, text), PackageRequest::to_string);

pub(super) const USER: ValueFormat<SandboxUser> =
    ValueFormat::new("UID:GID", |text, _| user(text), |user| format!("{}:{}", user.uid, user.gid));

pub(super) const NETWORK: ValueFormat<SandboxNetwork> = ValueFormat::new(
    "NETWORK",
    |text, _| network(text),
    |network| match network {
        SandboxNetwork::None => "none".to_owned(),
        SandboxNetwork::Named(name) => name.clone(),
    },
)
.with_choices(|| vec!["none"]);

/// Kept as it was written: `Config::load` makes rules of it, once it has those of the file.
pub(super) const NETWORK_RULE: ValueFormat<String> = ValueFormat::new(
    "HOST[:PORT]",
    |text, _| EgressRules::default().add(text).map(|()| text.to_owned()),
    String::clone,
)
.with_choices(|| PRESETS.iter().map(|preset| preset.name).collect());

pub(super) const RUNTIME: ValueFormat<String> = ValueFormat::new("NAME", |text, _| runtime(text), String::clone);

/// Whether there is such an image is found out when a session starts.
pub(super) const IMAGE: ValueFormat<String> = ValueFormat::new("NAME", |text, _| Ok(text.to_owned()), String::clone);

pub(super) const WARM_TARGET: ValueFormat<WarmTarget> =
    ValueFormat::new("NUMBER", |text, _| WarmTarget::parse(text), WarmTarget::to_string).with_choices(|| vec!["auto"]);

/// Any text: `SessionReadiness::within_bounds` leaves out what is no module, with a warning, because a server works without it.
pub(super) const MODULE: ValueFormat<String> = ValueFormat::new("MODULE", |text, _| Ok(text.to_owned()), String::clone);

pub(super) const CALL_PATTERN: ValueFormat<ToolPattern> =
    ValueFormat::new("SERVER.TOOL", |text, _| call_pattern(text), ToolPattern::to_string);

pub(super) const TOOLSETS: ValueFormat<Toolsets> =
    ValueFormat::new("TOOLSETS", |text, _| server::toolsets(text), Toolsets::to_string).with_choices(|| {
        let mut words = words_of::<Toolset>();
        words.push("all");
        words
    });

pub(super) const ADDRESS: ValueFormat<SocketAddr> =
    ValueFormat::new("ADDR", |text, _| http::address(text), SocketAddr::to_string);

pub(super) const AUTHORITY: ValueFormat<Authority> =
    ValueFormat::new("HOST[:PORT]", |text, _| http::allowed_host(text), Authority::to_string);

pub(super) const WEB_ORIGIN: ValueFormat<WebOrigin> =
    ValueFormat::new("ORIGIN", |text, _| http::allowed_origin(text), WebOrigin::to_string);

/// `true`, `false`, `1` or `0`.
pub(crate) fn boolean(text: &str) -> Result<bool, Refusal> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => {
            Err(Refusal::new(format!("`{}` is neither true nor false", display_value(text)), "write `true` or `false`"))
        }
    }
}

fn path(text: &str, noun: &str, context: &SettingContext<'_>) -> Result<PathBuf, Refusal> {
    match text {
        "" => Err(Refusal::new(format!("it names no {noun}"), format!("name a {noun}"))),
        _ => Ok(context.env.cwd.join(text)),
    }
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Parses `UID:GID`, or `UID` for both. Takes numbers only, because a name means another user inside the sandbox.
fn user(text: &str) -> Result<SandboxUser, Refusal> {
    let refusal = |cause: String| {
        Refusal::new(cause, "write `UID:GID` with numbers from `1` to `4294967294`, such as `65534:65534`")
    };
    let id = |part: &str| match part.parse() {
        Ok(0) => Err(refusal("code never runs as root".to_owned())),
        // The last number means "no change" to the kernel.
        Ok(u32::MAX) | Err(_) => Err(refusal(format!("`{}` is not a user and group", display_value(text)))),
        Ok(id) => Ok(id),
    };
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    Ok(SandboxUser { uid: id(uid)?, gid: id(gid)? })
}

fn network(text: &str) -> Result<SandboxNetwork, Refusal> {
    let hint = "write `none`, or the name of a network made for sandboxes (`docker network create`)";
    match text {
        "none" => Ok(SandboxNetwork::None),
        // A sandbox that shares a network namespace with the machine or with another container is not isolated from it.
        "host" => Err(Refusal::new("no sandbox may use the machine's own network", hint)),
        _ if is_plain_name(text) => Ok(SandboxNetwork::Named(text.to_owned())),
        _ => Err(Refusal::new(format!("`{}` is not the name of a network", display_value(text)), hint)),
    }
}

fn runtime(text: &str) -> Result<String, Refusal> {
    match is_plain_name(text) {
        true => Ok(text.to_owned()),
        false => Err(Refusal::new(
            format!("`{}` is not the name of a runtime", display_value(text)),
            "write a name that `docker info` lists under Runtimes, such as `runsc`",
        )),
    }
}

/// True for names that Docker and Podman accept.
fn is_plain_name(text: &str) -> bool {
    let first = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    first && text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

fn call_pattern(text: &str) -> Result<ToolPattern, Refusal> {
    let right = "write `SERVER`, or `SERVER.TOOL` with `*` for any run of characters, such as `github.list_*`";
    ToolPattern::parse(text).map_err(|cause| Refusal::new(cause, right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cove_core::image::BackendChoice;
    use cove_core::policy::ComposeRisk;

    /// Each case: the text, and the value or what the cause says.
    fn check<T: PartialEq + std::fmt::Debug>(
        parse: impl Fn(&str) -> Result<T, Refusal>,
        cases: &[(&str, Result<T, &str>)],
    ) {
        for (text, expected) in cases {
            let result = parse(text);
            match (&result, expected) {
                (Ok(value), Ok(expected)) => assert_eq!(value, expected, "`{text}`"),
                (Err(refusal), Err(expected)) => {
                    assert!(refusal.cause.contains(expected), "`{text}`: {}", refusal.cause);
                    assert!(!refusal.hint.is_empty(), "`{text}`");
                }
                _ => panic!("`{text}`: {result:?} is not {expected:?}"),
            }
        }
    }

    #[test]
    fn users() {
        check(
            user,
            &[
                ("65534:65534", Ok(SandboxUser { uid: 65534, gid: 65534 })),
                ("1000", Ok(SandboxUser { uid: 1000, gid: 1000 })),
                ("1000:100", Ok(SandboxUser { uid: 1000, gid: 100 })),
                ("4294967294:1", Ok(SandboxUser { uid: 4_294_967_294, gid: 1 })),
                ("0", Err("never runs as root")),
                ("0:1000", Err("never runs as root")),
                ("1000:0", Err("never runs as root")),
                ("4294967295", Err("not a user")),
                ("4294967296:1", Err("not a user")),
                ("nobody", Err("not a user")),
                ("1:2:3", Err("not a user")),
                ("1000:", Err("not a user")),
                (":1000", Err("not a user")),
                ("", Err("not a user")),
                ("-1", Err("not a user")),
            ],
        );
    }

    #[test]
    fn words() {
        check(
            BackendChoice::parse,
            &[
                ("auto", Ok(BackendChoice::Auto)),
                ("jail", Ok(BackendChoice::Jail)),
                ("docker", Ok(BackendChoice::Docker)),
                ("Docker", Err("not a backend")),
                ("", Err("not a backend")),
            ],
        );
        check(ComposeRisk::parse, &[("ports", Ok(ComposeRisk::Ports)), ("socket", Err("is not a risk"))]);
        check(
            network,
            &[
                ("none", Ok(SandboxNetwork::None)),
                ("egress-1", Ok(SandboxNetwork::Named("egress-1".into()))),
                ("host", Err("the machine's own network")),
                ("container:other", Err("not the name of a network")),
                ("", Err("not the name of a network")),
            ],
        );
        check(runtime, &[("runsc", Ok("runsc".into())), ("/bin/sh", Err("not the name"))]);
        check(
            boolean,
            &[("true", Ok(true)), ("1", Ok(true)), ("FALSE", Ok(false)), ("0", Ok(false)), ("yes", Err("neither"))],
        );
    }
}
