//! Serves one connection of code: reads what it asks for, decides, records, connects and relays.
//!
//! The order matters. A refused name is never resolved, so that a lookup carries nothing out. The audit line can be
//! written before anything is connected. The server gets its first byte only after the client's first message has named
//! the same server as its request.

use std::sync::Arc;
use std::time::Duration;

use cove_core::guest_streams::SessionTraffic;
use cove_protocol::{CellId, StreamId};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::audit_line::{EgressAuditLine, EgressRecorder, NetworkCaller, OpenEgressLine};
use crate::client_hello::{FirstMessage, read_client_hello};
use crate::dial::{NameResolver, connect, find_addresses};
use crate::proxy_request::{ProxyRequest, RequestForm, read_head};
use crate::refusal::{EgressRefusal, RefusalReason, UNREADABLE};
use crate::refusal_notes::RefusalNotes;
use crate::relay::{RelayDirection, RelayError, RelayMeter, relay_exchange, relay_tunnel};
use crate::rules::{EgressRule, EgressRules};
use crate::target_host::{HostTarget, TargetHost};

/// How long a client may take to send a head, and to send its first message through a tunnel.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to read a refusal.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const TUNNEL_IS_OPEN: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// What all sessions share.
pub struct EgressGateway {
    rules: EgressRules,
    recorder: Arc<dyn EgressRecorder>,
    resolver: Box<dyn NameResolver>,
}

/// How a request ended that was begun.
enum RequestEnd {
    /// The client still waits for its answer.
    Refused(EgressRefusal),
    /// The client is past its answer.
    BrokenOff(EgressRefusal),
    Closed,
}

impl EgressGateway {
    pub fn new(rules: EgressRules, recorder: Arc<dyn EgressRecorder>, resolver: Box<dyn NameResolver>) -> Arc<Self> {
        Arc::new(Self { rules, recorder, resolver })
    }

    pub fn rules(&self) -> &EgressRules {
        &self.rules
    }

    /// Serves a connection until it ends. Dropping the future ends it, and its audit line is written all the same.
    pub(crate) async fn serve(
        &self,
        client: impl AsyncRead + AsyncWrite + Unpin + Send,
        (cell, stream): (CellId, StreamId),
        traffic: &SessionTraffic,
        caller: &NetworkCaller,
        notes: &RefusalNotes,
    ) {
        let mut client = BufReader::new(client);
        if !traffic.may_open() {
            // Without a line of its own: a flood of requests must not push older lines out of the audit file.
            let refusal = limit("the network", "rate", "the session opens connections too fast");
            return self.refuse(client, &refusal, notes).await;
        }
        let read = match timeout(HEAD_TIMEOUT, read_head(&mut client)).await {
            Ok(Ok(None)) => return,
            Ok(Ok(Some(head))) => ProxyRequest::parse(&head),
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => Err(limit(UNREADABLE, "head", "the head of a request did not arrive in time")),
        };
        let line = EgressAuditLine {
            principal: caller.principal.clone(),
            session: caller.session.clone(),
            cell: cell.0,
            stream: stream.0,
            decision: "refused".to_owned(),
            ..EgressAuditLine::default()
        };
        let line = match &read {
            Ok(ProxyRequest { target, method, path, .. }) => {
                let (host, path) = (target.host.to_string(), path.chars().take(256).collect());
                EgressAuditLine { host, port: target.port, method: method.clone(), path, ..line }
            }
            Err(refusal) => EgressAuditLine { host: refusal.target.clone(), ..line },
        };
        let target = read.as_ref().map_or_else(|refusal| refusal.target.clone(), |request| request.target.to_string());
        let mut open = match OpenEgressLine::begin(Arc::clone(&self.recorder), line) {
            Ok(open) => open,
            Err(error) => {
                tracing::error!("could not record a network request: {error}; none is made until it can");
                let cause = "no request is made, because none can be recorded".to_owned();
                let hint = "the operator must make the audit file writable".to_owned();
                return self
                    .refuse(client, &EgressRefusal { reason: RefusalReason::NotRecorded, target, cause, hint }, notes)
                    .await;
            }
        };
        let end = match read {
            Ok(request) => self.carry_out(&mut client, request, (traffic, caller), &mut open).await,
            Err(refusal) => RequestEnd::Refused(refusal),
        };
        match end {
            RequestEnd::Closed => {}
            RequestEnd::BrokenOff(refusal) => {
                open.line.reason = Some(refusal.reason.as_str().to_owned());
                notes.add(&refusal);
            }
            RequestEnd::Refused(refusal) => {
                open.line.reason = Some(refusal.reason.as_str().to_owned());
                drop(open);
                self.refuse(client, &refusal, notes).await;
            }
        }
    }

    /// Tells the client, and the cell's result.
    async fn refuse(&self, mut client: impl AsyncWrite + Unpin, refusal: &EgressRefusal, notes: &RefusalNotes) {
        notes.add(refusal);
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
        (traffic, caller): (&SessionTraffic, &NetworkCaller),
        open: &mut OpenEgressLine,
    ) -> RequestEnd {
        let meter = RelayMeter::new(traffic, self.rules.limits, Arc::clone(&open.counts));
        let line = &mut open.line;
        let connected = async {
            let rule = self.rules.decide(&request.target, request.kind(), caller)?;
            line.rule = Some(rule.to_string());
            let addresses = find_addresses(rule, &request.target, &*self.resolver).await?;
            line.decision = "allowed".to_owned();
            let (server, address) = connect(&request.target, &addresses).await?;
            line.address = Some(address.to_string());
            Ok((rule, server))
        };
        let (rule, server) = match connected.await {
            Ok(connected) => connected,
            Err(refusal) => return RequestEnd::Refused(refusal),
        };
        let target = &request.target;
        let done = match request.form {
            RequestForm::Tunnel => tunnel(client, server, rule, target, &meter).await,
            RequestForm::Plain { head, body } => {
                let sent = meter.count(RelayDirection::Up, head.as_bytes());
                let mut server = server;
                let exchange = async {
                    sent?;
                    server.write_all(head.as_bytes()).await?;
                    relay_exchange(client, server, body, &meter).await
                };
                exchange.await.map_err(|error| end_of_relay(error, target))
            }
        };
        done.err().unwrap_or(RequestEnd::Closed)
    }
}

/// Serves a tunnel. Unless the rule opens it for any bytes, the first message must be that of TLS with the target.
async fn tunnel(
    client: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin + Send>,
    mut server: TcpStream,
    rule: &EgressRule,
    target: &HostTarget,
    meter: &RelayMeter<'_>,
) -> Result<(), RequestEnd> {
    client.write_all(TUNNEL_IS_OPEN).await.map_err(|_| RequestEnd::Closed)?;
    // Some clients do not wait for the answer.
    let mut first = client.buffer().to_vec();
    client.consume(first.len());
    if !rule.is_unread() {
        let read = timeout(HELLO_TIMEOUT, read_client_hello(client, &mut first)).await;
        let refuse = |reason, cause: &str, hint: String| {
            let (target, cause) = (target.to_string(), cause.to_owned());
            Err(RequestEnd::BrokenOff(EgressRefusal { reason, target, cause, hint }))
        };
        match read {
            Ok(Ok(FirstMessage::Hello { server_name })) if is_name_of(server_name.as_deref(), &target.host) => {}
            Ok(Ok(FirstMessage::Hello { .. })) => {
                let hint = format!("use `{}` as the server name of TLS", target.host);
                return refuse(RefusalReason::SniMismatch, "the TLS server name is not the host of the tunnel", hint);
            }
            Ok(Ok(FirstMessage::NotTls)) => {
                let hint = "the operator can set `tcp = true` in the rule, for any bytes".to_owned();
                return refuse(RefusalReason::NotTls, "the tunnel carries something other than TLS", hint);
            }
            Err(_) => {
                return refuse(RefusalReason::NotTls, "no TLS came through the tunnel", "send a TLS hello".to_owned());
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

/// True if the client asks for the host of the tunnel. For an address, clients send no name.
fn is_name_of(server_name: Option<&str>, host: &TargetHost) -> bool {
    match (server_name, host) {
        (Some(name), host) => TargetHost::parse(name).is_ok_and(|named| named == *host),
        (None, TargetHost::Address(_)) => true,
        (None, TargetHost::Name(_)) => false,
    }
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
