//! The home directory of Compose while it runs: a private one that only leads to the plug-ins. From the operator's own
//! configuration Compose would read proxies, with their passwords, and pass them to every container.

use cove_core::error::Failure;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::command::ComposeEnv;
use super::{file, private_dir, write_private_file};

pub(super) struct ComposeHome {
    place: TempDir,
}

impl ComposeHome {
    /// Creates the home directory. Fails if a file in it cannot be written.
    pub(super) fn create(environment: &ComposeEnv) -> Result<Self, Failure> {
        let home = Self { place: private_dir::create()? };
        let config = home.config_dir();
        let failed = |error: io::Error| Failure::operator("could not make a private home").because(error);
        std::fs::create_dir(&config).map_err(failed)?;
        let operators = operator_config(environment);
        // Podman finds Compose only through this link.
        let plug_ins = operators.iter().map(|config| config.join("cli-plugins")).find(|path| path.is_dir());
        if let Some(plug_ins) = plug_ins {
            symlink(plug_ins, config.join("cli-plugins")).map_err(failed)?;
        }
        let others = operators.as_deref().map(extra_plugin_dirs).unwrap_or_default();
        write_private_file(&config.join("config.json"), &json!({ "cliPluginsExtraDirs": others }).to_string())?;
        Ok(home)
    }

    pub(super) fn path(&self) -> &Path {
        self.place.path()
    }

    /// Returns the value for `DOCKER_CONFIG`.
    pub(super) fn config_dir(&self) -> PathBuf {
        self.place.path().join(".docker")
    }
}

fn operator_config(environment: &ComposeEnv) -> Option<PathBuf> {
    let of_home = || Some(Path::new(environment.home.as_ref()?).join(".docker"));
    let named = environment.config.as_ref().filter(|config| !config.is_empty());
    named.map(PathBuf::from).or_else(of_home).filter(|config| config.is_absolute())
}

/// Returns the extra plug-in folders from the operator's configuration. Nothing else of that file is used.
fn extra_plugin_dirs(config: &Path) -> Vec<String> {
    let text = file::read_bounded_text(&config.join("config.json")).unwrap_or_default();
    let found: Value = serde_json::from_str(&text).unwrap_or_default();
    let folders = found["cliPluginsExtraDirs"].as_array().into_iter().flatten();
    folders.filter_map(|folder| Some(folder.as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(home: &Path, config: Option<&Path>) -> ComposeEnv {
        let config = config.map(|config| config.as_os_str().to_owned());
        ComposeEnv { path: "/bin".into(), home: Some(home.into()), config }
    }

    #[test]
    fn compose_home_takes_only_plugins_from_the_operator() {
        let operator = tempfile::tempdir().unwrap();
        let config = operator.path().join(".docker");
        let elsewhere = operator.path().join("elsewhere");
        std::fs::create_dir_all(config.join("cli-plugins")).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(config.join("cli-plugins/docker-compose"), "plug-in").unwrap();
        let text = r#"{"proxies": {"default": {"httpProxy": "http://user:hunter2@proxy"}},
            "auths": {"x": {"auth": "hunter2"}}, "cliPluginsExtraDirs": ["/opt/plug-ins", 7]}"#;
        std::fs::write(config.join("config.json"), text).unwrap();

        let home = ComposeHome::create(&environment(operator.path(), None)).unwrap();
        let made = std::fs::read_to_string(home.config_dir().join("config.json")).unwrap();
        assert_eq!(made, r#"{"cliPluginsExtraDirs":["/opt/plug-ins"]}"#);
        let plug_in = std::fs::read_to_string(home.config_dir().join("cli-plugins/docker-compose")).unwrap();
        assert_eq!(plug_in, "plug-in");
        let seen = std::fs::read_dir(home.path()).unwrap().count();
        assert_eq!((seen, std::fs::read_dir(home.config_dir()).unwrap().count()), (1, 2));
        let place = home.path().to_owned();
        drop(home);
        assert!(!place.exists());
        assert!(config.join("cli-plugins/docker-compose").exists(), "what is only linked to stays");

        // A configured folder replaces the default one. Missing plug-ins are not linked.
        let home = ComposeHome::create(&environment(operator.path(), Some(&elsewhere))).unwrap();
        let made = std::fs::read_to_string(home.config_dir().join("config.json")).unwrap();
        assert_eq!(made, r#"{"cliPluginsExtraDirs":[]}"#);
        assert!(!home.config_dir().join("cli-plugins").exists());
        std::fs::write(elsewhere.join("config.json"), "no JSON").unwrap();
        ComposeHome::create(&environment(operator.path(), Some(&elsewhere))).unwrap();
        ComposeHome::create(&ComposeEnv::default()).unwrap();
    }
}
