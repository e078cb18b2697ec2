//! Sessions in images that a container serves, with a backend that only gets them ready.

use std::fs;
use std::sync::{Arc, Mutex};

use cove_protocol::Language;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::backend::{Backend, Form, Pending, Sandbox, StartError, Tell, Whose};
use crate::config::{Config, Flags, Surroundings};
use crate::image::shelf::{Probe, Shelf};
use crate::policy::{Policy, Root};
use crate::server::caller::Unnamed;
use crate::session::registry::Principal;

/// What comes of getting ready; nothing for never.
type Outcome = Option<Result<Option<String>, String>>;

struct Preparing {
    outcome: Outcome,
    policies: Mutex<Vec<Policy>>,
}

impl Backend for Preparing {
    fn name(&self, _policy: &Policy) -> &'static str {
        "preparing"
    }

    fn start<'a>(&'a self, _: &'a Policy, _: &'a Whose) -> Pending<'a, Result<Sandbox, StartError>> {
        Box::pin(async { Err(StartError::new("could not start anything")) })
    }

    fn prepare<'a>(
        &'a self,
        policy: &'a Policy,
        tell: Tell<'a>,
    ) -> Pending<'a, Result<Option<String>, StartError>> {
        Box::pin(async move {
            tell("Step 1/2 : FROM debian:12");
            self.policies.lock().unwrap().push(policy.clone());
            match &self.outcome {
                Some(outcome) => outcome.clone().map_err(StartError::new),
                None => std::future::pending().await,
            }
        })
    }

    fn explain<'a>(&'a self, _: &'a Policy, _: Form) -> Pending<'a, Result<String, StartError>> {
        Box::pin(async { Ok(String::new()) })
    }

    fn sweep(&self) -> Pending<'_, ()> {
        Box::pin(async {})
    }
}

struct Nothing;

impl Probe for Nothing {
    fn works(&self) -> Pending<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn languages(&self) -> Vec<Language> {
        Vec::new()
    }
}

struct Place {
    _directory: tempfile::TempDir,
    backend: Arc<Preparing>,
    server: Arc<Server>,
    caller: Caller,
}

fn place(outcome: Outcome) -> Place {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("x")).unwrap();
    fs::write(directory.path().join("x/Dockerfile"), "FROM debian:12\n").unwrap();
    fs::write(directory.path().join("x/image.toml"), "languages = [\"node\"]\n[limits]\nmemory = \"1g\"\n")
        .unwrap();
    let around = Surroundings { env: Default::default(), cwd: "/".into(), stdin_is_terminal: false };
    let values = [("image-dir", vec![directory.path().to_str().unwrap().to_owned()])].into();
    let config = Config::load(&Flags { config: None, values }, &around).unwrap();
    let shelf = Shelf::new(&config, Box::new(Nothing));
    let backend = Arc::new(Preparing { outcome, policies: Mutex::default() });
    let server = Server::new(config, None, around, Arc::clone(&backend) as Arc<dyn Backend>, shelf);
    let caller = Caller {
        principal: Principal("alice".into()),
        unnamed: Unnamed::New,
        progress: None,
        cancelled: CancellationToken::new(),
        knows_links: true,
    };
    Place { _directory: directory, backend, server, caller }
}

impl Place {
    async fn start(&self) -> Result<Value, Error> {
        let Value::Object(given) = json!({"image": "x"}) else { unreachable!() };
        let arguments = Arguments::new("start_session", Some(given), &["image", "mounts"])?;
        let answer = call(&self.server, arguments, &self.caller).await?;
        Ok(answer.structured.unwrap())
    }
}

#[tokio::test]
async fn what_was_done_for_a_session_is_told_with_it() {
    let place = place(Some(Ok(Some("built the image `x` in 12 s".into()))));
    let started = place.start().await.unwrap();
    assert_eq!(started["note"], "built the image `x` in 12 s");
    let Ok(Which::Handle(id)) = Which::parse(started["session_id"].as_str().unwrap()) else {
        panic!("{started}")
    };
    let blueprint = place.server.sessions.blueprint(&place.caller.principal, &id).unwrap();
    assert_eq!(blueprint.policy.limits.memory, 1 << 30, "the image's own");
    assert_eq!((blueprint.speaks, blueprint.image.as_deref()), (Language::Node, Some("x")));
    assert!(matches!(&blueprint.policy.root, Root::Image(recipe) if recipe.name == "x"));
    assert_eq!(
        *place.backend.policies.lock().unwrap(),
        std::slice::from_ref(&blueprint.policy),
        "it was prepared for just that"
    );
}

#[tokio::test]
async fn nothing_is_told_if_nothing_was_done() {
    let started = place(Some(Ok(None))).start().await.unwrap();
    assert!(started.get("note").is_none(), "{started}");
}

#[tokio::test]
async fn an_image_that_cannot_be_made_ready_leaves_no_session() {
    let place = place(Some(Err("could not build the image `x`".into())));
    assert!(place.start().await.unwrap_err().to_string().contains("could not build the image `x`"));
    assert_eq!(place.server.sessions.count(), 0);
}

#[tokio::test]
async fn whoever_stops_waiting_is_not_waited_for() {
    let place = place(None);
    place.caller.cancelled.cancel();
    assert!(place.start().await.unwrap_err().to_string().contains("nobody waits"));
    assert_eq!(place.server.sessions.count(), 0);
}
