//! One tool of an upstream server in the catalog.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A server's description of a tool, sanitized. It is data of the server and never trusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDocument {
    /// In the server's spelling. Calls always use this name.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub description: String,
    pub input_schema: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Map<String, Value>>,
    /// The server's hint that the tool changes nothing.
    #[serde(default)]
    pub read_only: bool,
}
