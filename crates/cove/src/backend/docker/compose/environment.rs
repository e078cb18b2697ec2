//! The variables of a container that Compose made: those of its image and those of the document, and no others. Compose
//! knows more places to take some from than we do.

use std::collections::BTreeMap;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerInspectResponse;
use serde_json::Value;

use super::super::facts::Maker;
use super::check::{Checked, Member};
use super::document::{self, Terms};
use crate::error::shown;

/// What Podman sets by itself, besides what a container was made with.
const OF_PODMAN: [&str; 5] = ["HOME", "HOSTNAME", "PATH", "TERM", "container"];

/// What is different, in words; nothing if all is as it must be.
pub(super) async fn differs(
    api: &Docker,
    checked: &Checked,
    name: &str,
    terms: &Terms<'_>,
    found: &ContainerInspectResponse,
) -> Result<Vec<String>, Error> {
    let image = api.inspect_image(found.image.as_deref().unwrap_or_default()).await?;
    let of_image = image.config.and_then(|config| config.env).unwrap_or_default();
    let lines = found.config.as_ref().and_then(|config| config.env.clone()).unwrap_or_default();
    Ok(match checked.members.get(name) {
        Some(member) => compared(name, terms.kind, member, &of_image, &lines),
        // That is told already.
        None => Vec::new(),
    })
}

fn compared(name: &str, kind: Maker, member: &Member, of_image: &[String], lines: &[String]) -> Vec<String> {
    let of_image: BTreeMap<&str, &str> = of_image.iter().filter_map(|line| line.split_once('=')).collect();
    let of_file = document::variables(member);
    let is_known = |(variable, value): &(&str, &str)| {
        let is_podman_s = kind == Maker::Podman && OF_PODMAN.contains(variable);
        match of_file.get(*variable) {
            Some(Value::String(text)) => text == value,
            // Numbers: how they are written is for Compose to say.
            Some(_) => true,
            None => is_podman_s || of_image.get(variable) == Some(value),
        }
    };
    // A line without a value takes the variable away.
    let pairs = lines.iter().filter_map(|line| line.split_once('='));
    let unknown = pairs.filter(|pair| !is_known(pair));
    // Its value may be a secret.
    let told = |(variable, _): (&str, &str)| {
        format!("`{name}`: neither its image nor the file gives it `{}` as it is", shown(variable))
    };
    unknown.map(told).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::check::{Reach, Rules, after};
    use super::super::read;
    use super::*;

    fn member(environment: &str) -> Member {
        let file =
            read::parse(&format!("services: {{web: {{image: x, environment: {environment}}}}}")).unwrap();
        let rules = Rules {
            folder: Path::new("/"),
            project: "p",
            main: None,
            allowed: &[],
            mounts: &[],
            kind: Maker::Docker,
            reach: Reach::Nothing,
            socket: None,
        };
        after(&file.document, &file.order, &rules).unwrap().members.remove("web").unwrap()
    }

    #[track_caller]
    fn check(environment: &str, lines: &[&str], docker: &[&str], podman: &[&str]) {
        let owned = |lines: &[&str]| -> Vec<String> { lines.iter().map(|line| (*line).to_owned()).collect() };
        let of_image = owned(&["PATH=/bin", "HTTP_PROXY=", "LANG=C"]);
        for (kind, expected) in [(Maker::Docker, docker), (Maker::Podman, podman)] {
            let told = compared("web", kind, &member(environment), &of_image, &owned(lines));
            let expected: Vec<String> = expected
                .iter()
                .map(|name| format!("`web`: neither its image nor the file gives it `{name}` as it is"))
                .collect();
            assert_eq!(told, expected, "{kind:?} {environment} {lines:?}");
        }
    }

    #[test]
    fn a_variable_from_nowhere_is_found() {
        let all = ["PATH=/bin", "HTTP_PROXY=", "LANG=C"];
        check("{}", &all, &[], &[]);
        check("{A: '1', B: 2, C: ''}", &["A=1", "B=2", "C=", "LANG=C", "PATH=/bin"], &[], &[]);
        check("[A=1=2]", &["A=1=2"], &[], &[]);
        check("{PATH: /own}", &["PATH=/own", "LANG"], &[], &[]);
        check("{}", &["http_proxy=http://user:hunter2@proxy"], &["http_proxy"], &["http_proxy"]);
        // In place of the image's, of the file's, and twice.
        check("{}", &["HTTP_PROXY=http://user:hunter2@proxy"], &["HTTP_PROXY"], &["HTTP_PROXY"]);
        check("{NO_PROXY: x}", &["NO_PROXY=y"], &["NO_PROXY"], &["NO_PROXY"]);
        check("{A: '1'}", &["A=1", "A=2"], &["A"], &["A"]);
        check("{}", &["TERM=xterm", "container=podman"], &["TERM", "container"], &[]);
        // A name that nobody filled stays what the image says.
        check("{HOME: , LANG: }", &["LANG=C", "HOME=/root"], &["HOME"], &[]);
        check("[HOME]", &["HOME=/root"], &["HOME"], &[]);
    }
}
