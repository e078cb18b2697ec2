//! The web client for sign-in. It follows no redirect; rmcp follows those of documents, within one origin. All bounds
//! are here: the size of an answer, the time of one request, and the time of a whole sign-in without the person's part.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use rmcp::transport::auth::{OAuthHttpClient, OAuthHttpClientFuture, OAuthHttpRequest};
use tokio::time::Instant;

use super::SignInError;
use super::address_policy::AddressPolicy;
use super::resource_document::ResourceDocument;
use crate::pool::http::innermost_cause;
use crate::pool::text;

/// Most bytes of an answer.
const MAX_ANSWER: usize = 64 * 1024;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const TOTAL_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct SignInWeb {
    client: Client,
    pub(super) policy: AddressPolicy,
    /// The document that the server names, whose answers are looked at.
    pub(super) document: Option<ResourceDocument>,
    deadline: Instant,
}

impl SignInWeb {
    /// A client for the sign-in to a server. Its time begins now.
    pub(super) async fn new(server: &Url) -> Result<Self, SignInError> {
        // Installs the process-wide provider. This fails, harmlessly, for every client but the first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let policy = AddressPolicy::of_server(server).await;
        let mut client = Client::builder()
            .user_agent(concat!("cove/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .dns_resolver(policy.clone());
        if policy.is_loopback() {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| SignInError::new(innermost_cause(&error)))?;
        Ok(Self { client, policy, document: None, deadline: Instant::now() + TOTAL_TIMEOUT })
    }

    /// Sends a request. Fails with the reason if there is no answer within the bounds.
    pub(super) async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, String> {
        self.send_with(request, HeaderMap::new()).await
    }

    /// Sends a request with the headers of a definition.
    pub(super) async fn send_with(
        &self,
        request: Request<Vec<u8>>,
        headers: HeaderMap,
    ) -> Result<Response<Vec<u8>>, String> {
        let url = self.policy.check("address", &request.uri().to_string())?;
        let place = format!("{}{}", url.origin().ascii_serialization(), url.path());
        let place = text::to_line(&place, 200);
        let failed = |reason: &str| format!("`{place}` {reason}");
        let mut request = reqwest::Request::try_from(request).map_err(|_| failed("is no address"))?;
        request.headers_mut().extend(headers);
        let until = self.deadline.min(Instant::now() + REQUEST_TIMEOUT);
        let exchange = async {
            let sent = self.client.execute(request).await;
            let mut answer = sent.map_err(|error| failed(&format!("did not answer: {}", innermost_cause(&error))))?;
            let mut body = Vec::new();
            // The stream of a server that needs no sign-in for it has no end.
            let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            if !kind.starts_with("text/event-stream") {
                let ended = |error: reqwest::Error| failed(&format!("broke off: {}", innermost_cause(&error)));
                while let Some(piece) = answer.chunk().await.map_err(ended)? {
                    if body.len() + piece.len() > MAX_ANSWER {
                        return Err(failed(&format!("answers with more than {MAX_ANSWER} bytes")));
                    }
                    body.extend_from_slice(&piece);
                }
            }
            let mut response = Response::new(body);
            *response.status_mut() = answer.status();
            *response.headers_mut() = std::mem::take(answer.headers_mut());
            Ok(response)
        };
        tokio::time::timeout_at(until, exchange).await.unwrap_or_else(|_| Err(failed("did not answer in time")))
    }
}

impl OAuthHttpClient for SignInWeb {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let address = request.request.uri().to_string();
            let answer = self.send(request.request).await?;
            if let Some(document) = &self.document {
                document.inspect(&address, &answer);
            }
            Ok(answer)
        })
    }
}
