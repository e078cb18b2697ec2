//! What Docker and Podman tell of containers. Podman has states that Docker, and so the library, has no word for: one such
//! container must not hide all others.

use bollard::Docker as Client;
use bollard::errors::Error;
use bollard::models::{ContainerInspectResponse, ContainerSummary};
use bollard::query_parameters::{InspectContainerOptions, ListContainersOptions};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Of a list, all that anybody here asks for.
const ASKED: [&str; 5] = ["Id", "Names", "Labels", "Created", "State"];

pub(super) async fn containers(
    client: &Client,
    options: ListContainersOptions,
) -> Result<Vec<ContainerSummary>, Error> {
    understood(client.list_containers(Some(options)).await, summaries)
}

pub(super) async fn container(client: &Client, id: &str) -> Result<ContainerInspectResponse, Error> {
    understood(client.inspect_container(id, None::<InspectContainerOptions>).await, details)
}

/// What the library could not read, read after a correction.
fn understood<T: DeserializeOwned>(
    answer: Result<T, Error>,
    correct: impl FnOnce(Value) -> Value,
) -> Result<T, Error> {
    let Err(Error::JsonDataError { contents, .. }) = &answer else { return answer };
    match serde_json::from_str(contents).and_then(|told| serde_json::from_value(correct(told))) {
        Ok(read) => Ok(read),
        Err(_) => answer,
    }
}

fn summaries(told: Value) -> Value {
    match told {
        Value::Array(all) => Value::Array(all.into_iter().map(summary).collect()),
        other => other,
    }
}

fn details(mut told: Value) -> Value {
    if let Some(status) = told.pointer_mut("/State/Status") {
        translate(status);
    }
    told
}

fn summary(told: Value) -> Value {
    let Value::Object(mut all) = told else { return told };
    let mut asked: Map<String, Value> =
        ASKED.iter().filter_map(|name| Some(((*name).to_owned(), all.remove(*name)?))).collect();
    if let Some(state) = asked.get_mut("State") {
        translate(state);
    }
    Value::Object(asked)
}

/// Into Docker's words; nothing where it has none.
fn translate(state: &mut Value) {
    let Some(word) = state.as_str() else { return };
    *state = match word {
        "created" | "running" | "paused" | "restarting" | "removing" | "exited" | "dead" | "stopping" => {
            return;
        }
        "stopped" => "exited".into(),
        "configured" | "initialized" => "created".into(),
        _ => "".into(),
    };
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerStateStatusEnum as Status, ContainerSummaryStateEnum as State};

    use super::*;

    /// As the library does.
    fn read<T: DeserializeOwned>(contents: &str) -> Result<T, Error> {
        serde_json::from_str(contents).map_err(|error| Error::JsonDataError {
            message: error.to_string(),
            contents: contents.to_owned(),
            column: error.column(),
        })
    }

    #[test]
    fn one_that_is_stopped_hides_no_other() {
        let list = r#"[
            {"Id":"a","Names":["/a"],"Labels":{"x":"y"},"Created":7,"State":"stopped","Ports":"odd"},
            {"Id":"b","State":"running"},
            {"Id":"c","State":"initialized"},
            {"Id":"d","State":"bad state"}
        ]"#;
        assert!(read::<Vec<ContainerSummary>>(list).is_err(), "else nothing of this is needed");
        let found = understood(read::<Vec<ContainerSummary>>(list), summaries).unwrap();
        let states: Vec<State> = found.iter().filter_map(|one| one.state).collect();
        assert_eq!(states, [State::EXITED, State::RUNNING, State::CREATED, State::EMPTY]);
        assert_eq!(found[0].created, Some(7));
        assert_eq!(found[0].labels.as_ref().unwrap()["x"], "y");
        assert!(understood(read::<Vec<ContainerSummary>>("no"), summaries).is_err());
    }

    #[test]
    fn one_that_is_stopped_tells_how_it_ended() {
        let told =
            r#"{"Id":"a","State":{"Status":"stopped","ExitCode":3,"FinishedAt":"2026-01-02T03:04:05Z"}}"#;
        let state = understood(read::<ContainerInspectResponse>(told), details).unwrap().state.unwrap();
        assert_eq!((state.status, state.exit_code), (Some(Status::EXITED), Some(3)));
        assert_eq!(super::super::control::exit_code(&state), Some(3));
    }
}
