//! Servers over Streamable HTTP, with the headers of their definition.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Era;
use super::greet::{Greeted, NotGreeted};
use super::notices::Notices;
use super::settings::Settings;

pub(super) async fn connect(
    _url: &str,
    _headers: &BTreeMap<String, String>,
    _era: Option<Era>,
    _settings: &Settings,
    _notices: &Arc<Notices>,
) -> Result<Greeted, NotGreeted> {
    Err(NotGreeted { reason: "servers over HTTP are not built yet".to_owned(), stderr_tail: String::new() })
}
