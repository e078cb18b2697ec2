//! `cove doctor`: what works here and what does not. Nothing is believed: a sandbox is started, the forbidden is tried
//! inside it, and every limit is run into. Each failure comes with the line that fixes it.

mod interpreters;
mod limits;
mod machine;
mod protections;
mod report;
mod trial;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use cove_protocol::Language;

use crate::backend::jail::Jail;
use crate::config::Config;
use crate::error::{Error, Kind};
use crate::session::{Options, Session};

use report::{Check, Section, Status};
use trial::Trial;

pub fn run(config: Config, json: bool) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    let checks = runtime.block_on(examine(&config))?;
    let text = if json { report::json(&checks)? } else { report::text(&checks) };
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::operator("could not write to standard output").because(error))
        }
        _ if report::is_sound(&checks) => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::FAILURE),
    }
}

async fn examine(config: &Config) -> Result<Vec<Check>, Error> {
    let machine = cove_jail::probe::Machine::look();
    let jail = Jail::new().map_err(|error| Error::of(Kind::Operator, error))?;
    let mut checks = machine::look_at(&machine);
    let starts = try_to_start(&jail, config).await;
    let may_try = starts.status == Status::Ok;
    checks.push(starts);
    if !may_try {
        checks.extend(not_tried("no sandbox starts"));
        checks.extend(interpreters::found(&jail, config));
    } else {
        match Session::start(&jail, &config.policy, Options::default()).await {
            Ok(session) => checks.extend(try_all(Trial::new(session), &jail, config).await),
            Err(error) => {
                checks.extend(not_tried("there is no session to try them in"));
                checks.push(interpreters::missing(&error, config));
            }
        }
    }
    checks.push(report::verdict(&checks, &machine));
    Ok(checks)
}

/// Without an interpreter, so that what is not installed is told apart from what is not allowed.
async fn try_to_start(jail: &Jail, config: &Config) -> Check {
    let check = Check::new(Section::Sandbox, "start");
    let begun = Instant::now();
    match jail.start_empty(&config.policy).await {
        Ok(mut sandbox) => match sandbox.control.start_failure().await {
            Some(error) => check.failed(&error),
            None => {
                let took = begun.elapsed().as_millis();
                sandbox.control.kill();
                sandbox.control.wait().await;
                check.ok(format!("the embedded sandbox starts, in {took} ms"))
            }
        },
        Err(error) => check.failed(&error),
    }
}

async fn try_all(session: Trial, jail: &Jail, config: &Config) -> Vec<Check> {
    let interpreters = interpreters::run_all(&session, jail, config).await;
    let mut checks = Vec::new();
    if session.has(Language::Python) {
        checks.extend(protections::attempt_all(&session, jail, config).await);
        session.stop().await;
        checks.extend(limits::run_into_all(jail, config).await);
    } else {
        session.stop().await;
        checks.extend(not_tried("python programs try them, and there is no python"));
    }
    checks.extend(interpreters);
    checks
}

fn not_tried(why: &str) -> [Check; 2] {
    [Section::Protections, Section::Limits]
        .map(|section| Check::new(section, "all").note(format!("not tried: {why}")))
}
