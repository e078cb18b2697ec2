//! The host side of network access. A sandbox has no network: its runner forwards connections of code as streams of
//! bytes, and this crate alone reads what they ask for, decides by the operator's rules, resolves names, connects and
//! records.
//!
//! Everything that arrives from a sandbox is hostile. This crate knows neither backends nor MCP.

#![forbid(unsafe_code)]

mod address;
mod answer_scrubber;
mod audit_line;
mod cell_network;
mod client_hello;
mod credential;
mod credential_table;
mod dial;
mod download_cache;
mod egress_meter;
mod gateway;
mod gateway_services;
mod inspected_body;
mod inspected_connection;
mod inspected_request;
mod inspected_upgrade;
mod open_line;
mod origin_connection;
mod presets;
mod proxy_request;
mod refusal;
mod refusal_lines;
mod refusal_notes;
mod relay;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod request_decision;
mod request_limits;
mod request_path;
mod request_record;
mod rules;
mod secret_value;
mod session_authority;
mod session_identity;
mod shared_download;
mod strict_heads;
mod table;
mod target_host;
mod websocket_proof;

pub use address::{AddressProblem, check_address};
pub use audit_line::{EgressAuditLine, EgressMode, EgressRecorder, NetworkCaller};
pub use cell_network::CellNetwork;
pub use credential::{CredentialSlot, EgressCredential};
pub use credential_table::parse_credentials;
pub use dial::{NameResolver, SystemResolver};
pub use download_cache::DownloadCache;
pub use egress_meter::{EgressMeter, RelayDirection};
pub use gateway::EgressGateway;
pub use gateway_services::HostServices;
pub use presets::{NetworkPreset, PRESETS, PresetAccess};
#[cfg(any(test, fuzzing))]
pub use proxy_request::exercise::exercise as exercise_proxy_request;
pub use refusal::{EgressRefusal, RefusalReason};
pub use request_limits::RequestLimits;
pub use request_path::PathPattern;
pub use rules::{
    DownloadCacheLimit, EgressRule, EgressRules, HostPattern, MAX_RULES, RequestKind, RuleProtocol, RuleScope,
    TrafficLimits,
};
pub use secret_value::{CredentialValues, SecretValue};
pub use table::parse_table;
pub use target_host::{HostTarget, TargetHost};
