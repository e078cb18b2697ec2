//! The configuration file: finds it and reads its values by key, each with its line. It knows keys and the number of
//! their values; the settings parse the values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{SETTINGS, Setting, SettingKind, WrittenValue};
use cove_core::document::{ConfigDocument, DocumentFormat, DocumentMember, DocumentNode, read_text, unknown_key_hint};
use cove_core::error::{Failure, display_path, display_value};
use cove_core::private_file::{UnsafeFileError, check_path};
use cove_core::process_env::ProcessEnv;
use cove_core::spelling::nearest;
use cove_egress::{EgressRules, parse_credentials, parse_table};

/// The tables of upstream servers, which are not settings.
const SERVERS: &str = "servers";

/// The table of what code may reach, which `cove_egress` reads.
const EGRESS: &str = "egress";

/// The tables of secrets that the host adds to requests, which `cove_egress` reads too.
const CREDENTIALS: &str = "credentials";

/// Settings that choose a program which runs as this user outside of any sandbox, give a container this machine, or let code
/// send what it sees elsewhere.
const RUN_OUTSIDE: [&str; 4] = ["secrets-helper", "python", "allow-compose", "allow-net"];

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    /// By key: its line and its values.
    pub(super) entries: BTreeMap<&'static str, (usize, Vec<WrittenValue>)>,
    /// The table `[egress]`.
    pub(super) egress: EgressRules,
    /// A warning for each line that is not used.
    pub(super) warnings: Vec<String>,
}

impl ConfigFile {
    /// Reads the named file, which must exist; or else the user's own, if there is one.
    pub(super) fn find(flag: Option<&str>, env: &ProcessEnv) -> Result<Self, Failure> {
        let Some(path) = path(flag, env)? else {
            return Ok(Self::default());
        };
        let fail = || Failure::usage(format!("could not read the configuration file `{}`", display_path(&path)));
        match read_text(&path) {
            Ok(Some(text)) => Ok(Self::parse(path, &text)?.without_programs_of_others()),
            Ok(None) if named(flag, env)?.is_none() => Ok(Self::default()),
            Ok(None) => Err(fail()
                .because("it does not exist")
                .with_hint("name a file that exists with `--config` or `COVE_CONFIG`, or leave both out")),
            Err(error) => {
                Err(fail().because(error).with_hint("make it readable, or use no file: `--config /dev/null`"))
            }
        }
    }

    fn parse(path: PathBuf, text: &str) -> Result<Self, Failure> {
        let file = display_path(&path);
        let document = ConfigDocument::parse(DocumentFormat::Toml, text).map_err(|error| {
            Failure::usage(format!("could not read the configuration file `{file}`"))
                .because(format!("line {}: {}", error.line, error.message))
                .with_hint("the file is TOML, with lines such as `memory = \"512m\"`")
        })?;
        let mut entries = BTreeMap::new();
        let table = document.members().iter().find(|member| member.key == EGRESS);
        let mut egress = table.map(|table| parse_table(&table.node, &document, &file)).transpose()?.unwrap_or_default();
        let credentials = document.members().iter().find(|member| member.key == CREDENTIALS);
        parse_credentials(&mut egress, credentials.map(|table| &table.node), &file)?;
        let is_setting = |member: &&DocumentMember| ![SERVERS, EGRESS, CREDENTIALS].contains(&member.key.as_str());
        // `upstream` reads the tables of servers: a mistake in one must not affect the settings.
        for DocumentMember { key, line, node, .. } in document.members().iter().filter(is_setting) {
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key == *key) else {
                let key_shown = display_value(key);
                return Err(Failure::usage(format!("could not read `{key_shown}` in `{file}`, line {line}"))
                    .because(format!("`{key_shown}` is not a setting"))
                    .with_hint(suggestion(key)));
            };
            let entry = |node: &DocumentNode, text: Option<&str>| {
                let written = format!("{} in `{file}`, line {}", document.quote(key, node), node.line);
                match text {
                    Some(text) => Ok(WrittenValue { text: text.to_owned(), written }),
                    None => Err(Failure::usage(format!("could not read {written}"))
                        .because(format!("`{key}` cannot be {}", node.kind()))
                        .with_hint(format!("write `{}`", example(setting)))),
                }
            };
            let values = match (setting.kind, node.items()) {
                (SettingKind::List(_), Some(items)) => {
                    items.iter().map(|item| entry(item, item.text())).collect::<Result<_, _>>()?
                }
                (SettingKind::List(_), None) => vec![entry(node, None)?],
                _ => {
                    // `true` and `false` are among the words that a setting may offer.
                    let word = node.boolean().map(|value| value.to_string());
                    let word = word.as_deref().filter(|word| (setting.choices)().contains(word));
                    vec![entry(node, node.text_or_number().or(word))?]
                }
            };
            entries.insert(setting.key, (*line, values));
        }
        Ok(Self { path, entries, egress, warnings: Vec::new() })
    }

    /// Leaves out the programs that another user could have written into the file. The other settings stay, so that
    /// root can use the file of the person who called `sudo`.
    fn without_programs_of_others(mut self) -> Self {
        let Err(error) = check_path(&self.path).or_else(UnsafeFileError::ignore_io) else { return self };
        if self.egress.allow_anything() {
            self.egress.close();
            let (file, hint) = (display_path(&self.path), error.hint(&self.path));
            self.warnings.push(format!("`[{EGRESS}]` in `{file}` allows nothing: {error}; {hint}"));
        }
        for key in RUN_OUTSIDE {
            let Some((line, _)) = self.entries.remove(key) else { continue };
            let (file, hint) = (display_path(&self.path), error.hint(&self.path));
            self.warnings.push(format!("`{key}` in `{file}`, line {line}, is not used: {error}; {hint}"));
        }
        self
    }
}

fn named<'a>(flag: Option<&'a str>, env: &'a ProcessEnv) -> Result<Option<&'a str>, Failure> {
    match flag {
        Some(path) => Ok(Some(path)),
        None => env.var("COVE_CONFIG"),
    }
}

/// The path of the configuration file, whether or not it exists.
pub fn path(flag: Option<&str>, env: &ProcessEnv) -> Result<Option<PathBuf>, Failure> {
    if let Some(path) = named(flag, env)? {
        return Ok(Some(env.cwd.join(path)));
    }
    let configs = env.directory("XDG_CONFIG_HOME").map(Path::to_owned);
    let configs = configs.or_else(|| Some(env.home()?.join(".config")));
    Ok(configs.map(|configs| configs.join("cove/cove.toml")))
}

/// A file that describes every setting in comments.
pub fn template() -> String {
    let mut text =
        "# Settings of Cove. Flags and variables of the environment win over this file; `cove config show` shows\n\
                    # every value and its origin. Take the `#` from the lines that you change.\n"
            .to_owned();
    for setting in SETTINGS {
        let absent = match setting.kind {
            SettingKind::WithDefault(_) => String::new(),
            SettingKind::Optional(default) | SettingKind::List(default) => format!(" (without it: {default})"),
        };
        text += &format!("\n# {}{absent}\n#{}\n", setting.help, example(setting));
    }
    text += "\n# What code may reach over the network, besides `allow-net`: whole presets, and hosts with TLS on port 443 unless\n\
             # `ports` names others. `docs/guides/network-access.md` has all keys.\n\
             #[egress]\n#presets = [\"pypi\"]\n#allow = [{ host = \"api.example.com\" }]\n";
    text + "\n# An MCP server that code may call. `cove servers add` writes such entries to files of their own.\n\
            #[servers.time]\n#command = \"uvx\"\n#args = [\"mcp-server-time\"]\n"
}

fn example(setting: &Setting) -> String {
    match setting.kind {
        SettingKind::WithDefault(text) => format!("{} = \"{text}\"", setting.key),
        SettingKind::Optional(_) => format!("{} = \"{}\"", setting.key, setting.placeholder),
        SettingKind::List(_) => format!("{} = [\"{}\"]", setting.key, setting.placeholder),
    }
}

/// The hint for an unknown key: the nearest one, or all of them.
fn suggestion(wrong: &str) -> String {
    let keys: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    match nearest(wrong, keys.iter().copied().chain([SERVERS, EGRESS, CREDENTIALS])) {
        Some(CREDENTIALS) => format!("did you mean `[{CREDENTIALS}.NAME]`?"),
        Some(EGRESS) => format!("did you mean `[{EGRESS}]`?"),
        Some(SERVERS) => format!("did you mean `[{SERVERS}.NAME]`?"),
        _ => unknown_key_hint(wrong, &keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_the_nearest_setting() {
        let cases = [
            ("memroy", "memory"),
            ("Memory", "memory"),
            ("mem", "memory"),
            ("pids", "pids-limit"),
            ("pids_limit", "pids-limit"),
            ("mounts", "mount"),
            ("max_timout", "max-timeout"),
            ("time-out", "timeout"),
            ("cpu", "cpus"),
        ];
        for (wrong, right) in cases {
            assert_eq!(suggestion(wrong), format!("did you mean `{right}`?"), "`{wrong}`");
        }
        assert_eq!(suggestion("server"), "did you mean `[servers.NAME]`?");
        assert!(suggestion("colour-scheme").starts_with("known keys are `backend`, "));
        assert!(suggestion("").starts_with("known keys are "));
    }

    #[test]
    fn reads_values_with_their_lines() {
        let text = "# comment\nmemory = \"1g\"\npids-limit = 0x10\ncpus = 0.5\nmount = [\n  'a:/b',\n  \"c:/d\",\n]\nmax-output = 20_000\n";
        let file = ConfigFile::parse("/etc/cove.toml".into(), text).unwrap();
        let texts = |key: &str| {
            let (line, entries) = &file.entries[key];
            (*line, entries.iter().map(|entry| entry.text.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(texts("memory"), (2, vec!["1g"]));
        assert_eq!(texts("pids-limit"), (3, vec!["16"]));
        assert_eq!(texts("cpus"), (4, vec!["0.5"]));
        assert_eq!(texts("mount"), (5, vec!["a:/b", "c:/d"]));
        assert_eq!(texts("max-output"), (9, vec!["20000"]));
        assert_eq!(file.entries["mount"].1[1].written, "`mount = \"c:/d\"` in `/etc/cove.toml`, line 7");
    }

    #[test]
    fn ignores_the_tables_of_servers() {
        let text = "memory = \"1g\"\n[servers.x]\ncommand = 1\nnonsense = true\n";
        let file = ConfigFile::parse("/etc/cove.toml".into(), text).unwrap();
        assert_eq!(file.entries.keys().collect::<Vec<_>>(), [&"memory"]);
    }

    #[test]
    fn template_changes_nothing_and_its_lines_are_right() {
        let text = template();
        assert!(ConfigFile::parse("/etc/cove.toml".into(), &text).unwrap().entries.is_empty());
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix('#')).collect();
        let used: Vec<&str> = lines.iter().copied().filter(|line| !line.starts_with(' ')).collect();
        let file = ConfigFile::parse("/etc/cove.toml".into(), &used.join("\n")).unwrap();
        for setting in SETTINGS {
            let (_, values) = &file.entries[setting.key];
            if let SettingKind::WithDefault(default) = setting.kind {
                assert_eq!(values[0].text, default, "{}", setting.key);
            }
        }
        assert!(used.contains(&"[servers.time]"), "{text}");
    }

    #[test]
    fn a_file_may_be_empty() {
        assert!(ConfigFile::parse("/etc/cove.toml".into(), "").unwrap().entries.is_empty());
    }
}
