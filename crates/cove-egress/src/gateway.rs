//! Serves one connection of code: reads what it asks for, decides, records, connects and relays.
//!
//! The order matters. A refused name is never resolved, so that a lookup carries nothing out. The audit line can be
//! written before anything is connected. The server gets its first byte only after the client's first message has named
//! the same server as its request.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_core::guest_streams::{SessionNetwork, SessionNetworks, SessionTraffic};
use cove_protocol::{CellId, StreamDoor, StreamId};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::audit_line::{EgressAuditLine, EgressMode, NetworkCaller, REFUSED};
use crate::client_hello::{FirstMessage, read_client_hello};
use crate::dial::{connect, find_addresses};
use crate::egress_meter::{OpenStreamGuard, RelayDirection};
use crate::gateway_services::{GatewayServices, HostServices};
use crate::inspected_connection::InspectedConnection;
use crate::open_line::OpenEgressLine;
use crate::proxy_request::{ProxyRequest, RequestForm, malformed_host, read_head};
use crate::refusal::{EgressRefusal, RefusalReason, UNREADABLE};
use crate::refusal_notes::RefusalNotes;
use crate::relay::{RelayError, RelayMeter, relay_exchange, relay_tunnel};
use crate::rules::{EgressRule, EgressRules, RequestKind};
use crate::session_identity::SessionIdentity;
use crate::target_host::{HostTarget, TargetHost};

/// How long a client may take to send a head, and to send its first message through a tunnel.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// As long as for the head: a program may load much between the two, on a busy machine.
const HELLO_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to read a refusal.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// What an audit line has of a rule.
const MAX_SHOWN_RULE: usize = 200;
/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;
const TUNNEL_IS_OPEN: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// What all sessions share.
pub struct EgressGateway {
    services: GatewayServices,
}

/// What belongs to the session of a connection.
pub(crate) struct SessionContext {
    pub(crate) traffic: Arc<SessionTraffic>,
    pub(crate) identity: Arc<SessionIdentity>,
}

/// Where a request comes from.
pub(crate) struct EgressOrigin<'a> {
    pub(crate) cell: CellId,
    pub(crate) stream: StreamId,
    pub(crate) door: StreamDoor,
    pub(crate) caller: &'a NetworkCaller,
    pub(crate) notes: &'a Arc<RefusalNotes>,
}

impl EgressOrigin<'_> {
    fn audit_line(&self) -> EgressAuditLine {
        let door = match self.door {
            StreamDoor::Proxy {} => "proxy",
            StreamDoor::Name { .. } => "name",
        };
        EgressAuditLine { stream: self.stream.0, door: door.to_owned(), ..refused_line(self.cell, self.caller) }
    }
}

fn refused_line(cell: CellId, caller: &NetworkCaller) -> EgressAuditLine {
    EgressAuditLine {
        principal: caller.principal.clone(),
        session: caller.session.clone(),
        cell: cell.0,
        decision: REFUSED.to_owned(),
        ..EgressAuditLine::default()
    }
}

/// What the rules say about a request.
enum DecidedRequest<'a> {
    Connected(&'a EgressRule, TcpStream),
    Inspected(Vec<IpAddr>),
}

/// How a request ended that was begun.
enum RequestEnd {
    /// The client still waits for its answer.
    Refused(EgressRefusal),
    /// The client is past its answer.
    BrokenOff(EgressRefusal),
    Closed,
    /// TLS ends here, and each request is decided. Addresses of the host that were judged.
    Inspected(HostTarget, Vec<IpAddr>),
}

impl EgressGateway {
    pub fn new(rules: EgressRules, host: HostServices) -> Arc<Self> {
        Arc::new(Self { services: GatewayServices::new(rules, host) })
    }

    /// Returns the identity that was made for a session when it started. A session without one makes no inspected request.
    pub(crate) fn identity(&self, network: Option<&Arc<SessionNetwork>>) -> Arc<SessionIdentity> {
        let made = network.and_then(|network| Arc::clone(&network.state).downcast().ok());
        made.unwrap_or_else(|| Arc::new(SessionIdentity::default()))
    }

    pub fn rules(&self) -> &EgressRules {
        &self.services.rules
    }

    /// Serves a connection until it ends. Dropping the future ends it, and its audit line is written all the same.
    pub(crate) async fn serve(
        &self,
        client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        origin: &EgressOrigin<'_>,
        SessionContext { traffic, identity }: SessionContext,
    ) {
        let mut client = BufReader::new(client);
        let _open = OpenStreamGuard::new(&*self.services.meter);
        if !traffic.may_open() {
            // Without a line of its own: a flood of requests must not push older lines out of the audit file.
            let refusal = limit("the network", "rate", "the session opens connections too fast");
            let reason = Some(refusal.reason.as_str().to_owned());
            self.services.meter.request_ended(&EgressAuditLine { reason, ..refused_line(origin.cell, origin.caller) });
            return self.refuse(client, &refusal, origin).await;
        }
        let Some(read) = self.read_request(&mut client, origin).await else { return };
        let line = origin.audit_line();
        let line = match &read {
            Ok(request @ ProxyRequest { target, method, path, .. }) => {
                let (host, path) = (target.host.to_string(), path.chars().take(256).collect());
                let mode = match request.kind() {
                    RequestKind::PlainHttp => EgressMode::Http,
                    RequestKind::Tunnel => EgressMode::Tunnel,
                };
                EgressAuditLine { mode, host, port: target.port, method: method.clone(), path, ..line }
            }
            Err(refusal) => EgressAuditLine { host: refusal.target.clone(), ..line },
        };
        let target = read.as_ref().map_or_else(|refusal| refusal.target.clone(), |request| request.target.to_string());
        let mut template = line.clone();
        let mut open = match OpenEgressLine::begin(&self.services, line, origin.notes) {
            Ok(open) => open,
            Err(error) => return self.refuse(client, &EgressRefusal::not_recorded(target, &error), origin).await,
        };
        let meter = RelayMeter::new(traffic, &self.services, Arc::clone(&open.counts));
        let end = match read {
            Ok(request) => self.carry_out(&mut client, request, origin, &meter, &mut open).await,
            Err(refusal) => RequestEnd::Refused(refusal),
        };
        match end {
            RequestEnd::Closed => {}
            RequestEnd::Inspected(target, addresses) => {
                template.rule = open.line.rule.clone();
                template.mode = EgressMode::Inspect;
                open.line.mode = EgressMode::Inspect;
                open.line.decision = "allowed".to_owned();
                let first_line = Mutex::new(Some(open));
                let notes = Arc::clone(origin.notes);
                let services = &self.services;
                let caller = origin.caller.clone();
                let connection = InspectedConnection {
                    services,
                    caller,
                    target,
                    identity,
                    addresses,
                    meter,
                    notes,
                    template,
                    first_line,
                };
                connection.serve(client).await;
            }
            RequestEnd::BrokenOff(refusal) => {
                open.line.reason = Some(refusal.reason.as_str().to_owned());
                origin.notes.add(&refusal);
            }
            RequestEnd::Refused(refusal) => {
                open.line.reason = Some(refusal.reason.as_str().to_owned());
                drop(open);
                self.refuse(client, &refusal, origin).await;
            }
        }
    }

    /// Reads what a client asks for. Returns None if it has gone before its first byte.
    async fn read_request(
        &self,
        client: &mut (impl AsyncBufRead + Unpin),
        origin: &EgressOrigin<'_>,
    ) -> Option<Result<ProxyRequest, EgressRefusal>> {
        let target = match &origin.door {
            StreamDoor::Proxy {} => None,
            // The runner has read the name; from here on only what is read here counts.
            StreamDoor::Name { host, port } => match TargetHost::parse(host) {
                Ok(host) => Some(HostTarget { host, port: *port }),
                Err(problem) => return Some(Err(malformed_host(host, problem))),
            },
        };
        let is_plain = |target| self.services.rules.decide_by_name(target, origin.caller) == Ok(RequestKind::PlainHttp);
        if let Some(target) = target.as_ref().filter(|target| !is_plain(target)) {
            return Some(Ok(ProxyRequest::of_tunnel(target.clone())));
        }
        let head = async {
            // TLS would keep the reader of a head waiting for its end.
            if let Some(target) = &target
                && client.fill_buf().await.is_ok_and(|first| first.first() == Some(&TLS_HANDSHAKE))
            {
                return Some(Ok(ProxyRequest::of_tunnel(target.clone())));
            }
            match (read_head(client).await, &target) {
                (Ok(None), _) => None,
                (Ok(Some(head)), None) => Some(ProxyRequest::parse(&head)),
                (Ok(Some(head)), Some(target)) => Some(ProxyRequest::parse_to_server(&head, target)),
                (Err(refusal), _) => Some(Err(refusal)),
            }
        };
        let late = |_| Some(Err(limit(UNREADABLE, "head", "the head of a request did not arrive in time")));
        timeout(HEAD_TIMEOUT, head).await.unwrap_or_else(late)
    }

    /// Records a name that code asked for and that its runner does not answer. The name is not looked up.
    pub(crate) fn refuse_name(
        &self,
        name: &str,
        cell: CellId,
        traffic: &SessionTraffic,
        caller: &NetworkCaller,
        notes: &Arc<RefusalNotes>,
    ) {
        let refusal = match TargetHost::parse(name) {
            Ok(host) => self.services.rules.refuse_name(&host, caller),
            Err(problem) => malformed_host(name, problem),
        };
        notes.add(&refusal);
        // As for connections, a flood must not push older lines out of the audit file.
        if traffic.may_open() {
            let line = EgressAuditLine {
                door: "name".to_owned(),
                mode: EgressMode::Lookup,
                host: refusal.target.clone(),
                method: "LOOKUP".to_owned(),
                reason: Some(refusal.reason.as_str().to_owned()),
                ..refused_line(cell, caller)
            };
            if let Err(error) = OpenEgressLine::begin(&self.services, line, notes) {
                tracing::error!("could not record a refused name: {error}");
            }
        }
    }

    /// Tells the client, and the cell's result. A client that takes Cove for the server itself gets no answer in its name.
    async fn refuse(&self, mut client: impl AsyncWrite + Unpin, refusal: &EgressRefusal, origin: &EgressOrigin<'_>) {
        origin.notes.add(refusal);
        if origin.door != (StreamDoor::Proxy {}) {
            return;
        }
        let answer = refusal.http_answer();
        let answered = async {
            client.write_all(answer.as_bytes()).await?;
            client.shutdown().await
        };
        // A client that has gone learns it from the cell's result.
        let _ = timeout(ANSWER_TIMEOUT, answered).await;
    }

    async fn carry_out(
        &self,
        client: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin + Send>,
        request: ProxyRequest,
        origin: &EgressOrigin<'_>,
        meter: &RelayMeter,
        open: &mut OpenEgressLine,
    ) -> RequestEnd {
        let connected = async {
            let line = &mut open.line;
            let rule = self.services.rules.decide(&request.target, request.kind(), origin.caller)?;
            line.rule = Some(rule.to_string().chars().take(MAX_SHOWN_RULE).collect());
            let addresses = find_addresses(rule, &request.target, &self.services, meter).await?;
            if rule.inspection.is_some() && request.kind() == RequestKind::Tunnel {
                return Ok(DecidedRequest::Inspected(addresses));
            }
            line.decision = "allowed".to_owned();
            if rule.is_unread() {
                line.mode = EgressMode::Tcp;
            }
            let (server, address) = connect(&request.target, &addresses, &*self.services.meter).await?;
            line.address = Some(address.to_string());
            if request.sends() {
                open.announce().map_err(|error| EgressRefusal::not_recorded(request.target.to_string(), &error))?;
            }
            Ok(DecidedRequest::Connected(rule, server))
        };
        let connected = match connected.await {
            Ok(connected) => connected,
            Err(refusal) => return RequestEnd::Refused(refusal),
        };
        // Through the name door, the client has asked for no answer.
        let is_asked = request.kind() == RequestKind::Tunnel && origin.door == (StreamDoor::Proxy {});
        if is_asked && client.write_all(TUNNEL_IS_OPEN).await.is_err() {
            return RequestEnd::Closed;
        }
        let (rule, server) = match connected {
            DecidedRequest::Connected(rule, server) => (rule, server),
            DecidedRequest::Inspected(addresses) => return RequestEnd::Inspected(request.target, addresses),
        };
        let target = &request.target;
        let done = match request.form {
            RequestForm::Tunnel => tunnel(client, server, rule, target, meter).await,
            RequestForm::Plain { head, body } => {
                let sent = meter.count(RelayDirection::Up, head.as_bytes());
                let mut server = server;
                let exchange = async {
                    sent?;
                    server.write_all(head.as_bytes()).await?;
                    relay_exchange(client, server, body, meter).await
                };
                exchange.await.map_err(|error| end_of_relay(error, target))
            }
        };
        done.err().unwrap_or(RequestEnd::Closed)
    }
}

impl SessionNetworks for EgressGateway {
    fn create(&self) -> SessionNetwork {
        SessionIdentity::new(self.rules()).into_network(self.rules())
    }
}

/// Serves a tunnel. Unless the rule opens it for any bytes, the first message must be that of TLS with the target.
async fn tunnel(
    client: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin + Send>,
    mut server: TcpStream,
    rule: &EgressRule,
    target: &HostTarget,
    meter: &RelayMeter,
) -> Result<(), RequestEnd> {
    // Some clients of a proxy do not wait for its answer.
    let mut first = client.buffer().to_vec();
    client.consume(first.len());
    if !rule.is_unread() {
        let read = timeout(HELLO_TIMEOUT, read_client_hello(client, &mut first)).await;
        let refuse = |reason, cause: &str, hint: String| {
            let (target, cause) = (target.to_string(), cause.to_owned());
            Err(RequestEnd::BrokenOff(EgressRefusal { reason, target, cause, hint }))
        };
        match read {
            Ok(Ok(FirstMessage::Hello { server_name })) if target.host.is_server_name(server_name.as_deref()) => {}
            Ok(Ok(FirstMessage::Hello { .. })) => {
                let hint = format!("use `{}` as the server name of TLS", target.host);
                return refuse(
                    RefusalReason::SniMismatch,
                    "the TLS server name is not the host of the connection",
                    hint,
                );
            }
            Ok(Ok(FirstMessage::NotTls)) => {
                let hint = "the operator can set `tcp = true` in the rule, for any bytes".to_owned();
                return refuse(RefusalReason::NotTls, "the connection carries something other than TLS", hint);
            }
            Err(_) => {
                return refuse(RefusalReason::NotTls, "no TLS came in time", "send a TLS hello".to_owned());
            }
            Ok(Ok(FirstMessage::End) | Err(_)) => return Err(RequestEnd::Closed),
        }
    }
    let relayed = async {
        if !first.is_empty() {
            meter.count(RelayDirection::Up, &first)?;
            server.write_all(&first).await?;
        }
        relay_tunnel(client, server, meter).await
    };
    relayed.await.map_err(|error| end_of_relay(error, target))
}

fn end_of_relay(error: RelayError, target: &HostTarget) -> RequestEnd {
    let target = target.to_string();
    match error {
        RelayError::Broken => RequestEnd::Closed,
        RelayError::Limit { name, hint } => {
            let cause = format!("the connection was ended (limit: {name})");
            RequestEnd::BrokenOff(EgressRefusal { reason: RefusalReason::Limit, target, cause, hint: hint.to_owned() })
        }
        RelayError::Body(cause) => {
            let (reason, hint) = (RefusalReason::MalformedRequest, "send a well-formed body".to_owned());
            RequestEnd::BrokenOff(EgressRefusal { reason, target, cause: cause.to_owned(), hint })
        }
    }
}

fn limit(target: &str, name: &str, problem: &str) -> EgressRefusal {
    EgressRefusal {
        reason: RefusalReason::Limit,
        target: target.to_owned(),
        cause: format!("{problem} (limit: {name})"),
        hint: "make fewer connections, and reuse them".to_owned(),
    }
}

#[cfg(test)]
mod tests;
