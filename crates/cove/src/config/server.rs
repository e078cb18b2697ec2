//! What serving needs beyond a sandbox: which tools agents see, how results and logs are written, how much may be open.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::Surroundings;
use super::http::HttpConfig;
use super::mount::AllowedMount;
use super::value::Wrong;
use crate::error::shown;

#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    pub tools: Toolsets,
    pub output: OutputFormat,
    pub idle_timeout: Duration,
    pub max_sessions: usize,
    /// Where mounts that agents ask for may come from.
    pub allowed_mounts: Vec<AllowedMount>,
    /// Nothing where there is no home to keep it in and none was named.
    pub state_dir: Option<PathBuf>,
    pub log_level: LogLevel,
    pub log_format: LogFormat,
    pub http: HttpConfig,
}

impl ServerConfig {
    pub(super) fn unset() -> Self {
        Self {
            tools: Toolsets(Vec::new()),
            output: OutputFormat::Compact,
            idle_timeout: Duration::ZERO,
            max_sessions: 0,
            allowed_mounts: Vec::new(),
            state_dir: None,
            log_level: LogLevel::Info,
            log_format: LogFormat::Text,
            http: HttpConfig::unset(),
        }
    }

    /// Defaults that depend on the machine.
    pub(super) fn settle(&mut self, around: &Surroundings) {
        if self.state_dir.is_none() {
            let base = match around.directory("XDG_STATE_HOME") {
                Some(state) => Some(state.to_owned()),
                None => around.home().map(|home| home.join(".local/state")),
            };
            self.state_dir = base.map(|base| base.join("cove"));
        }
    }
}

/// A group of tools that agents see together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toolset {
    Code,
    Python,
    Sessions,
    Files,
}

impl Toolset {
    pub const ALL: [Toolset; 4] = [Toolset::Code, Toolset::Python, Toolset::Sessions, Toolset::Files];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Python => "python",
            Self::Sessions => "sessions",
            Self::Files => "files",
        }
    }
}

/// Each at most once, in the order of [`Toolset::ALL`], so that agents always see the same list.
#[derive(Debug, Clone, PartialEq, Eq)]
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

pub(super) fn tools(text: &str) -> Result<Toolsets, Wrong> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    if let Some(unknown) =
        words.iter().find(|word| **word != "all" && Toolset::ALL.iter().all(|known| known.as_str() != **word))
    {
        let names: Vec<String> = Toolset::ALL.iter().map(|known| format!("`{}`", known.as_str())).collect();
        return Err(Wrong::new(
            format!("`{}` is not a toolset", shown(unknown)),
            format!("write {} separated by commas, or `all`", names.join(", ")),
        ));
    }
    let wanted = |toolset: &Toolset| words.contains(&"all") || words.contains(&toolset.as_str());
    Ok(Toolsets(Toolset::ALL.into_iter().filter(wanted).collect()))
}

/// One of a few words. The macro keeps a word, its meaning and the text of the refusal together.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $parse:ident, $what:literal: $($variant:ident = $word:literal),+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($variant),+
        }

        impl $name {
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        pub(super) fn $parse(text: &str) -> Result<$name, Wrong> {
            match text {
                $($word => Ok($name::$variant),)+
                _ => {
                    let words = [$(concat!("`", $word, "`")),+];
                    let cause = format!("`{}` is not {}", shown(text), $what);
                    Err(Wrong::new(cause, format!("write {}", words.join(" or "))))
                }
            }
        }
    };
}

choice!(
    /// How results are written for the model.
    OutputFormat, output, "a format of results": Compact = "compact", Toon = "toon", Json = "json"
);

choice!(
    /// Who may ask over HTTP.
    Auth, auth, "a kind of authentication": Token = "token", None = "none"
);

choice!(
    LogLevel, log_level, "a level": Off = "off", Error = "error", Warn = "warn", Info = "info", Debug = "debug"
);

choice!(
    LogFormat, log_format, "a format of logs": Text = "text", Json = "json"
);

pub(super) fn count(text: &str, most: usize) -> Result<usize, Wrong> {
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        Ok(_) => Err(Wrong::new(
            format!("`{}` is out of range", shown(text)),
            format!("write a whole number from 1 to {most}"),
        )),
        Err(_) => Err(Wrong::new(
            format!("`{}` is not a whole number", shown(text)),
            format!("write a whole number from 1 to {most}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolsets_are_a_set_in_a_fixed_order() {
        let shown = |text| tools(text).map(|tools| tools.to_string()).map_err(|wrong| wrong.cause);
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
        assert_eq!(output("toon").map_err(|w| w.cause), Ok(OutputFormat::Toon));
        let wrong = output("yaml").unwrap_err();
        assert_eq!(wrong.cause, "`yaml` is not a format of results");
        assert_eq!(wrong.hint, "write `compact` or `toon` or `json`");
        assert!(log_level("loud").is_err() && log_format("xml").is_err());
        assert!(count("0", 5).is_err() && count("6", 5).is_err() && count("x", 5).is_err());
        assert_eq!(count("5", 5).map_err(|w| w.cause), Ok(5));
    }
}
