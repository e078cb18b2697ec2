//! Moves bytes between code and a server, within the limits of the session.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_core::guest_streams::SessionTraffic;
use cove_core::sync::lock;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};

use crate::audit_line::RelayCounts;
use crate::egress_meter::{EgressMeter, RelayDirection};
use crate::gateway_services::GatewayServices;
use crate::proxy_request::{BodyLength, MAX_HEAD};
use crate::rules::TrafficLimits;

/// How long a connection may move nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
const PIECE: usize = 32 * 1024;

/// Why a connection ended early.
#[derive(Debug)]
pub(crate) enum RelayError {
    /// A limit was passed; its name and what to do.
    Limit { name: &'static str, hint: &'static str },
    /// The body of a plain request is malformed.
    Body(&'static str),
    /// One side broke the connection.
    Broken,
}

impl From<io::Error> for RelayError {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// Counts the bytes of one connection, and of its session.
pub(crate) struct RelayMeter {
    traffic: Arc<SessionTraffic>,
    total: Arc<dyn EgressMeter>,
    limits: TrafficLimits,
    counts: Arc<RelayCounts>,
    state: Arc<Mutex<MeterState>>,
}

struct MeterState {
    last_moved: Instant,
    /// The first bytes of the answer, for its status. None if the status is known otherwise.
    answer: Option<Vec<u8>>,
}

impl RelayMeter {
    pub(crate) fn new(traffic: Arc<SessionTraffic>, services: &GatewayServices, counts: Arc<RelayCounts>) -> Self {
        let state = MeterState { last_moved: Instant::now(), answer: Some(Vec::new()) };
        let (total, limits) = (Arc::clone(&services.meter), services.rules.limits);
        Self { traffic, total, limits, counts, state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the meter of one request of the connection, which counts for another line. Its caller knows the status.
    pub(crate) fn for_request(&self, counts: Arc<RelayCounts>) -> Self {
        lock(&self.state).answer = None;
        let (traffic, total, state) = (Arc::clone(&self.traffic), Arc::clone(&self.total), Arc::clone(&self.state));
        Self { traffic, total, limits: self.limits, counts, state }
    }

    /// Counts bytes before they are passed on. Fails if the session may not move them.
    pub(crate) fn count(&self, direction: RelayDirection, bytes: &[u8]) -> Result<(), RelayError> {
        self.add(direction, bytes.len() as u64)?;
        if let RelayDirection::Down = direction
            && let Some(answer) = lock(&self.state).answer.as_mut().filter(|answer| answer.len() < 16)
        {
            answer.extend(bytes.iter().take(16 - answer.len()));
            self.counts.status.store(read_status(answer).unwrap_or(0), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Something has moved that was counted before.
    pub(crate) fn note_movement(&self) {
        lock(&self.state).last_moved = Instant::now();
    }

    /// Counts so many bytes. Fails if the session may not move them.
    pub(crate) fn add(&self, direction: RelayDirection, length: u64) -> Result<(), RelayError> {
        self.note_movement();
        let (total, most, name) = match direction {
            RelayDirection::Up => (self.traffic.add_upload(length), self.limits.max_upload, "max_upload"),
            RelayDirection::Down => (self.traffic.add_download(length), self.limits.max_download, "max_download"),
        };
        if total > most {
            let hint = "the session has moved as much as it may; the operator can raise the limit under `[egress]`";
            return Err(RelayError::Limit { name, hint });
        }
        let counted = match direction {
            RelayDirection::Up => &self.counts.up,
            RelayDirection::Down => &self.counts.down,
        };
        counted.fetch_add(length, Ordering::Relaxed);
        self.total.bytes_moved(direction, length);
        Ok(())
    }

    /// Waits until the session may make another request, and counts it: one connection carries any number of them.
    pub(crate) async fn wait_for_turn(&self) {
        let wait = self.traffic.delay_request();
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    /// Counts the lookup of a name that code chose: the servers of its zone learn the name. Fails if the session may not
    /// send it.
    pub(crate) fn count_name(&self, name: &str) -> Result<(), RelayError> {
        self.add(RelayDirection::Up, name.len() as u64)?;
        if self.traffic.add_name(name) {
            return Ok(());
        }
        let hint = "the session has looked up as many different names below wildcards as it may";
        Err(RelayError::Limit { name: "names", hint })
    }

    /// Returns the places for lookups of the session.
    pub(crate) fn lookups(&self) -> &Arc<Semaphore> {
        self.traffic.lookups()
    }

    /// Returns when nothing has moved for too long.
    pub(crate) async fn idle(&self) -> RelayError {
        loop {
            let end = lock(&self.state).last_moved + IDLE_TIMEOUT;
            if end <= Instant::now() {
                return RelayError::Limit { name: "idle", hint: "nothing was sent for two minutes; connect again" };
            }
            sleep_until(end).await;
        }
    }
}

/// Returns the status that an HTTP answer begins with.
fn read_status(answer: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(answer).ok()?;
    text.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.get(..3)?.parse().ok()
}

/// Passes on bytes until they end, and then the end.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    meter: &RelayMeter,
    direction: RelayDirection,
) -> Result<(), RelayError> {
    let mut buffer = vec![0; PIECE];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            to.shutdown().await?;
            return Ok(());
        }
        meter.count(direction, &buffer[..count])?;
        to.write_all(&buffer[..count]).await?;
    }
}

/// Passes on bytes in both directions until both have ended.
pub(crate) async fn relay_tunnel(
    client: impl AsyncRead + AsyncWrite + Unpin,
    server: impl AsyncRead + AsyncWrite + Unpin,
    meter: &RelayMeter,
) -> Result<(), RelayError> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let both = async {
        tokio::try_join!(
            copy(&mut from_client, &mut to_server, meter, RelayDirection::Up),
            copy(&mut from_server, &mut to_client, meter, RelayDirection::Down),
        )
    };
    tokio::select! {
        done = both => done.map(drop),
        error = meter.idle() => Err(error),
    }
}

/// Passes on the body of one plain request, and its answer until the server closes. Bytes after the body go nowhere.
pub(crate) async fn relay_exchange(
    client: impl AsyncRead + AsyncWrite + Unpin,
    server: impl AsyncRead + AsyncWrite + Unpin,
    body: BodyLength,
    meter: &RelayMeter,
) -> Result<(), RelayError> {
    let (from_client, mut to_client) = tokio::io::split(client);
    let mut from_client = tokio::io::BufReader::new(from_client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let up = async {
        match body {
            BodyLength::Known(length) => copy_exactly(&mut from_client, &mut to_server, length, meter).await?,
            BodyLength::Chunked => copy_chunks(&mut from_client, &mut to_server, meter).await?,
        }
        // The answer ends the exchange.
        std::future::pending::<Result<(), RelayError>>().await
    };
    tokio::select! {
        done = copy(&mut from_server, &mut to_client, meter, RelayDirection::Down) => done,
        done = up => done,
        error = meter.idle() => Err(error),
    }
}

async fn copy_exactly(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut length: u64,
    meter: &RelayMeter,
) -> Result<(), RelayError> {
    let mut buffer = vec![0; PIECE];
    while length > 0 {
        let most = PIECE.min(usize::try_from(length).unwrap_or(PIECE));
        let count = from.read(&mut buffer[..most]).await?;
        if count == 0 {
            return Err(RelayError::Broken);
        }
        meter.count(RelayDirection::Up, &buffer[..count])?;
        to.write_all(&buffer[..count]).await?;
        length -= count as u64;
    }
    Ok(())
}

/// Passes on a chunked body in chunks of its own making, without extensions and trailers.
async fn copy_chunks(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    meter: &RelayMeter,
) -> Result<(), RelayError> {
    loop {
        let line = read_line(from).await?;
        let size = match httparse::parse_chunk_size(&line) {
            Ok(httparse::Status::Complete((read, size))) if read == line.len() => size,
            _ => return Err(RelayError::Body("a chunk of the body has a malformed length")),
        };
        if size == 0 {
            break;
        }
        to.write_all(format!("{size:x}\r\n").as_bytes()).await?;
        copy_exactly(from, to, size, meter).await?;
        if read_line(from).await? != b"\r\n" {
            return Err(RelayError::Body("a chunk of the body is longer than it says"));
        }
        to.write_all(b"\r\n").await?;
    }
    let mut trailers = 0;
    loop {
        let line = read_line(from).await?;
        trailers += line.len();
        if trailers > MAX_HEAD {
            return Err(RelayError::Body("the fields after the body are too long"));
        }
        if line == b"\r\n" {
            break;
        }
    }
    to.write_all(b"0\r\n\r\n").await?;
    Ok(())
}

/// Reads a line that ends with CR and LF.
async fn read_line(from: &mut (impl AsyncBufRead + Unpin)) -> Result<Vec<u8>, RelayError> {
    let mut line = Vec::new();
    (&mut *from).take(MAX_HEAD as u64).read_until(b'\n', &mut line).await?;
    match line.ends_with(b"\r\n") {
        true => Ok(line),
        false => Err(RelayError::Body("a line of the body ends without CR and LF")),
    }
}
