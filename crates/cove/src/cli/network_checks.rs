//! What must hold before code runs under rules about the network: a session must not start with weaker rules than those that
//! are written, or with rules that cannot work.

use std::path::Path;

use super::image_library::image_library;
use crate::config::Config;
use cove_core::error::{Failure, display_path};
use cove_core::image::ImageSet;
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
pub(super) async fn check_network(config: &Config, policy: &Policy, env: &ProcessEnv) -> Result<(), Failure> {
    check_credentials(&config.egress, &config.broker(), env)?;
    check_certificates(&config.egress, policy, env)?;
    check_scopes(config, env).await
}

/// Fails if a rule is limited to an image that there is not, or to a principal that no client of this server can have.
pub(super) async fn check_scopes(config: &Config, env: &ProcessEnv) -> Result<(), Failure> {
    if config.egress.scope_names.is_empty() {
        return Ok(());
    }
    // An image that cannot be used now has its own warning.
    let ImageSet { images, problems } = image_library(config, env).read().await;
    let images = images.iter().map(|image| image.name().to_owned()).chain(problems.into_iter().map(|it| it.name));
    config.egress.check_scopes(ScopeKind::Image, &images.collect::<Vec<_>>())?;
    match known_principals(&config.server.http, config.server.state_dir.as_deref(), env) {
        Some(principals) => config.egress.check_scopes(ScopeKind::Principal, &principals),
        None => Ok(()),
    }
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
