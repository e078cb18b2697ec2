//! Connects to what a rule allows: resolves the name once, judges every address, and connects to a judged one.
//!
//! A lookup runs on a thread that nothing can stop, and holds a socket, for as long as the resolver of this machine waits
//! for an answer. So it takes one of the session's places and one of all sessions', and gives them back when it is over,
//! not when its request is.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{AcquireError, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use crate::address::{AddressProblem, check_address};
use crate::egress_meter::EgressMeter;
use crate::gateway_services::GatewayServices;
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::relay::{RelayError, RelayMeter};
use crate::rules::EgressRule;
use crate::target_host::{HostTarget, TargetHost};

/// With the wait for a place.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Lookups of all sessions at once. Each has a thread of the 512 that all blocking work of this process shares.
const MAX_LOOKUPS: usize = 64;
/// For all attempts together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// One address may not use up the time of the next.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
const MAX_ATTEMPTS: usize = 4;

/// Finds the addresses of a name.
pub trait NameResolver: Send + Sync {
    /// Waits for the answer, on a thread of its own.
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of this machine, which knows its hosts file, VPNs and search domains.
pub struct SystemResolver;

impl NameResolver for SystemResolver {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok((name, 0).to_socket_addrs()?.map(|found| found.ip()).collect())
    }
}

/// The lookups of all sessions.
pub(crate) struct NameLookups {
    resolver: Arc<dyn NameResolver>,
    places: Arc<Semaphore>,
}

/// Why a name has no addresses.
#[derive(Debug, PartialEq, Eq)]
enum LookupProblem {
    /// Others of the session, or of all sessions, went on for too long.
    NoPlace,
    Late,
    NotFound,
}

impl NameLookups {
    pub(crate) fn new(resolver: Box<dyn NameResolver>) -> Self {
        Self { resolver: resolver.into(), places: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }

    /// Returns the addresses of a name. `own_places` are those of the session.
    async fn look_up(
        &self,
        name: &str,
        own_places: &Arc<Semaphore>,
        deadline: Instant,
    ) -> Result<Vec<IpAddr>, LookupProblem> {
        let places = async {
            let own = Arc::clone(own_places).acquire_owned().await?;
            Ok::<_, AcquireError>((own, Arc::clone(&self.places).acquire_owned().await?))
        };
        let Ok(Ok(places)) = timeout_at(deadline, places).await else { return Err(LookupProblem::NoPlace) };
        let (resolver, name) = (Arc::clone(&self.resolver), name.to_owned());
        let lookup = spawn_blocking(move || {
            let found = resolver.resolve(&name);
            drop(places);
            found
        });
        match timeout_at(deadline, lookup).await {
            Ok(Ok(found)) => found.map_err(|_| LookupProblem::NotFound),
            Ok(Err(_)) => Err(LookupProblem::NotFound),
            Err(_) => Err(LookupProblem::Late),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Condvar, Mutex};

    use cove_core::sync::lock;
    use tokio::task::JoinSet;

    use super::*;

    /// Answers nothing until it is told to.
    #[derive(Default)]
    struct HangingResolver {
        may_answer: Mutex<bool>,
        changed: Condvar,
        running: AtomicUsize,
        most: AtomicUsize,
    }

    struct SharedResolver(Arc<HangingResolver>);

    impl NameResolver for SharedResolver {
        fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            let running = self.0.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.0.most.fetch_max(running, Ordering::SeqCst);
            drop(self.0.changed.wait_while(lock(&self.0.may_answer), |may_answer| !*may_answer));
            self.0.running.fetch_sub(1, Ordering::SeqCst);
            Ok(vec![IpAddr::from([192, 0, 2, 1])])
        }
    }

    impl HangingResolver {
        /// Waits until this many lookups run, and fails if more do.
        async fn expect_running(&self, count: usize) {
            while self.running.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(self.most.load(Ordering::SeqCst), count);
        }
    }

    #[tokio::test]
    async fn lookups_that_hang_take_few_threads_and_leave_room_for_other_sessions() {
        let resolver: Arc<HangingResolver> = Arc::default();
        let lookups = Arc::new(NameLookups::new(Box::new(SharedResolver(Arc::clone(&resolver)))));
        let look_up = async |places: &Arc<Semaphore>, deadline| lookups.look_up("slow.test", places, deadline).await;
        let places = || Arc::clone(cove_core::guest_streams::SessionTraffic::default().lookups());
        let (own, now) = (places(), Instant::now());
        let far = now + Duration::from_secs(3600);
        // None of these is waited for to its end, as if its connection had been reset.
        let start = |places: &Arc<Semaphore>, count: usize| {
            let mut tasks = JoinSet::new();
            for _ in 0..count {
                let (lookups, places) = (Arc::clone(&lookups), Arc::clone(places));
                tasks.spawn(async move { lookups.look_up("slow.test", &places, far).await });
            }
            tasks
        };
        let mut abandoned = start(&own, 100);
        resolver.expect_running(8).await;
        abandoned.shutdown().await;
        let mut abandoned = start(&own, 100);
        resolver.expect_running(8).await;
        abandoned.shutdown().await;
        assert_eq!(look_up(&own, now).await, Err(LookupProblem::NoPlace));
        // Another session has places, until all sessions together have as many as there are.
        let others: Vec<Arc<Semaphore>> = (0..10).map(|_| places()).collect();
        let mut waiting: Vec<JoinSet<_>> = others.iter().map(|places| start(places, 100)).collect();
        resolver.expect_running(MAX_LOOKUPS).await;
        assert_eq!(look_up(&places(), now).await, Err(LookupProblem::NoPlace));
        *lock(&resolver.may_answer) = true;
        resolver.changed.notify_all();
        assert_eq!(look_up(&own, far).await, Ok(vec![IpAddr::from([192, 0, 2, 1])]));
        for tasks in &mut waiting {
            while let Some(found) = tasks.join_next().await {
                assert!(found.unwrap().is_ok());
            }
        }
        assert_eq!(resolver.most.load(Ordering::SeqCst), MAX_LOOKUPS);
    }
}
