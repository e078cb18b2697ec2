//! `cove doctor` tests what works on this machine. It takes nothing for granted: it starts a sandbox, attempts
//! forbidden actions inside it, and runs into every limit. Each failure comes with the line that fixes it.

mod containers;
mod interpreters;
mod limits;
mod machine;
mod network_rules;
mod protections;
mod report;
mod setup;
mod trial_program;

use std::process::ExitCode;
use std::time::Instant;

use cove_protocol::Language;

use crate::cli::image_library::image_library;
use crate::cli::network_checks::{RuleReader, check_network};
use crate::cli::tables::{PrintStyle, render_json};
use crate::cli::{CommandContext, runtime};
use crate::config::Config;
use cove_core::backend::Backend;
use cove_core::backend::jail::Jail;
use cove_core::error::{Failure, one_line_chain};
use cove_core::image::library::{DefaultEnvironment, ImageLibrary, ImageListing, SandboxKind};
use cove_core::process_env::ProcessEnv;
use cove_core::session::{Session, SessionOptions};
use cove_egress::create_session_network;

use report::{CheckStatus, DoctorCheck, ReportSection};

/// Returns the report and the exit code.
pub fn run(context: CommandContext) -> Result<(String, ExitCode), Failure> {
    let CommandContext { config, env, json } = context;
    let checks = runtime::single_threaded()?.block_on(examine(config, &env))?;
    let text =
        if json { render_json("the checks", &checks)? } else { report::render_text(&checks, PrintStyle::of_stdout()) };
    Ok((text, if report::is_sound(&checks) { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

async fn examine(mut config: Config, env: &ProcessEnv) -> Result<Vec<DoctorCheck>, Failure> {
    let machine = cove_jail::probe::MachineProbe::gather();
    let (readiness, out_of_bounds) = config.policy.readiness.within_bounds();
    config.policy.readiness = readiness;
    let library = image_library(&config, env);
    let images = own_images(&library, &config).await;
    let mut checks = machine::machine_checks(&machine);
    checks.extend(setup::setup_checks(&config, env));
    let default = library.default_environment().await;
    let usable = default.as_ref().map_or(&config.policy, |default| &default.policy);
    checks.extend(setup::readiness_checks(usable, &out_of_bounds));
    // What would stop a server.
    let unusable = check_network(&config, usable, env, RuleReader::OtherCommand).await.err();
    checks.extend(unusable.map(|error| ReportSection::Configuration.check("network rules").fail_with(&error)));
    let kind = match default {
        // Examines the kind of sandbox that sessions would get.
        Ok(DefaultEnvironment { kind: SandboxKind::Container, reason, policy, .. }) => {
            config.policy = policy;
            checks.extend(containers::try_in_container(&config, env, &reason).await?);
            checks.extend(containers::image_checks(&images));
            SandboxKind::Container
        }
        Ok(DefaultEnvironment { reason, .. }) => {
            checks.extend(examine_sandbox(&config).await?);
            checks.extend(containers::check_availability(&config, env, &reason, &images).await?);
            SandboxKind::Embedded
        }
        Err(error) => {
            checks.extend(examine_sandbox(&config).await?);
            let fix = error.hint().unwrap_or("set `--image NAME`").to_owned();
            checks.push(ReportSection::Containers.check("choice").fail(one_line_chain(&error)).fix(fix));
            SandboxKind::Embedded
        }
    };
    checks.sort_by_key(|check| check.section as usize);
    checks.push(report::verdict_check(&checks, &machine, kind));
    Ok(checks)
}

/// Lists the operator's own images. The built-in images need no check, so without an image directory the list is
/// empty.
async fn own_images(library: &ImageLibrary, config: &Config) -> ImageListing {
    match config.images.dir {
        Some(_) => library.list().await,
        None => ImageListing { images: Vec::new(), problems: Vec::new() },
    }
}

async fn examine_sandbox(config: &Config) -> Result<Vec<DoctorCheck>, Failure> {
    let jail = Jail::new()?;
    let mut checks = try_to_start(&jail, config).await;
    if checks[0].status != CheckStatus::Ok {
        checks.extend(untried_checks("no sandbox starts"));
        checks.extend(interpreters::found_checks(&jail, config));
        return Ok(checks);
    }
    match start_session(&jail, config).await {
        Ok(session) => {
            let interpreters = interpreters::run_all(&session.session, &jail, config).await;
            checks.extend(try_everything(session, &jail, config, "there is no python").await);
            checks.extend(interpreters);
        }
        Err(error) => {
            checks.extend(untried_checks("there is no session to try them in"));
            checks.push(interpreters::missing_check(&error, config));
        }
    }
    Ok(checks)
}

/// A session as agents get it.
struct ExaminedSession {
    session: Session,
    /// What the host adds to the environment of its code.
    variables: Vec<(String, String)>,
}

async fn start_session(backend: &dyn Backend, config: &Config) -> Result<ExaminedSession, Failure> {
    let network = config.egress.allow_anything().then(|| create_session_network(&config.egress)).transpose()?;
    let variables = network.as_ref().map(|network| network.variables.clone()).unwrap_or_default();
    let options = SessionOptions { network, ..SessionOptions::default() };
    Ok(ExaminedSession { session: Session::start(backend, &config.policy, options).await?, variables })
}

/// Starts a sandbox without an interpreter, which separates a missing interpreter from a forbidden sandbox.
async fn try_to_start(jail: &Jail, config: &Config) -> Vec<DoctorCheck> {
    let check = ReportSection::Sandbox.check("start");
    let begun = Instant::now();
    let mut control = match jail.start_empty(&config.policy).await {
        Ok(sandbox) => sandbox.control,
        Err(error) => return vec![check.fail_with(&error)],
    };
    if let Some(error) = control.start_failure().await {
        return vec![check.fail_with(&error)];
    }
    let took = begun.elapsed().as_millis();
    control.kill();
    control.wait().await;
    let mut checks = vec![check.ok(format!("the embedded sandbox starts, in {took} ms"))];
    checks.extend(control.unmet_plan().map(|unmet| {
        let check = ReportSection::Sandbox.check("users").note(format!("a sandbox {unmet}"));
        check.fix(
            "see why with `unshare --user sleep 9 & newuidmap $! 0 ID 1`, where ID is one of `/etc/subuid`; else code \
             can use up what the kernel counts for your user",
        )
    }));
    checks
}

/// Tries the protections and the limits, and ends the session. `no_python` says why there is nothing to try them with.
async fn try_everything(
    ExaminedSession { session, variables }: ExaminedSession,
    backend: &dyn Backend,
    config: &Config,
    no_python: &str,
) -> Vec<DoctorCheck> {
    if !session.languages().contains(&Language::Python) {
        session.stop().await;
        return untried_checks(&format!("python programs try them, and {no_python}")).into();
    }
    let mut checks = protections::try_protections(&session, variables, backend, config).await;
    session.stop().await;
    checks.extend(network_rules::try_refusal(backend, config).await);
    checks.extend(limits::try_limits(backend, config).await);
    checks
}

fn untried_checks(why: &str) -> [DoctorCheck; 2] {
    [ReportSection::Protections, ReportSection::Limits]
        .map(|section| section.check("all").note(format!("not tried: {why}")))
}
