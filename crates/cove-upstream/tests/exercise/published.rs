//! What holds for documents of publishers, whatever they say: a person sees the whole command in readable text, and the
//! definition that it leads to is one that Cove accepts, with every secret in the store and none of Cove's variables.

use std::path::Path;

use serde_json::{Value, json};

use super::{InputValues, LaunchChoice, LaunchPlan, PublishedServer};
use crate::definition::ServerDefinitions;

const CHOICES: [LaunchChoice; 5] =
    [LaunchChoice::First, LaunchChoice::Remote, LaunchChoice::Npm, LaunchChoice::Pypi, LaunchChoice::Oci];

/// Reads every document in the bytes, plans each part that it offers, and panics where a plan breaks a promise.
pub fn exercise(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    for document in PublishedServer::documents_in(&value).into_iter().take(8) {
        let server = match PublishedServer::read(document) {
            Ok(server) => server,
            Err(reason) => {
                check_shown(&reason);
                continue;
            }
        };
        check_shown(&server.description);
        check_shown(&server.kinds());
        for choice in CHOICES {
            match LaunchPlan::new(&server, "tracker", choice, &InputValues::default()) {
                Ok(plan) => check_plan(&plan),
                Err(refusal) => {
                    check_shown(&refusal.cause);
                    check_shown(&refusal.hint);
                }
            }
        }
    }
}

fn check_shown(text: &str) {
    assert!(!text.chars().any(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)), "{text:?}");
    assert!(text.len() <= 64 * 1024, "{} bytes for a person: {text}", text.len());
}

fn check_plan(plan: &LaunchPlan) {
    check_shown(&plan.action);
    plan.details.iter().for_each(|detail| check_shown(detail));
    plan.needs().iter().for_each(|need| check_shown(need));
    if !plan.missing.is_empty() {
        return;
    }
    let text = json!({ "mcpServers": { "tracker": plan.entry } }).to_string();
    let read = ServerDefinitions::from_text(Path::new("tracker.json"), &text);
    assert!(read.problems.is_empty(), "{:?} of {text}", read.problems);
    let [server] = &read.servers[..] else { panic!("{} servers of {text}", read.servers.len()) };
    let known: Vec<&str> = plan.secrets.iter().map(|secret| secret.name.as_str()).collect();
    for secret in server.secret_names() {
        assert!(known.contains(&secret), "the secret {secret:?} is not among {known:?}");
    }
    for text in server.texts() {
        crate::definition::exercise::check_only_secrets(text);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_published() {
        crate::replay::replay("published", super::exercise);
    }
}
