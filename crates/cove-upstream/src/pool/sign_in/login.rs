//! A sign-in: finds the authorization server and its endpoints, becomes its client, and sends the person there. Only
//! the right answer of the browser then becomes tokens.

use std::path::Path;
use std::sync::Arc;

use http::{Request, StatusCode};
use reqwest::Url;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, AuthorizationMetadataSource, InMemoryStateStore,
    OAuthClientConfig, StateStore,
};
use serde_json::json;

use super::client_assertion::sign_assertion;
use super::client_identity::{ClientIdentity, ClientProof};
use super::records::{KeptTokens, SignInAuthority, SignInRecord};
use super::redirect::{RedirectAnswer, RedirectListener};
use super::resource_document::ResourceDocument;
use super::session::{ServerSignIn, find_challenge};
use super::tokens::{TokenFailure, request_tokens};
use super::web::SignInWeb;
use super::{SignInError, now_seconds, parse_scopes};
use crate::definition::OAuthGrant;
use crate::pool::text;

/// The name that people see when they grant access.
const CLIENT_NAME: &str = "Cove";
/// The scope that asks for a refresh token. Answers need not repeat it.
const OFFLINE_SCOPE: &str = "offline_access";
/// Sign-ins for one set of scopes that a server asked for. A server that still asks would ask for ever.
const MAX_STEP_UPS: u32 = 3;
const MAX_AUTHORIZATION_ADDRESS: usize = 16 * 1024;

/// What a person chooses about a sign-in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignInOptions {
    /// Scopes to ask for beside those of the last sign-in.
    pub scopes: Vec<String>,
    pub client_id: Option<String>,
    pub callback_port: Option<u16>,
}

/// A sign-in that waits for the person.
pub struct PendingSignIn {
    session: Arc<ServerSignIn>,
    listener: RedirectListener,
    address: String,
    state: String,
    verifier: String,
    authority: SignInAuthority,
    /// The authorization server names itself in its answers.
    names_issuer: bool,
    scopes: Vec<String>,
}

/// What a sign-in granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedIn {
    pub host: String,
    pub scopes: Vec<String>,
    /// Cove renews it without the person.
    pub is_renewed: bool,
}

impl SignedIn {
    fn new(authority: &SignInAuthority, tokens: &KeptTokens, is_renewed: bool) -> Self {
        let host = Url::parse(&authority.issuer).ok().and_then(|issuer| issuer.host_str().map(str::to_owned));
        Self { host: host.unwrap_or_default(), scopes: tokens.scopes.clone(), is_renewed }
    }
}

/// The authorization server of one server, and what both ask for.
pub(super) struct DiscoveredAuthority<'a> {
    session: &'a ServerSignIn,
    web: Arc<SignInWeb>,
    manager: AuthorizationManager,
    metadata: AuthorizationMetadata,
    /// False if the endpoints are those of revision 2025-03-26, which a server need not publish.
    is_published: bool,
    issuer: String,
    states: InMemoryStateStore,
}

impl<'a> DiscoveredAuthority<'a> {
    /// Finds the authorization server. Fails if there is none, or if what the two publish cannot be used.
    pub(super) async fn of_server(
        session: &'a ServerSignIn,
        mut web: SignInWeb,
        record: &SignInRecord,
    ) -> Result<Self, SignInError> {
        let kept = record.challenge.as_ref().and_then(|challenge| challenge.header.clone());
        let (challenge, is_refused) = match kept {
            Some(kept) => (Some(kept), true),
            None => probe_server(session, &web).await?,
        };
        web.document =
            challenge.as_deref().and_then(|challenge| ResourceDocument::of_challenge(challenge, &session.url));
        let web = Arc::new(web);
        let document_error = || web.document.as_ref().and_then(ResourceDocument::error);
        let failed = |error: AuthError| document_error().unwrap_or_else(|| to_sign_in_error(&session.server, error));
        let mut manager =
            AuthorizationManager::new_with_oauth_http_client(session.resource(), web.clone()).await.map_err(failed)?;
        let states = InMemoryStateStore::new();
        manager.set_state_store(states.clone());
        let found = manager.resolve_metadata_from_challenge(challenge.as_deref()).await.map_err(failed)?;
        let is_published = found.source != AuthorizationMetadataSource::LegacyEndpointFallback;
        if !is_published && !is_refused {
            return Err(SignInError::new("it does not ask for sign-in"));
        }
        if let Some(error) = document_error().filter(|_| !is_published) {
            return Err(error);
        }
        let metadata = found.metadata;
        let check = |what: &str, address: Option<&str>| match address {
            Some(address) => web.policy.check(what, address).map(drop).map_err(SignInError::new),
            None => Ok(()),
        };
        check("authorization endpoint", Some(&metadata.authorization_endpoint))?;
        check("token endpoint", Some(&metadata.token_endpoint))?;
        check("registration endpoint", metadata.registration_endpoint.as_deref())?;
        let has_person = session.oauth.grant == OAuthGrant::AuthorizationCode;
        let is_listed = metadata.code_challenge_methods_supported.is_some() || !is_published;
        if has_person && !is_listed && !session.oauth.allow_unlisted_pkce {
            let reason = "the authorization server does not say that it supports PKCE, which protects a sign-in";
            return Err(SignInError::new(reason)
                .with_hint("if you know that it does, set `allow_unlisted_pkce = true` in `oauth` of its definition"));
        }
        let issuer = match &metadata.issuer {
            Some(issuer) => issuer.clone(),
            None => session.url.origin().ascii_serialization(),
        };
        if let Some(wanted) =
            session.oauth.issuer.as_ref().filter(|wanted| wanted.trim_end_matches('/') != issuer.trim_end_matches('/'))
        {
            let (wanted, found) = (text::to_line(wanted, 200), text::to_line(&issuer, 200));
            return Err(SignInError::new(format!(
                "its authorization server is `{found}`, and its definition says `{wanted}`"
            ))
            .with_hint("correct `issuer` in `oauth` of its definition, if the new one is right"));
        }
        manager.set_metadata(metadata.clone());
        Ok(Self { session, web, manager, metadata, is_published, issuer, states })
    }

    /// Returns the scopes to ask for: those that the person or the definition names, those that the server asks for, and
    /// those that it granted before.
    async fn select_scopes(&self, record: &SignInRecord, wanted: &[String]) -> Result<Vec<String>, SignInError> {
        let missing = record.challenge.as_ref().map(|challenge| challenge.scopes.as_slice()).unwrap_or_default();
        let named: Vec<&String> = wanted.iter().chain(missing).collect();
        let granted = record.tokens.as_ref().map(|tokens| tokens.scopes.as_slice()).unwrap_or_default();
        let selected = match named.is_empty() && self.session.oauth.scopes.is_empty() {
            true => self.manager.select_initial_scopes(&[]).await,
            false => Vec::new(),
        };
        let all = granted.iter().chain(&self.session.oauth.scopes).chain(named).chain(&selected);
        let mut scopes = parse_scopes(all.map(String::as_str))?;
        // With it, the authorization server issues a refresh token.
        let offline = OFFLINE_SCOPE;
        let is_offered = self.metadata.scopes_supported.iter().flatten().any(|scope| scope == offline);
        if is_offered && !scopes.is_empty() && !scopes.iter().any(|scope| scope == offline) {
            scopes.push(offline.to_owned());
        }
        Ok(scopes)
    }

    fn field(&self, name: &str) -> Option<&serde_json::Value> {
        self.metadata.additional_fields.get(name)
    }

    fn identity(&self, id: &str, secret: Option<String>) -> ClientIdentity {
        ClientIdentity::new(id.to_owned(), secret, self.field("token_endpoint_auth_methods_supported"))
    }

    /// Becomes a client of the authorization server: the one that the person or the definition names, the one that a
    /// document describes, the one of the last sign-in, or a new one. Returns the redirect address of a registered one.
    async fn choose_client(
        &mut self,
        record: &SignInRecord,
        options: &SignInOptions,
        redirect: &str,
        scopes: &[String],
    ) -> Result<(ClientIdentity, Option<String>), SignInError> {
        let oauth = &self.session.oauth;
        let is_documented = self.field("client_id_metadata_document_supported").is_some_and(|value| value == true);
        let known = record.authority.as_ref().filter(|known| {
            let is_same = known.issuer == self.issuer && known.registered_redirect.as_deref() == Some(redirect);
            // Some authorization servers allow a client only those scopes that it registered for.
            let has = |tokens: &KeptTokens, scope: &String| scope == OFFLINE_SCOPE || tokens.scopes.contains(scope);
            is_same && record.tokens.as_ref().is_some_and(|tokens| scopes.iter().all(|scope| has(tokens, scope)))
        });
        let (client, registered) = if let Some(id) = &options.client_id {
            let secret =
                oauth.client_secret.clone().filter(|_| oauth.client_id.as_ref().is_none_or(|known| known == id));
            (self.identity(id, secret), None)
        } else if let Some(id) = &oauth.client_id {
            (self.identity(id, oauth.client_secret.clone()), None)
        } else if let Some(document) = oauth.client_metadata_url.as_ref().filter(|_| is_documented) {
            if !document.starts_with("https://") {
                return Err(SignInError::new("`client_metadata_url` in its definition is not an `https` address"));
            }
            (self.identity(document, None), None)
        } else if let Some(known) = known {
            (known.client.clone(), known.registered_redirect.clone())
        } else {
            let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
            let mut registered = self.manager.register_client(CLIENT_NAME, redirect, &scopes).await;
            // Others refuse to register for scopes of a server, and allow them all the same.
            if matches!(registered, Err(AuthError::RegistrationFailed(_))) && !scopes.is_empty() {
                registered = self.manager.register_client(CLIENT_NAME, redirect, &[]).await;
            }
            let registered = registered.map_err(|error| match self.is_published {
                true => to_sign_in_error(&self.session.server, error),
                false => SignInError::new("it publishes nothing about sign-in")
                    .with_hint("it may want a token: add a header such as `Authorization` to its definition"),
            })?;
            let client = self.identity(&registered.client_id, registered.client_secret);
            return Ok((client, Some(redirect.to_owned())));
        };
        let config = OAuthClientConfig::new(&client.id, redirect);
        self.manager.configure_client(config).map_err(|error| to_sign_in_error(&self.session.server, error))?;
        Ok((client, registered))
    }

    /// Asks for tokens as a client that acts for itself.
    pub(super) async fn request_own_tokens(
        mut self,
    ) -> Result<Result<(SignInAuthority, KeptTokens), TokenFailure>, SignInError> {
        let oauth = &self.session.oauth;
        let id = oauth.client_id.as_ref().ok_or_else(|| {
            SignInError::new("its definition has no `client_id` in `oauth`, which `client_credentials` needs")
        })?;
        let mut client = self.identity(id, oauth.client_secret.clone());
        if let Some(key_file) = &oauth.key_file {
            let assertion = sign_assertion(Path::new(key_file), id, &self.issuer)?;
            client =
                ClientIdentity { secret: None, proof: ClientProof::Assertion, assertion: Some(assertion), ..client };
        }
        let scopes = self.select_scopes(&SignInRecord::default(), &[]).await?;
        // rmcp shows the resource that it found in an address alone.
        let config = OAuthClientConfig::new(&client.id, "http://127.0.0.1/");
        let resource = match (&oauth.resource, self.manager.configure_client(config)) {
            (Some(resource), _) => Some(resource.clone()),
            (None, Ok(())) => {
                let address = self.manager.get_authorization_url(&[]).await.ok();
                address.and_then(|address| find_query(&Url::parse(&address).ok()?, "resource"))
            }
            (None, Err(_)) => None,
        };
        let resource = resource.unwrap_or_else(|| self.session.resource().to_string());
        let scope = scopes.join(" ");
        let mut form = vec![("grant_type", "client_credentials"), ("resource", resource.as_str())];
        form.extend((!scope.is_empty()).then_some(("scope", scope.as_str())));
        let tokens = request_tokens(&self.web, &self.metadata.token_endpoint, &client, &form, &scopes).await;
        Ok(tokens.map(|tokens| (self.authority(client, resource.clone(), None), tokens)))
    }

    fn authority(&self, client: ClientIdentity, resource: String, registered: Option<String>) -> SignInAuthority {
        let revocation = self.field("revocation_endpoint").and_then(|value| value.as_str());
        SignInAuthority {
            issuer: self.issuer.clone(),
            resource,
            token_endpoint: self.metadata.token_endpoint.clone(),
            revocation_endpoint: revocation.map(str::to_owned),
            client,
            registered_redirect: registered,
        }
    }
}

impl ServerSignIn {
    /// Returns the server's address without the parts that may hold secrets, which are no part of a resource.
    fn resource(&self) -> Url {
        let mut resource = self.url.clone();
        let _ = (resource.set_username(""), resource.set_password(None));
        resource.set_query(None);
        resource.set_fragment(None);
        resource
    }

    /// Begins a sign-in. The person then opens [`PendingSignIn::address`].
    pub(in crate::pool) async fn begin(
        self: &Arc<Self>,
        options: &SignInOptions,
    ) -> Result<PendingSignIn, SignInError> {
        let record = self.read().await?;
        let missing = record.challenge.as_ref().map(|challenge| &challenge.scopes);
        if let Some(count) = &record.step_up
            && Some(&count.scopes) == missing
            && count.sign_ins >= MAX_STEP_UPS
        {
            let scopes = count.scopes.join(" ");
            return Err(SignInError::new(format!(
                "you signed in {MAX_STEP_UPS} times for `{scopes}`, and the server still asks for it"
            ))
            .with_hint(format!(
                "your account may not have it; `cove servers logout {}` starts from the beginning",
                self.server
            )));
        }
        // A sign-in that could not be kept must not begin.
        drop(self.records.lock(&self.server, &self.url).await?);
        let listener = self.open_listener(&record, options).await?;
        let redirect = listener.address();
        let web = SignInWeb::new(&self.url).await?;
        let mut found = DiscoveredAuthority::of_server(self, web, &record).await?;
        let scopes = found.select_scopes(&record, &options.scopes).await?;
        let (client, registered) = found.choose_client(&record, options, &redirect, &scopes).await?;
        let asked: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let address = found.manager.get_authorization_url(&asked).await;
        let address = address.map_err(|error| to_sign_in_error(&self.server, error))?;
        let mut address = found.web.policy.check("authorization endpoint", &address).map_err(SignInError::new)?;
        let state = find_query(&address, "state").unwrap_or_default();
        let mut resource = find_query(&address, "resource").unwrap_or_default();
        if let Some(wanted) = &self.oauth.resource {
            let others = address.clone();
            let others = others.query_pairs().filter(|(key, _)| key != "resource");
            address.query_pairs_mut().clear().extend_pairs(others).append_pair("resource", wanted);
            resource.clone_from(wanted);
        }
        let stored = found.states.load(&state).await.ok().flatten();
        let verifier = stored.map(|stored| stored.pkce_verifier);
        let verifier = verifier.ok_or_else(|| SignInError::new("the sign-in could not be prepared"))?;
        if address.as_str().len() > MAX_AUTHORIZATION_ADDRESS {
            return Err(SignInError::new("the address of the authorization server is too long"));
        }
        let names_issuer = found.field("authorization_response_iss_parameter_supported");
        let names_issuer = names_issuer.is_some_and(|value| value == true);
        let authority = found.authority(client, resource, registered);
        let (session, address) = (Arc::clone(self), address.to_string());
        Ok(PendingSignIn { session, listener, address, state, verifier, authority, names_issuer, scopes })
    }

    /// Listens at the port that the client is registered with, if that is known and free.
    async fn open_listener(
        &self,
        record: &SignInRecord,
        options: &SignInOptions,
    ) -> Result<RedirectListener, SignInError> {
        if let Some(port) = options.callback_port.or(self.oauth.callback_port) {
            return RedirectListener::open(Some(port)).await;
        }
        let known = record.authority.as_ref().and_then(|known| Url::parse(known.registered_redirect.as_deref()?).ok());
        if let Some(port) = known.and_then(|known| known.port())
            && let Ok(listener) = RedirectListener::open(Some(port)).await
        {
            return Ok(listener);
        }
        RedirectListener::open(None).await
    }

    /// Gets tokens as a client that acts for itself. Fails if that is not how its definition says to sign in.
    pub(in crate::pool) async fn sign_in_by_credentials(self: &Arc<Self>) -> Result<SignedIn, SignInError> {
        let old = self.read().await?.tokens.map(|tokens| tokens.access_token);
        let renewed = self.renew(old).await?;
        self.update(|record| record.challenge = None).await?;
        match (self.read().await?, renewed) {
            (SignInRecord { authority: Some(authority), tokens: Some(tokens), .. }, Some(_)) => {
                Ok(SignedIn::new(&authority, &tokens, true))
            }
            _ => Err(SignInError::new("the authorization server refused the credentials of its definition")),
        }
    }
}

impl PendingSignIn {
    /// Returns the address that the person opens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the host that the person signs in at.
    pub fn host(&self) -> String {
        Url::parse(&self.address).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
    }

    /// Waits for the browser. Fails if it does not come in time. `report_foreign` is called at most once: when an answer
    /// comes that does not belong to this sign-in.
    pub async fn wait_for_redirect(&self, report_foreign: impl Fn()) -> Result<RedirectAnswer, SignInError> {
        self.listener.wait(&self.state, report_foreign).await
    }

    /// Reads an address that a person pasted. Fails if it belongs to another sign-in.
    pub fn read_pasted(&self, address: &str) -> Result<RedirectAnswer, SignInError> {
        // Some terminals mark what is pasted.
        let address = address.trim().trim_start_matches("\u{1b}[200~").trim_end_matches("\u{1b}[201~");
        let answer = RedirectAnswer::read(address, &self.listener.address(), &self.state);
        answer.ok_or_else(|| {
            let cause = match address.contains("state=") && address.contains("/callback?") {
                true => "that answer belongs to another sign-in",
                false => "that is not the address that the browser ended at",
            };
            SignInError::new(cause).with_hint("start again")
        })
    }

    /// Gets the tokens and keeps them. Nothing is kept if that fails.
    pub async fn finish(self, answer: RedirectAnswer) -> Result<SignedIn, SignInError> {
        let Self { session, authority, verifier, listener, scopes, .. } = self;
        match &answer.issuer {
            Some(issuer) if *issuer != authority.issuer => {
                return Err(SignInError::new("the answer comes from another authorization server than Cove asked"));
            }
            None if self.names_issuer => {
                return Err(SignInError::new("the answer does not say which authorization server it comes from"));
            }
            _ => {}
        }
        let code = match (answer.code, answer.error.as_deref()) {
            (Some(code), None) => code,
            (_, Some("access_denied")) => return Err(SignInError::new("the sign-in was declined")),
            (_, error) => {
                let error = text::to_line(error.unwrap_or("no code"), 60);
                return Err(SignInError::new(format!("the authorization server ended the sign-in: `{error}`")));
            }
        };
        let web = SignInWeb::new(&session.url).await?;
        let redirect = listener.address();
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code.as_str()),
            ("redirect_uri", redirect.as_str()),
            ("code_verifier", verifier.as_str()),
            ("resource", authority.resource.as_str()),
        ];
        let tokens = request_tokens(&web, &authority.token_endpoint, &authority.client, &form, &scopes).await;
        let tokens = tokens.map_err(|failure| SignInError::new(failure.describe()))?;
        let signed_in = SignedIn::new(&authority, &tokens, tokens.refresh_token.is_some());
        session
            .update(|record| {
                if record.challenge.take().is_some_and(|challenge| !challenge.scopes.is_empty())
                    && let Some(count) = &mut record.step_up
                {
                    count.sign_ins += 1;
                    count.at = now_seconds();
                }
                (record.authority, record.tokens) = (Some(authority), Some(tokens));
            })
            .await?;
        Ok(signed_in)
    }
}

fn find_query(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// Sends the first message of the protocol without a token. Returns the server's challenge, and true if it refused.
async fn probe_server(session: &ServerSignIn, web: &SignInWeb) -> Result<(Option<String>, bool), SignInError> {
    let message = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "cove", "version": env!("CARGO_PKG_VERSION")},
        },
    });
    let request = Request::post(session.url.as_str())
        .header(http::header::ACCEPT, "application/json, text/event-stream")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(message.to_string().into_bytes())
        .map_err(|_| SignInError::new("its address cannot be used"))?;
    let answer = web.send_with(request, session.headers.clone()).await.map_err(SignInError::new)?;
    let is_refused = answer.status() == StatusCode::UNAUTHORIZED;
    Ok((find_challenge(answer.headers()).filter(|_| is_refused).map(str::to_owned), is_refused))
}

/// Words an error of rmcp, whose own texts may hold answers of servers.
fn to_sign_in_error(server: &str, error: AuthError) -> SignInError {
    let client_hint = format!(
        "register a client there by hand, then run `cove servers login {server} --client-id ID`, or set `client_id` in \
         `oauth` of its definition"
    );
    match error {
        // Names documents and their mistakes.
        AuthError::MetadataError(reason) => {
            let reason = reason.split_once("Caused by: ").map_or(reason.as_str(), |(_, cause)| cause);
            SignInError::new(format!("what it publishes about sign-in cannot be used: {}", text::to_line(reason, 400)))
        }
        AuthError::AuthorizationServerMismatch { expected_issuer, received_issuer } => SignInError::new(format!(
            "the authorization server `{}` says that it is `{}`",
            text::to_line(&expected_issuer, 200),
            text::to_line(&received_issuer, 200)
        )),
        AuthError::AuthorizationServerMissingIssuer { expected_issuer } => SignInError::new(format!(
            "the authorization server `{}` does not say who it is",
            text::to_line(&expected_issuer, 200)
        )),
        AuthError::PkceUnsupported => {
            SignInError::new("the authorization server does not support PKCE with S256, which protects a sign-in")
        }
        AuthError::InvalidScope(_) => SignInError::new("the authorization server does not offer sign-in with a code"),
        AuthError::RegistrationFailed(reason) if reason.contains("not supported") => {
            SignInError::new("its authorization server does not let clients register themselves").with_hint(client_hint)
        }
        AuthError::RegistrationFailed(reason) => {
            let status = reason
                .strip_prefix("HTTP ")
                .and_then(|rest| rest.get(..3))
                .filter(|status| status.parse::<u16>().is_ok());
            let status = status.map(|status| format!(" (HTTP {status})")).unwrap_or_default();
            SignInError::new(format!("its authorization server did not register Cove as a client{status}"))
                .with_hint(client_hint)
        }
        AuthError::NoAuthorizationSupport => SignInError::new("it publishes nothing about sign-in"),
        _ => SignInError::new("its authorization server answered in a way that Cove does not understand"),
    }
}
