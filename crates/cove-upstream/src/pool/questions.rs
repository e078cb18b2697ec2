//! Questions that upstream servers ask the person behind a run while they answer its calls: a form, an address to visit,
//! or a message for the client's model. This module bounds them and knows when they failed; a [`QuestionHandler`] of the
//! agent's side puts them to the client.
//!
//! A person's answer goes to the server that asked and nowhere else: not to the code, the audit file or the logs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::error::{UnansweredQuestion, UpstreamError};
use super::text::{cut, strip_control};
use cove_core::BoxFuture;
use cove_core::random::random_bits;
use cove_core::session::CellClock;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

/// Questions that the servers of one run may ask in all.
pub const MAX_QUESTIONS: usize = 16;
/// Largest message of a question, in bytes.
const MAX_QUESTION_TEXT: usize = 8 * 1024;
/// Largest question of a form or an address, and the largest answer to it, in bytes of JSON.
const MAX_ELICITATION: usize = 64 * 1024;
/// The same for messages to the client's model.
const MAX_SAMPLING: usize = 4 * 1024 * 1024;

/// Longest name that a server gives to a question.
const MAX_KEY: usize = 1024;
/// Bytes of the questions that wait for an answer, of one principal and of all. A question may wait for minutes.
const MAX_OPEN_BYTES_OF_PRINCIPAL: usize = 16 * 1024 * 1024;
const MAX_OPEN_BYTES: usize = 64 * 1024 * 1024;

/// Fields that do not reach the client. `task` would make it answer with a task. With `includeContext` the model would
/// see what other servers behind Cove said, because to the client all of them are one server.
const WITHHELD_FIELDS: [&str; 3] = ["_meta", "task", "includeContext"];

/// What a server asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionKind {
    /// Values that a person fills in.
    Form,
    /// A visit to an address.
    Url,
    /// A message of the client's model.
    Sampling,
}

impl QuestionKind {
    /// Returns the kind of a server's request, or `None` if it is no question.
    fn of_request(method: &str, params: &Map<String, Value>) -> Option<Self> {
        let mode = params.get("mode").filter(|mode| !mode.is_null());
        match (method, mode.map(|mode| mode.as_str().unwrap_or_default())) {
            ("elicitation/create", Some("url")) => Some(Self::Url),
            ("elicitation/create", None | Some("form")) => Some(Self::Form),
            ("sampling/createMessage", _) => Some(Self::Sampling),
            _ => None,
        }
    }

    /// Returns the method of the protocol.
    pub fn method(self) -> &'static str {
        match self {
            Self::Form | Self::Url => "elicitation/create",
            Self::Sampling => "sampling/createMessage",
        }
    }

    /// Returns the largest question and the largest answer, in bytes of JSON.
    fn max_bytes(self) -> usize {
        match self {
            Self::Form | Self::Url => MAX_ELICITATION,
            Self::Sampling => MAX_SAMPLING,
        }
    }

    /// Returns the fields of an answer that the protocol knows. Fails if the client's answer does not fit the question.
    pub fn check_answer(self, answer: Value) -> Result<Value, String> {
        if json_size(&answer) > self.max_bytes() {
            return Err(format!("the answer has more than {} bytes", self.max_bytes()));
        }
        let Value::Object(mut answer) = answer else { return Err("the answer is not an object".to_owned()) };
        if self == Self::Sampling {
            let is_complete = ["role", "content", "model"].iter().all(|field| answer.contains_key(*field));
            return if is_complete { Ok(answer.into()) } else { Err("the answer is no message".to_owned()) };
        }
        match answer.get("action").and_then(Value::as_str) {
            Some("accept") => match (self, answer.remove("content")) {
                (Self::Form, Some(content @ Value::Object(_))) => Ok(json!({"action": "accept", "content": content})),
                (Self::Form, _) => Err("the answer accepts without `content`".to_owned()),
                _ => Ok(json!({"action": "accept"})),
            },
            Some(action @ ("decline" | "cancel")) => Ok(json!({ "action": action })),
            _ => Err("the `action` of the answer is neither `accept` nor `decline` nor `cancel`".to_owned()),
        }
    }
}

/// A question for the agent's client, within all bounds. The message names the server that asks.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientQuestion {
    pub kind: QuestionKind,
    /// The parameters of the protocol.
    pub params: Map<String, Value>,
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionError {
    /// The client does not take such questions.
    Unsupported,
    /// The person did not answer in time.
    Late(Duration),
    /// The question could not be asked, or the client failed to answer; the text says why.
    Failed(String),
}

/// Puts questions to the agent's client.
pub trait QuestionHandler: Send + Sync {
    /// Returns the client's answer. Dropping the future withdraws the question.
    fn ask(&self, question: ClientQuestion) -> BoxFuture<'_, Result<Value, QuestionError>>;
}

/// The questions of one run.
#[derive(Default)]
pub struct RunQuestions {
    handler: Option<Arc<dyn QuestionHandler>>,
    asked_count: AtomicUsize,
    /// The person runs Cove and sits at this machine, so a sign-in that ends here is theirs, and they may add servers.
    is_local: bool,
    /// Servers that the person was asked to sign in to.
    sign_ins: Mutex<BTreeSet<String>>,
}

impl RunQuestions {
    /// Without a handler, no question can be asked.
    pub fn new(handler: Option<Arc<dyn QuestionHandler>>) -> Arc<Self> {
        Arc::new(Self { handler, ..Self::default() })
    }

    /// The same, for a client that the person runs on this machine.
    pub fn of_local_person(handler: Option<Arc<dyn QuestionHandler>>) -> Arc<Self> {
        Arc::new(Self { handler, is_local: true, ..Self::default() })
    }

    /// Returns true if the person who runs Cove can be asked.
    pub(crate) fn reach_local_person(&self) -> bool {
        self.is_local && self.handler.is_some()
    }

    /// Returns true if the person was asked to sign in to a server, or cannot be asked.
    pub(super) fn has_asked_to_sign_in(&self, server: &str) -> bool {
        !self.reach_local_person() || lock(&self.sign_ins).contains(server)
    }

    /// Returns true for the first question about the sign-in to a server.
    pub(super) fn may_ask_to_sign_in(&self, server: &str) -> bool {
        self.reach_local_person() && lock(&self.sign_ins).insert(server.to_owned())
    }
}

/// Bytes of the questions that wait for an answer, by principal.
static OPEN_BYTES: Mutex<BTreeMap<Option<Principal>, usize>> = Mutex::new(BTreeMap::new());

/// The bytes of one question that waits for an answer.
struct QuestionShare {
    principal: Option<Principal>,
    bytes: usize,
}

impl QuestionShare {
    /// Returns `None` if too much waits already.
    fn open(principal: Option<&Principal>, bytes: usize) -> Option<Self> {
        let mut open = lock(&OPEN_BYTES);
        let all: usize = open.values().sum();
        let principal = principal.cloned();
        let own = open.get(&principal).copied().unwrap_or(0);
        if all + bytes > MAX_OPEN_BYTES || own + bytes > MAX_OPEN_BYTES_OF_PRINCIPAL {
            return None;
        }
        *open.entry(principal.clone()).or_default() += bytes;
        Some(Self { principal, bytes })
    }
}

impl Drop for QuestionShare {
    fn drop(&mut self) {
        let mut open = lock(&OPEN_BYTES);
        if let Some(own) = open.get_mut(&self.principal) {
            *own -= self.bytes;
            if *own == 0 {
                open.remove(&self.principal);
            }
        }
    }
}

/// How one call asks. Clones belong to the same call.
#[derive(Clone)]
pub struct CallQuestions {
    pub run: Arc<RunQuestions>,
    /// Whom the call is for.
    pub principal: Option<Principal>,
    /// The clock of the cell that makes the call. It stands still while a person is asked.
    pub clock: CellClock,
}

impl CallQuestions {
    /// Puts a request of a server to the client and returns the checked answer. The cell's clock stands still meanwhile.
    /// Fails if it is no question, breaks a bound, or gets no answer.
    pub(crate) async fn ask(
        &self,
        server: &str,
        method: &str,
        mut params: Map<String, Value>,
    ) -> Result<Value, UpstreamError> {
        let Some(kind) = QuestionKind::of_request(method, &params) else {
            let message = format!("it asks for `{}`, which Cove does not support", cut(&strip_control(method), 100));
            return Err(UpstreamError::protocol(server, &message, None));
        };
        for field in WITHHELD_FIELDS {
            params.remove(field);
        }
        let size = json_size(&params);
        let is_large = size > kind.max_bytes();
        if is_large {
            // The rest could be shown to the code, but not at this length.
            params.retain(|field, _| field == "message");
        }
        params.values_mut().for_each(strip_value);
        let text =
            params.get("message").and_then(Value::as_str).map_or_else(String::new, |text| cut(text, MAX_QUESTION_TEXT));
        let failed = |error: QuestionError| unanswered_error(server, kind, &text, &params, error);
        if is_large {
            let reason = format!("the question has {size} bytes, and at most {} are allowed", kind.max_bytes());
            return Err(failed(QuestionError::Failed(reason)));
        }
        if kind != QuestionKind::Sampling && !params.values().all(has_plain_names) {
            let reason = "names in the question have characters that cannot be shown".to_owned();
            return Err(failed(QuestionError::Failed(reason)));
        }
        if kind == QuestionKind::Url {
            let url = params.get("url").and_then(Value::as_str).unwrap_or_default();
            if !url.starts_with("https://") && !url.starts_with("http://") {
                return Err(failed(QuestionError::Failed("the address to visit is no web page".to_owned())));
            }
        }
        if self.run.asked_count.fetch_add(1, Ordering::Relaxed) >= MAX_QUESTIONS {
            let reason =
                format!("this cell's servers have asked {MAX_QUESTIONS} questions, which is all that they may");
            return Err(failed(QuestionError::Failed(reason)));
        }
        let Some(handler) = &self.run.handler else { return Err(failed(QuestionError::Unsupported)) };
        let Some(_open) = QuestionShare::open(self.principal.as_ref(), size) else {
            let most = MAX_OPEN_BYTES_OF_PRINCIPAL >> 20;
            let reason =
                format!("open questions have {most} MiB, or those of all clients {} MiB", MAX_OPEN_BYTES >> 20);
            return Err(failed(QuestionError::Failed(reason)));
        };
        let mut question = ClientQuestion { kind, params: params.clone() };
        if kind != QuestionKind::Sampling {
            question.params.insert("message".to_owned(), format!("{server}: {text}").into());
        }
        if kind == QuestionKind::Url {
            // Servers of the newer era leave this field out, and clients of the older one need it.
            let id = || format!("{:032x}", random_bits()).into();
            question.params.entry("elicitationId").or_insert_with(id);
        }
        let _pause = self.clock.pause();
        let answer = handler.ask(question).await.map_err(failed)?;
        kind.check_answer(answer).map_err(|reason| failed(QuestionError::Failed(reason)))
    }

    /// Puts all requests of one round to the client at once, and returns the answers under the same keys. Fails with
    /// the first that has none, and withdraws the others.
    pub(super) async fn ask_all(
        &self,
        server: &str,
        requests: Map<String, Value>,
    ) -> Result<Map<String, Value>, UpstreamError> {
        if requests.len() > MAX_QUESTIONS {
            let message =
                format!("it asks {} questions at once, and at most {MAX_QUESTIONS} are allowed", requests.len());
            return Err(UpstreamError::protocol(server, &message, None));
        }
        if requests.keys().any(|key| key.len() > MAX_KEY) {
            return Err(UpstreamError::protocol(server, "the names of its questions are too long", None));
        }
        let mut open = JoinSet::new();
        for (key, mut request) in requests {
            let method = request["method"].as_str().unwrap_or_default().to_owned();
            let params = match request.get_mut("params").map(Value::take) {
                Some(Value::Object(params)) => params,
                _ => Map::new(),
            };
            let (this, server) = (self.clone(), server.to_owned());
            open.spawn(async move { this.ask(&server, &method, params).await.map(|answer| (key, answer)) });
        }
        let mut answers = Map::new();
        while let Some(asked) = open.join_next().await {
            let (key, answer) =
                asked.unwrap_or_else(|_| Err(UpstreamError::protocol(server, "a question was not answered", None)))?;
            answers.insert(key, answer);
        }
        Ok(answers)
    }
}

/// Returns the error for the code whose call asked in vain.
fn unanswered_error(
    server: &str,
    kind: QuestionKind,
    text: &str,
    params: &Map<String, Value>,
    error: QuestionError,
) -> UpstreamError {
    let (reason, hint) = match error {
        QuestionError::Unsupported => (
            "the agent's client does not show questions of servers".to_owned(),
            "ask the person yourself; if the tool takes the answer as an argument, pass it, else use a client that \
             supports elicitation",
        ),
        QuestionError::Late(after) => (
            format!("input not given in time ({} s)", after.as_secs_f64()),
            "run the code again when the person can answer",
        ),
        QuestionError::Failed(reason) => (reason, "do without this tool, or run the code again"),
    };
    if kind == QuestionKind::Sampling {
        let message = format!("it asks for a message of the client's model, and got none: {reason}");
        return UpstreamError::protocol(server, &message, None);
    }
    let question = UnansweredQuestion {
        reason,
        hint,
        message: text.to_owned(),
        schema: params.get("requestedSchema").cloned(),
        url: params.get("url").and_then(Value::as_str).map(str::to_owned),
    };
    UpstreamError::InputRequired { server: server.to_owned(), question: Box::new(question) }
}

/// Removes control characters from every text, because a person's terminal may show it.
fn strip_value(value: &mut Value) {
    match value {
        Value::String(text) => *text = strip_control(text),
        Value::Array(items) => items.iter_mut().for_each(strip_value),
        Value::Object(fields) => fields.values_mut().for_each(strip_value),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns true if all names in a value can be shown. They cannot be changed, because the answer has them too.
fn has_plain_names(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(has_plain_names),
        Value::Object(fields) => {
            fields.iter().all(|(name, field)| strip_control(name) == *name && has_plain_names(field))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Returns the length of a value as JSON.
pub(super) fn json_size(value: &impl serde::Serialize) -> usize {
    struct ByteCounter(usize);
    impl std::io::Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = ByteCounter(0);
    // A value of JSON can always be written, and counting does not fail.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

#[cfg(test)]
mod tests {
    use cove_core::sync::lock;
    use std::sync::Mutex;

    use super::*;

    /// Answers every question with one value, and keeps what it was asked.
    struct FixedAnswer(Result<Value, QuestionError>, Mutex<Vec<ClientQuestion>>);

    impl QuestionHandler for FixedAnswer {
        fn ask(&self, question: ClientQuestion) -> BoxFuture<'_, Result<Value, QuestionError>> {
            lock(&self.1).push(question);
            Box::pin(std::future::ready(self.0.clone()))
        }
    }

    fn asking(answer: Result<Value, QuestionError>) -> (CallQuestions, Arc<FixedAnswer>) {
        let handler = Arc::new(FixedAnswer(answer, Mutex::default()));
        let run = RunQuestions::new(Some(Arc::clone(&handler) as _));
        (CallQuestions { run, principal: None, clock: CellClock::default() }, handler)
    }

    fn form(message: &str) -> Map<String, Value> {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string", "title": "\u{1b}[2JName"}}});
        let params = json!({"message": message, "requestedSchema": schema, "_meta": {"progressToken": 1}});
        params.as_object().unwrap().clone()
    }

    #[tokio::test]
    async fn a_question_names_its_server_and_cannot_control_a_terminal() {
        let (questions, handler) = asking(Ok(json!({"action": "accept", "content": {"name": "Ada"}, "x": 1})));
        let answer = questions.ask("git\u{68}ub", "elicitation/create", form("Who\u{1b}[1m?\u{202e}")).await.unwrap();
        assert_eq!(answer, json!({"action": "accept", "content": {"name": "Ada"}}));
        let asked = lock(&handler.1).remove(0);
        assert_eq!(asked.params["message"], "github: Who[1m?");
        assert_eq!(asked.params["requestedSchema"]["properties"]["name"]["title"], "[2JName");
        assert!(!asked.params.contains_key("_meta"));
        let mut named = form("Who?");
        named["requestedSchema"]["properties"]["\u{1b}[2J"] = json!({"type": "string"});
        let error = questions.ask("github", "elicitation/create", named).await.unwrap_err();
        assert!(error.to_string().contains("cannot be shown"), "{error}");
    }

    #[tokio::test]
    async fn the_clients_model_does_not_see_other_servers() {
        let (questions, handler) = asking(Ok(json!({"role": "assistant", "content": {}, "model": "m"})));
        let params = json!({"messages": [], "maxTokens": 1, "includeContext": "thisServer", "task": {"ttl": 1}});
        questions.ask("s", "sampling/createMessage", params.as_object().unwrap().clone()).await.unwrap();
        assert_eq!(Value::from(lock(&handler.1).remove(0).params), json!({"messages": [], "maxTokens": 1}));
    }

    #[tokio::test]
    async fn a_person_is_sent_to_web_pages_only() {
        let (questions, handler) = asking(Ok(json!({"action": "accept"})));
        let visit = |url: &str| {
            let params = json!({"mode": "url", "message": "Sign in", "url": url});
            params.as_object().unwrap().clone()
        };
        for url in ["javascript:alert(1)", "file:///etc/passwd", ""] {
            let error = questions.ask("s", "elicitation/create", visit(url)).await.unwrap_err();
            assert!(error.to_string().contains("is no web page"), "{error}");
        }
        // A client may be more lenient than the protocol.
        for mode in [json!("URL"), json!("visit"), json!(["url"])] {
            let mut odd = visit("javascript:alert(1)");
            odd.insert("mode".to_owned(), mode);
            assert!(questions.ask("s", "elicitation/create", odd).await.is_err());
        }
        questions.ask("s", "elicitation/create", visit("https://a.example")).await.unwrap();
        let asked = lock(&handler.1).remove(0);
        assert_eq!(asked.params["url"], "https://a.example");
        assert_eq!(asked.params["elicitationId"].as_str().map(str::len), Some(32));
    }

    #[tokio::test]
    async fn a_question_without_an_answer_says_what_was_asked() {
        let (questions, _) = asking(Err(QuestionError::Late(Duration::from_secs(2))));
        let error = questions.ask("s", "elicitation/create", form("Who?")).await.unwrap_err();
        let UpstreamError::InputRequired { question, .. } = error else { panic!("{error}") };
        assert_eq!((question.message.as_str(), question.reason.as_str()), ("Who?", "input not given in time (2 s)"));
        assert_eq!(question.schema.unwrap()["type"], "object");
    }

    #[tokio::test]
    async fn questions_are_bounded_in_number_and_size() {
        let (questions, handler) = asking(Ok(json!({"action": "decline"})));
        let error = questions.ask("s", "elicitation/create", form(&"x".repeat(1 << 20))).await.unwrap_err();
        assert!(error.to_string().contains("at most 65536 are allowed"), "{error}");
        assert!(error.to_string().len() < 10_000);
        for _ in 0..MAX_QUESTIONS {
            questions.ask("s", "elicitation/create", form("?")).await.unwrap();
        }
        let error = questions.ask("s", "elicitation/create", form("?")).await.unwrap_err();
        assert!(error.to_string().contains("16 questions, which is all"), "{error}");
        assert_eq!(lock(&handler.1).len(), MAX_QUESTIONS);
        let many: Map<String, Value> =
            (0..1000).map(|n| (n.to_string(), json!({"method": "elicitation/create"}))).collect();
        let error = questions.ask_all("s", many).await.unwrap_err();
        assert!(error.to_string().contains("1000 questions at once"), "{error}");
        assert!(questions.ask("s", "roots/list", Map::new()).await.is_err());
    }

    #[test]
    fn answers_must_fit_their_question() {
        use QuestionKind::{Form, Sampling, Url};
        let accepted = json!({"action": "accept", "content": {"a": 1}});
        assert_eq!(Form.check_answer(accepted.clone()).as_ref(), Ok(&accepted));
        assert_eq!(Url.check_answer(accepted), Ok(json!({"action": "accept"})));
        assert_eq!(
            Form.check_answer(json!({"action": "cancel", "content": {"a": 1}})),
            Ok(json!({"action": "cancel"}))
        );
        for wrong in [json!(null), json!({}), json!({"action": "maybe"}), json!({"action": "accept"})] {
            assert!(Form.check_answer(wrong).is_err());
        }
        let large = json!({"action": "accept", "content": {"a": "x".repeat(1 << 20)}});
        assert!(Form.check_answer(large).is_err());
        assert!(Sampling.check_answer(json!({"role": "assistant", "content": {}, "model": "m"})).is_ok());
        assert!(Sampling.check_answer(json!({"role": "assistant"})).is_err());
    }

    #[test]
    fn open_questions_have_a_budget_for_each_principal() {
        let (alice, bob) = (Principal("alice of the budget".into()), Principal("bob of the budget".into()));
        let ask = |who: &Principal| QuestionShare::open(Some(who), MAX_SAMPLING);
        let open: Vec<_> = std::iter::from_fn(|| ask(&alice)).collect();
        assert_eq!(open.len(), MAX_OPEN_BYTES_OF_PRINCIPAL / MAX_SAMPLING);
        assert!(ask(&bob).is_some(), "another principal can ask");
        drop(open);
        assert!(ask(&alice).is_some());
    }
}
