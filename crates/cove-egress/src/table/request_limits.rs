//! The keys of a rule that say which requests it allows.

use cove_core::document::DocumentNode;
use cove_core::error::{Failure, Refusal};

use super::TableReader;
use crate::host_pattern::HostPattern;
use crate::request_limits::RequestLimits;
use crate::request_path::PathPattern;
use crate::rules::{EgressRule, RuleProtocol};

const MAX_LIMITS: usize = 100;

impl TableReader<'_> {
    /// Returns the texts of a list, or of a single text.
    fn texts<'n>(
        &self,
        rule: &'n DocumentNode,
        key: &str,
        right: &str,
    ) -> Result<Vec<(&'n str, &'n DocumentNode)>, Failure> {
        let Some(node) = rule.get(key) else { return Ok(Vec::new()) };
        let wrong = |node: &DocumentNode| self.wrong_kind(key, node, right);
        if let Some(text) = node.text() {
            return Ok(vec![(text, node)]);
        }
        let items = node.items().filter(|items| (1..=MAX_LIMITS).contains(&items.len())).ok_or_else(|| wrong(node))?;
        items.iter().map(|item| Ok((item.text().ok_or_else(|| wrong(item))?, item))).collect()
    }

    /// Returns which requests the rule allows. None if it has no key that needs Cove to look into TLS.
    pub(super) fn request_limits(
        &self,
        node: &DocumentNode,
        rule: &EgressRule,
    ) -> Result<Option<RequestLimits>, Failure> {
        let mut limits = RequestLimits::default();
        for (text, item) in self.texts(node, "methods", "methods = [\"GET\", \"HEAD\"]")? {
            let is_method = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
            if !is_method || matches!(text, "CONNECT" | "TRACE") {
                let refusal =
                    Refusal::of_value(text, "is not a method that a rule can allow", "write methods such as `GET`");
                return Err(self.failure("methods", item, refusal));
            }
            limits.methods.push(text.to_owned());
        }
        for (text, item) in self.texts(node, "paths", "paths = [\"/repos/acme/**\"]")? {
            limits.paths.push(PathPattern::parse(text).map_err(|refusal| self.failure("paths", item, refusal))?);
        }
        for (text, _) in self.texts(node, "credential", "credential = \"github\"")? {
            limits.credentials.push(text.to_owned());
        }
        limits.caches = self.flag(node, "cache")?;
        let is_inspected = self.flag(node, "inspect")? || limits != RequestLimits::default();
        if !is_inspected {
            return Ok(None);
        }
        let key =
            ["credential", "methods", "paths", "cache", "inspect"].into_iter().find(|key| node.get(key).is_some());
        let key = key.unwrap_or("inspect");
        let refuse = |cause: String, hint: &str| Err(self.failure(key, node, Refusal::new(cause, hint)));
        if rule.protocol != RuleProtocol::ByPort || rule.ports.contains(&80) {
            let cause = format!("`{key}` needs TLS, and the rule allows plain HTTP or any bytes");
            return refuse(
                cause,
                "leave out `http`, `tcp` and port 80, or `methods`, `paths`, `credential`, `cache` and `inspect`",
            );
        }
        if limits.caches && !(limits.credentials.is_empty() && limits.allows_method("GET")) {
            let cause = "a rule with `cache` allows `GET` and has no `credential`".to_owned();
            return refuse(cause, "leave out `cache`: sessions share only what everyone may read");
        }
        if !limits.credentials.is_empty() && matches!(rule.host, HostPattern::AnyLabels(_)) {
            let cause = format!("a credential would go to every host of `{}`", rule.host);
            return refuse(cause, "name a host, or `*.` before a domain");
        }
        Ok(Some(limits))
    }
}
