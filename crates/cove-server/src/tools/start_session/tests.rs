//! Tests of sessions in container images, with a backend that only prepares them.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_protocol::Language;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::Server;
use crate::ServerSetup;
use crate::arguments::ToolArguments;
use crate::caller::ToolCaller;
use crate::server_config::{ServerConfig, toolsets};
use cove_core::BoxFuture;
use cove_core::backend::{Backend, ImagePreparation, PlanFormat, ProgressCallback, Sandbox, SandboxOwner};
use cove_core::image::library::ImageLibraryConfig;
use cove_core::image::library::{ImageLibrary, SandboxProbe};
use cove_core::image::{BackendChoice, ImagesConfig};
use cove_core::policy::grants::Grants;
use cove_core::policy::{CellLimits, SandboxLimits};
use cove_core::policy::{Policy, SandboxRoot};
use cove_core::process_env::ProcessEnv;
use cove_core::session::registry::{Principal, SessionRef};
use cove_upstream::broker::BrokerConfig;
use cove_upstream::catalog::SearchMode;
use cove_upstream::catalog::pins::PinPolicy;

/// The outcome of a preparation; `None` never finishes.
type PrepareOutcome = Option<Result<Option<String>, String>>;

struct PreparingBackend {
    outcome: PrepareOutcome,
    policies: Mutex<Vec<Policy>>,
}

impl Backend for PreparingBackend {
    fn name(&self, _policy: &Policy) -> &'static str {
        "preparing"
    }

    fn start<'a>(&'a self, _: &'a Policy, _: &'a SandboxOwner) -> BoxFuture<'a, Result<Sandbox, Failure>> {
        Box::pin(async { Err(Failure::operator("could not start anything")) })
    }

    fn prepare<'a>(
        &'a self,
        policy: &'a Policy,
        tell: ProgressCallback<'a>,
    ) -> BoxFuture<'a, Result<ImagePreparation, Failure>> {
        Box::pin(async move {
            tell("Step 1/2 : FROM debian:12");
            self.policies.lock().unwrap().push(policy.clone());
            match &self.outcome {
                Some(Ok(note)) => Ok(ImagePreparation { note: note.clone(), image_id: None }),
                Some(Err(message)) => Err(Failure::operator(message.clone())),
                None => std::future::pending().await,
            }
        })
    }

    fn explain<'a>(&'a self, _: &'a Policy, _: PlanFormat) -> BoxFuture<'a, Result<String, Failure>> {
        Box::pin(async { Ok(String::new()) })
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

struct WorkingProbe;

impl SandboxProbe for WorkingProbe {
    fn check_start(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn languages(&self) -> Vec<Language> {
        Vec::new()
    }
}

struct StartFixture {
    _directory: tempfile::TempDir,
    backend: Arc<PreparingBackend>,
    server: Arc<Server>,
    caller: ToolCaller,
}

fn setup() -> ServerSetup {
    ServerSetup {
        policy: Policy {
            limits: SandboxLimits { memory: 512 << 20, cpus: 1.0, pids: 256, workspace: 256 << 20, tmp: 64 << 20 },
            ..Policy::default()
        },
        cell: CellLimits {
            timeout: Duration::from_secs(30),
            max_timeout: Duration::from_secs(120),
            grace: Duration::from_secs(1),
            max_output: cove_core::output::OutputLimit::Characters(20_000),
        },
        server: ServerConfig {
            tools: toolsets("all").unwrap(),
            idle_timeout: Duration::from_secs(1800),
            max_sessions: 64,
            ..ServerConfig::default()
        },
        egress: Default::default(),
        broker: BrokerConfig {
            config_file: None,
            state_dir: None,
            grants: Grants::default(),
            start_timeout: Duration::from_secs(1),
            search: SearchMode::default(),
            allow_requests: false,
            secrets_helper: None,
            pins: PinPolicy::default(),
            isolate_upstreams: false,
        },
    }
}

fn start_fixture(outcome: PrepareOutcome) -> StartFixture {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("x")).unwrap();
    fs::write(directory.path().join("x/Dockerfile"), "FROM debian:12\n").unwrap();
    fs::write(directory.path().join("x/image.toml"), "languages = [\"node\"]\n[limits]\nmemory = \"1g\"\n").unwrap();
    let process_env = ProcessEnv { env: Default::default(), cwd: "/".into(), stdin_is_terminal: false };
    let setup = setup();
    let shelf_config = ImageLibraryConfig {
        images: ImagesConfig { dir: Some(directory.path().to_owned()), ..ImagesConfig::default() },
        backend: BackendChoice::Auto,
        policy: setup.policy.clone(),
        check_compose: |_, _, _, _| Ok(()),
    };
    let shelf = ImageLibrary::new(shelf_config, Box::new(WorkingProbe));
    let backend = Arc::new(PreparingBackend { outcome, policies: Mutex::default() });
    let server = Server::new(setup, None, process_env, Arc::clone(&backend) as Arc<dyn Backend>, shelf);
    let caller = ToolCaller {
        principal: Principal("alice".into()),
        default_session: SessionRef::New,
        progress: None,
        cancellation: CancellationToken::new(),
        knows_links: true,
        is_local: true,
        questions: None,
    };
    StartFixture { _directory: directory, backend, server, caller }
}

impl StartFixture {
    async fn start(&self) -> Result<Value, Failure> {
        let Value::Object(given) = json!({"image": "x"}) else { unreachable!() };
        let arguments = ToolArguments::new("start_session", Some(given), &["image", "mounts"])?;
        let call = ToolCall { server: &self.server, caller: &self.caller, arguments };
        let answer = start_session(call).await?;
        Ok(answer.structured.unwrap())
    }
}

#[tokio::test]
async fn start_session_reports_what_was_built() {
    let place = start_fixture(Some(Ok(Some("built the image `x` in 12 s".into()))));
    let started = place.start().await.unwrap();
    assert_eq!(started["note"], "built the image `x` in 12 s");
    let Ok(SessionRef::Handle(id)) = SessionRef::parse(started["session_id"].as_str().unwrap()) else {
        panic!("{started}")
    };
    let blueprint = place.server.sessions.blueprint(&place.caller.principal, &id).unwrap();
    assert_eq!(blueprint.policy.limits.memory, 1 << 30, "the image's own");
    assert_eq!((blueprint.line_language, blueprint.image.as_deref()), (Language::Node, Some("x")));
    assert!(matches!(&blueprint.policy.root, SandboxRoot::Image(recipe) if recipe.name == "x"));
    assert_eq!(
        *place.backend.policies.lock().unwrap(),
        std::slice::from_ref(&*blueprint.policy),
        "it was prepared for just that"
    );
}

#[tokio::test]
async fn start_session_has_no_note_without_a_build() {
    let started = start_fixture(Some(Ok(None))).start().await.unwrap();
    assert!(started.get("note").is_none(), "{started}");
}

#[tokio::test]
async fn failed_image_build_leaves_no_session() {
    let place = start_fixture(Some(Err("could not build the image `x`".into())));
    assert!(place.start().await.unwrap_err().to_string().contains("could not build the image `x`"));
    assert_eq!(place.server.sessions.count(), 0);
}

#[tokio::test]
async fn start_session_ends_when_the_caller_cancels() {
    let place = start_fixture(None);
    place.caller.cancellation.cancel();
    assert!(place.start().await.unwrap_err().to_string().contains("the caller no longer waits"));
    assert_eq!(place.server.sessions.count(), 0);
}
