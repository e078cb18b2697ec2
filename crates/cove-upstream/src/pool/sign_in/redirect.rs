//! The end of a sign-in in the browser: the authorization server redirects it to an address of this machine, and the
//! person may paste that address instead. One answer counts, with the right path and the right `state`. Any program on
//! the machine can send others, so they are counted and reported, and end nothing.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::SignInError;

/// How long a person may take.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(300);
const REDIRECT_PATH: &str = "/callback";
/// Most bytes of a request, and the time that it may take.
const MAX_REQUEST: usize = 16 * 1024;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_CONNECTIONS: usize = 16;

/// What the authorization server answered, for the sign-in with this `state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectAnswer {
    pub(super) code: Option<String>,
    pub(super) issuer: Option<String>,
    pub(super) error: Option<String>,
}

impl RedirectAnswer {
    /// Reads an address that the browser ended at. Returns `None` if it does not belong to the sign-in with this `state`.
    pub fn read(address: &str, redirect: &str, state: &str) -> Option<Self> {
        let (url, redirect) = (Url::parse(address.trim()).ok()?, Url::parse(redirect).ok()?);
        if address.len() > MAX_REQUEST || url.origin() != redirect.origin() || url.path() != redirect.path() {
            return None;
        }
        // A parameter that is there twice belongs to an attack, not to an answer.
        let value = |name: &str| {
            let mut values = url.query_pairs().filter(|(key, _)| key == name).map(|(_, value)| value.into_owned());
            let first = values.next();
            if values.next().is_some() { Err(()) } else { Ok(first) }
        };
        let is_same = value("state").ok()?? == state;
        let answer = Self { code: value("code").ok()?, issuer: value("iss").ok()?, error: value("error").ok()? };
        let is_answer = answer.code.is_some() != answer.error.is_some();
        (is_same && is_answer).then_some(answer)
    }
}

/// Takes the redirect on this machine.
pub(super) struct RedirectListener {
    listener: TcpListener,
    port: u16,
}

impl RedirectListener {
    /// Listens at a port, or at any free one. Fails if the port is taken.
    pub(super) async fn open(port: Option<u16>) -> Result<Self, SignInError> {
        let failed = |error: std::io::Error| {
            let place = port.map_or_else(|| "any port".to_owned(), |port| format!("port {port}"));
            SignInError::new(format!("could not listen at {place} of 127.0.0.1: {error}")).with_hint(
                "end the program that uses it (`ss -ltnp` names it), or choose another with `--callback-port`",
            )
        };
        let listener = TcpListener::bind(("127.0.0.1", port.unwrap_or(0))).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        Ok(Self { listener, port })
    }

    /// Returns the address that the authorization server redirects to.
    pub(super) fn address(&self) -> String {
        format!("http://127.0.0.1:{}{REDIRECT_PATH}", self.port)
    }

    /// Returns the first answer that belongs to the sign-in with this `state`. Fails if there is none in time. Other
    /// requests get an error page; `report_foreign` learns of the first that looks like an answer.
    pub(super) async fn wait(&self, state: &str, report_foreign: impl Fn()) -> Result<RedirectAnswer, SignInError> {
        let mut foreign = 0;
        let count_foreign = || {
            foreign += 1;
            if foreign == 1 {
                report_foreign();
            }
        };
        let waited = tokio::time::timeout(SIGN_IN_TIMEOUT, self.accept_answer(state, count_foreign)).await;
        waited.map_err(|_| no_answer_error(foreign))
    }

    async fn accept_answer(&self, state: &str, mut count_foreign: impl FnMut()) -> RedirectAnswer {
        let (mut open, mut in_order) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (redirect, state) = (self.address(), state.to_owned());
                        in_order.push_back(open.spawn(async move {
                            let answered = answer_request(stream, &redirect, &state);
                            tokio::time::timeout(REQUEST_TIMEOUT, answered).await.ok().flatten()
                        }));
                        // The oldest makes room: connections that say nothing must not keep the browser out.
                        if in_order.len() > MAX_CONNECTIONS
                            && let Some(oldest) = in_order.pop_front()
                        {
                            oldest.abort();
                        }
                    }
                    // For example too many open files. The next attempt may work.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
                Some(answered) = open.join_next() => {
                    in_order.retain(|connection| !connection.is_finished());
                    match answered {
                        Ok(Some(ReceivedRequest::Answer(answer))) => return answer,
                        Ok(Some(ReceivedRequest::ForeignAnswer)) => count_foreign(),
                        Ok(Some(ReceivedRequest::Other) | None) | Err(_) => {}
                    }
                }
            }
        }
    }
}

fn no_answer_error(foreign: u64) -> SignInError {
    let ignored = match foreign {
        0 => String::new(),
        1 => "; 1 answer that does not belong to this sign-in was ignored".to_owned(),
        _ => format!("; {foreign} answers that do not belong to this sign-in were ignored"),
    };
    let minutes = SIGN_IN_TIMEOUT.as_secs() / 60;
    SignInError::new(format!("there was no answer within {minutes} minutes{ignored}")).with_hint("start again")
}

/// What came to the listener.
enum ReceivedRequest {
    Answer(RedirectAnswer),
    /// It looks like the answer of an authorization server, and does not belong to this sign-in.
    ForeignAnswer,
    /// For example a browser that asks for an icon.
    Other,
}

impl ReceivedRequest {
    /// Reads the first line of a request.
    fn read(line: &str, redirect: &str, state: &str) -> Self {
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let origin = redirect.strip_suffix(REDIRECT_PATH).unwrap_or_default();
        let Some(url) = Some(format!("{origin}{target}")).filter(|_| target.starts_with('/')) else {
            return Self::Other;
        };
        if let Some(answer) = RedirectAnswer::read(&url, redirect, state).filter(|_| method == "GET") {
            return Self::Answer(answer);
        }
        let Ok(url) = Url::parse(&url) else { return Self::Other };
        let has_parameters = url.query_pairs().any(|(key, _)| matches!(&*key, "state" | "code" | "error"));
        if url.path() == REDIRECT_PATH || has_parameters { Self::ForeignAnswer } else { Self::Other }
    }
}

/// Answers one request with a page that repeats nothing of it. Returns what the request was.
async fn answer_request(mut stream: TcpStream, redirect: &str, state: &str) -> Option<ReceivedRequest> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > MAX_REQUEST || stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8_lossy(&request);
    let received = ReceivedRequest::read(head.lines().next().unwrap_or_default(), redirect, state);
    let (status, words) = match &received {
        ReceivedRequest::Answer(RedirectAnswer { error: None, .. }) => {
            ("200 OK", "Cove has the answer. You can close this page.")
        }
        ReceivedRequest::Answer(_) => ("200 OK", "The sign-in was not granted. You can close this page."),
        ReceivedRequest::ForeignAnswer => (
            "404 Not Found",
            "This answer does not belong to the sign-in that Cove waits for, so Cove ignored it. You are not signed in. \
             Go back to where you started the sign-in, and start it again.",
        ),
        ReceivedRequest::Other => ("404 Not Found", "There is nothing here."),
    };
    let page =
        format!("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Cove</title><p>{words}</p></html>\n");
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: \
         no-store\r\nContent-Security-Policy: default-src 'none'\r\nReferrer-Policy: no-referrer\r\nConnection: \
         close\r\n\r\n{page}",
        page.len()
    );
    // The answer counts even if the browser does not wait for its page.
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
    Some(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDIRECT: &str = "http://127.0.0.1:4000/callback";

    #[test]
    fn only_the_right_answer_counts() {
        let read = |address: &str| RedirectAnswer::read(address, REDIRECT, "s1");
        let good = read("http://127.0.0.1:4000/callback?code=c%20d&state=s1&iss=https%3A%2F%2Fa\n").unwrap();
        assert_eq!((good.code.as_deref(), good.issuer.as_deref()), (Some("c d"), Some("https://a")));
        let refused = read("http://127.0.0.1:4000/callback?error=access_denied&state=s1").unwrap();
        assert_eq!(refused.error.as_deref(), Some("access_denied"));
        for address in [
            "",
            "c",
            "http://127.0.0.1:4000/callback",
            "http://127.0.0.1:4000/callback?code=c",
            "http://127.0.0.1:4000/callback?code=c&state=s2",
            "http://127.0.0.1:4000/callback?state=s1",
            "http://127.0.0.1:4000/callback?code=c&code=d&state=s1",
            "http://127.0.0.1:4000/callback?code=c&state=s2&state=s1",
            "http://127.0.0.1:4000/callback?code=c&error=x&state=s1",
            "http://127.0.0.1:4000/other?code=c&state=s1",
            "http://127.0.0.1:4001/callback?code=c&state=s1",
            "https://evil.example/callback?code=c&state=s1",
        ] {
            assert_eq!(read(address), None, "{address}");
        }
    }

    #[tokio::test]
    async fn the_listener_waits_for_its_own_request() {
        let listener = RedirectListener::open(None).await.unwrap();
        let place = listener.address();
        let client = tokio::spawn(async move {
            let url = Url::parse(&place).unwrap();
            let connect = || TcpStream::connect(("127.0.0.1", url.port().unwrap()));
            let _silent = connect().await.unwrap();
            let mut statuses = Vec::new();
            for path in ["GET /favicon.ico", "POST /callback?code=c&state=s1", "GET /callback?code=x&state=wrong"]
                .into_iter()
                .chain(["nonsense", "GET /callback?code=right&state=s1"])
            {
                let mut stream = connect().await.unwrap();
                stream.write_all(format!("{path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                assert!(!answer.contains("right") && !answer.contains("<script"), "{answer}");
                statuses.push(answer.split(' ').nth(1).unwrap().to_owned());
            }
            statuses
        });
        let mut foreign = 0;
        let answer = listener.accept_answer("s1", || foreign += 1).await;
        assert_eq!(answer.code.as_deref(), Some("right"));
        assert_eq!(client.await.unwrap(), ["404", "404", "404", "404", "200"]);
        assert_eq!(foreign, 2);
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_the_browser_out() {
        let listener = RedirectListener::open(None).await.unwrap();
        let port = listener.port;
        let client = tokio::spawn(async move {
            let mut silent = Vec::new();
            for _ in 0..3 * MAX_CONNECTIONS {
                silent.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
            }
            let mut browser = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            browser.write_all(b"GET /callback?code=c&state=s1 HTTP/1.1\r\n\r\n").await.unwrap();
            silent
        });
        let answer = listener.accept_answer("s1", || {});
        // Otherwise three rounds of silent connections would come first.
        let answer = tokio::time::timeout(REQUEST_TIMEOUT * 5 / 2, answer).await.expect("in time");
        assert_eq!(answer.code.as_deref(), Some("c"));
        client.await.unwrap();
    }

    #[test]
    fn answers_of_other_sign_ins_are_told_from_other_requests() {
        let foreign = [
            "GET /callback?code=c&state=s2 HTTP/1.1",
            "GET /callback HTTP/1.1",
            "GET /other?code=c&state=s1 HTTP/1.1",
            "GET /?error=access_denied HTTP/1.1",
            "POST /callback?code=c&state=s1 HTTP/1.1",
        ];
        for line in foreign {
            assert!(matches!(ReceivedRequest::read(line, REDIRECT, "s1"), ReceivedRequest::ForeignAnswer), "{line}");
        }
        for line in ["GET /favicon.ico HTTP/1.1", "GET / HTTP/1.1", "nonsense", "", "GET http://x/callback HTTP/1.1"] {
            assert!(matches!(ReceivedRequest::read(line, REDIRECT, "s1"), ReceivedRequest::Other), "{line}");
        }
    }

    #[test]
    fn the_end_of_the_time_says_how_many_answers_were_ignored() {
        assert_eq!(no_answer_error(0).cause, "there was no answer within 5 minutes");
        let one = "there was no answer within 5 minutes; 1 answer that does not belong to this sign-in was ignored";
        assert_eq!(no_answer_error(1).cause, one);
        assert!(no_answer_error(2).cause.ends_with("; 2 answers that do not belong to this sign-in were ignored"));
    }
}
