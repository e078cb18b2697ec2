//! Serves one connection of code to an inspected host: TLS ends here, and each request inside is decided. The server
//! gets only what this host has judged and written, with the credentials that the rule adds.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_core::BoxFuture;
use cove_core::sync::lock;
use http::header::{
    AGE, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use ring::rand::{SecureRandom, SystemRandom};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::answer_scrubber::SecretForms;
use crate::audit_line::{EgressAuditLine, NetworkCaller};
use crate::credential::RequestSlots;
use crate::download_cache::{DownloadCache, DownloadKey};
use crate::egress_meter::RelayDirection;
use crate::gateway_services::GatewayServices;
use crate::inspected_body::{AnswerBody, CountedBody, KeptBody, text_body};
use crate::inspected_request::{JudgedRequest, drop_answer_fields, shown_request};
use crate::inspected_upgrade::{close_unused, relay_upgrade};
use crate::open_line::OpenEgressLine;
use crate::origin_connection::{OriginConnection, SentBody};
use crate::proxy_request::MAX_HEAD;
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::refusal_notes::RefusalNotes;
use crate::relay::{RelayError, RelayMeter};
use crate::request_record::RequestRecord;
use crate::rules::RequestKind;
use crate::session_identity::SessionIdentity;
use crate::shared_download::{SharedAnswer, is_shared_request, shared_request_fields};
use crate::strict_heads::{HeadProblem, StrictHeads};
use crate::target_host::HostTarget;

/// For each half of the handshake, as long as for the first message through a tunnel: a program may be slow on a busy machine.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection whose host is inspected.
pub(crate) struct InspectedConnection<'a> {
    pub(crate) services: &'a GatewayServices,
    pub(crate) caller: NetworkCaller,
    pub(crate) target: HostTarget,
    pub(crate) identity: Arc<SessionIdentity>,
    /// Addresses of the host that were judged.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) meter: RelayMeter,
    pub(crate) notes: Arc<RefusalNotes>,
    /// What the lines of all requests have.
    pub(crate) template: EgressAuditLine,
    /// The line of the connection, until the first request takes its place.
    pub(crate) first_line: Mutex<Option<OpenEgressLine>>,
}

/// What the requests of a connection share while it is served.
struct ServedConnection<'a> {
    own: InspectedConnection<'a>,
    problem: Arc<HeadProblem>,
    origin: tokio::sync::Mutex<Option<OriginConnection>>,
    /// Passes on the bytes of a WebSocket once the client has its answer.
    upgrade: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl InspectedConnection<'_> {
    /// Serves requests until the client has gone.
    pub(crate) async fn serve(self, client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        match self.accept(client).await {
            Ok(client) => self.serve_requests(client).await,
            Err(None) => {}
            Err(Some(refusal)) => {
                if let Some(line) = lock(&self.first_line).as_mut() {
                    line.line.reason = Some(refusal.reason.as_str().to_owned());
                }
                self.notes.add(&refusal);
            }
        }
    }

    /// Ends TLS with the client. Fails if that does not come about, without a refusal if the client has gone.
    async fn accept<S: AsyncRead + AsyncWrite + Unpin + Send>(
        &self,
        client: S,
    ) -> Result<TlsStream<S>, Option<EgressRefusal>> {
        let refuse = |reason, cause: &str, hint: &str| {
            let (cause, hint) = (cause.to_owned(), hint.to_owned());
            Some(EgressRefusal { reason, target: self.target.to_string(), cause, hint })
        };
        let accepted = timeout(HANDSHAKE_TIMEOUT, LazyConfigAcceptor::new(Acceptor::default(), client)).await;
        let start = match accepted {
            Ok(Ok(start)) => start,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(None),
            Ok(Err(_)) => {
                return Err(refuse(RefusalReason::NotTls, "the tunnel carries something other than TLS", "use TLS"));
            }
            Err(_) => return Err(refuse(RefusalReason::NotTls, "no TLS came in time", "send a TLS hello")),
        };
        if !self.target.host.is_server_name(start.client_hello().server_name()) {
            let hint = format!("use `{}` as the server name of TLS", self.target.host);
            let cause = "the TLS server name is not the host of the tunnel";
            return Err(refuse(RefusalReason::SniMismatch, cause, &hint));
        }
        let authority = self.identity.authority.as_ref();
        let config = authority.ok_or_else(|| "the session has no authority".to_owned());
        let config = config.and_then(|authority| authority.server_config(&self.target.host)).map_err(|error| {
            tracing::error!("could not make a certificate for `{}`: {error}", self.target.host);
            refuse(RefusalReason::Unreachable, "no certificate could be made for this host", "start another session")
        })?;
        match timeout(HANDSHAKE_TIMEOUT, start.into_stream(config)).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) if offers_other_protocols(&error) => Err(refuse(
                RefusalReason::ProtocolNotAllowed,
                "the program does not offer HTTP/1.1, which inspected requests have",
                "use HTTP/1.1; the operator can leave out what makes the rule an inspected one",
            )),
            Err(_) => Err(refuse(RefusalReason::NotTls, "TLS was not agreed upon in time", "answer the handshake")),
            Ok(Err(_)) => Err(refuse(
                RefusalReason::CertificateRefused,
                "the program does not accept the certificate of the session, which Cove needs to inspect requests",
                "programs find it in the file that `SSL_CERT_FILE` names; one that accepts certain certificates only needs \
                 a rule without inspection",
            )),
        }
    }

    async fn serve_requests(self, client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let problem = HeadProblem::new(&nonce());
        let client = TokioIo::new(StrictHeads::new(client, Arc::clone(&problem)));
        let open =
            ServedConnection { own: self, problem, origin: tokio::sync::Mutex::default(), upgrade: Mutex::default() };
        let serve = async {
            let service = service_fn(|request| open.answer(request));
            let connection = http1::Builder::new().max_buf_size(2 * MAX_HEAD).serve_connection(client, service);
            // The client has gone, or its bytes were no HTTP. Each request has a line of its own.
            let _ = connection.with_upgrades().await;
            let upgrade = lock(&open.upgrade).take();
            if let Some(upgrade) = upgrade {
                upgrade.await;
            }
        };
        tokio::select! {
            () = serve => {}
            _ = open.own.meter.idle() => {}
        }
    }
}

impl ServedConnection<'_> {
    async fn answer(&self, mut request: Request<Incoming>) -> Result<Response<AnswerBody>, Infallible> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if let Some(cause) = self.problem.of_path(&path) {
            let record = self.begin("?", "", self.own.target.to_string());
            let refusal = EgressRefusal {
                reason: RefusalReason::MalformedRequest,
                target: self.own.target.to_string(),
                cause,
                hint: "send a plain request of HTTP/1.1".to_owned(),
            };
            return Ok(refuse(record.as_deref().ok(), &refusal, EndOfConnection::After));
        }
        let wants_upgrade = request.headers().contains_key(UPGRADE) || method == Method::CONNECT;
        let ends = wants_upgrade || request.headers().contains_key(TRANSFER_ENCODING);
        let end = if ends { EndOfConnection::After } else { EndOfConnection::No };
        let shown = shown_request(&method, &path, &self.own.target);
        let record = match self.begin(method.as_str(), &path, shown.clone()) {
            Ok(record) => record,
            Err(error) => {
                let refusal = EgressRefusal::not_recorded(shown, &error);
                self.own.notes.add(&refusal);
                return Ok(refuse(None, &refusal, EndOfConnection::After));
            }
        };
        let mut upgrade = Some(hyper::upgrade::on(&mut request));
        let answer = self.carry_out(request, &record, shown, &mut upgrade).await;
        if let Some(unused) = upgrade.filter(|_| wants_upgrade) {
            *lock(&self.upgrade) = Some(Box::pin(close_unused(unused)));
        }
        let mut response = match answer {
            Ok(response) => response,
            Err(refusal) => return Ok(refuse(Some(&record), &refusal, end)),
        };
        if ends && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    /// Begins the line of a request. Fails if it could not be written later.
    fn begin(&self, method: &str, path: &str, shown: String) -> std::io::Result<Arc<RequestRecord>> {
        let first = lock(&self.own.first_line).take();
        let mut line = match first {
            Some(line) => line,
            None => OpenEgressLine::begin(self.own.services, self.own.template.clone())?,
        };
        line.line.method = method.chars().take(32).collect();
        line.line.path = path.chars().take(256).collect();
        line.line.decision = "refused".to_owned();
        let meter = self.own.meter.for_request(Arc::clone(&line.counts));
        Ok(RequestRecord::new(meter, line, Arc::clone(&self.own.notes), shown))
    }

    async fn carry_out(
        &self,
        request: Request<Incoming>,
        record: &Arc<RequestRecord>,
        shown: String,
        client_upgrade: &mut Option<OnUpgrade>,
    ) -> Result<Response<AnswerBody>, EgressRefusal> {
        let refusal = |reason, cause: String, hint: &str| EgressRefusal {
            reason,
            target: shown.clone(),
            cause,
            hint: hint.to_owned(),
        };
        let services = self.own.services;
        let (parts, body) = request.into_parts();
        let judged =
            JudgedRequest::judge(parts, &self.own.target, &services.rules, (&self.own.identity, &self.own.caller))?;
        record.update(|line| {
            line.rule = Some(judged.rule.to_string().chars().take(200).collect());
            let names: Vec<&str> = judged.credentials.iter().map(|credential| credential.name.as_str()).collect();
            line.credential = Some(names.join(", ")).filter(|names| !names.is_empty());
        });
        let shared = (is_shared_request(&judged) && body.is_end_stream()).then(|| self.shared_key(&judged)).flatten();
        let sends = is_sending(&judged, &body);
        let JudgedRequest { method, path, mut query, mut headers, credentials, is_websocket, .. } = judged;
        if shared.is_some()
            && let Some(host) = headers.remove(HOST)
        {
            headers = shared_request_fields(host);
        }
        let size = head_size(&headers) + path.len() + query.as_ref().map_or(0, String::len);
        record.meter.add(RelayDirection::Up, size as u64).map_err(|error| passed_limit(error, &shown))?;
        if let Some(response) = shared.as_ref().and_then(|(downloads, key)| kept_answer(downloads, key, record)) {
            return response.map_err(|error| passed_limit(error, &shown));
        }
        let mut values = Vec::new();
        for credential in &credentials {
            let missing = |problem: &str| {
                tracing::warn!("could not use the credential `{}`: {problem}", credential.name);
                let cause = format!("the credential `{}` has no value on the host", credential.name);
                refusal(RefusalReason::CredentialMissing, cause, "the operator's log says what is missing")
            };
            let value = services.credentials.read(&credential.name, &credential.reference).await;
            let value = value.map_err(|need| missing(&format!("it needs {need}")))?;
            let mut slots = RequestSlots { headers: &mut headers, query: &mut query };
            credential.slot.fill(&value, &mut slots).map_err(missing)?;
            values.push(value);
        }
        let placeholder = credentials.first().and_then(|first| self.own.identity.placeholder(&first.name));
        let forms = SecretForms::new(values.iter().map(AsRef::as_ref), placeholder.unwrap_or_default()).map(Arc::new);
        let uri = query.map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
        let uri: Uri = uri.parse().map_err(|_| {
            refusal(RefusalReason::MalformedRequest, "its address is too long".to_owned(), "send a shorter one")
        })?;
        record.update(|line| line.decision = "allowed".to_owned());
        if sends {
            record.announce()?;
        }
        let body = CountedBody::new(body, RelayDirection::Up, Arc::clone(record), None).boxed_unsync();
        let mut sent = Request::new(body);
        (*sent.method_mut(), *sent.uri_mut(), *sent.headers_mut()) = (method, uri, headers);
        let (mut response, origin) = self.send(sent, record, is_websocket, &shown).await?;
        let status = response.status();
        record.set_status(status);
        if forms.is_some() && is_encoded(response.headers()) {
            let cause = "the server compresses its answer although it was asked not to".to_owned();
            let hint = "use an address that answers plainly: Cove must search answers for the credential";
            return Err(refusal(RefusalReason::EncodedAnswer, cause, hint));
        }
        let server_upgrade = hyper::upgrade::on(&mut response);
        let (parts, body) = response.into_parts();
        let mut headers = parts.headers;
        drop_answer_fields(&mut headers);
        if let Some(forms) = &forms {
            scrub_fields(&mut headers, forms);
        }
        let down = head_size(&headers) as u64;
        record.meter.add(RelayDirection::Down, down).map_err(|error| passed_limit(error, &shown))?;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client_upgrade) = client_upgrade.take().filter(|_| is_websocket) else {
                let cause = "the server changed to a protocol that was not asked for".to_owned();
                return Err(refusal(RefusalReason::Unreachable, cause, "use another address"));
            };
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            let relay = relay_upgrade(client_upgrade, server_upgrade, origin, Arc::clone(record), forms);
            *lock(&self.upgrade) = Some(Box::pin(relay));
            let mut response = Response::new(text_body(String::new()));
            (*response.status_mut(), *response.headers_mut()) = (status, headers);
            return Ok(response);
        }
        let fill = shared.and_then(|(downloads, key)| downloads.begin(key, SharedAnswer::read(status, &headers)?));
        let body = CountedBody::new(body, RelayDirection::Down, Arc::clone(record), forms).keep(fill).boxed_unsync();
        let mut response = Response::new(body);
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }

    /// Returns where the answer to a request that sessions share is kept.
    fn shared_key(&self, judged: &JudgedRequest<'_>) -> Option<(&Arc<DownloadCache>, DownloadKey)> {
        let InspectedConnection { services, target, caller, .. } = &self.own;
        let downloads = services.downloads.as_ref()?;
        // A rule may lead one session to this address, and another session elsewhere.
        let connected = services.rules.decide(target, RequestKind::Tunnel, caller).ok()?;
        Some((downloads, downloads.key(&format!("{target} {:?}", connected.pinned), &judged.path)))
    }

    /// Sends a request and returns its answer, with the connection itself if that may become a WebSocket. A connection that
    /// the server has closed meanwhile is replaced once, and only if nothing of the request was sent.
    async fn send(
        &self,
        request: Request<SentBody>,
        record: &RequestRecord,
        may_upgrade: bool,
        shown: &str,
    ) -> Result<(Response<Incoming>, Option<OriginConnection>), EgressRefusal> {
        let (services, target) = (self.own.services, &self.own.target);
        let mut kept = self.origin.lock().await;
        let mut request = request;
        loop {
            let mut reused = kept.take();
            if let Some(origin) = &mut reused
                && !origin.is_ready().await
            {
                reused = None;
            }
            let is_reused = reused.is_some();
            let mut origin = match reused {
                Some(origin) => origin,
                None => {
                    let (trust, meter) = (&services.origin_trust, &*services.meter);
                    OriginConnection::open(trust, target, &self.own.addresses, meter).await?
                }
            };
            record.update(|line| line.address = Some(origin.address.to_string()));
            match origin.sender.try_send_request(request).await {
                Ok(response) if may_upgrade => return Ok((response, Some(origin))),
                Ok(response) => {
                    *kept = Some(origin);
                    return Ok((response, None));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if is_reused => request = unsent,
                    Some(_) | None => {
                        return Err(EgressRefusal {
                            reason: RefusalReason::Unreachable,
                            target: shown.to_owned(),
                            cause: "the server broke the connection off, or its answer is malformed".to_owned(),
                            hint: "a rule allows this host; try again later".to_owned(),
                        });
                    }
                },
            }
        }
    }
}

/// Whether the connection with the client ends with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndOfConnection {
    No,
    After,
}

/// Returns the answer to a refused request, and notes the refusal in its record.
fn refuse(record: Option<&RequestRecord>, refusal: &EgressRefusal, end: EndOfConnection) -> Response<AnswerBody> {
    if let Some(record) = record {
        record.refuse(refusal);
    }
    let (status, phrase) = refusal.reason.status();
    let mut response = Response::new(text_body(refusal.http_body()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN);
    let headers = response.headers_mut();
    headers.insert("x-cove-refused", HeaderValue::from_static(refusal.reason.as_str()));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if end == EndOfConnection::After {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    // Many programs show this and not the body.
    if let Ok(phrase) = ReasonPhrase::try_from(format!("{phrase}: {}", refusal.cause).into_bytes()) {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// Returns the answer that is kept under a key, counted for its request. None if there is none.
fn kept_answer(
    downloads: &DownloadCache,
    key: &DownloadKey,
    record: &Arc<RequestRecord>,
) -> Option<Result<Response<AnswerBody>, RelayError>> {
    let (answer, file) = downloads.find(key)?;
    record.update(|line| (line.decision, line.cached) = ("allowed".to_owned(), true));
    record.set_status(StatusCode::OK);
    let body = KeptBody::new(file, answer.length);
    let body = CountedBody::new(body, RelayDirection::Down, Arc::clone(record), None).boxed_unsync();
    let mut response = Response::new(body);
    for (name, value) in &answer.fields {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().insert(AGE, answer.age().into());
    let counted = record.meter.add(RelayDirection::Down, head_size(response.headers()) as u64);
    Some(counted.map(|()| response))
}

/// The session may not move what a request or its answer has.
fn passed_limit(error: RelayError, shown: &str) -> EgressRefusal {
    let (reason, cause, hint) = match error {
        RelayError::Limit { name, hint } => {
            (RefusalReason::Limit, format!("the session has moved as much as it may (limit: {name})"), hint)
        }
        RelayError::Body(_) | RelayError::Broken => {
            (RefusalReason::MalformedRequest, "it broke off".to_owned(), "send it again")
        }
    };
    EgressRefusal { reason, target: shown.to_owned(), cause, hint: hint.to_owned() }
}

/// True if a request may carry more out than its head.
fn is_sending(request: &JudgedRequest<'_>, body: &Incoming) -> bool {
    request.is_websocket || !body.is_end_stream() || ![Method::GET, Method::HEAD].contains(&request.method)
}

/// True if the client wants a protocol such as HTTP/2 only.
fn offers_other_protocols(error: &std::io::Error) -> bool {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::NoApplicationProtocol))
}

fn head_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

fn is_encoded(headers: &HeaderMap) -> bool {
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity") || value.is_empty();
    !headers.get_all(CONTENT_ENCODING).iter().all(plain)
}

/// Takes secrets out of the fields of an answer. A field whose name has one is left out.
fn scrub_fields(headers: &mut HeaderMap, forms: &SecretForms) {
    let named: Vec<HeaderName> =
        headers.keys().filter(|name| forms.scrub_whole(name.as_str().as_bytes()).is_some()).cloned().collect();
    named.into_iter().for_each(|name| drop(headers.remove(name)));
    for value in headers.values_mut() {
        if let Some(clean) = forms.scrub_whole(value.as_bytes()) {
            *value = HeaderValue::from_bytes(&clean).unwrap_or(HeaderValue::from_static(""));
        }
    }
}

/// Returns a text that no code can guess.
fn nonce() -> String {
    let mut bytes = [0; 16];
    // Without random numbers, code could guess it and have its own request refused.
    let _ = SystemRandom::new().fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
