//! Connects to an address that was judged.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::egress_meter::EgressMeter;
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::target_host::HostTarget;

/// For all attempts together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// One address may not use up the time of the next.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
const MAX_ATTEMPTS: usize = 4;

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
        let (reason, hint) = (RefusalReason::Unreachable, "a rule allows this host; try again later".to_owned());
        EgressRefusal { reason, target: target.to_string(), cause, hint }
    })?;
    meter.server_connected(begun.elapsed().as_secs_f64());
    // Cove passes on whole pieces, so waiting for more only delays them.
    let _ = stream.set_nodelay(true);
    Ok((stream, address))
}
