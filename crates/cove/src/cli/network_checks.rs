//! What must hold before code runs under rules about the network: a session must not start with weaker rules than those that
//! are written, or with rules that cannot work.

use std::collections::BTreeSet;
use std::path::Path;

use super::image_library::image_library;
use super::lazy_broker::local_scope;
use crate::config::Config;
use cove_core::error::{Failure, display_path};
use cove_core::image::ImageSet;
use cove_core::image::built_in::BUILT_IN_IMAGES;
use cove_core::policy::{Policy, SandboxRoot};
use cove_core::process_env::ProcessEnv;
use cove_core::session::certificates_failure;
use cove_core::units::{KIB, show_size};
use cove_egress::{EgressRules, ScopeKind, check_trust, create_session_network};
use cove_server::check_credentials;
use cove_server::http::known_principals;

/// Names the certificates of servers that Cove trusts.
const TRUST_VARIABLE: &str = "SSL_CERT_FILE";

/// Fails if the rules name what does not exist, if a credential has no value, or if requests could not be inspected.
/// `policy` is that of sessions whose client names no image.
pub(super) async fn check_network(
    config: &Config,
    policy: &Policy,
    env: &ProcessEnv,
    command: RuleReader,
) -> Result<(), Failure> {
    check_credentials(&config.egress, &config.broker(), env)?;
    check_certificates(&config.egress, policy, env)?;
    check_scopes(config, env, command).await
}

/// Which command reads the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleReader {
    /// It knows its principals, also without a token file.
    Server,
    /// The rules may be for a server whose token file it does not know.
    OtherCommand,
}

/// Fails if a rule is limited to an image that there is not, or to a principal that no client of this server can have.
pub(super) async fn check_scopes(config: &Config, env: &ProcessEnv, command: RuleReader) -> Result<(), Failure> {
    if config.egress.scope_names.is_empty() {
        return Ok(());
    }
    // An image that cannot be used now has its own warning. The embedded sandbox has the name of a built-in image.
    let ImageSet { images, problems } = image_library(config, env).read().await;
    let own = images.iter().map(|image| image.name().to_owned()).chain(problems.into_iter().map(|it| it.name));
    let built_in = BUILT_IN_IMAGES.iter().map(|image| image.name.to_owned());
    let names: BTreeSet<String> = own.chain(built_in).collect();
    config.egress.check_scopes(ScopeKind::Image, &Vec::from_iter(names))?;
    let principals = known_principals(&config.server.http, config.server.state_dir.as_deref(), env);
    let principals = match (principals, command) {
        (Ok(Some(principals)), _) => principals,
        (Ok(None), RuleReader::Server) => vec![local_scope().principal.0],
        (Err(error), RuleReader::Server) => return Err(error),
        (Ok(None) | Err(_), RuleReader::OtherCommand) => return Ok(()),
    };
    config.egress.check_scopes(ScopeKind::Principal, &principals)
}

/// Fails if requests that rules inspect could not be made: if Cove has no certificates to trust, or if those of a session do not
/// fit into a sandbox of this policy. Images have certificates of their own, so their sandboxes report it when they start.
fn check_certificates(rules: &EgressRules, policy: &Policy, env: &ProcessEnv) -> Result<(), Failure> {
    if !rules.has_inspected_rules() {
        return Ok(());
    }
    if let Some(file) = env.env.get(TRUST_VARIABLE).filter(|file| !file.is_empty()) {
        let path = Path::new(file);
        check_trust(path).map_err(|problem| {
            let shown = display_path(path);
            Failure::usage(format!("could not use `{TRUST_VARIABLE}={shown}` for rules that inspect requests"))
                .because(problem)
                .with_hint("name a file of PEM certificates, or unset it: Cove then trusts the servers that this machine trusts")
        })?;
    }
    let root = match &policy.root {
        SandboxRoot::Host => Path::new("/"),
        SandboxRoot::Tree(tree) => tree,
        SandboxRoot::Image(_) => return Ok(()),
    };
    let authority = create_session_network(rules)?.authority.unwrap_or_default();
    let bytes = cove_runner::needed_certificate_room(root, authority.len());
    match policy.limits.tmp < bytes {
        true => Err(certificates_failure(bytes, policy.limits.tmp)
            .because(format!("they take {} of its `/tmp`", show_size(bytes.next_multiple_of(KIB))))),
        false => Ok(()),
    }
}
