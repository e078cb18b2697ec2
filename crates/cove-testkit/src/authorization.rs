//! An MCP server that wants sign-in, and its authorization server, on one loopback address. It checks what a client
//! sends, and misbehaves in the ways that a test names.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::Url;

use crate::fixture::front::{FrontRequest, listen, write};

type Misbehaviour = Box<dyn Fn(&FrontRequest, &mut TcpStream) -> bool + Send + Sync>;

const TOOLS: [&str; 3] = ["echo", "admin", "leak"];

fn describe_tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}})
}

/// What the server knows and how it behaves.
#[derive(Default)]
pub struct AuthorizationState {
    /// Fields of the documents that replace the right ones; `null` removes one.
    pub resource_metadata: BTreeMap<String, Value>,
    pub server_metadata: BTreeMap<String, Value>,
    /// Parameters of the redirect that replace the right ones.
    pub redirect: BTreeMap<String, Value>,
    /// Fields of token answers that replace the right ones.
    pub tokens: BTreeMap<String, Value>,
    /// The `error` of the next answers of the token endpoint, by grant type.
    pub token_errors: HashMap<String, String>,
    /// Scopes of the challenge for a request without a token.
    pub challenge_scope: Option<String>,
    /// Answers requests to a path instead of the server.
    pub misbehaviour: HashMap<String, Misbehaviour>,
    /// Valid access tokens and their scopes.
    pub access: HashMap<String, String>,
    /// Valid refresh tokens and their scopes.
    pub refresh: HashMap<String, String>,
    /// Everything secret that was ever issued.
    pub secrets: Vec<String>,
    /// What clients sent to each endpoint.
    pub received: Vec<(String, HashMap<String, String>)>,
    pub revoked: Vec<String>,
    codes: HashMap<String, IssuedCode>,
    counter: u32,
}

struct IssuedCode {
    client: String,
    redirect: String,
    challenge: String,
    resource: String,
    scope: String,
}

/// The running server. It ends with the test process.
#[derive(Clone)]
pub struct AuthorizationFixture {
    pub address: SocketAddr,
    state: Arc<Mutex<AuthorizationState>>,
}

fn parse_pairs(text: &str) -> HashMap<String, String> {
    url::form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

fn replace_fields(mut document: Value, fields: &BTreeMap<String, Value>) -> Value {
    for (name, value) in fields {
        match value {
            Value::Null => drop(document.as_object_mut().map(|document| document.remove(name))),
            value => document[name] = value.clone(),
        }
    }
    document
}

impl AuthorizationFixture {
    pub fn start() -> Self {
        let state: Arc<Mutex<AuthorizationState>> = Arc::default();
        let shared = Arc::clone(&state);
        // The address is known only after the start.
        let address = Arc::new(Mutex::new(None::<SocketAddr>));
        let known = Arc::clone(&address);
        let bound = listen(move |request, stream| {
            let address = loop {
                if let Some(address) = *known.lock().unwrap_or_else(PoisonError::into_inner) {
                    break address;
                }
                thread::sleep(Duration::from_millis(1));
            };
            Self { address, state: Arc::clone(&shared) }.answer(&request, stream);
        });
        *address.lock().unwrap_or_else(PoisonError::into_inner) = Some(bound);
        Self { address: bound, state }
    }

    pub fn state(&self) -> MutexGuard<'_, AuthorizationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn url(&self) -> String {
        format!("{}/mcp", self.origin())
    }

    /// What clients sent to an endpoint.
    pub fn received(&self, path: &str) -> Vec<HashMap<String, String>> {
        let state = self.state();
        state.received.iter().filter(|(to, _)| to == path).map(|(_, form)| form.clone()).collect()
    }

    /// Does what a browser does with the authorization address: returns the address that it is redirected to.
    pub fn follow(address: &str) -> String {
        let url = Url::parse(address).expect("an address");
        let answer = get(&url);
        let location = answer.lines().find_map(|line| line.strip_prefix("Location: "));
        location.unwrap_or_else(|| panic!("no redirect: {answer}")).trim().to_owned()
    }

    fn answer(&self, request: &FrontRequest, stream: &mut TcpStream) {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let form = if request.method == "GET" { parse_pairs(query) } else { parse_pairs(&request.text) };
        self.state().received.push((path.to_owned(), form.clone()));
        let misbehaviour = self.state().misbehaviour.remove(path);
        if let Some(misbehaviour) = misbehaviour {
            let is_answered = misbehaviour(request, stream);
            self.state().misbehaviour.insert(path.to_owned(), misbehaviour);
            if is_answered {
                return;
            }
        }
        let json = |stream: &mut TcpStream, status: &str, body: &Value| {
            write(stream, status, "Content-Type: application/json\r\n", body.to_string().as_bytes());
        };
        match (request.method.as_str(), path) {
            (_, "/mcp") => self.answer_mcp(request, stream),
            ("GET", "/.well-known/oauth-protected-resource/mcp") => {
                let document = json!({"resource": self.url(), "authorization_servers": [self.origin()]});
                json(stream, "200 OK", &replace_fields(document, &self.state().resource_metadata));
            }
            ("GET", "/.well-known/oauth-authorization-server") => {
                let origin = self.origin();
                let document = json!({
                    "issuer": origin,
                    "authorization_endpoint": format!("{origin}/authorize"),
                    "token_endpoint": format!("{origin}/token"),
                    "registration_endpoint": format!("{origin}/register"),
                    "revocation_endpoint": format!("{origin}/revoke"),
                    "code_challenge_methods_supported": ["S256"],
                    "authorization_response_iss_parameter_supported": true,
                    "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
                });
                json(stream, "200 OK", &replace_fields(document, &self.state().server_metadata));
            }
            ("POST", "/register") => {
                let mut state = self.state();
                state.counter += 1;
                let client = format!("client-{}", state.counter);
                let redirects = request.body["redirect_uris"].clone();
                json(stream, "201 Created", &json!({"client_id": client, "redirect_uris": redirects}));
            }
            ("GET", "/authorize") => {
                let location = self.state().authorize(&self.origin(), &form);
                write(stream, "302 Found", &format!("Location: {location}\r\n"), b"");
            }
            ("POST", "/token") => {
                let (status, body) = self.state().issue_tokens(request, &form);
                json(stream, status, &body);
            }
            ("POST", "/revoke") => {
                let mut state = self.state();
                let token = form.get("token").cloned().unwrap_or_default();
                state.access.remove(&token);
                state.refresh.remove(&token);
                state.revoked.push(token);
                json(stream, "200 OK", &json!({}));
            }
            _ => write(stream, "404 Not Found", "", b"no such page"),
        }
    }

    /// A server with three tools: `echo`, `admin` needs the scope `admin`, and `leak` repeats the token.
    fn answer_mcp(&self, request: &FrontRequest, stream: &mut TcpStream) {
        let header = request.headers.get("authorization").cloned().unwrap_or_default();
        let token = header.strip_prefix("Bearer ").unwrap_or_default().to_owned();
        let (scopes, challenge_scope) = {
            let state = self.state();
            (state.access.get(&token).cloned(), state.challenge_scope.clone())
        };
        let metadata = format!("resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"", self.origin());
        let Some(scopes) = scopes else {
            let scope = challenge_scope.map(|scope| format!(", scope=\"{scope}\"")).unwrap_or_default();
            let header = format!("WWW-Authenticate: Bearer {metadata}{scope}\r\n");
            return write(stream, "401 Unauthorized", &header, b"sign in first");
        };
        let (id, params) = (&request.body["id"], &request.body["params"]);
        let tool = params["name"].as_str().unwrap_or_default();
        let text = |text: &str| json!({"content": [{"type": "text", "text": text}]});
        let result = match request.body["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "guarded", "version": "1"},
            }),
            Some("tools/list") => json!({ "tools": TOOLS.map(describe_tool) }),
            Some("tools/call") if tool == "admin" && !scopes.split(' ').any(|scope| scope == "admin") => {
                let header =
                    format!("WWW-Authenticate: Bearer error=\"insufficient_scope\", scope=\"admin\", {metadata}\r\n");
                return write(stream, "403 Forbidden", &header, b"");
            }
            Some("tools/call") if tool == "leak" => text(&format!("you sent {header}")),
            Some("tools/call") => text(params["arguments"]["text"].as_str().unwrap_or("done")),
            Some(_) if !id.is_null() => {
                let refusal =
                    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}});
                let kind = "Content-Type: application/json\r\n";
                return write(stream, "200 OK", kind, refusal.to_string().as_bytes());
            }
            _ => return write(stream, "202 Accepted", "", b""),
        };
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        write(stream, "200 OK", "Content-Type: application/json\r\n", answer.as_bytes());
    }
}

impl AuthorizationState {
    fn make_secret(&mut self, kind: &str) -> String {
        self.counter += 1;
        let secret = format!("{kind}-canary-{:06}", self.counter);
        self.secrets.push(secret.clone());
        secret
    }

    fn authorize(&mut self, origin: &str, query: &HashMap<String, String>) -> String {
        let value = |name: &str| query.get(name).cloned().unwrap_or_default();
        assert_eq!(value("code_challenge_method"), "S256", "{query:?}");
        let code = self.make_secret("code");
        let issued = IssuedCode {
            client: value("client_id"),
            redirect: value("redirect_uri"),
            challenge: value("code_challenge"),
            resource: value("resource"),
            scope: value("scope"),
        };
        self.codes.insert(code.clone(), issued);
        let answer = replace_fields(json!({"code": code, "state": value("state"), "iss": origin}), &self.redirect);
        let mut location = Url::parse(&value("redirect_uri")).expect("a redirect address");
        for (name, value) in answer.as_object().into_iter().flatten() {
            location.query_pairs_mut().append_pair(name, value.as_str().unwrap_or_default());
        }
        location.to_string()
    }

    fn issue_tokens(&mut self, request: &FrontRequest, form: &HashMap<String, String>) -> (&'static str, Value) {
        let value = |name: &str| form.get(name).cloned().unwrap_or_default();
        let grant = value("grant_type");
        let refused = |code: &str| ("400 Bad Request", json!({"error": code, "error_description": "canary words"}));
        if let Some(code) = self.token_errors.get(&grant) {
            return refused(code);
        }
        let scope = match grant.as_str() {
            "authorization_code" => {
                let Some(issued) = self.codes.remove(&value("code")) else { return refused("invalid_grant") };
                let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(value("code_verifier")));
                let (client, redirect) = (value("client_id"), value("redirect_uri"));
                if (challenge, client, redirect, value("resource"))
                    != (issued.challenge, issued.client, issued.redirect, issued.resource)
                {
                    return refused("invalid_grant");
                }
                issued.scope
            }
            "refresh_token" => match self.refresh.remove(&value("refresh_token")) {
                Some(scope) => scope,
                None => return refused("invalid_grant"),
            },
            "client_credentials" if request.headers.contains_key("authorization") => value("scope"),
            "client_credentials" if !value("client_assertion").is_empty() => value("scope"),
            _ => return refused("unauthorized_client"),
        };
        let (access, refresh) = (self.make_secret("access"), self.make_secret("refresh"));
        self.access.insert(access.clone(), scope.clone());
        let mut answer = json!({"access_token": access, "token_type": "Bearer", "expires_in": 3600, "scope": scope});
        if grant != "client_credentials" {
            self.refresh.insert(refresh.clone(), scope);
            answer["refresh_token"] = refresh.into();
        }
        ("200 OK", replace_fields(answer, &self.tokens))
    }
}

/// Returns the whole answer to a `GET`.
pub fn get(url: &Url) -> String {
    let host = (url.host_str().expect("a host"), url.port_or_known_default().expect("a port"));
    let mut stream = TcpStream::connect(host).expect("it listens");
    let target = &url[url::Position::BeforePath..];
    let request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", host.0);
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}
