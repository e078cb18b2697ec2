//! Checks the variables of a container that Compose created: only those of its image and of the document may be there.
//! Compose can take variables from more places than Cove knows.

use std::collections::BTreeMap;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerInspectResponse;
use serde_json::Value;

use super::super::engine::Engine;
use super::check::ComposeService;
use super::document;
use cove_core::error::display_value;

/// Returns one sentence for each unexpected variable. Fails if the engine cannot inspect the image.
pub(super) async fn environment_differences(
    api: &Docker,
    engine: Engine,
    member: &ComposeService,
    found: &ContainerInspectResponse,
) -> Result<Vec<String>, Error> {
    let image = api.inspect_image(found.image.as_deref().unwrap_or_default()).await?;
    let of_image = image.config.and_then(|config| config.env).unwrap_or_default();
    let lines = found.config.as_ref().and_then(|config| config.env.as_deref()).unwrap_or_default();
    Ok(compare_variables(engine, member, &of_image, lines))
}

fn compare_variables(engine: Engine, member: &ComposeService, of_image: &[String], lines: &[String]) -> Vec<String> {
    let of_image: BTreeMap<&str, &str> = of_image.iter().filter_map(|line| line.split_once('=')).collect();
    let of_file = document::service_variables(member);
    let is_known = |(variable, value): &(&str, &str)| {
        match of_file.get(*variable) {
            Some(Value::String(text)) => text == value,
            // For numbers and booleans Compose chooses the spelling.
            Some(_) => true,
            None => engine.traits().own_variables.contains(variable) || of_image.get(variable) == Some(value),
        }
    };
    // A line without `=` removes the variable.
    let pairs = lines.iter().filter_map(|line| line.split_once('='));
    let unknown = pairs.filter(|pair| !is_known(pair));
    // The value may be a secret, so only the name is shown.
    let difference = |(variable, _): (&str, &str)| {
        format!("neither its image nor the file gives it `{}` as it is", display_value(variable))
    };
    unknown.map(difference).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::check::{ComposeRules, check_resolved};
    use super::super::file;
    use super::super::tests::test_request;
    use super::*;

    fn test_service(environment: &str) -> ComposeService {
        let file = file::parse(&format!("services: {{web: {{image: x, environment: {environment}}}}}")).unwrap();
        let request = test_request();
        let rules = ComposeRules { request: &request, folder: Path::new("/"), engine: Engine::Docker, socket: None };
        check_resolved(&file.document, &file.order, &rules).unwrap().services.remove("web").unwrap()
    }

    #[track_caller]
    fn check(environment: &str, lines: &[&str], docker: &[&str], podman: &[&str]) {
        let owned = |lines: &[&str]| -> Vec<String> { lines.iter().map(|line| (*line).to_owned()).collect() };
        let of_image = owned(&["PATH=/bin", "HTTP_PROXY=", "LANG=C"]);
        for (kind, expected) in [(Engine::Docker, docker), (Engine::Podman, podman)] {
            let differences = compare_variables(kind, &test_service(environment), &of_image, &owned(lines));
            let expected: Vec<String> = expected
                .iter()
                .map(|name| format!("neither its image nor the file gives it `{name}` as it is"))
                .collect();
            assert_eq!(differences, expected, "{kind:?} {environment} {lines:?}");
        }
    }

    #[test]
    fn detects_unexpected_container_variables() {
        let all = ["PATH=/bin", "HTTP_PROXY=", "LANG=C"];
        check("{}", &all, &[], &[]);
        check("{A: '1', B: 2, C: ''}", &["A=1", "B=2", "C=", "LANG=C", "PATH=/bin"], &[], &[]);
        check("[A=1=2]", &["A=1=2"], &[], &[]);
        check("{PATH: /own}", &["PATH=/own", "LANG"], &[], &[]);
        check("{}", &["http_proxy=http://user:hunter2@proxy"], &["http_proxy"], &["http_proxy"]);
        // A value that replaces the image's or the file's, and a variable that occurs twice.
        check("{}", &["HTTP_PROXY=http://user:hunter2@proxy"], &["HTTP_PROXY"], &["HTTP_PROXY"]);
        check("{NO_PROXY: x}", &["NO_PROXY=y"], &["NO_PROXY"], &["NO_PROXY"]);
        check("{A: '1'}", &["A=1", "A=2"], &["A"], &["A"]);
        check("{}", &["TERM=xterm", "container=podman"], &["TERM", "container"], &[]);
        // A variable without a value in the file keeps the image's value.
        check("{HOME: , LANG: }", &["LANG=C", "HOME=/root"], &["HOME"], &[]);
        check("[HOME]", &["HOME=/root"], &["HOME"], &[]);
    }
}
