//! The HTTP front: turns sockets into checked requests. It checks host, origin, token, rate and size. A
//! [`McpHandler`] behind it interprets the requests.
//!
//! It uses no framework, because the order of the checks and the limits on connections lie below the level of
//! frameworks.
//!
//! [`serve`] runs the accept loop and spawns one task per connection. Each connection task reads requests with hyper,
//! and `request` runs the checks in a fixed order: host and origin, path, method, token and rate, and only then the
//! body. A `ConnectionTable` bounds the connections and may close each of them. All tasks share one `HttpContext`.
//! Cancelling `stop` ends the accept loop and tells every connection task to finish its current answer; `serve` waits for
//! them, aborts the rest after `drain`, and returns when none is left.

use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap};
use http_body_util::Full;
use tokio::net::{TcpListener, TcpSocket};

use crate::ServerSetup;
use crate::http_config::{HttpAuth, HttpConfig};
use crate::mcp::local_principal;
use cove_core::error::{Failure, FailureKind};
use cove_core::process_env::ProcessEnv;
use cove_core::session::registry::Principal;

mod accept;
mod allowed_names;
mod body;
mod connection;
mod connection_table;
#[cfg(any(test, fuzzing))]
#[path = "../tests/exercise/http_front.rs"]
pub mod exercise;
mod greeting;
mod rate_limit;
mod request;
mod response;
mod token;

pub use accept::serve;
pub use response::HttpResponse;
pub use token::file::{read_first_token, read_token, rotate_token};

use allowed_names::AllowedNames;
use body::BodyReader;
use connection_table::{ConnectionPlace, NoPlaceError};
use greeting::TokenSource;
use rate_limit::RateBucket;
use response::RequestRefusal;
use token::keeper::{AcceptedTokens, TokenKeeper};
use token::{AcceptedToken, TokenSet};

/// Wrong tokens per second over all clients. People do not mistype that often, and a token of 16 characters cannot be
/// guessed at that rate.
const WRONG_TOKENS_PER_SECOND: usize = 10;
/// Connections that wait in the kernel to be accepted; it may allow fewer. A flood of clients without a token fills a short
/// queue, and the kernel then drops clients with one for seconds.
const ACCEPT_QUEUE: u32 = 4096;
/// Refusals per second that are logged.
const WARNINGS_PER_SECOND: usize = 5;
/// The environment variable whose token replaces the token file.
pub const TOKEN_VARIABLE: &str = "COVE_TOKEN";

/// The handler behind `/mcp`.
pub trait McpHandler: Clone + Send + Sync + 'static {
    /// Answers a request whose host, origin, token, rate and size were checked. The body is complete, the
    /// [`Principal`] is in the extensions, and the token was removed from the headers. When the client disconnects,
    /// the front drops this future or the body of its answer.
    fn answer(&self, request: http::Request<Full<Bytes>>) -> impl Future<Output = HttpResponse> + Send;

    /// Ends everything of a principal that has no token any more.
    fn end_principal(&self, principal: &Principal) -> impl Future<Output = ()> + Send;
}

/// Limits that operators cannot set. Tests use smaller ones.
#[derive(Debug, Clone, Copy)]
struct HttpBounds {
    /// Time for the head of a request, and between two requests.
    head: Duration,
    /// Time for a whole body.
    body: Duration,
    /// How long a connection without a token cannot be pushed out by another.
    token_grace: Duration,
    body_bytes: usize,
    /// Bytes of each body that need none of the shared memory. The number of connections bounds them, and calls without
    /// large content are served however much memory others hold.
    free_body_bytes: usize,
    /// Memory of all bodies together. One principal may hold half of it.
    memory: usize,
    /// Time for answers in flight when the server stops.
    drain: Duration,
}

impl Default for HttpBounds {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            token_grace: Duration::from_millis(20),
            body_bytes: 16 * 1024 * 1024,
            free_body_bytes: 64 * 1024,
            memory: 256 * 1024 * 1024,
            drain: Duration::from_secs(5),
        }
    }
}

/// The checks and limits that all connections share.
#[derive(Debug)]
struct HttpFront {
    allowed_names: AllowedNames,
    /// `None` if no token is required.
    tokens: Option<TokenKeeper>,
    /// The rate of all clients together if no token is required.
    open_rate: RateBucket,
    wrong_tokens: RateBucket,
    bodies: BodyReader,
    warnings: RateBucket,
    max_connections: usize,
    bounds: HttpBounds,
}

impl HttpFront {
    fn new(config: &HttpConfig, tokens: Option<TokenKeeper>, bound: SocketAddr, bounds: HttpBounds) -> Self {
        let now = Instant::now();
        Self {
            allowed_names: AllowedNames::new(config, bound),
            tokens,
            open_rate: RateBucket::new(config.rate_limit, 2 * config.rate_limit, now),
            wrong_tokens: RateBucket::new(WRONG_TOKENS_PER_SECOND, 2 * WRONG_TOKENS_PER_SECOND, now),
            bodies: BodyReader::new(bounds.body_bytes, bounds.free_body_bytes, bounds.body, bounds.memory),
            warnings: RateBucket::new(WARNINGS_PER_SECOND, 2 * WARNINGS_PER_SECOND, now),
            max_connections: config.max_connections,
            bounds,
        }
    }

    /// Returns the token of a request, and with it its principal. Fails if the token is missing or wrong, if its
    /// principal has no place for the connection, or if the rate is exceeded. All wrong tokens share one limit that
    /// never affects right ones, so a client without a token cannot lock out a principal.
    fn admit(
        &self,
        place: &ConnectionPlace,
        headers: &HeaderMap,
        now: Instant,
    ) -> Result<AcceptedToken, RequestRefusal> {
        let accepted = self.tokens.as_ref().map(TokenKeeper::current);
        let token = match accepted.as_ref().map(|accepted| find_token(accepted, headers)) {
            None => AcceptedToken::of_anyone(),
            Some(Ok(token)) => token.clone(),
            Some(Err(refusal)) => {
                self.wrong_tokens.take(now).map_err(RequestRefusal::TooManyAttempts)?;
                return Err(refusal);
            }
        };
        place.show_token(&token).map_err(|NoPlaceError| RequestRefusal::NoPlace)?;
        let rate = accepted.as_ref().map_or(Some(&self.open_rate), |accepted| accepted.rate(&token));
        rate.ok_or(RequestRefusal::WrongCredentials)?.take(now).map_err(RequestRefusal::TooOften)?;
        Ok(token)
    }

    /// Returns true if a warning may be logged. The rate is limited so that a flood of requests cannot fill a disk.
    fn may_warn(&self) -> bool {
        self.warnings.take(Instant::now()).is_ok()
    }
}

/// Returns the token that a request carries. Fails unless it carries exactly one, and a known one.
fn find_token<'a>(accepted: &'a AcceptedTokens, headers: &HeaderMap) -> Result<&'a AcceptedToken, RequestRefusal> {
    if accepted.is_faulty() {
        return Err(RequestRefusal::NoTokens);
    }
    let mut values = headers.get_all(AUTHORIZATION).iter();
    match (values.next(), values.next()) {
        (None, _) => Err(RequestRefusal::NoCredentials),
        (Some(value), None) => accepted.tokens.find(value).ok_or(RequestRefusal::WrongCredentials),
        (Some(_), Some(_)) => Err(RequestRefusal::WrongCredentials),
    }
}

/// A listening socket. [`serve`] accepts its connections.
#[derive(Debug)]
pub struct BoundListener {
    listener: TcpListener,
    address: SocketAddr,
    greeting: String,
    front: HttpFront,
}

impl BoundListener {
    /// Returns the bound address, with the port that the kernel chose if the setting was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of `/mcp` for a client on this machine.
    pub fn url(&self) -> String {
        greeting::url(self.address)
    }

    /// Returns the greeting. Write it to standard error only: at the first start it contains the token.
    pub fn greeting(&self) -> &str {
        &self.greeting
    }
}

/// Binds the configured address, and reads or creates the tokens. Fails if the address cannot be bound, if a token is
/// unusable, or if the settings would let every machine in without a token.
pub async fn bind(config: &ServerSetup, env: &ProcessEnv) -> Result<BoundListener, Failure> {
    bind_http(&config.server.http, config.server.state_dir.as_deref(), env).await
}

async fn bind_http(config: &HttpConfig, state_dir: Option<&Path>, env: &ProcessEnv) -> Result<BoundListener, Failure> {
    let Some(wanted) = config.address else {
        return Err(Failure::internal("could not serve HTTP without an address"));
    };
    if config.auth == HttpAuth::None && !wanted.ip().is_loopback() {
        return Err(Failure::usage(format!("could not serve on `{wanted}` with `auth` set to `none`"))
            .because("anyone who can reach this machine could run code on it")
            .with_hint(format!(
                "leave `auth` out, or serve this machine alone with `--http 127.0.0.1:{}`",
                wanted.port()
            )));
    }
    let listener = listen(wanted).map_err(|error| bind_error(wanted, error))?;
    let address = listener.local_addr().map_err(|error| bind_error(wanted, error))?;
    // After binding, so that no token is created and shown for a server that cannot start.
    let (tokens, greeting) = match config.auth {
        HttpAuth::None => (None, greeting::greeting_text(address, &TokenSource::NoAuthentication)),
        HttpAuth::Token => {
            let (keeper, greeting) = credentials(config, state_dir, env, address)?;
            (Some(keeper), greeting)
        }
    };
    let front = HttpFront::new(config, tokens, address, HttpBounds::default());
    Ok(BoundListener { listener, address, greeting, front })
}

/// Where the server finds its tokens.
pub enum TokenPlace {
    /// The value of `COVE_TOKEN`.
    Environment(OsString),
    File(PathBuf),
}

/// Returns the place that these settings choose. Fails if there is none.
pub fn token_place(config: &HttpConfig, state_dir: Option<&Path>, env: &ProcessEnv) -> Result<TokenPlace, Failure> {
    if let Some(value) = env.env.get(TOKEN_VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(TokenPlace::Environment(value.clone()));
    }
    match (&config.token_file, state_dir) {
        (Some(file), _) => Ok(TokenPlace::File(file.clone())),
        (None, Some(state)) => Ok(TokenPlace::File(state.join("tokens"))),
        (None, None) => Err(Failure::usage("could not find a place for the token")
            .because("there is no home directory, so there is no state directory")
            .with_hint("name one with `--state-dir`, name a file with `--token-file`, or set `COVE_TOKEN`")),
    }
}

/// Returns the principals that clients can have, as far as these settings say it; None if there is no token file, which would
/// say it. `local` is the one of standard input and output. Fails if there is a token file that cannot be read.
pub fn known_principals(
    config: &HttpConfig,
    state_dir: Option<&Path>,
    env: &ProcessEnv,
) -> Result<Option<Vec<String>>, Failure> {
    let file = match (config.auth, token_place(config, state_dir, env)) {
        (HttpAuth::None, _) | (_, Ok(TokenPlace::Environment(_))) => None,
        (HttpAuth::Token, Ok(TokenPlace::File(file))) => Some(file),
        (HttpAuth::Token, Err(_)) => return Ok(None),
    };
    let mut names = match file {
        None => vec![token::OWNER.to_owned()],
        Some(file) if file.exists() => {
            let tokens = token::file::read_existing_tokens(&file)?;
            tokens.principals().map(|principal| principal.0.clone()).collect()
        }
        // A server that needs tokens makes the file, with that of its owner.
        Some(_) if config.address.is_some() => vec![token::OWNER.to_owned()],
        Some(_) => return Ok(None),
    };
    names.push(local_principal().0);
    Ok(Some(names))
}

fn credentials(
    config: &HttpConfig,
    state_dir: Option<&Path>,
    env: &ProcessEnv,
    address: SocketAddr,
) -> Result<(TokenKeeper, String), Failure> {
    let keeper = |tokens, file| TokenKeeper::new(tokens, file, config.rate_limit);
    let file = match token_place(config, state_dir, env)? {
        TokenPlace::Environment(value) => {
            let greeting = greeting::greeting_text(address, &TokenSource::Environment);
            return Ok((keeper(tokens_from_env(&value)?, None), greeting));
        }
        TokenPlace::File(file) => file,
    };
    let kept = token::file::load(&file)?;
    let source = match &kept.created_token {
        Some(token) => TokenSource::Created { token, file: &file },
        None => TokenSource::File {
            file: &file,
            names: kept.tokens.principals().map(|principal| principal.0.as_str()).collect(),
        },
    };
    let greeting = greeting::greeting_text(address, &source);
    Ok((keeper(kept.tokens, Some(file)), greeting))
}

/// Returns the token with which a client may use a server that has this configuration: the one in the environment, or
/// else the first of the token file. Fails if there is none, or if the file is unsafe or malformed. Creates nothing.
pub fn client_token(config: &HttpConfig, state_dir: Option<&Path>, env: &ProcessEnv) -> Result<String, Failure> {
    match token_place(config, state_dir, env)? {
        TokenPlace::Environment(value) => {
            tokens_from_env(&value)?;
            Ok(value.to_string_lossy().into_owned())
        }
        TokenPlace::File(file) => read_first_token(&file),
    }
}

/// The error never shows the value, unlike errors about other variables.
fn tokens_from_env(value: &OsStr) -> Result<TokenSet, Failure> {
    value.to_str().and_then(TokenSet::single).ok_or_else(|| {
        Failure::usage(format!("could not use the token in `{TOKEN_VARIABLE}`"))
            .because("it is not 16 to 512 letters, digits or `-._~+/=`")
            .with_hint("make one with `openssl rand -hex 32`")
    })
}

/// Like `TcpListener::bind`, with a longer queue.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that starts again need not wait for the connections of the last one to expire.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE)
}

fn bind_error(wanted: SocketAddr, error: io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another server listens there: choose another port, or port 0 for one that is free".to_owned()
        }
        io::ErrorKind::PermissionDenied => "choose a port from 1024 on, which needs no rights".to_owned(),
        io::ErrorKind::AddrNotAvailable => {
            format!("choose an address of this machine, such as `127.0.0.1:{}`", wanted.port())
        }
        _ => "choose another address with `--http`".to_owned(),
    };
    Failure::new(FailureKind::Usage, format!("could not listen on `{wanted}`")).because(error).with_hint(hint)
}

#[cfg(test)]
mod tests;
