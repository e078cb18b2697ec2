//! How one request inside TLS is decided.

use crate::audit_line::NetworkCaller;
use crate::credential::EgressCredential;
use crate::host_pattern::HostPattern;
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::request_limits::RequestLimits;
use crate::request_path::{PathPattern, canonical_path};
use crate::rules::{EgressRule, EgressRules, HTTP_PORT, MAX_LISTED, RequestKind, RuleProtocol};
use crate::target_host::HostTarget;

impl EgressRules {
    /// Returns the rule that allows one request inside TLS, or why none does. `path` has no query.
    pub fn decide_request(
        &self,
        target: &HostTarget,
        method: &str,
        path: &str,
        caller: &NetworkCaller,
    ) -> Result<(&EgressRule, &RequestLimits), EgressRefusal> {
        self.decide(target, RequestKind::Tunnel, caller)?;
        let of_target = |rule: &&EgressRule| {
            rule.scope.includes(caller)
                && rule.host.matches(&target.host)
                && rule.ports.contains(&target.port)
                && rule.allows(RequestKind::Tunnel, target.port)
        };
        let rules = self.allow.iter().filter(of_target);
        let mut rules: Vec<_> = rules.filter_map(|rule| Some((rule, rule.inspection.as_ref()?))).collect();
        if rules.iter().any(|(_, limits)| !limits.is_implied) {
            rules.retain(|(_, limits)| !limits.is_implied);
        }
        let of_path: Vec<_> = rules.iter().filter(|(_, limits)| limits.allows_path(path)).collect();
        if let Some(found) = of_path.iter().find(|(_, limits)| limits.allows_method(method)) {
            return Ok(**found);
        }
        let shown = format!("{method} https://{}{}", target.shown(), shown_path(path));
        let refuse = |reason, cause: String, hint: &str| {
            Err(EgressRefusal { reason, target: shown.clone(), cause, hint: hint.to_owned() })
        };
        if let [(_, limits), ..] = of_path.as_slice() {
            let cause = format!("the rule allows {}", limits.methods.join(", "));
            return refuse(
                RefusalReason::MethodNotAllowed,
                cause,
                "use one of these; the operator can add the method to the rule",
            );
        }
        if let Err(problem) = canonical_path(path) {
            let cause = format!("the path can be read in two ways: {problem}");
            return refuse(RefusalReason::MalformedRequest, cause, "write the path without such parts");
        }
        let mut paths: Vec<String> =
            rules.iter().flat_map(|(_, limits)| &limits.paths).map(PathPattern::to_string).collect();
        paths.truncate(MAX_LISTED);
        let cause = format!("the rules for this host allow {}", paths.join(", "));
        refuse(RefusalReason::PathNotAllowed, cause, "use one of these paths; the operator can add others to the rule")
    }

    /// Returns the credential of this name.
    pub fn credential(&self, name: &str) -> Option<&EgressCredential> {
        self.credentials.iter().find(|credential| credential.name == name)
    }

    /// Returns the hosts whose requests Cove looks into.
    pub(crate) fn inspected_hosts(&self) -> Vec<HostPattern> {
        let inspected = self.allow.iter().filter(|rule| rule.inspection.is_some());
        inspected.map(|rule| rule.host.clone()).collect()
    }

    /// Makes Cove look into every rule for TLS, if the operator wants that.
    pub(crate) fn apply_inspection(&mut self) {
        let may_inspect = |rule: &&mut EgressRule| {
            rule.protocol == RuleProtocol::ByPort && rule.ports.iter().any(|port| *port != HTTP_PORT)
        };
        if self.inspects_all {
            for rule in self.allow.iter_mut().filter(may_inspect) {
                let limits = || RequestLimits { is_implied: true, ..RequestLimits::default() };
                rule.inspection.get_or_insert_with(limits);
            }
        }
    }
}

/// Returns a path as a refusal shows it: the code chose every character.
fn shown_path(path: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    path.chars().take(100).map(plain).collect()
}
