//! The home that Compose has while it runs: a private one with nothing in it but the way to the plug-ins. From the
//! operator's own it would take proxies, with their passwords, and give them to every container.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::command::Environment;
use super::{place, put, read};
use crate::backend::StartError;

pub(super) struct Home {
    place: TempDir,
}

impl Home {
    pub(super) fn make(environment: &Environment) -> Result<Self, StartError> {
        let home = Self { place: place::make()? };
        let config = home.config();
        let failed = |error: io::Error| StartError::new("could not make a private home").because(error);
        std::fs::create_dir(&config).map_err(failed)?;
        let operators = operators_config(environment);
        // Also where Podman looks for it, which knows no other way.
        let plug_ins = operators.iter().map(|config| config.join("cli-plugins")).find(|path| path.is_dir());
        if let Some(plug_ins) = plug_ins {
            symlink(plug_ins, config.join("cli-plugins")).map_err(failed)?;
        }
        let others = operators.as_deref().map(other_plug_ins).unwrap_or_default();
        put(&config.join("config.json"), &json!({ "cliPluginsExtraDirs": others }).to_string())?;
        Ok(home)
    }

    pub(super) fn path(&self) -> &Path {
        self.place.path()
    }

    /// For `DOCKER_CONFIG`.
    pub(super) fn config(&self) -> PathBuf {
        self.place.path().join(".docker")
    }
}

fn operators_config(environment: &Environment) -> Option<PathBuf> {
    let of_home = || Some(Path::new(environment.home.as_ref()?).join(".docker"));
    let named = environment.config.as_ref().filter(|config| !config.is_empty());
    named.map(PathBuf::from).or_else(of_home).filter(|config| config.is_absolute())
}

/// The other folders that the operator keeps plug-ins in. Of that file nothing else is used.
fn other_plug_ins(config: &Path) -> Vec<String> {
    let text = read::bounded(&config.join("config.json")).unwrap_or_default();
    let found: Value = serde_json::from_str(&text).unwrap_or_default();
    let folders = found["cliPluginsExtraDirs"].as_array().into_iter().flatten();
    folders.filter_map(|folder| Some(folder.as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(home: &Path, config: Option<&Path>) -> Environment {
        let config = config.map(|config| config.as_os_str().to_owned());
        Environment { path: "/bin".into(), home: Some(home.into()), config }
    }

    #[test]
    fn of_the_operator_s_settings_only_plug_ins_are_found() {
        let operator = tempfile::tempdir().unwrap();
        let config = operator.path().join(".docker");
        let elsewhere = operator.path().join("elsewhere");
        std::fs::create_dir_all(config.join("cli-plugins")).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(config.join("cli-plugins/docker-compose"), "plug-in").unwrap();
        let text = r#"{"proxies": {"default": {"httpProxy": "http://user:hunter2@proxy"}},
            "auths": {"x": {"auth": "hunter2"}}, "cliPluginsExtraDirs": ["/opt/plug-ins", 7]}"#;
        std::fs::write(config.join("config.json"), text).unwrap();

        let home = Home::make(&environment(operator.path(), None)).unwrap();
        let made = std::fs::read_to_string(home.config().join("config.json")).unwrap();
        assert_eq!(made, r#"{"cliPluginsExtraDirs":["/opt/plug-ins"]}"#);
        let plug_in = std::fs::read_to_string(home.config().join("cli-plugins/docker-compose")).unwrap();
        assert_eq!(plug_in, "plug-in");
        let seen = std::fs::read_dir(home.path()).unwrap().count();
        assert_eq!((seen, std::fs::read_dir(home.config()).unwrap().count()), (1, 2));
        let place = home.path().to_owned();
        drop(home);
        assert!(!place.exists());
        assert!(config.join("cli-plugins/docker-compose").exists(), "what is only linked to stays");

        // Another folder of settings takes the place of that; what is not there is no plug-in.
        let home = Home::make(&environment(operator.path(), Some(&elsewhere))).unwrap();
        let made = std::fs::read_to_string(home.config().join("config.json")).unwrap();
        assert_eq!(made, r#"{"cliPluginsExtraDirs":[]}"#);
        assert!(!home.config().join("cli-plugins").exists());
        std::fs::write(elsewhere.join("config.json"), "no JSON").unwrap();
        Home::make(&environment(operator.path(), Some(&elsewhere))).unwrap();
        Home::make(&Environment::default()).unwrap();
    }
}
