//! `cove doctor`: what works here and what does not. Nothing is believed: a sandbox is started, the forbidden is tried
//! inside it, and every limit is run into. Each failure comes with the line that fixes it.

mod containers;
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
use crate::cli::shelf::shelf;
use crate::config::{Config, Surroundings};
use crate::error::{Error, Kind, in_one_line};
use crate::image::shelf::{By, Listed, Shelf, Standard};
use crate::session::{Options, Session};

use report::{Check, Section, Status};
use trial::Trial;

pub fn run(config: Config, around: Surroundings, json: bool) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    let checks = runtime.block_on(examine(&config, &around))?;
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

async fn examine(config: &Config, around: &Surroundings) -> Result<Vec<Check>, Error> {
    let machine = cove_jail::probe::Machine::look();
    let shelf = shelf(config, around);
    let standard = shelf.standard().await;
    let mut checks = machine::look_at(&machine);
    let by = standard.as_ref().map_or(By::Sandbox, |standard| standard.by);
    match standard {
        // What sessions would be in is what is examined.
        Ok(Standard { by: By::Container, why, policy, .. }) => {
            let mut config = config.clone();
            config.policy = policy;
            let tried = containers::try_all(&config, around, &why).await?;
            checks.extend(tried);
            checks.extend(containers::images(&own_images(&shelf, &config).await));
        }
        Ok(Standard { why, .. }) => {
            examine_sandbox(config, &mut checks).await?;
            checks
                .extend(containers::look_at(config, around, &why, &own_images(&shelf, config).await).await?);
        }
        Err(error) => {
            examine_sandbox(config, &mut checks).await?;
            let check = Check::new(Section::Containers, "choice");
            let fix = error.hint().unwrap_or("set `--image NAME`").to_owned();
            checks.push(check.fail(in_one_line(&error)).fix(fix));
        }
    }
    checks.sort_by_key(|check| check.section as usize);
    checks.push(report::verdict(&checks, &machine, by));
    Ok(checks)
}

/// Those that are built in need nothing; who has some of their own wants to know what these need.
async fn own_images(shelf: &Shelf, config: &Config) -> Listed {
    match config.images.dir {
        Some(_) => shelf.list().await,
        None => Listed { images: Vec::new(), problems: Vec::new() },
    }
}

async fn examine_sandbox(config: &Config, checks: &mut Vec<Check>) -> Result<(), Error> {
    let jail = Jail::new().map_err(|error| Error::of(Kind::Operator, error))?;
    let starts = try_to_start(&jail, config).await;
    let may_try = starts.status == Status::Ok;
    checks.push(starts);
    if !may_try {
        checks.extend(not_tried("no sandbox starts"));
        checks.extend(interpreters::found(&jail, config));
        return Ok(());
    }
    match Session::start(&jail, &config.policy, Options::default()).await {
        Ok(session) => checks.extend(try_all(Trial::new(session), &jail, config).await),
        Err(error) => {
            checks.extend(not_tried("there is no session to try them in"));
            checks.push(interpreters::missing(&error, config));
        }
    }
    Ok(())
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
