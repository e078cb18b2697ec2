//! Proves that the rules about the network refuse what they do not name: code in a session with these rules asks for a
//! server of this process, which must see no connection.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cove_core::backend::Backend;
use cove_core::guest_streams::SessionNetworks;
use cove_core::output::OutputCollector;
use cove_core::session::{Cell, NoCalls, Session, SessionOptions};
use cove_egress::{
    CellNetwork, EgressAuditLine, EgressGateway, EgressRecorder, HostServices, HostTarget, NetworkCaller, RequestKind,
    SystemResolver,
};
use cove_protocol::Language;

use super::report::{DoctorCheck, HOLE_FIX, REPORT_FIX, ReportSection};
use crate::config::Config;

/// Far more than the program needs, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The doctor's requests are no one's: they are not recorded.
struct NoRecord;

impl EgressRecorder for NoRecord {
    fn prepare(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, _: &EgressAuditLine) {}
}

/// Returns the check, or None if there are no rules that open anything.
pub(super) async fn try_refusal(backend: &dyn Backend, config: &Config) -> Option<DoctorCheck> {
    if !config.egress.allow_anything() {
        return None;
    }
    let check = ReportSection::Protections.check("network rules");
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    });
    let (address, listener) = match listener {
        Ok(listening) => listening,
        Err(error) => return Some(check.note(format!("not tried: could not listen on loopback: {error}"))),
    };
    let caller = NetworkCaller { image: config.policy.image.clone(), ..NetworkCaller::default() };
    let target = HostTarget::parse(&address.to_string(), None).ok()?;
    if config.egress.decide(&target, RequestKind::Tunnel, &caller).is_ok() {
        return Some(check.note(format!("not tried: a rule allows {target}")));
    }
    let services = HostServices::new(Arc::new(NoRecord), Box::new(SystemResolver));
    let gateway = EgressGateway::new(config.egress.clone(), services);
    let started = async {
        let options = SessionOptions { network: Some(gateway.create()?), ..SessionOptions::default() };
        Session::start(backend, &config.policy, options).await
    };
    let session = match started.await {
        Ok(session) => session,
        Err(error) => return Some(check.fail_with(&error)),
    };
    let network = CellNetwork::new(gateway, caller, Arc::new(NoCalls));
    let cell = Cell {
        language: Language::Python,
        name: "doctor".into(),
        code: include_str!("refused_host.py").into(),
        args: vec![address.ip().to_string(), address.port().to_string()],
        timeout: TIMEOUT,
        grace: Duration::from_secs(1),
    };
    let mut collector = OutputCollector::new(64 * 1024, None);
    let calls = Arc::clone(&network);
    let end = session.run_with_calls(cell, |shown| collector.push(shown), std::future::pending(), calls).await;
    session.stop().await;
    let (output, notes) = (collector.finish().stdout.text, network.take_notes());
    let proxy_refused = output.contains(r#"{"door": "proxy", "result": "HTTP/1.1 403 "#);
    let is_noted = notes.iter().any(|note| note.contains(&target.to_string()));
    Some(if listener.accept().is_ok() || output.contains(r#""connected""#) {
        check.fail(format!("{target} was connected to, and no rule allows it")).fix(HOLE_FIX)
    } else if proxy_refused && is_noted && end.is_success() {
        check.ok(format!("a host that no rule names was refused ({target})"))
    } else {
        check
            .fail(format!("the refusal of {target} was not seen: the program ended as `{}`", end.kind()))
            .fix(REPORT_FIX)
    })
}
