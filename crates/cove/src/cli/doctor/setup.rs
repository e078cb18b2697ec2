//! What the person configured: the file, the servers, and the clients that Cove is registered with. Nothing is started,
//! and nothing here fails: no code is less safe because of it.

use super::report::{DoctorCheck, ReportSection};
use crate::cli::install;
use crate::cli::servers::KnownServers;
use crate::config::{Config, SETTINGS, SettingOrigin, misspelled_variables};
use cove_core::error::display_path;
use cove_core::policy::readiness::{MAX_PRELOADED, MAX_WARM, WarmTarget};
use cove_core::policy::{ImageRecipe, ImageSource, Policy, SandboxRoot};
use cove_core::private_file::{UnsafeFileError, check_private_file};
use cove_core::process_env::ProcessEnv;
use cove_core::text::format_count;
use cove_upstream::broker::audit::audit_path;
use cove_upstream::pool::{UpstreamState, UpstreamSummary};

/// More lines of one kind than a person reads.
const MAX_NAMED: usize = 10;

pub(super) fn setup_checks(config: &Config, env: &ProcessEnv) -> Vec<DoctorCheck> {
    let mut checks = configuration_checks(config, env);
    checks.extend(server_checks(&KnownServers::load(config, env)));
    checks.extend(client_checks(env));
    checks
}

fn configuration_checks(config: &Config, env: &ProcessEnv) -> Vec<DoctorCheck> {
    let check = |name| ReportSection::Configuration.check(name);
    let changed: Vec<&str> = SETTINGS
        .iter()
        .filter(|setting| *config.origin(setting) != SettingOrigin::Default)
        .map(|setting| setting.key)
        .collect();
    let mut checks = vec![
        check("file").ok(match &config.file {
            Some(file) if file.exists() => display_path(file),
            Some(file) => format!("none at {}", display_path(file)),
            None => "none, because there is no home directory".to_owned(),
        }),
        check("settings").ok(match changed.as_slice() {
            [] => "all have their defaults".to_owned(),
            changed => format!("not the default: {}", changed.join(", ")),
        }),
    ];
    if config.egress.allow_anything() {
        let reachable = config.egress.reachable_hosts();
        checks.push(
            check("network").note(format!("code reaches, through the host: {reachable}")).fix("`--no-net` drops all"),
        );
    }
    if config.egress.has_caching_rules() {
        checks.push(check("downloads").ok(config.egress.download_cache.to_string()));
    }
    if let Some(state_dir) = &config.server.state_dir {
        let path = audit_path(state_dir);
        if let Err(error) = check_private_file(&path).or_else(UnsafeFileError::ignore_io) {
            let note = format!("`{}` is refused: {error}", display_path(&path));
            checks.push(check("state").note(note).fix(error.hint(&path)));
        }
    }
    let fix = "make the file yours alone, or use a flag";
    checks.extend(config.warnings.iter().map(|warning| check("line").note(warning).fix(fix)));
    let fix = "correct the name, or unset the variable";
    checks.extend(misspelled_variables(env).into_iter().map(|warning| check("variable").note(warning).fix(fix)));
    checks
}

/// Reports which sessions a server with this configuration keeps ready. `usable` is the policy of sessions that name no
/// image, with values within bounds; `warnings` says which values of the configuration a server cannot use.
pub(super) fn readiness_checks(usable: &Policy, warnings: &[String]) -> Vec<DoctorCheck> {
    let check = || ReportSection::Configuration.check("ready");
    let is_compose =
        matches!(&usable.root, SandboxRoot::Image(ImageRecipe { source: ImageSource::Compose { .. }, .. }));
    let modules = &usable.readiness.preload;
    let sessions = match usable.readiness.warm {
        _ if is_compose => Err("none (the default image has a Compose file)"),
        WarmTarget::Fixed(0) => Err("none (`warm` is 0)"),
        WarmTarget::Fixed(count) => Ok(format_count(count, "session")),
        WarmTarget::Adapted => Ok("as many sessions as were needed lately".to_owned()),
    };
    let mut checks = vec![check().ok(match sessions {
        Err(none) => none.to_owned(),
        Ok(sessions) if modules.is_empty() => format!("{sessions}, for each language"),
        Ok(sessions) => format!("{sessions}, for each language; python has imported {}", modules.join(", ")),
    })];
    let fix = format!("set `warm` to `auto` or 0 to {MAX_WARM}, and `preload` to at most {MAX_PRELOADED} modules");
    checks.extend(warnings.iter().take(MAX_NAMED).map(|warning| check().note(warning).fix(fix.as_str())));
    checks
}

fn server_checks(known: &KnownServers) -> Vec<DoctorCheck> {
    let check = |name| ReportSection::Servers.check(name);
    let KnownServers { summaries, problems, .. } = known;
    let mut checks = vec![match summaries.len() {
        0 => check("defined").ok("none; `cove servers add` defines one that code can call"),
        count => {
            let listed = summaries.iter().filter(|summary| known.tools(&summary.name).is_some()).count();
            check("defined").ok(format!("{}, {listed} with known tools", format_count(count, "server")))
        }
    }];
    let broken = summaries.iter().filter_map(|UpstreamSummary { name, state, .. }| match state {
        UpstreamState::Needs(_) => Some((name, state, "`cove servers list` shows where it is defined".to_owned())),
        UpstreamState::NeedsSignIn(need) => Some((name, state, format!("run `{}`", need.command(name)))),
        UpstreamState::Failed(_) => Some((name, state, format!("`cove servers refresh {name}` tries it again"))),
        _ => None,
    });
    checks.extend(
        broken.take(MAX_NAMED).map(|(name, state, fix)| check("state").note(format!("`{name}` {state}")).fix(fix)),
    );
    let problems = problems.iter().take(MAX_NAMED);
    checks.extend(problems.map(|problem| check("problem").note(problem.to_string()).fix("correct that file")));
    checks
}

fn client_checks(env: &ProcessEnv) -> Vec<DoctorCheck> {
    let check = |name| ReportSection::Clients.check(name);
    let clients = install::present_clients(env);
    let names = |wanted: bool| {
        let names: Vec<&str> =
            clients.iter().filter(|(_, has_cove)| *has_cove == wanted).map(|(name, _)| *name).collect();
        names.join(", ")
    };
    let (registered, others) = (names(true), names(false));
    let mut checks = vec![check("registered").ok(match registered.as_str() {
        "" => "with none; `cove install` lists the known clients".to_owned(),
        names => format!("with {names}"),
    })];
    if !others.is_empty() {
        checks.push(check("others").ok(format!("found, without Cove: {others}")));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use cove_core::policy::readiness::SessionReadiness;

    #[test]
    fn readiness_is_one_line_and_a_note_for_each_unusable_value() {
        let lines = |warm, preload: &[&str]| -> Vec<String> {
            let preload = preload.iter().map(|module| (*module).to_owned()).collect();
            let (readiness, warnings) = SessionReadiness { warm, preload }.within_bounds();
            let usable = Policy { readiness, ..Policy::default() };
            let text = |check: DoctorCheck| {
                let fix = check.fix.map(|fix| format!("; fix: {fix}")).unwrap_or_default();
                format!("{}: {}{fix}", check.check, check.detail)
            };
            readiness_checks(&usable, &warnings).into_iter().map(text).collect()
        };
        let adapted = WarmTarget::Adapted;
        assert_eq!(lines(adapted, &[]), ["ready: as many sessions as were needed lately, for each language"]);
        assert_eq!(lines(WarmTarget::Fixed(0), &["numpy"]), ["ready: none (`warm` is 0)"]);
        assert_eq!(
            lines(WarmTarget::Fixed(1), &["numpy", "os.path"]),
            ["ready: 1 session, for each language; python has imported numpy, os.path"]
        );
        assert_eq!(
            lines(WarmTarget::Fixed(100_000), &["../x"]),
            [
                "ready: 64 sessions, for each language",
                "ready: `warm` is 100000, and at most 64 sessions are kept ready: 64 are; fix: set `warm` to `auto` \
                 or 0 to 64, and `preload` to at most 32 modules",
                "ready: `preload` leaves a value out: `../x` is not the name of a Python module; write names such as \
                 `numpy` or `os.path`, of at most 100 characters; fix: set `warm` to `auto` or 0 to 64, and `preload` \
                 to at most 32 modules",
            ]
        );
        assert_eq!(lines(adapted, &["a b"; 40]).len(), 1 + MAX_NAMED);
        let of_image = |source| {
            let root = SandboxRoot::Image(ImageRecipe { name: "x".into(), source, languages: Vec::new() });
            readiness_checks(&Policy { root, ..Policy::default() }, &[])[0].detail.clone()
        };
        let plain = of_image(ImageSource::Reference("debian:12".into()));
        assert_eq!(plain, "as many sessions as were needed lately, for each language");
        let composed = of_image(ImageSource::Compose { folder: "/images/pair".into(), main: None });
        assert_eq!(composed, "none (the default image has a Compose file)");
    }
}
