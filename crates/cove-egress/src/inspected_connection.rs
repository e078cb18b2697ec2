//! Serves one connection of code to an inspected host: TLS ends here, and each request inside is decided. The server
//! gets only what this host has judged and written, with the credentials that the rule adds.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use cove_core::BoxFuture;
use cove_core::sync::lock;
use http::header::{
    AGE, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    SEC_WEBSOCKET_EXTENSIONS, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
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

use crate::answer_forms::AnswerForms;
use crate::answer_scrubber::AnswerScrubber;
use crate::audit_line::{EgressAuditLine, NetworkCaller, REFUSED};
use crate::credential::RequestSlots;
use crate::download_cache::{DownloadCache, DownloadKey};
use crate::egress_meter::RelayDirection;
use crate::gateway_services::GatewayServices;
use crate::inspected_body::{AnswerBody, CountedBody, KeptBody, text_body};
use crate::inspected_request::{JudgedRequest, drop_answer_fields, head_size, shown_request};
use crate::inspected_upgrade::{close_unused, relay_upgrade};
use crate::open_line::OpenEgressLine;
use crate::origin_connection::{CarriedRequest, OriginConnection, SentBody};
use crate::proxy_request::{MAX_HEAD, sends_in_head};
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
/// After so many refusals, code must open another connection, of which it has few.
const MAX_REFUSALS: usize = 20;

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
    /// The request under way.
    current: Mutex<Weak<RequestRecord>>,
    refusals: AtomicUsize,
}

impl InspectedConnection<'_> {
    /// Serves requests until the client has gone.
    pub(crate) async fn serve(self, client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        match self.accept(client).await {
            Ok(client) => self.serve_requests(client).await,
            Err(None) => {}
            Err(Some(refusal)) => {
                if let Some(line) = lock(&self.first_line).as_mut() {
                    line.line.end_with(refusal.reason);
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
        let open = ServedConnection {
            own: self,
            problem,
            origin: tokio::sync::Mutex::default(),
            upgrade: Mutex::default(),
            current: Mutex::default(),
            refusals: AtomicUsize::new(0),
        };
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
        // Keeps the record of the request under way, which `serve` would end.
        let idle = async { (open.own.meter.idle().await, lock(&open.current).upgrade()) };
        tokio::select! {
            () = serve => {}
            ended = idle => if let (RelayError::Limit { name, hint }, Some(record)) = ended {
                record.break_off(name, hint);
            }
        }
    }
}

impl ServedConnection<'_> {
    async fn answer(&self, mut request: Request<Incoming>) -> Result<Response<AnswerBody>, Infallible> {
        self.own.meter.wait_for_turn().await;
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
            Err(refusal) => {
                let is_last = self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_REFUSALS;
                let end = if is_last { EndOfConnection::After } else { end };
                return Ok(refuse(Some(&record), &refusal, end));
            }
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
            None => OpenEgressLine::begin(self.own.services, self.own.template.clone(), &self.own.notes)?,
        };
        line.line.method = method.to_owned();
        line.line.path = path.chars().take(256).collect();
        line.line.decision = REFUSED.to_owned();
        let meter = self.own.meter.for_request(Arc::clone(&line.counts));
        let record = RequestRecord::new(meter, line, Arc::clone(&self.own.notes), shown);
        *lock(&self.current) = Arc::downgrade(&record);
        Ok(record)
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
            line.allow();
            line.rule = Some(judged.rule.to_string().chars().take(200).collect());
            let names: Vec<&str> = judged.credentials.iter().map(|credential| credential.name.as_str()).collect();
            line.credential = Some(names.join(", ")).filter(|names| !names.is_empty());
        });
        let shared = is_shared_request(&judged).then(|| self.shared_key(&judged)).flatten();
        let size = judged.head_size();
        let sends = judged.websocket.is_some()
            || judged.has_body
            || sends_in_head(judged.method.as_str(), judged.query.is_some(), size);
        let carried = match (&shared, judged.has_body) {
            (Some(_), _) => CarriedRequest::Shared,
            (None, false) => CarriedRequest::WithoutBody,
            (None, true) => CarriedRequest::WithBody,
        };
        let JudgedRequest { method, path, mut query, mut headers, credentials, websocket, .. } = judged;
        if shared.is_some()
            && let Some(host) = headers.remove(HOST)
        {
            headers = shared_request_fields(host);
        }
        let size = if shared.is_some() { head_size(&headers) + path.len() } else { size };
        record.meter.add(RelayDirection::Up, size as u64).map_err(|error| passed_limit(error, &shown))?;
        if let Some((downloads, key)) = &shared
            && let Some(response) = kept_answer(downloads, key, record).await
        {
            return response.map_err(|error| passed_limit(error, &shown));
        }
        let mut secrets = Vec::new();
        for credential in &credentials {
            let missing = |problem: &str| {
                tracing::warn!("could not use the credential `{}`: {problem}", credential.name);
                let cause = format!("the credential `{}` has no value on the host", credential.name);
                refusal(RefusalReason::CredentialMissing, cause, "the operator's log says what is missing")
            };
            let value = services.credentials.read(&credential.name, &credential.reference).await;
            let value = value.map_err(|need| missing(&format!("it needs {need}")))?;
            let mut slots = RequestSlots { headers: &mut headers, query: &mut query };
            credential.slot.fill(&value.secret, &mut slots).map_err(missing)?;
            secrets.push(Arc::clone(&value.forms));
        }
        let placeholder = credentials.first().and_then(|first| self.own.identity.placeholder(&first.name));
        let forms = AnswerForms::new(secrets, placeholder.unwrap_or_default()).map(Arc::new);
        let uri = query.map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
        let uri: Uri = uri.parse().map_err(|_| {
            refusal(RefusalReason::MalformedRequest, "its address is too long".to_owned(), "send a shorter one")
        })?;
        if sends {
            record.announce()?;
        }
        let body = CountedBody::new(body, RelayDirection::Up, Arc::clone(record), None).boxed_unsync();
        let mut sent = Request::new(body);
        (*sent.method_mut(), *sent.uri_mut(), *sent.headers_mut()) = (method, uri, headers);
        let mut response = self.send(sent, record, carried, &shown).await?;
        let status = response.status();
        record.set_status(status);
        if forms.is_some() && is_encoded(response.headers()) {
            let cause = "the server compresses its answer although it was asked not to".to_owned();
            let hint = "use an address that answers plainly: Cove must search answers for the credential";
            return Err(refusal(RefusalReason::EncodedAnswer, cause, hint));
        }
        if has_transfer_coding(response.headers()) {
            let cause = "the server sends its answer in a transfer coding that was not asked for".to_owned();
            return Err(refusal(RefusalReason::EncodedAnswer, cause, "use an address that answers plainly"));
        }
        if status == StatusCode::SWITCHING_PROTOCOLS && !websocket.is_some_and(|proof| proof.is_in(response.headers()))
        {
            self.origin.lock().await.take();
            let cause = "the server changed to a protocol that was not asked for, or to no WebSocket".to_owned();
            return Err(refusal(RefusalReason::Unreachable, cause, "use another address"));
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
        if status == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client_upgrade) = client_upgrade.take()
        {
            let origin = self.origin.lock().await.take();
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

    /// Sends a request and returns its answer. A connection that may not carry the request, or that the server has closed
    /// meanwhile, is replaced: the latter once, and only if nothing of the request was sent.
    async fn send(
        &self,
        request: Request<SentBody>,
        record: &RequestRecord,
        carried: CarriedRequest,
        shown: &str,
    ) -> Result<Response<Incoming>, EgressRefusal> {
        let (services, target) = (self.own.services, &self.own.target);
        let mut kept = self.origin.lock().await;
        let mut request = request;
        loop {
            let mut reused = kept.take();
            if let Some(origin) = &mut reused
                && !origin.may_carry(carried).await
            {
                reused = None;
            }
            let is_reused = reused.is_some();
            let mut origin = match reused {
                Some(origin) => origin,
                None => {
                    let (trust, meter) = (&services.origin_trust, &*services.meter);
                    OriginConnection::open(trust, target, &self.own.addresses, meter, carried).await?
                }
            };
            record.update(|line| line.address = Some(origin.address.to_string()));
            match origin.sender.try_send_request(request).await {
                Ok(response) => {
                    *kept = Some(origin);
                    return Ok(response);
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

/// Returns the answer that is kept under a key, counted for its request. None if there is none. Its body counts before any
/// of it is read: to check it costs the host as much as to send it.
async fn kept_answer(
    downloads: &DownloadCache,
    key: &DownloadKey,
    record: &Arc<RequestRecord>,
) -> Option<Result<Response<AnswerBody>, RelayError>> {
    let found = downloads.find(key)?;
    if let Err(error) = record.meter.add(RelayDirection::Down, found.answer.length) {
        return Some(Err(error));
    }
    let (answer, file) = downloads.check(found).await?;
    record.update(|line| line.cached = true);
    record.set_status(StatusCode::OK);
    let body = KeptBody::new(file, answer.length);
    let body = CountedBody::new(body, RelayDirection::Down, Arc::clone(record), None).counted_before().boxed_unsync();
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

/// True if the client wants a protocol such as HTTP/2 only.
fn offers_other_protocols(error: &std::io::Error) -> bool {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::NoApplicationProtocol))
}

fn is_encoded(headers: &HeaderMap) -> bool {
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity") || value.is_empty();
    !headers.get_all(CONTENT_ENCODING).iter().all(plain) || headers.contains_key(SEC_WEBSOCKET_EXTENSIONS)
}

/// True if an answer has another transfer coding than `chunked`. `hyper` undoes that one alone, and the field is not passed on.
fn has_transfer_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_plain = codings.next().is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    !is_plain || codings.next().is_some()
}

/// Takes secrets out of the fields of an answer. A field whose name has one is left out.
fn scrub_fields(headers: &mut HeaderMap, forms: &AnswerForms) {
    let named: Vec<HeaderName> = headers
        .keys()
        .filter(|name| AnswerScrubber::scrub_whole(forms, name.as_str().as_bytes()).is_some())
        .cloned()
        .collect();
    named.into_iter().for_each(|name| drop(headers.remove(name)));
    for value in headers.values_mut() {
        if let Some(clean) = AnswerScrubber::scrub_whole(forms, value.as_bytes()) {
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

#[cfg(test)]
mod tests;
