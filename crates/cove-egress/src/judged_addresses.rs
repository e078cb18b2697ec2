//! Where a connection may go: the addresses of its host after one lookup, each judged.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::address::{AddressProblem, check_address};
use crate::gateway_services::GatewayServices;
use crate::name_lookups::LookupProblem;
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::relay::{RelayError, RelayMeter};
use crate::rules::EgressRule;
use crate::target_host::{HostTarget, TargetHost};

/// With the wait for a place.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the addresses that a connection may have, at least one. Fails if the name does not resolve, or if a single
/// address is one that the rule does not open: a name that leads to both is not what the operator meant.
pub(crate) async fn find_addresses(
    rule: &EgressRule,
    target: &HostTarget,
    services: &GatewayServices,
    meter: &RelayMeter,
) -> Result<Vec<IpAddr>, EgressRefusal> {
    let name = match (&target.host, rule.pinned) {
        (_, Some(pinned)) => return Ok(vec![pinned]),
        // The rule names this very address.
        (TargetHost::Address(address), None) => return Ok(vec![*address]),
        (TargetHost::Name(name), None) => name,
    };
    if rule.host.is_wildcard()
        && let Err(RelayError::Limit { name, hint }) = meter.count_name(name)
    {
        let cause = format!("the name is not looked up (limit: {name})");
        return Err(refusal(RefusalReason::Limit, target, cause, hint));
    }
    let unreachable = |cause: String| refusal(RefusalReason::Unreachable, target, cause, "check the name");
    let found = match services.lookups.look_up(name, meter.lookups(), Instant::now() + RESOLVE_TIMEOUT).await {
        Ok(found) if !found.is_empty() => found,
        Ok(_) => return Err(unreachable("the name has no address".to_owned())),
        Err(LookupProblem::NotFound) => return Err(unreachable("the name does not resolve".to_owned())),
        Err(LookupProblem::Late) => {
            return Err(unreachable(format!("the name did not resolve within {} s", RESOLVE_TIMEOUT.as_secs())));
        }
        Err(LookupProblem::NoPlace) => {
            let cause = "too many names are looked up at once (limit: lookups)".to_owned();
            let hint = "ask for fewer names at once, and for none whose lookup takes long";
            return Err(refusal(RefusalReason::Limit, target, cause, hint));
        }
    };
    for address in &found {
        if services.rules.denies_address(*address, target.port) {
            return Err(EgressRefusal::of_denied_address(target));
        }
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

fn refusal(reason: RefusalReason, target: &HostTarget, cause: String, hint: &str) -> EgressRefusal {
    EgressRefusal { reason, target: target.to_string(), cause, hint: hint.to_owned() }
}
