//! The helper program that keeps secrets instead of the file, such as one for a keyring or a vault.
//!
//! It is called with `get`, `set`, `remove` or `list` as its last argument and a JSON object on standard input, and
//! answers with one on standard output:
//!
//! | argument | input | answer |
//! |---|---|---|
//! | `get` | `{"name": "…"}` | `{"value": "…"}`, or `{}` if there is none |
//! | `set` | `{"name": "…", "value": "…"}` | nothing |
//! | `remove` | `{"name": "…"}` | `{"removed": false}` if there was none |
//! | `list` | `{}` | `{"names": ["…"]}` |

use serde::Deserialize;
use serde_json::{Value, json};

use super::program::ProgramWords;
use super::{MAX_SECRET_VALUE, SecretEntry, check_secret_name};
use cove_core::error::{Failure, display_value};
use cove_core::process_env::ProcessEnv;

#[derive(Debug, Clone)]
pub(super) struct SecretsHelper {
    words: ProgramWords,
    env: ProcessEnv,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HelperAnswer {
    value: Option<String>,
    removed: Option<bool>,
    names: Vec<String>,
}

impl SecretsHelper {
    pub(super) fn new(words: ProgramWords, env: &ProcessEnv) -> Self {
        Self { words, env: env.clone() }
    }

    pub(super) async fn get(&self, name: &str) -> Result<Option<String>, Failure> {
        let value = self.ask("get", &json!({"name": name})).await?.value.filter(|value| !value.is_empty());
        match value {
            Some(value) if value.len() > MAX_SECRET_VALUE || value.contains('\0') => {
                Err(self.failure("get", "its answer is no usable value".to_owned()))
            }
            value => Ok(value),
        }
    }

    pub(super) async fn set(&self, name: &str, value: &str) -> Result<(), Failure> {
        self.ask("set", &json!({"name": name, "value": value})).await.map(drop)
    }

    pub(super) async fn remove(&self, name: &str) -> Result<bool, Failure> {
        Ok(self.ask("remove", &json!({"name": name})).await?.removed.unwrap_or(true))
    }

    pub(super) async fn names(&self) -> Result<Vec<SecretEntry>, Failure> {
        // The helper may keep secrets of other programs, under names that Cove cannot use.
        let names = self.ask("list", &json!({})).await?.names.into_iter();
        let names = names.filter(|name| check_secret_name(name).is_ok());
        Ok(names.map(|name| SecretEntry { name, since: None }).collect())
    }

    async fn ask(&self, action: &'static str, question: &Value) -> Result<HelperAnswer, Failure> {
        let printed = self.words.run(&[action], question.to_string().as_bytes(), &self.env).await;
        let printed = printed.map_err(|error| self.failure(action, error.to_string()))?;
        match printed.trim() {
            "" => Ok(HelperAnswer::default()),
            // serde's message could quote the answer.
            text => serde_json::from_str(text)
                .map_err(|_| self.failure(action, "its answer is not the JSON object that Cove expects".to_owned())),
        }
    }

    fn failure(&self, action: &'static str, cause: String) -> Failure {
        let program = display_value(self.words.program());
        Failure::operator(format!("could not {action} secrets with the helper `{program}`"))
            .because(cause)
            .with_hint(format!("the setting `secrets-helper` names it; try its command with `{action}` in a shell"))
    }
}
