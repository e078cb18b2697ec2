//! Docker and Podman: whether they are there, what they cannot do, and, where sessions are in containers, everything that
//! is tried in the embedded sandbox, in one.

use std::time::Instant;

use cove_protocol::Language;

use crate::backend::docker::{Description, Docker};
use crate::backend::{Backend, StartError};
use crate::cli::images::connect::containers;
use crate::config::{BackendChoice, Config, Surroundings};
use crate::error::Error;
use crate::image::shelf::{By, Listed, Served};
use crate::session::{Options, Session};

use super::report::{Check, Section};
use super::trial::Trial;
use super::{limits, not_tried, protections};

/// Where sessions are in the embedded sandbox: containers are for images of one's own.
pub(super) async fn look_at(
    config: &Config,
    around: &Surroundings,
    why: &str,
    listed: &Listed,
) -> Result<Vec<Check>, Error> {
    let check = Check::new(Section::Containers, "choice");
    let mut checks = vec![check.ok(format!("sessions are in the embedded sandbox, since {why}"))];
    checks.extend(images(listed));
    if config.backend == BackendChoice::Jail {
        return Ok(checks);
    }
    match containers(config, around)?.describe(&config.policy).await {
        Ok(engine) => checks.extend(described(&engine)),
        Err(error) => {
            let check = Check::new(Section::Containers, "daemon");
            let needed = listed.images.iter().any(|image| image.by == By::Container);
            checks.push(match (needed, &error.hint) {
                (true, _) => check.failed(&error),
                (false, hint) => {
                    let line = crate::error::in_one_line(&error);
                    let check = check.note(format!("none; needed for images of your own only: {line}"));
                    Check { fix: hint.clone(), ..check }
                }
            });
        }
    }
    Ok(checks)
}

/// Those that containers serve, and why; and those that cannot be used.
pub(super) fn images(listed: &Listed) -> Vec<Check> {
    let check = || Check::new(Section::Containers, "image");
    let in_containers = listed.images.iter().filter(|image| image.by == By::Container);
    let served = in_containers.map(|Served { image, why, .. }| {
        check().ok(format!("`{}` is in a container, since {why}", image.name()))
    });
    let unusable = listed.problems.iter().map(|problem| {
        check().fail(format!("`{}`: {}", problem.name, problem.problem)).fix(problem.hint.clone())
    });
    served.chain(unusable).collect()
}

/// Where sessions are in containers.
pub(super) async fn try_all(config: &Config, around: &Surroundings, why: &str) -> Result<Vec<Check>, Error> {
    let check = Check::new(Section::Containers, "choice");
    let mut checks = vec![check.ok(format!("sessions are in containers, since {why}"))];
    let docker = containers(config, around)?;
    match docker.describe(&config.policy).await {
        Ok(engine) => checks.extend(described(&engine)),
        Err(error) => checks.push(Check::new(Section::Containers, "daemon").failed(&error)),
    }
    let begun = Instant::now();
    let start = Check::new(Section::Sandbox, "start");
    match open(&docker, config).await {
        Ok(session) => {
            let took = begun.elapsed().as_millis();
            checks.push(start.ok(format!("a container starts, in {took} ms, and is as it was asked for")));
            checks.extend(try_inside(session, &docker, config).await);
        }
        Err(error) => {
            checks.push(start.failed(&error));
            checks.extend(not_tried("no container starts"));
        }
    }
    Ok(checks)
}

async fn open(docker: &Docker, config: &Config) -> Result<Session, StartError> {
    docker.prepare(&config.policy, &|_| {}).await?;
    Session::start(docker, &config.policy, Options::default()).await
}

async fn try_inside(session: Session, docker: &Docker, config: &Config) -> Vec<Check> {
    let found = |language: Language| {
        let check = Check::new(Section::Interpreters, language.as_str());
        match session.program(language) {
            Some(program) => check.ok(format!("{program} in the image")),
            None => check.note("not in the image; cells in it are refused"),
        }
    };
    let mut checks: Vec<Check> = Language::ALL.into_iter().map(found).collect();
    let trial = Trial::new(session);
    if trial.has(Language::Python) {
        checks.extend(protections::attempt_all(&trial, docker, config).await);
        trial.stop().await;
        checks.extend(limits::run_into_all(docker, config).await);
    } else {
        trial.stop().await;
        checks.extend(not_tried("python programs try them, and the image has no python"));
    }
    checks
}

fn described(found: &Description) -> Vec<Check> {
    let Description { name, address, rootless, cgroup, runtimes, gaps, compose } = found;
    let kind = if *rootless { "rootless" } else { "of root: whoever may use its socket is as good as root" };
    let mut checks = vec![
        Check::new(Section::Containers, "daemon")
            .ok(format!("{name} at {address}, cgroup v{cgroup}, {kind}")),
        Check::new(Section::Containers, "runtimes").ok(runtimes.join(", ")),
        match compose {
            Ok(version) => Check::new(Section::Containers, "compose").ok(format!("Compose {version}")),
            Err(why) => Check::new(Section::Containers, "compose")
                .note(format!("none, so no image with a Compose file: {why}")),
        },
    ];
    if is_old(name) {
        let check = Check::new(Section::Containers, "version");
        let told =
            "older than what is still maintained elsewhere: it is as safe as your distribution keeps it";
        let gvisor = if name.starts_with("Podman") {
            "start it with gVisor (`podman --runtime runsc system service`)"
        } else {
            "use `--runtime runsc`"
        };
        checks
            .push(check.note(told).fix(format!("keep it, its runtime and the kernel patched, or {gvisor}")));
    }
    checks.extend(gaps.iter().map(|gap| Check::new(Section::Containers, "gap").note(gap.clone())));
    checks
}

/// Containers share the kernel, and what keeps them apart has had holes that later versions closed.
fn is_old(name: &str) -> bool {
    const OLDEST: &[(&str, u32)] = &[("Docker", 28), ("Podman", 5)];
    let number = |version: &str| version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let (maker, version) = name.split_once(' ').unwrap_or((name, ""));
    let oldest = OLDEST.iter().find(|(known, _)| *known == maker).map(|(_, oldest)| *oldest);
    oldest.zip(number(version)).is_some_and(|(oldest, major)| major < oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_known() {
        for (name, old) in [
            ("Docker 20.10.24+dfsg1", true),
            ("Docker 29.4.3", false),
            ("Podman 4.3.1", true),
            ("Podman 5.0.0", false),
            ("Docker ", false),
        ] {
            assert_eq!(is_old(name), old, "{name}");
        }
    }
}
