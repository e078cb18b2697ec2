//! How the sessions of the suite come to be. What a session promises does not depend on it.

use std::io::Cursor;

use cove_core::backend::Backend;
use cove_core::policy::Policy;
use cove_core::session::{Session, SessionOptions};
use cove_protocol::Language;
use cove_testkit::measure;

/// Whether a session has run before its user gets it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SessionStart {
    OnTheSpot,
    /// As a server keeps sessions ready.
    Ready {
        language: Language,
        modules: &'static [&'static str],
    },
}

/// Starts the sessions of one test.
pub(crate) struct SessionStarter<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) start: SessionStart,
}

impl SessionStarter<'_> {
    pub(crate) async fn start(&self, policy: &Policy) -> Session {
        match self.start {
            SessionStart::OnTheSpot => {
                Session::start(self.backend, policy, SessionOptions::default()).await.expect("a session starts")
            }
            SessionStart::Ready { language, modules } => {
                let modules: Vec<String> = modules.iter().map(|&module| module.to_owned()).collect();
                let started = Session::start_ready(
                    self.backend,
                    policy,
                    SessionOptions::default(),
                    language,
                    &modules,
                    std::future::pending(),
                )
                .await;
                started.unwrap_or_else(|error| panic!("a session is made ready: {error:?}"))
            }
        }
    }

    /// Starts a session whose code gets this as its standard input. None is kept ready for that.
    pub(crate) async fn start_with_input(&self, input: &[u8]) -> Session {
        let input = Box::new(Cursor::new(input.to_vec()));
        let options = SessionOptions { input: Some(input), warm_language: None, ..SessionOptions::default() };
        Session::start(self.backend, &measure::config().policy, options).await.expect("a session starts")
    }
}
