//! Connects to what a rule allows: resolves the name once, judges every address, and connects to a judged one.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use cove_core::BoxFuture;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::address::{AddressProblem, check_address};
use crate::egress_meter::EgressMeter;
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::rules::EgressRule;
use crate::target_host::{HostTarget, TargetHost};

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// For all attempts together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// One address may not use up the time of the next.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
const MAX_ATTEMPTS: usize = 4;

/// Finds the addresses of a name.
pub trait NameResolver: Send + Sync {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The resolver of this machine, which knows its hosts file, VPNs and search domains.
pub struct SystemResolver;

impl NameResolver for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.map(|found| found.ip()).collect()) })
    }
}

/// Returns the addresses that a connection may have, at least one. Fails if the name does not resolve, or if a single
/// address is one that the rule does not open: a name that leads to both is not what the operator meant.
pub(crate) async fn find_addresses(
    rule: &EgressRule,
    target: &HostTarget,
    resolver: &dyn NameResolver,
) -> Result<Vec<IpAddr>, EgressRefusal> {
    let name = match (&target.host, rule.pinned) {
        (_, Some(pinned)) => return Ok(vec![pinned]),
        // The rule names this very address.
        (TargetHost::Address(address), None) => return Ok(vec![*address]),
        (TargetHost::Name(name), None) => name,
    };
    let unreachable = |cause: String| refusal(RefusalReason::Unreachable, target, cause, "check the name");
    let found = match timeout(RESOLVE_TIMEOUT, resolver.resolve(name)).await {
        Ok(Ok(found)) if !found.is_empty() => found,
        Ok(Ok(_)) => return Err(unreachable("the name has no address".to_owned())),
        Ok(Err(_)) => return Err(unreachable("the name does not resolve".to_owned())),
        Err(_) => return Err(unreachable(format!("the name did not resolve within {} s", RESOLVE_TIMEOUT.as_secs()))),
    };
    for address in &found {
        check_address(*address, &rule.addresses).map_err(|problem| {
            // Without the address: code must not learn from refusals how the network of the host is laid out.
            let cause = format!("the name resolves to {problem}");
            let hint = match problem {
                AddressProblem::Private => {
                    "the operator can open a network in the rule, as in `addresses = [\"10.20.0.0/16\"]`"
                }
                AddressProblem::Loopback => "the operator can pin the rule to this machine, with `at = \"127.0.0.1\"`",
                AddressProblem::Metadata | AddressProblem::Unusable => "use another host",
            };
            refusal(RefusalReason::PrivateAddress, target, cause, hint)
        })?;
    }
    Ok(found)
}

/// Connects to one of these addresses, and returns which. Fails if none answers.
pub(crate) async fn connect(
    target: &HostTarget,
    addresses: &[IpAddr],
    meter: &dyn EgressMeter,
) -> Result<(TcpStream, IpAddr), EgressRefusal> {
    let begun = Instant::now();
    let attempts = async {
        let mut last = "it did not answer in time".to_owned();
        for &address in addresses.iter().take(MAX_ATTEMPTS) {
            match timeout(ATTEMPT_TIMEOUT, TcpStream::connect((address, target.port))).await {
                Ok(Ok(stream)) => return Ok((stream, address)),
                Ok(Err(error)) => last = error.kind().to_string(),
                Err(_) => {}
            }
        }
        Err(last)
    };
    let late = || "it did not answer in time".to_owned();
    let connected = timeout(CONNECT_TIMEOUT, attempts).await.unwrap_or_else(|_| Err(late()));
    let (stream, address) = connected.map_err(|cause| {
        refusal(RefusalReason::Unreachable, target, cause, "a rule allows this host; try again later")
    })?;
    meter.server_connected(begun.elapsed().as_secs_f64());
    // Cove passes on whole pieces, so waiting for more only delays them.
    let _ = stream.set_nodelay(true);
    Ok((stream, address))
}

fn refusal(reason: RefusalReason, target: &HostTarget, cause: String, hint: &str) -> EgressRefusal {
    EgressRefusal { reason, target: target.to_string(), cause, hint: hint.to_owned() }
}
