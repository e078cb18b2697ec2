//! Servers that a person can add by name. A publisher describes a server in a `server.json` document ([`PublishedServer`]).
//! Such documents come from the folder `catalog.d`, whose servers the operator approved ([`ApprovedServers`]), and from a
//! registry ([`RegistryClient`]), which only a person's command asks. A [`LaunchPlan`] is the definition that a document
//! leads to. Code can find approved servers and request one; [`ServerRequests`] keeps what it requested until a person
//! answers.
//!
//! Documents are not trusted: their texts are bounded and cleaned, no shell reads their arguments, and no variable of
//! Cove's environment gets into them.

mod approved;
mod definition_file;
#[cfg(any(test, fuzzing))]
#[path = "../tests/exercise/published.rs"]
pub mod exercise;
mod launch_plan;
mod registry_client;
mod requests;
mod server_json;

pub use approved::ApprovedServers;
pub use definition_file::{definition_text, write_definition};
pub use launch_plan::{InputValues, LaunchChoice, LaunchPlan, NeededSecret, describe_word};
pub use registry_client::{RegistryAddress, RegistryClient, RegistryError, RegistryHits};
pub use requests::{OpenRequest, RequestAnswer, RequestError, ServerRequests};
pub use server_json::{PublishedInput, PublishedServer, PublishedStatus, check_published_name};
