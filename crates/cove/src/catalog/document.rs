//! One tool of an upstream server as the catalog knows it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a server says of a tool, cleaned: text of servers is data, and never trusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDocument {
    /// As the server spells it; calls always use this.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub description: String,
    pub input_schema: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Map<String, Value>>,
    /// The server's hint that it changes nothing.
    #[serde(default)]
    pub read_only: bool,
}
