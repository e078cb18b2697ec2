//! Values that only a program can give: `${cmd:…}`, secrets that a helper keeps, and the headers of `headers_cmd`. They
//! are fetched once for each start of a server, before anything of it runs, and stay in memory only.

use std::collections::BTreeMap;

use super::super::settings::UpstreamSettings;
use crate::definition::references::{TextPart, ValueReference, split_references};
use crate::definition::{DefinitionOwner, ServerDefinition, ServerLaunch};
use crate::secrets::ProgramWords;
use cove_core::error::{display_value, one_line_chain};
use cove_core::process_env::ProcessEnv;

const MAX_HEADERS: usize = 100;

/// The fetched values of one start. A failure is a text that names what is needed.
#[derive(Default)]
pub(in crate::pool) struct FetchedValues {
    commands: BTreeMap<String, Result<String, String>>,
    secrets: BTreeMap<String, Result<Option<String>, String>>,
    headers: Option<Result<BTreeMap<String, String>, String>>,
}

impl FetchedValues {
    /// Runs the programs that a definition refers to, one after the other: several may ask the person something.
    pub(in crate::pool) async fn fetch(definition: &ServerDefinition, settings: &UpstreamSettings) -> Self {
        let mut values = Self::default();
        for part in definition.texts().into_iter().flat_map(split_references) {
            values.fetch_part(part, definition.owner, settings).await;
        }
        if let ServerLaunch::Http { headers_cmd: Some(command), .. } = &definition.launch {
            values.headers = Some(match HeadersCommand::new(command, definition.owner, settings) {
                Ok(command) => command.run().await,
                Err(need) => Err(need),
            });
        }
        values
    }

    /// Runs the programs that a text of the person's own configuration refers to.
    pub(in crate::pool) async fn fetch_text(text: &str, settings: &UpstreamSettings) -> Self {
        let mut values = Self::default();
        for part in split_references(text) {
            values.fetch_part(part, DefinitionOwner::Person, settings).await;
        }
        values
    }

    async fn fetch_part(&mut self, part: TextPart<'_>, owner: DefinitionOwner, settings: &UpstreamSettings) {
        match part {
            TextPart::Reference(ValueReference::Command(command)) if !self.commands.contains_key(command) => {
                let value = match find_command(command, owner, settings) {
                    Ok(words) => run_command(&words, &settings.process_env()).await,
                    Err(need) => Err(need),
                };
                self.commands.insert(command.to_owned(), value);
            }
            TextPart::Reference(ValueReference::Secret(name))
                if settings.secrets.has_helper() && !self.secrets.contains_key(name) =>
            {
                let value = settings.secrets.get(name).await.map_err(|failure| describe_secret_failure(name, &failure));
                self.secrets.insert(name.to_owned(), value);
            }
            _ => {}
        }
    }

    /// Returns true if a program failed. A secret that is merely missing is no failure.
    pub(in crate::pool) fn has_failure(&self) -> bool {
        self.commands.values().any(Result::is_err)
            || self.secrets.values().any(Result::is_err)
            || self.headers.as_ref().is_some_and(Result::is_err)
    }
}

/// Where the values of references come from.
pub(in crate::pool) enum ValueSource {
    /// Nothing is run: a stand-in takes the place of each value that only a program can give.
    Unfetched,
    Fetched(FetchedValues),
}

/// Stands for a value in a check that runs nothing. It may be a part of an address.
const STAND_IN: &str = "0";

impl ValueSource {
    pub(super) fn command(
        &self,
        command: &str,
        owner: DefinitionOwner,
        settings: &UpstreamSettings,
    ) -> Result<String, String> {
        match self {
            Self::Unfetched => find_command(command, owner, settings).map(|_| STAND_IN.to_owned()),
            Self::Fetched(values) => values.commands.get(command).cloned().unwrap_or_else(|| Err("a value".to_owned())),
        }
    }

    pub(super) fn secret(&self, name: &str, settings: &UpstreamSettings) -> Result<String, String> {
        let value = match self {
            Self::Unfetched if settings.secrets.has_helper() => Ok(Some(STAND_IN.to_owned())),
            Self::Fetched(values) if settings.secrets.has_helper() => {
                values.secrets.get(name).cloned().unwrap_or(Ok(None))
            }
            Self::Unfetched | Self::Fetched(_) => {
                settings.secrets.read_file_value(name).map_err(|failure| describe_secret_failure(name, &failure))
            }
        };
        value?.ok_or_else(|| {
            let name = display_value(name);
            format!("secret {name}: run `cove secrets set {name}`")
        })
    }

    /// The headers that the command of a definition printed.
    pub(super) fn headers(
        &self,
        command: &str,
        owner: DefinitionOwner,
        settings: &UpstreamSettings,
    ) -> Result<BTreeMap<String, String>, String> {
        match self {
            Self::Unfetched => HeadersCommand::new(command, owner, settings).map(|_| BTreeMap::new()),
            Self::Fetched(values) => values.headers.clone().unwrap_or_else(|| Ok(BTreeMap::new())),
        }
    }
}

fn describe_secret_failure(name: &str, failure: &cove_core::error::Failure) -> String {
    format!("secret {}, but: {}", display_value(name), one_line_chain(failure))
}

/// Returns the program of `${cmd:…}` or `headers_cmd`. Fails if a project's file asks for it, or if it is missing.
fn find_command(command: &str, owner: DefinitionOwner, settings: &UpstreamSettings) -> Result<ProgramWords, String> {
    if owner == DefinitionOwner::Project {
        return Err(
            "a definition in your own files: Cove runs no `${cmd:…}` and no `headers_cmd` of a project's file, \
                    even of a trusted one (copy the entry with `cove servers add`)"
                .to_owned(),
        );
    }
    let words = ProgramWords::parse(command).map_err(|refusal| {
        format!("another command for `${{cmd:…}}` or `headers_cmd`: {} ({})", refusal.cause, refusal.hint)
    })?;
    match words.find(&settings.process_env()) {
        Some(_) => Ok(words),
        None => Err(format!("command {}", display_value(words.program()))),
    }
}

async fn run_command(words: &ProgramWords, env: &ProcessEnv) -> Result<String, String> {
    let program = display_value(words.program());
    // Without its arguments, which may hold a secret: agents see this.
    let need = |cause: String| format!("a value from `{program}`, but {cause}; try the command in a shell");
    let printed = words.run(&[], b"", env).await.map_err(|failure| need(failure.to_string()))?;
    match printed.strip_suffix('\n').map_or(printed.as_str(), |line| line.strip_suffix('\r').unwrap_or(line)) {
        "" => Err(need("it printed nothing".to_owned())),
        value if value.contains('\0') => Err(need("it printed a NUL byte".to_owned())),
        value => Ok(value.to_owned()),
    }
}

/// The `headers_cmd` of a definition.
#[derive(Clone)]
pub(in crate::pool) struct HeadersCommand {
    words: ProgramWords,
    env: ProcessEnv,
}

impl HeadersCommand {
    pub(super) fn new(command: &str, owner: DefinitionOwner, settings: &UpstreamSettings) -> Result<Self, String> {
        Ok(Self { words: find_command(command, owner, settings)?, env: settings.process_env() })
    }

    /// Runs the command and returns the headers that it prints. Fails with what is needed.
    pub(in crate::pool) async fn run(&self) -> Result<BTreeMap<String, String>, String> {
        let printed = run_command(&self.words, &self.env).await?;
        let headers = serde_json::from_str::<BTreeMap<String, String>>(&printed).ok();
        headers.filter(|headers| headers.len() <= MAX_HEADERS).ok_or_else(|| {
            let program = display_value(self.words.program());
            format!("headers from `{program}`, but it printed no JSON object of at most {MAX_HEADERS} texts")
        })
    }
}
