//! The host side of network access. A sandbox has no network: its runner forwards connections of code as streams of
//! bytes, and this crate alone reads what they ask for, decides by the operator's rules, resolves names, connects and
//! records.
//!
//! Everything that arrives from a sandbox is hostile. This crate knows neither backends nor MCP.

#![forbid(unsafe_code)]

mod address;
mod audit_line;
mod cell_network;
mod client_hello;
mod dial;
mod gateway;
mod presets;
mod proxy_request;
mod refusal;
mod refusal_notes;
mod relay;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod rules;
mod table;
mod target_host;

pub use address::{AddressProblem, check_address};
pub use audit_line::{EgressAuditLine, EgressRecorder, NetworkCaller};
pub use cell_network::CellNetwork;
pub use dial::{NameResolver, SystemResolver};
pub use gateway::EgressGateway;
pub use presets::{NetworkPreset, PRESETS};
#[cfg(any(test, fuzzing))]
pub use proxy_request::exercise::exercise as exercise_proxy_request;
pub use refusal::{EgressRefusal, RefusalReason};
pub use rules::{EgressRule, EgressRules, HostPattern, MAX_RULES, RequestKind, RuleProtocol, RuleScope, TrafficLimits};
pub use table::parse_table;
pub use target_host::{HostTarget, TargetHost};
