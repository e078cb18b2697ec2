//! Finds the call to which a question of a server belongs, and ends the question with that call.
//!
//! Three tasks take part. The task of a call creates a [`QuestionInbox`], whose [`CallAddress`] travels inside the request
//! like a progress sink. The transport calls `register` before it writes the request, so that the router knows the call
//! by its request id. When the server asks, rmcp's task for that request finds the address in `ask`, which puts the
//! question to the client in a third task and waits for the answer. If there is none, the call ends with the failure,
//! which `ask` sends to the inbox.
//!
//! The inbox belongs to the future of the call and owns the address; requests and the router hold it weakly. So nothing of
//! an ended call stays, such as the client behind it, and `ask` sees when the call is answered, cancelled or dropped, and
//! withdraws the question from the client. Without a stream of its own, a question may belong to any call of the run, and
//! is withdrawn when all of them have ended.

use std::sync::{Arc, Mutex, Weak};

use rmcp::ErrorData;
use rmcp::model::{ClientRequest, Extensions, GetExtensions, RequestId};
use rmcp::service::InboundStreamOrigin;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::error::UpstreamError;
use super::questions::CallQuestions;
use super::redaction::ServerSecrets;
use cove_core::session::CellClock;
use cove_core::sync::lock;

/// Where the questions of one call go.
struct CallAddress {
    server: String,
    secrets: ServerSecrets,
    questions: CallQuestions,
    /// Closed when the call has ended.
    failures: mpsc::Sender<UpstreamError>,
    /// The clock of the call's own timeout.
    clock: CellClock,
}

/// An address on its way through rmcp, as an extension of its request.
#[derive(Clone)]
struct AttachedAddress(Weak<CallAddress>);

/// The part of one call in its questions, owned by the future of the call.
pub(super) struct QuestionInbox {
    address: Arc<CallAddress>,
    failures: mpsc::Receiver<UpstreamError>,
}

impl QuestionInbox {
    /// Creates the inbox of a call and puts its address into the request.
    pub(super) fn attach(
        request: &mut ClientRequest,
        server: (&str, &ServerSecrets),
        questions: CallQuestions,
        clock: CellClock,
    ) -> Self {
        let inbox = Self::new(server, questions, clock);
        request.extensions_mut().insert(AttachedAddress(Arc::downgrade(&inbox.address)));
        inbox
    }

    /// Creates the inbox of a task. Its server may ask between two requests about the task, when no call is in flight.
    pub(super) fn for_task(
        router: &QuestionRouter,
        server: (&str, &ServerSecrets),
        questions: CallQuestions,
        clock: CellClock,
    ) -> Self {
        let inbox = Self::new(server, questions, clock);
        let mut tasks = lock(&router.tasks);
        tasks.retain(|task| task.strong_count() > 0);
        tasks.push(Arc::downgrade(&inbox.address));
        inbox
    }

    fn new((server, secrets): (&str, &ServerSecrets), questions: CallQuestions, clock: CellClock) -> Self {
        let (sender, failures) = mpsc::channel(1);
        let (server, secrets) = (server.to_owned(), secrets.clone());
        let address = Arc::new(CallAddress { server, secrets, questions, failures: sender, clock });
        Self { address, failures }
    }

    /// Returns if a question has no answer that the call could go on with.
    pub(super) async fn wait_for_failure(&mut self) -> UpstreamError {
        match self.failures.recv().await {
            Some(failure) => failure,
            // `self.address` keeps the channel open.
            None => std::future::pending().await,
        }
    }
}

/// The calls in flight on one server, in the order in which they were sent, and the tasks that have not ended.
#[derive(Default)]
pub(super) struct QuestionRouter {
    calls: Mutex<Vec<(RequestId, Weak<CallAddress>)>>,
    tasks: Mutex<Vec<Weak<CallAddress>>>,
}

impl QuestionRouter {
    /// Registers a call that is about to be sent, and forgets those that have ended.
    pub(super) fn register(&self, id: &RequestId, request: &ClientRequest) {
        if let Some(AttachedAddress(address)) = request.extensions().get() {
            let mut calls = lock(&self.calls);
            calls.retain(|(_, call)| call.strong_count() > 0);
            calls.push((id.clone(), Weak::clone(address)));
        }
    }

    /// Answers a request of the server, or fails with the error for the server. `withdrawn` returns if the server no
    /// longer waits.
    pub(super) async fn ask(
        &self,
        method: &str,
        mut params: Map<String, Value>,
        extensions: &Extensions,
        withdrawn: impl Future<Output = ()>,
    ) -> Result<Value, ErrorData> {
        let calls = self.candidates(extensions);
        let refused = |reason: &str| ErrorData::invalid_request(format!("could not ask: {reason}"), None);
        let Some(first) = calls.first() else { return Err(refused("no call is in flight to which this belongs")) };
        // A person must not answer for a call of another.
        if calls.iter().any(|call| !Arc::ptr_eq(&call.questions.run, &first.questions.run)) {
            return Err(refused(
                "several runs call this server at once, and nothing says whose question this is; try again later",
            ));
        }
        // Code sees a question without an answer. In the newer era, questions are parts of results, which are redacted.
        params.values_mut().for_each(|value| first.secrets.redact_value(value));
        // Any of them may be the one that waits.
        let _pauses: Vec<_> = calls.iter().map(|call| call.clock.pause()).collect();
        // In a task of its own, because rmcp marks all requests that this one sends as parts of the server's request.
        let mut asking = JoinSet::new();
        let (asker, method) = (Arc::clone(first), method.to_owned());
        asking.spawn(async move { asker.questions.ask(&asker.server, &method, params).await });
        let ended = async {
            for call in &calls {
                call.failures.closed().await;
            }
        };
        let answer = tokio::select! {
            answer = asking.join_next() => answer,
            () = ended => return Err(refused("the call has ended")),
            () = withdrawn => return Err(refused("it was withdrawn")),
        };
        match answer {
            Some(Ok(Ok(answer))) => Ok(answer),
            Some(Ok(Err(failure))) => {
                let refusal = refused(&failure.to_string());
                // The code, not only the server, must learn that a person's input is missing.
                if matches!(failure, UpstreamError::InputRequired { .. })
                    && let Some(open) = calls.iter().find(|call| !call.failures.is_closed())
                {
                    // Fails if the call has just ended, or ends with another failure.
                    let _ = open.failures.try_send(failure);
                }
                Err(refusal)
            }
            Some(Err(_)) | None => Err(refused("the question was not answered")),
        }
    }

    /// Returns the calls to which a request of the server may belong: the one on whose stream it arrived, else all, those
    /// in flight first.
    fn candidates(&self, extensions: &Extensions) -> Vec<Arc<CallAddress>> {
        let stream = match extensions.get::<InboundStreamOrigin>() {
            Some(InboundStreamOrigin::OutboundRequest(id)) => Some(id),
            Some(InboundStreamOrigin::Unassociated) | None => None,
        };
        let is_possible = |(id, _): &&(RequestId, Weak<CallAddress>)| stream.is_none_or(|stream| stream == id);
        let calls = lock(&self.calls).iter().filter(is_possible).map(|(_, call)| Weak::clone(call)).collect::<Vec<_>>();
        let tasks = if stream.is_none() { lock(&self.tasks).clone() } else { Vec::new() };
        let open = calls.iter().chain(&tasks).filter_map(Weak::upgrade);
        open.filter(|call| !call.failures.is_closed()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rmcp::model::CustomRequest;
    use serde_json::json;

    use super::super::questions::{ClientQuestion, QuestionError, QuestionHandler, RunQuestions};
    use super::*;
    use cove_core::BoxFuture;

    /// Keeps the messages of the questions, and answers after a while.
    struct SlowClient(Duration, Mutex<Vec<String>>);

    impl QuestionHandler for SlowClient {
        fn ask(&self, question: ClientQuestion) -> BoxFuture<'_, Result<Value, QuestionError>> {
            lock(&self.1).push(question.params["message"].as_str().unwrap_or_default().to_owned());
            Box::pin(async move {
                tokio::time::sleep(self.0).await;
                Ok(json!({"action": "decline"}))
            })
        }
    }

    fn client(seconds: u64) -> (CallQuestions, Arc<SlowClient>) {
        let client = Arc::new(SlowClient(Duration::from_secs(seconds), Mutex::default()));
        let run = RunQuestions::new(Some(Arc::clone(&client) as _));
        (CallQuestions { run, principal: None, clock: CellClock::default() }, client)
    }

    /// Sends a request with questions.
    fn send(router: &QuestionRouter, id: i64, questions: &CallQuestions) -> QuestionInbox {
        let mut request = ClientRequest::CustomRequest(CustomRequest::new("tools/call", None));
        let secrets = ServerSecrets::new(Vec::new(), vec!["hunter2-hunter2".to_owned()]);
        let inbox = QuestionInbox::attach(&mut request, ("s", &secrets), questions.clone(), CellClock::default());
        router.register(&RequestId::Number(id), &request);
        inbox
    }

    async fn ask(router: &QuestionRouter, message: &str) -> Result<Value, ErrorData> {
        let Value::Object(params) = json!({"message": message, "requestedSchema": {"type": "object"}}) else {
            unreachable!()
        };
        router.ask("elicitation/create", params, &Extensions::default(), std::future::pending()).await
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_of_an_ended_call_is_kept() {
        let (router, (questions, client)) = (QuestionRouter::default(), client(1));
        let inbox = send(&router, 1, &questions);
        assert_eq!(ask(&router, "?").await.unwrap(), json!({"action": "decline"}));
        drop(inbox);
        assert!(ask(&router, "?").await.unwrap_err().message.contains("no call is in flight"));
        let run = Arc::downgrade(&questions.run);
        drop(questions);
        tokio::task::yield_now().await;
        assert!(run.upgrade().is_none() && Arc::strong_count(&client) == 1, "no other call had to come");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_ends_with_the_last_call_that_it_may_belong_to() {
        let (router, (questions, client)) = (QuestionRouter::default(), client(60));
        let (first, second) = (send(&router, 1, &questions), send(&router, 2, &questions));
        let end_first = async {
            // The server answers this call while the person thinks.
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(first);
        };
        let (answer, ()) = tokio::join!(ask(&router, "?"), end_first);
        assert_eq!((answer.unwrap(), lock(&client.1).len()), (json!({"action": "decline"}), 1));
        let end_second = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(second);
        };
        let (answer, ()) = tokio::join!(ask(&router, "?"), end_second);
        assert!(answer.unwrap_err().message.contains("the call has ended"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_of_a_task_is_not_put_to_another_run() {
        let (router, secrets) = (QuestionRouter::default(), ServerSecrets::default());
        let ((alice, asked), (mallory, other)) = (client(1), client(1));
        let _task = QuestionInbox::for_task(&router, ("s", &secrets), alice, CellClock::default());
        let call = send(&router, 1, &mallory);
        assert!(ask(&router, "?").await.unwrap_err().message.contains("several runs"));
        drop(call);
        assert_eq!(ask(&router, "?").await.unwrap(), json!({"action": "decline"}));
        assert_eq!((lock(&asked.1).len(), lock(&other.1).len()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_an_answer_shows_no_secret() {
        let router = QuestionRouter::default();
        let questions = CallQuestions { run: RunQuestions::new(None), principal: None, clock: CellClock::default() };
        let mut inbox = send(&router, 1, &questions);
        let (answer, failure) = tokio::join!(ask(&router, "Is it hunter2-hunter2?"), inbox.wait_for_failure());
        assert!(answer.is_err());
        let UpstreamError::InputRequired { question, .. } = failure else { panic!("{failure}") };
        assert_eq!(question.message, "Is it [redacted]?");
    }
}
