//! The HTTP front: from a socket to requests that may be answered. Who asks, under which name, how often and how much is
//! settled here; what a request means is not known here, but by whoever implements [`Mcp`].
//!
//! No framework: the order of the checks and the bounds of connections are what this is about, and they lie below where
//! frameworks begin.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap};
use http_body_util::Full;
use tokio::net::TcpListener;

use crate::config::{Auth, Config, HttpConfig, Surroundings};
use crate::error::{Error, Kind};
use crate::session::registry::Principal;

mod accept;
mod answer;
mod body;
mod connection;
mod greeting;
mod names;
mod rate;
mod request;
mod token;

pub use accept::serve;
pub use answer::Answer;

use answer::Refusal;
use body::Bodies;
use greeting::Source;
use names::Names;
use rate::Bucket;
use token::{OWNER, Tokens};

/// Wrong tokens a second, over all clients: nobody mistypes that often, and a token of 16 characters cannot be guessed at
/// that rate.
const ATTEMPTS: usize = 10;
/// Refusals a second that are logged.
const WARNINGS: usize = 5;
/// The variable with a token that replaces the file.
const TOKEN_VARIABLE: &str = "COVE_TOKEN";

/// What stands behind `/mcp`.
pub trait Mcp: Clone + Send + Sync + 'static {
    /// Gets only requests whose host, origin, token, rate and size are right. The body is whole, the [`Principal`] is in
    /// the extensions, and the token is gone from the headers. When the client goes away, this future or the body of its
    /// answer is dropped.
    fn answer(&self, request: http::Request<Full<Bytes>>) -> impl Future<Output = Answer> + Send;
}

/// The bounds that are no settings. Tests have smaller ones.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// For the head of a request, and between two requests.
    head: Duration,
    /// For a whole body.
    body: Duration,
    body_bytes: usize,
    /// For all bodies together.
    memory: usize,
    /// For what is under way when the server stops.
    drain: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            body_bytes: 16 * 1024 * 1024,
            memory: 256 * 1024 * 1024,
            drain: Duration::from_secs(5),
        }
    }
}

/// What all connections share.
#[derive(Debug)]
struct Front {
    names: Names,
    /// Nothing when everyone may ask.
    tokens: Option<Tokens>,
    /// In the order of the tokens.
    rates: Vec<(Principal, Bucket)>,
    attempts: Bucket,
    bodies: Bodies,
    warnings: Bucket,
    max_connections: usize,
    bounds: Bounds,
}

impl Front {
    fn new(config: &HttpConfig, tokens: Option<Tokens>, bound: SocketAddr, bounds: Bounds) -> Self {
        let now = Instant::now();
        let owner = Principal(OWNER.to_owned());
        let principals = match &tokens {
            Some(tokens) => tokens.principals().cloned().collect(),
            None => vec![owner],
        };
        let rate = || Bucket::new(config.rate_limit, 2 * config.rate_limit, now);
        Self {
            names: Names::new(config, bound),
            tokens,
            rates: principals.into_iter().map(|principal| (principal, rate())).collect(),
            attempts: Bucket::new(ATTEMPTS, 2 * ATTEMPTS, now),
            bodies: Bodies::new(bounds.body_bytes, bounds.body, bounds.memory),
            warnings: Bucket::new(WARNINGS, 2 * WARNINGS, now),
            max_connections: config.max_connections,
            bounds,
        }
    }

    /// Who asks, if they may and not too often. Wrong tokens are counted for all together and never against a right one,
    /// so that nobody can lock out who has one.
    fn admit(&self, headers: &HeaderMap, now: Instant) -> Result<&Principal, Refusal> {
        let place = match &self.tokens {
            None => 0,
            Some(tokens) => {
                let mut values = headers.get_all(AUTHORIZATION).iter();
                let found = match (values.next(), values.next()) {
                    (None, _) => Err(Refusal::NoCredentials),
                    (Some(value), None) => tokens.find(value).ok_or(Refusal::WrongCredentials),
                    (Some(_), Some(_)) => Err(Refusal::WrongCredentials),
                };
                match found {
                    Ok(place) => place,
                    Err(refusal) => {
                        self.attempts.take(now).map_err(Refusal::TooManyAttempts)?;
                        return Err(refusal);
                    }
                }
            }
        };
        let (principal, rate) = &self.rates[place];
        rate.take(now).map_err(Refusal::TooOften)?;
        Ok(principal)
    }

    /// Not more often than a person could read: a flood must not fill a disk.
    fn may_warn(&self) -> bool {
        self.warnings.take(Instant::now()).is_ok()
    }
}

/// A socket that listens; nothing is accepted before [`serve`].
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    greeting: String,
    front: Front,
}

impl Bound {
    /// With the port that the kernel chose, when it was to choose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Of `/mcp`, as a client on this machine would write it.
    pub fn url(&self) -> String {
        greeting::url(self.address)
    }

    /// For standard error, and for nowhere else: at the first start it has the token.
    pub fn greeting(&self) -> &str {
        &self.greeting
    }
}

/// Listens where the configuration says. Refuses what would let anyone in; reads the tokens, or makes the first one.
pub async fn bind(config: &Config, around: &Surroundings) -> Result<Bound, Error> {
    bind_http(&config.server.http, config.server.state_dir.as_deref(), around).await
}

async fn bind_http(
    config: &HttpConfig,
    state_dir: Option<&Path>,
    around: &Surroundings,
) -> Result<Bound, Error> {
    let Some(wanted) = config.address else {
        return Err(Error::internal("could not serve HTTP without an address"));
    };
    if config.auth == Auth::None && !wanted.ip().is_loopback() {
        return Err(Error::usage(format!("could not serve on `{wanted}` with `auth` set to `none`"))
            .because("anyone who can reach this machine could run code on it")
            .with_hint(format!(
                "leave `auth` out, or serve this machine alone with `--http 127.0.0.1:{}`",
                wanted.port()
            )));
    }
    let listener = TcpListener::bind(wanted).await.map_err(|error| not_bound(wanted, error))?;
    let address = listener.local_addr().map_err(|error| not_bound(wanted, error))?;
    // Only now, so that no token is made and shown for a server that cannot start.
    let (tokens, greeting) = match config.auth {
        Auth::None => (None, greeting::text(address, &Source::Nobody)),
        Auth::Token => {
            let (tokens, greeting) = credentials(config, state_dir, around, address)?;
            (Some(tokens), greeting)
        }
    };
    let front = Front::new(config, tokens, address, Bounds::default());
    Ok(Bound { listener, address, greeting, front })
}

fn credentials(
    config: &HttpConfig,
    state_dir: Option<&Path>,
    around: &Surroundings,
    address: SocketAddr,
) -> Result<(Tokens, String), Error> {
    if let Some(value) = around.env.get(TOKEN_VARIABLE).filter(|value| !value.is_empty()) {
        return Ok((of_environment(value)?, greeting::text(address, &Source::Environment)));
    }
    let file: PathBuf = match (&config.token_file, state_dir) {
        (Some(file), _) => file.clone(),
        (None, Some(state)) => state.join("tokens"),
        (None, None) => {
            return Err(Error::usage("could not find a place for the token")
                .because("there is no home directory, so there is no state directory")
                .with_hint(
                    "name one with `--state-dir`, name a file with `--token-file`, or set `COVE_TOKEN`",
                ));
        }
    };
    let kept = token::file::load(&file)?;
    let source = match &kept.made {
        Some(token) => Source::Made { token, file: &file },
        None => Source::File {
            file: &file,
            names: kept.tokens.principals().map(|principal| principal.0.as_str()).collect(),
        },
    };
    let greeting = greeting::text(address, &source);
    Ok((kept.tokens, greeting))
}

/// Unlike other variables this one is never shown, however wrong it is.
fn of_environment(value: &OsStr) -> Result<Tokens, Error> {
    value.to_str().and_then(Tokens::one).ok_or_else(|| {
        Error::usage(format!("could not use the token in `{TOKEN_VARIABLE}`"))
            .because("it is not 16 to 512 letters, digits or `-._~+/=`")
            .with_hint("make one with `openssl rand -hex 32`")
    })
}

fn not_bound(wanted: SocketAddr, error: io::Error) -> Error {
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
    Error::new(Kind::Usage, format!("could not listen on `{wanted}`")).because(error).with_hint(hint)
}

#[cfg(test)]
mod tests;
