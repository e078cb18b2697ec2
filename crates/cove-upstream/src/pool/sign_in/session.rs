//! The tokens that requests to one server carry: from the record, renewed shortly before they end or after the server
//! refused them, by one task of one process at a time.

use std::sync::{Arc, Mutex};

use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, StatusCode};
use reqwest::Url;
use rmcp::transport::auth::WWWAuthenticateParams;

use super::login::DiscoveredAuthority;
use super::records::{
    HelperPart, KeptChallenge, KeptTokens, SignInAuthority, SignInRecord, SignInRecords, StepUpCount,
};
use super::tokens::{TokenFailure, request_tokens, revoke_token};
use super::web::SignInWeb;
use super::{SignInError, SignInNeed, now_seconds, parse_scopes};
use crate::definition::{OAuthGrant, OAuthSettings};
use crate::pool::http::HttpTarget;
use crate::pool::redaction::ServerSecrets;
use crate::pool::settings::UpstreamSettings;
use crate::secrets::SecretStore;
use cove_core::error::{Failure, one_line_chain};
use cove_core::random::random_bits;
use cove_core::sync::lock;

/// A token is renewed this long before it ends, in seconds.
const RENEW_BEFORE: u64 = 30;
/// How long sign-ins for the same scopes are counted, in seconds.
const STEP_UP_MEMORY: u64 = 3600;
/// A longer challenge is not kept.
const MAX_CHALLENGE: usize = 4 * 1024;

/// The sign-in to one server.
pub(in crate::pool) struct ServerSignIn {
    pub(super) records: SignInRecords,
    pub(super) server: String,
    pub(super) url: Url,
    /// The headers of the definition, for the server alone.
    pub(super) headers: HeaderMap,
    pub(super) oauth: Box<OAuthSettings>,
    secrets: ServerSecrets,
    /// Keeps the tokens if it has a helper program.
    store: SecretStore,
    /// What the helper program returned, with its revision. Asking it starts a process.
    helper_part: Mutex<Option<(String, HelperPart)>>,
}

/// What a person learns about the end of a sign-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedOut {
    pub was_signed_in: bool,
    /// Why the authorization server did not revoke the tokens; `None` if it did.
    pub not_revoked: Option<String>,
}

impl ServerSignIn {
    /// Returns `None` if the definition itself says what authorizes the requests.
    pub(in crate::pool) fn new(
        settings: &UpstreamSettings,
        server: &str,
        target: &HttpTarget,
        secrets: &ServerSecrets,
    ) -> Option<Arc<Self>> {
        if target.headers.contains_key(http::header::AUTHORIZATION) {
            return None;
        }
        Some(Arc::new(Self {
            records: settings.sign_ins.clone(),
            store: settings.secrets.clone(),
            helper_part: Mutex::default(),
            server: server.to_owned(),
            url: target.url.clone(),
            headers: target.headers.clone(),
            oauth: target.oauth.clone(),
            secrets: secrets.clone(),
        }))
    }

    /// Returns the record without what a helper program keeps.
    fn read_file(&self) -> Result<SignInRecord, SignInError> {
        self.records.read(&self.server, &self.url)
    }

    pub(super) async fn read(&self) -> Result<SignInRecord, SignInError> {
        let mut record = self.read_file()?;
        if let Some(revision) = &record.helper_revision {
            let known = lock(&self.helper_part).clone().filter(|(known, _)| known == revision);
            let part = match known {
                Some((_, part)) => part,
                None => {
                    let text = self.store.get(&self.helper_name()).await.map_err(|error| helper_error(&error))?;
                    let part: HelperPart = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
                    *lock(&self.helper_part) = Some((revision.clone(), part.clone()));
                    part
                }
            };
            record.tokens = part.tokens;
            if let Some(authority) = &mut record.authority {
                authority.client.secret = part.client_secret;
            }
        }
        Ok(record)
    }

    pub(super) async fn write(&self, record: &SignInRecord) -> Result<(), SignInError> {
        let mut record = record.clone();
        if self.store.has_helper() {
            let client_secret = record.authority.as_mut().and_then(|authority| authority.client.secret.take());
            let part = HelperPart { tokens: record.tokens.take(), client_secret };
            record.helper_revision = Some(format!("{:032x}", random_bits()));
            let text = serde_json::to_string(&part).unwrap_or_default();
            self.store.set(&self.helper_name(), &text).await.map_err(|error| helper_error(&error))?;
        } else {
            record.helper_revision = None;
        }
        self.records.write(&self.server, &self.url, &record)
    }

    /// Removes the record. Returns false if there was none.
    async fn remove(&self) -> Result<bool, SignInError> {
        let has_part = self.read_file().is_ok_and(|record| record.helper_revision.is_some());
        if has_part && self.store.has_helper() {
            self.store.remove(&self.helper_name()).await.map_err(|error| helper_error(&error))?;
        }
        self.records.remove(&self.server, &self.url)
    }

    /// Returns the name under which a helper program keeps the tokens.
    fn helper_name(&self) -> String {
        format!("oauth.{}", SignInRecords::name(&self.server, &self.url))
    }

    /// Changes the record while no other process does.
    pub(super) async fn update(&self, change: impl FnOnce(&mut SignInRecord)) -> Result<(), SignInError> {
        let _lock = self.records.lock(&self.server, &self.url).await?;
        let before = self.read().await?;
        let mut record = before.clone();
        change(&mut record);
        if record == before { Ok(()) } else { self.write(&record).await }
    }

    /// Returns what the server asked for, if it refused every request since the last sign-in.
    pub(in crate::pool) fn need(&self) -> Option<SignInNeed> {
        let record = self.read_file().ok()?;
        let is_refused = record.challenge.as_ref()?.scopes.is_empty();
        is_refused.then(|| SignInNeed { host: record.host(&self.url), scopes: Vec::new() })
    }

    /// Returns true if the server refused a request since the last sign-in.
    pub(super) fn has_challenge(&self) -> bool {
        self.read_file().is_ok_and(|record| record.challenge.is_some())
    }

    /// Forgets that the server refused requests, because it has just answered one.
    pub(in crate::pool) async fn forget_refusal(&self) {
        if self.need().is_some() {
            let _ = self.update(|record| record.challenge = None).await;
        }
    }

    pub(in crate::pool) fn is_by_credentials(&self) -> bool {
        self.oauth.grant == OAuthGrant::ClientCredentials
    }

    /// Returns the token for a request; `None` if there is none. Fails if the token has ended and could not be renewed for
    /// another reason than a refusal.
    pub(in crate::pool) async fn bearer(self: &Arc<Self>) -> Result<Option<String>, SignInError> {
        let tokens = self.read().await?.tokens;
        let token = match tokens {
            Some(tokens) if !self.must_renew(&tokens) => Some(tokens.access_token),
            Some(tokens) => match self.renew(Some(tokens.access_token.clone())).await {
                // It has not ended yet.
                Err(_) if tokens.expires_at.is_some_and(|end| end > now_seconds()) => Some(tokens.access_token),
                renewed => renewed?,
            },
            None if self.is_by_credentials() => self.renew(None).await?,
            None => None,
        };
        if let Some(token) = &token {
            self.secrets.add_token(token);
        }
        Ok(token)
    }

    fn must_renew(&self, tokens: &KeptTokens) -> bool {
        let can_renew = tokens.refresh_token.is_some() || self.is_by_credentials();
        can_renew && tokens.expires_at.is_some_and(|end| end <= now_seconds() + RENEW_BEFORE)
    }

    /// Returns a token other than the one that was refused or has ended; `None` if a person must sign in. In a task of
    /// its own: a caller that gives up must not lose a token that the server has already issued.
    pub(in crate::pool) async fn renew(self: &Arc<Self>, old: Option<String>) -> Result<Option<String>, SignInError> {
        let this = Arc::clone(self);
        let renewed = tokio::spawn(async move { this.renew_locked(old.as_deref()).await });
        let token = renewed.await.unwrap_or_else(|_| Err(SignInError::new("the renewal was interrupted")))?;
        if let Some(token) = &token {
            self.secrets.add_token(token);
        }
        Ok(token)
    }

    async fn renew_locked(&self, old: Option<&str>) -> Result<Option<String>, SignInError> {
        let _lock = self.records.lock(&self.server, &self.url).await?;
        let mut record = self.read().await?;
        match &record.tokens {
            // Another task or process was first.
            Some(tokens) if old != Some(&tokens.access_token) => return Ok(Some(tokens.access_token.clone())),
            _ => {}
        }
        let web = SignInWeb::new(&self.url).await?;
        let renewed = match (&record.tokens, &record.authority) {
            _ if self.is_by_credentials() => {
                let issued = DiscoveredAuthority::of_server(self, web, &record).await?.request_own_tokens().await?;
                issued.map(|(authority, tokens)| {
                    record.authority = Some(authority);
                    tokens
                })
            }
            (Some(KeptTokens { refresh_token: Some(refresh), scopes, .. }), Some(authority)) => {
                request_renewal(&web, authority, refresh, scopes).await
            }
            _ => return Ok(None),
        };
        match renewed {
            Ok(tokens) => {
                let token = tokens.access_token.clone();
                record.tokens = Some(tokens);
                self.write(&record).await?;
                Ok(Some(token))
            }
            // The person must sign in again, and Cove registers again.
            Err(failure) if failure.is_final() => {
                record.tokens = None;
                self.write(&record).await?;
                Ok(None)
            }
            Err(failure) => Err(SignInError::new(format!("its sign-in could not be renewed: {}", failure.describe()))),
        }
    }

    /// Keeps what a refused request was answered with, for the next sign-in. Returns what the person must do; `None` if
    /// a sign-in would not help.
    pub(in crate::pool) async fn record_refusal(&self, status: StatusCode, headers: &HeaderMap) -> Option<SignInNeed> {
        let header = find_challenge(headers);
        let params = header.map(|header| WWWAuthenticateParams::parse(header, &self.url)).unwrap_or_default();
        if status != StatusCode::UNAUTHORIZED && !params.is_insufficient_scope() {
            return None;
        }
        let mut scopes = match params.is_insufficient_scope() {
            true => parse_scopes(params.scope.as_deref()).unwrap_or_default(),
            false => Vec::new(),
        };
        // Code sees them, and a server may repeat the token there.
        scopes.retain(|scope| self.secrets.redact(scope) == *scope);
        let challenge = KeptChallenge { header: header.map(str::to_owned), scopes: scopes.clone() };
        let kept = self.update(|record| {
            let now = now_seconds();
            let is_old = |count: &StepUpCount| count.scopes != scopes || count.at + STEP_UP_MEMORY < now;
            if !scopes.is_empty() && record.step_up.as_ref().is_none_or(is_old) {
                record.step_up = Some(StepUpCount { scopes: scopes.clone(), sign_ins: 0, at: now });
            }
            record.challenge = Some(challenge);
        });
        if let Err(error) = kept.await {
            tracing::debug!(server = self.server, "could not keep what it asked for: {error}");
        }
        let host = self.read_file().unwrap_or_default().host(&self.url);
        Some(SignInNeed { host, scopes })
    }

    /// Removes the record, and asks the authorization server to revoke the tokens.
    pub(in crate::pool) async fn sign_out(&self) -> Result<SignedOut, SignInError> {
        let _lock = self.records.lock(&self.server, &self.url).await?;
        let record = self.read().await;
        let removed = self.remove().await?;
        let Ok(SignInRecord { authority: Some(authority), tokens: Some(tokens), .. }) = record else {
            let not_revoked = (removed && record.is_err()).then(|| "its record could not be read".to_owned());
            return Ok(SignedOut { was_signed_in: not_revoked.is_some(), not_revoked });
        };
        let revoked = async {
            let endpoint = authority.revocation_endpoint.as_deref();
            let endpoint = endpoint.ok_or("the authorization server has no revocation endpoint")?;
            let web = SignInWeb::new(&self.url).await.map_err(|error| error.cause)?;
            // Most servers end both tokens with the first, and some refuse the other.
            if let Some(refresh) = &tokens.refresh_token {
                revoke_token(&web, endpoint, &authority.client, refresh, "refresh_token").await?;
            }
            revoke_token(&web, endpoint, &authority.client, &tokens.access_token, "access_token").await
        };
        Ok(SignedOut { was_signed_in: true, not_revoked: revoked.await.err() })
    }
}

fn helper_error(failure: &Failure) -> SignInError {
    SignInError::new(one_line_chain(failure))
}

/// Returns the challenge of a refused request that says most.
pub(super) fn find_challenge(headers: &HeaderMap) -> Option<&str> {
    let challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let is_bearer = |challenge: &&str| {
        challenge.len() <= MAX_CHALLENGE && challenge.get(..6).is_some_and(|kind| kind.eq_ignore_ascii_case("bearer"))
    };
    challenges.filter(is_bearer).max_by_key(|challenge| challenge.contains("resource_metadata"))
}

/// Asks for new tokens with the refresh token.
async fn request_renewal(
    web: &SignInWeb,
    authority: &SignInAuthority,
    refresh: &str,
    scopes: &[String],
) -> Result<KeptTokens, TokenFailure> {
    let form = [("grant_type", "refresh_token"), ("refresh_token", refresh), ("resource", authority.resource.as_str())];
    let tokens = request_tokens(web, &authority.token_endpoint, &authority.client, &form, scopes).await?;
    let refresh_token = tokens.refresh_token.or_else(|| Some(refresh.to_owned()));
    Ok(KeptTokens { refresh_token, ..tokens })
}
