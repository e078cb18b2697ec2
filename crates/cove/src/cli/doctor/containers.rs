//! Docker and Podman: whether they are there, what they cannot do, and, where sessions are in containers, everything that
//! is tried in the embedded sandbox, in one.

use std::time::Instant;

use cove_protocol::Language;

use crate::backend::docker::{Description, Docker};
use crate::backend::{Backend, StartError};
use crate::cli::images::connect::containers;
use crate::config::{BackendChoice, Config, Surroundings};
use crate::error::Error;
use crate::session::{Options, Session};

use super::report::{Check, Section};
use super::trial::Trial;
use super::{limits, not_tried, protections};

/// Where sessions are in the embedded sandbox: containers are for images of one's own.
pub(super) async fn look_at(config: &Config, around: &Surroundings, why: &str) -> Result<Vec<Check>, Error> {
    let check = Check::new(Section::Containers, "choice");
    let mut checks = vec![check.ok(format!("sessions are in the embedded sandbox, since {why}"))];
    if config.backend == BackendChoice::Jail {
        return Ok(checks);
    }
    match containers(config, around)?.describe(&config.policy).await {
        Ok(engine) => checks.extend(described(&engine)),
        Err(error) => {
            let line = crate::error::in_one_line(&error);
            let check = Check::new(Section::Containers, "daemon");
            let check = check.note(format!("none; needed for images of your own only: {line}"));
            checks.push(match error.hint {
                Some(hint) => check.fix(hint),
                None => check,
            });
        }
    }
    Ok(checks)
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
    checks.extend(gaps.iter().map(|gap| Check::new(Section::Containers, "gap").note(gap.clone())));
    checks
}
