//! Checks of Docker and Podman: whether an engine answers, and what it cannot do. If sessions run in containers, the
//! checks of the embedded sandbox run in a container instead.

use std::time::Instant;

use cove_protocol::Language;

use crate::cli::run::container_backend;
use crate::config::Config;
use cove_core::backend::Backend;
use cove_core::error::{Failure, one_line_chain};
use cove_core::image::library::{ImageListing, SandboxKind, ServedImage};
use cove_core::image::{BackendChoice, ImageProblem};
use cove_core::process_env::ProcessEnv;
use cove_core::session::Session;
use cove_docker::{ContainerBackend, EngineDescription};

use super::report::{DoctorCheck, ReportSection};
use super::{ExaminedSession, try_everything, untried_checks};

/// Checks the engine where sessions run in the embedded sandbox: there only the operator's own images need
/// containers.
pub(super) async fn check_availability(
    config: &Config,
    env: &ProcessEnv,
    why: &str,
    listed: &ImageListing,
) -> Result<Vec<DoctorCheck>, Failure> {
    let mut checks = vec![check("choice").ok(format!("sessions are in the embedded sandbox, since {why}"))];
    checks.extend(image_checks(listed));
    if config.backend == BackendChoice::Jail {
        return Ok(checks);
    }
    let needs_engine = listed.images.iter().any(|image| image.kind == SandboxKind::Container);
    match container_backend(config, env)?.describe(&config.policy).await {
        Ok(engine) => checks.extend(engine_checks(&engine)),
        Err(error) if needs_engine => checks.push(check("daemon").fail_with(&error)),
        Err(error) => {
            let line = one_line_chain(&error);
            let note = check("daemon").note(format!("none; needed for images of your own only: {line}"));
            checks.push(DoctorCheck { fix: error.hint, ..note });
        }
    }
    Ok(checks)
}

fn check(name: &'static str) -> DoctorCheck {
    ReportSection::Containers.check(name)
}

/// Reports the images that run in containers, each with the reason, and the images that cannot be used.
pub(super) fn image_checks(listed: &ImageListing) -> Vec<DoctorCheck> {
    let in_containers = listed.images.iter().filter(|image| image.kind == SandboxKind::Container);
    let served = in_containers.map(|ServedImage { image, reason: why, .. }| {
        check("image").ok(format!("`{}` is in a container, since {why}", image.name()))
    });
    let unusable = listed.problems.iter().map(|ImageProblem { name, problem, hint }| {
        check("image").fail(format!("`{name}`: {problem}")).fix(hint.clone())
    });
    served.chain(unusable).collect()
}

/// Runs all checks in a container, where sessions run in containers.
pub(super) async fn try_in_container(
    config: &Config,
    env: &ProcessEnv,
    why: &str,
) -> Result<Vec<DoctorCheck>, Failure> {
    let mut checks = vec![check("choice").ok(format!("sessions are in containers, since {why}"))];
    let containers = container_backend(config, env)?;
    match containers.describe(&config.policy).await {
        Ok(engine) => checks.extend(engine_checks(&engine)),
        Err(error) => checks.push(check("daemon").fail_with(&error)),
    }
    let begun = Instant::now();
    let start = ReportSection::Sandbox.check("start");
    match start_session(&containers, config).await {
        Ok(session) => {
            let took = begun.elapsed().as_millis();
            checks.push(start.ok(format!("a container starts, in {took} ms, and is as it was asked for")));
            checks.extend(Language::ALL.map(|language| interpreter_check(&session.session, language)));
            checks.extend(try_everything(session, &containers, config, "the image has no python").await);
        }
        Err(error) => {
            checks.push(start.fail_with(&error));
            checks.extend(untried_checks("no container starts"));
        }
    }
    Ok(checks)
}

async fn start_session(containers: &ContainerBackend, config: &Config) -> Result<ExaminedSession, Failure> {
    containers.prepare(&config.policy, &|_| {}).await?;
    super::start_session(containers, config).await
}

fn interpreter_check(session: &Session, language: Language) -> DoctorCheck {
    let check = ReportSection::Interpreters.check(language.as_str());
    match session.interpreter_path(language) {
        Some(program) => check.ok(format!("{program} in the image")),
        None => check.note("not in the image; cells in it are refused"),
    }
}

fn engine_checks(engine: &EngineDescription) -> Vec<DoctorCheck> {
    let EngineDescription { name, address, rootless, cgroup, runtimes, gaps, compose } = engine;
    let kind = if *rootless { "rootless" } else { "of root: a user who may use its socket is as good as root" };
    let mut checks = vec![
        check("daemon").ok(format!("{name} at {address}, cgroup v{cgroup}, {kind}")),
        check("runtimes").ok(runtimes.join(", ")),
        match compose {
            Ok(version) => check("compose").ok(format!("Compose {version}")),
            Err(why) => check("compose").note(format!("none, so no image with a Compose file: {why}")),
        },
    ];
    if is_outdated(name) {
        let note = "older than what is still maintained elsewhere: it is as safe as your distribution keeps it";
        let gvisor = if name.starts_with("Podman") {
            "start it with gVisor (`podman --runtime runsc system service`)"
        } else {
            "use `--runtime runsc`"
        };
        let fix = format!("keep it, its runtime and the kernel patched, or {gvisor}");
        checks.push(check("version").note(note).fix(fix));
    }
    checks.extend(gaps.iter().map(|gap| check("gap").note(gap.text).fix(gap.fix)));
    checks
}

/// True if the engine's major version is outdated. Containers share the host's kernel, and newer engine versions have
/// fixed holes in the isolation between them.
fn is_outdated(name: &str) -> bool {
    const OLDEST: &[(&str, u32)] = &[("Docker", 28), ("Podman", 5)];
    let number = |version: &str| version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let (engine, version) = name.split_once(' ').unwrap_or((name, ""));
    let oldest = OLDEST.iter().find(|(known, _)| *known == engine).map(|(_, oldest)| *oldest);
    oldest.zip(number(version)).is_some_and(|(oldest, major)| major < oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_outdated_engine_versions() {
        for (name, old) in [
            ("Docker 20.10.24+dfsg1", true),
            ("Docker 29.4.3", false),
            ("Podman 4.3.1", true),
            ("Podman 5.0.0", false),
            ("Docker ", false),
        ] {
            assert_eq!(is_outdated(name), old, "{name}");
        }
    }
}
