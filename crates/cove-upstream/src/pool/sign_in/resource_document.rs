//! The document about sign-in that a server names in its challenge. rmcp goes on without one that it cannot use, and
//! then fails at an authorization server that no document named. This remembers what is wrong with the document itself.

use std::sync::Mutex;

use http::{Response, StatusCode};
use reqwest::Url;
use rmcp::transport::auth::WWWAuthenticateParams;
use serde_json::{Map, Value};

use super::SignInError;
use crate::pool::text;
use cove_core::sync::lock;

pub(super) struct ResourceDocument {
    server: Url,
    url: Url,
    /// Set by the first answer that cannot be used.
    problem: Mutex<Option<String>>,
}

impl ResourceDocument {
    /// Returns the document that a challenge names, if it names one.
    pub(super) fn of_challenge(challenge: &str, server: &Url) -> Option<Self> {
        let url = WWWAuthenticateParams::parse(challenge, server).resource_metadata_url?;
        Some(Self { server: server.clone(), url, problem: Mutex::default() })
    }

    /// Looks at an answer on its way to rmcp.
    pub(super) fn inspect(&self, address: &str, answer: &Response<Vec<u8>>) {
        // Where a redirect leads to, rmcp decides.
        if address == self.url.as_str()
            && !answer.status().is_redirection()
            && let Some(problem) = find_problem(&self.server, answer)
        {
            lock(&self.problem).get_or_insert(problem);
        }
    }

    /// Returns what is wrong with the document; `None` if it can be used, or was not asked for.
    pub(super) fn error(&self) -> Option<SignInError> {
        let problem = lock(&self.problem).clone()?;
        let place = format!("{}{}", self.url.origin().ascii_serialization(), self.url.path());
        let cause = format!(
            "what it publishes about sign-in cannot be used: the document `{}`, which it names, {problem}",
            text::to_line(&place, 200)
        );
        Some(SignInError::new(cause).with_hint("check the server's address; else its operator has to correct this"))
    }
}

/// Says why an answer is not the document of a server.
fn find_problem(server: &Url, answer: &Response<Vec<u8>>) -> Option<String> {
    if answer.status() != StatusCode::OK {
        return Some(format!("answers HTTP {}", answer.status().as_u16()));
    }
    let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(answer.body()) else {
        return Some("is no JSON object".to_owned());
    };
    let Some(resource) = fields.get("resource").and_then(Value::as_str) else {
        return Some("has no `resource`".to_owned());
    };
    let is_own = |resource: Url| resource.origin() == server.origin() && server.path().starts_with(resource.path());
    if !Url::parse(resource).is_ok_and(is_own) {
        return Some(format!("is about `{}`, not about this server", text::to_line(resource, 200)));
    }
    let named = fields.get("authorization_servers").and_then(Value::as_array).into_iter().flatten();
    let has_named = named.chain(fields.get("authorization_server")).any(Value::is_string);
    (!has_named).then(|| "names no authorization server (`authorization_servers`)".to_owned())
}
