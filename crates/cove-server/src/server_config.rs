//! Settings of the server: which tools agents see, how results and logs are written, how many sessions may be open.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::http_config::HttpConfig;
use cove_core::error::Refusal;
use cove_core::keyword::{Keyword, keywords};
use cove_core::policy::AllowedMount;
use cove_core::process_env::ProcessEnv;

/// The default has no setting applied.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerConfig {
    pub tools: Toolsets,
    pub output: OutputFormat,
    pub idle_timeout: Duration,
    pub max_sessions: usize,
    /// Where agents and Compose files may mount from.
    pub allowed_mounts: Vec<AllowedMount>,
    /// None if no setting names it and there is no home directory.
    pub state_dir: Option<PathBuf>,
    pub log_level: LogLevel,
    pub log_format: LogFormat,
    pub http: HttpConfig,
    /// How long a person may take to answer a question of an upstream server.
    pub input_timeout: Duration,
}

impl ServerConfig {
    /// Fills in the defaults that depend on the machine.
    pub fn fill_defaults(&mut self, env: &ProcessEnv) {
        if self.state_dir.is_none() {
            let base = env.directory("XDG_STATE_HOME").map(Path::to_owned);
            let base = base.or_else(|| env.home().map(|home| home.join(".local/state")));
            self.state_dir = base.map(|base| base.join("cove"));
        }
    }
}

keywords!(
    /// A group of tools that agents see together.
    pub Toolset, "TOOLSET", "a toolset": Code = "code", Python = "python", Sessions = "sessions", Files = "files"
);

/// Toolsets without repetition, in the order of [`Toolset::ALL`], so that agents always see the same list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toolsets(Vec<Toolset>);

impl Toolsets {
    pub fn contains(&self, toolset: Toolset) -> bool {
        self.0.contains(&toolset)
    }
}

impl fmt::Display for Toolsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Toolset::ALL {
            return f.write_str("all");
        }
        let names: Vec<&str> = self.0.iter().map(|toolset| toolset.as_str()).collect();
        f.write_str(&names.join(","))
    }
}

pub fn toolsets(text: &str) -> Result<Toolsets, Refusal> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    for word in words.iter().filter(|word| **word != "all") {
        Toolset::parse(word).map_err(|refusal| {
            let names = Toolset::ALL.map(|toolset| format!("`{}`", toolset.as_str())).join(", ");
            Refusal::new(refusal.cause, format!("write {names} separated by commas, or `all`"))
        })?;
    }
    let is_named = |toolset: &Toolset| words.contains(&"all") || words.contains(&toolset.as_str());
    Ok(Toolsets(Toolset::ALL.into_iter().filter(is_named).collect()))
}

keywords!(
    /// How results are written for the model.
    #[derive(Default)]
    pub OutputFormat, "FORMAT", "a format of results": #[default] Compact = "compact", Toon = "toon", Json = "json"
);

keywords!(
    #[derive(Default)]
    pub LogLevel, "LEVEL", "a log level":
    Off = "off", Error = "error", Warn = "warn", #[default] Info = "info", Debug = "debug"
);

keywords!(#[derive(Default)] pub LogFormat, "FORMAT", "a log format": #[default] Text = "text", Json = "json");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolsets_are_a_set_in_a_fixed_order() {
        let shown = |text| toolsets(text).map(|tools| tools.to_string()).map_err(|refusal| refusal.cause);
        assert_eq!(shown("code").as_deref(), Ok("code"));
        assert_eq!(shown("files, code,files").as_deref(), Ok("code,files"));
        assert_eq!(shown("all").as_deref(), Ok("all"));
        assert_eq!(shown("files,all").as_deref(), Ok("all"));
        assert_eq!(shown("files,sessions,python,code").as_deref(), Ok("all"));
        assert!(shown("").is_err() && shown("code,").is_err());
        assert_eq!(shown("code,Everything"), Err("`Everything` is not a toolset".into()));
    }

    #[test]
    fn words() {
        assert_eq!(OutputFormat::parse("toon").map_err(|refusal| refusal.cause), Ok(OutputFormat::Toon));
        let refusal = OutputFormat::parse("yaml").unwrap_err();
        assert_eq!(refusal.cause, "`yaml` is not a format of results");
        assert_eq!(refusal.hint, "write `compact`, `toon` or `json`");
        assert!(LogLevel::parse("loud").is_err() && LogFormat::parse("xml").is_err());
    }
}
