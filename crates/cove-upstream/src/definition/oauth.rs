//! The part of a definition that says how Cove signs in to a server. A server needs none of it if it announces where
//! to sign in and lets clients register themselves.

use std::fmt;

use super::DefinitionProblem;
use super::read::ServerFields;
use cove_core::document::unknown_key_hint;
use cove_core::error::display_value;

const FIELDS: &[&str] = &[
    "client_id",
    "client_secret",
    "client_metadata_url",
    "scopes",
    "grant",
    "key_file",
    "issuer",
    "resource",
    "callback_port",
    "allow_unlisted_pkce",
];

/// Who agrees that Cove may use a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OAuthGrant {
    /// A person, in a browser.
    #[default]
    AuthorizationCode,
    /// The operator, by giving Cove credentials of its own.
    ClientCredentials,
}

/// How Cove signs in. Variables are expanded when they are needed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct OAuthSettings {
    pub client_id: Option<String>,
    pub client_secret: Option<String>,
    /// The address of a document that describes this client.
    pub client_metadata_url: Option<String>,
    pub scopes: Vec<String>,
    pub grant: OAuthGrant,
    /// A private key that proves the client's identity, instead of a secret.
    pub key_file: Option<String>,
    /// The authorization server to use, if the server names several.
    pub issuer: Option<String>,
    pub resource: Option<String>,
    /// The port that the client is registered with; any free one if not set.
    pub callback_port: Option<u16>,
    /// Allows an authorization server that does not list its methods of PKCE.
    pub allow_unlisted_pkce: bool,
}

/// Leaves out the secret.
impl fmt::Debug for OAuthSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuthSettings")
            .field("client_id", &self.client_id)
            .field("scopes", &self.scopes)
            .field("grant", &self.grant)
            .finish_non_exhaustive()
    }
}

impl OAuthSettings {
    /// The parts that decide which tools a server shows. None is a secret.
    pub(super) fn digest_parts(&self) -> impl Iterator<Item = &str> {
        let client = [Some("oauth"), self.client_id.as_deref(), self.issuer.as_deref(), self.resource.as_deref()];
        client.into_iter().flatten().chain(self.scopes.iter().map(String::as_str))
    }

    /// The texts that may have references in them.
    pub(super) fn texts(&self) -> [&Option<String>; 6] {
        [&self.client_id, &self.client_secret, &self.client_metadata_url, &self.key_file, &self.issuer, &self.resource]
    }

    /// Other clients write their own names into JSON files, so unknown fields are mistakes only in `cove.toml`.
    pub(super) fn read(fields: &ServerFields<'_>, is_toml: bool) -> Result<Self, DefinitionProblem> {
        let members = fields.node.members();
        let members = members.ok_or_else(|| fields.wrong_kind(fields.node, "oauth", "a table"))?;
        let unknown = members.iter().find(|field| !FIELDS.contains(&field.key.as_str()));
        if let Some(unknown) = unknown.filter(|_| is_toml) {
            let what = format!("`{}` is not a field of `oauth`", display_value(&unknown.key));
            return Err(fields.mistake(unknown.line, &what, &unknown_key_hint(&unknown.key, FIELDS)));
        }
        let grant = match fields.field("grant").map(|node| (node, node.text())) {
            None | Some((_, Some("authorization_code"))) => OAuthGrant::AuthorizationCode,
            Some((_, Some("client_credentials"))) => OAuthGrant::ClientCredentials,
            Some((node, _)) => {
                let hint = "write `authorization_code` or `client_credentials`";
                return Err(fields.mistake(node.line, "`oauth.grant` is not a grant that Cove knows", hint));
            }
        };
        let callback_port = match fields.field("callback_port") {
            None => None,
            Some(node) => match node.text_or_number().and_then(|text| text.parse().ok()).filter(|port| *port > 0) {
                Some(port) => Some(port),
                None => {
                    let hint = "write a number from 1 to 65535";
                    return Err(fields.mistake(node.line, "`oauth.callback_port` is not a port", hint));
                }
            },
        };
        // Some clients write the scopes as the protocol does: in one text, with spaces.
        let scopes = match fields.field("scopes").and_then(|node| node.text()) {
            Some(text) => text.split_whitespace().map(str::to_owned).collect(),
            None => fields.list("scopes")?,
        };
        Ok(Self {
            client_id: fields.first_text(&["client_id", "clientId"])?,
            client_secret: fields.first_text(&["client_secret", "clientSecret"])?,
            client_metadata_url: fields.text("client_metadata_url")?,
            scopes,
            grant,
            key_file: fields.text("key_file")?,
            issuer: fields.text("issuer")?,
            resource: fields.text("resource")?,
            callback_port,
            allow_unlisted_pkce: fields.boolean("allow_unlisted_pkce")?.unwrap_or(false),
        })
    }
}
