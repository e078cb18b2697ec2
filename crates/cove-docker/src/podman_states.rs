//! Reads containers from the engine's answers. Podman has container states that Docker and the client library do not
//! know; without a correction one such container would make the library reject the whole list.

use bollard::Docker as Client;
use bollard::errors::Error;
use bollard::models::{ContainerInspectResponse, ContainerSummary};
use bollard::query_parameters::{InspectContainerOptions, ListContainersOptions};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The fields of a listed container that this crate reads.
const USED_FIELDS: [&str; 5] = ["Id", "Names", "Labels", "Created", "State"];

pub(super) async fn list_containers(
    client: &Client,
    options: ListContainersOptions,
) -> Result<Vec<ContainerSummary>, Error> {
    parse_with_correction(client.list_containers(Some(options)).await, correct_summaries)
}

pub(super) async fn inspect_container(client: &Client, id: &str) -> Result<ContainerInspectResponse, Error> {
    parse_with_correction(client.inspect_container(id, None::<InspectContainerOptions>).await, correct_details)
}

/// If the library could not parse the answer, parses it again after a correction. Otherwise returns the answer
/// unchanged.
fn parse_with_correction<T: DeserializeOwned>(
    answer: Result<T, Error>,
    correct: impl FnOnce(&mut Value),
) -> Result<T, Error> {
    let Err(Error::JsonDataError { contents, .. }) = &answer else { return answer };
    let corrected = serde_json::from_str(contents).and_then(|mut value| {
        correct(&mut value);
        // As the library parses, so that the large types need no second parser in the program.
        serde_json::from_slice(&serde_json::to_vec(&value)?)
    });
    corrected.or(answer)
}

fn correct_summaries(answer: &mut Value) {
    for summary in answer.as_array_mut().into_iter().flatten() {
        if let Value::Object(fields) = summary {
            fields.retain(|name, _| USED_FIELDS.contains(&name.as_str()));
        }
        summary.get_mut("State").map(translate_state);
    }
}

fn correct_details(answer: &mut Value) {
    answer.pointer_mut("/State/Status").map(translate_state);
}

/// Replaces a state of Podman with Docker's name for it, or with an empty one if Docker has none.
fn translate_state(state: &mut Value) {
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

    /// Parses as the client library does.
    fn parse_as_client<T: DeserializeOwned>(contents: &str) -> Result<T, Error> {
        serde_json::from_str(contents).map_err(|error| Error::JsonDataError {
            message: error.to_string(),
            contents: contents.to_owned(),
            column: error.column(),
        })
    }

    #[test]
    fn a_stopped_podman_container_hides_no_other() {
        let list = r#"[
            {"Id":"a","Names":["/a"],"Labels":{"x":"y"},"Created":7,"State":"stopped","Ports":"odd"},
            {"Id":"b","State":"running"},
            {"Id":"c","State":"initialized"},
            {"Id":"d","State":"bad state"}
        ]"#;
        assert!(parse_as_client::<Vec<ContainerSummary>>(list).is_err(), "else nothing of this is needed");
        let found = parse_with_correction(parse_as_client::<Vec<ContainerSummary>>(list), correct_summaries).unwrap();
        let states: Vec<State> = found.iter().filter_map(|one| one.state).collect();
        assert_eq!(states, [State::EXITED, State::RUNNING, State::CREATED, State::EMPTY]);
        assert_eq!(found[0].created, Some(7));
        assert_eq!(found[0].labels.as_ref().unwrap()["x"], "y");
        assert!(parse_with_correction(parse_as_client::<Vec<ContainerSummary>>("no"), correct_summaries).is_err());
    }

    #[test]
    fn a_stopped_podman_container_has_an_exit_code() {
        let reported = r#"{"Id":"a","State":{"Status":"stopped","ExitCode":3,"FinishedAt":"2026-01-02T03:04:05Z"}}"#;
        let state = parse_with_correction(parse_as_client::<ContainerInspectResponse>(reported), correct_details)
            .unwrap()
            .state
            .unwrap();
        assert_eq!((state.status, state.exit_code), (Some(Status::EXITED), Some(3)));
        assert_eq!(super::super::control::exit_code(&state), Some(3));
    }
}
