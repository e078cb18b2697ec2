//! Tool calls of clients without a handshake, whose questions take several requests: a call that needs input is answered
//! with `input_required`, and the client repeats it with the answers.
//!
//! Such a call runs in a task of its own, because it outlives the request that began it. The handler of the first request
//! *attends* the call: it waits until the call ends or asks something. When it asks, the handler parks the call under a
//! `requestState` and answers with the questions; the cell's clock stands still while a question is open. The handler of
//! the repeated request takes the call out of the table, hands the answers to the questions that wait for them, and
//! attends in turn. If the client does not repeat the request in time, a timer takes the call out and stops its cell.
//!
//! Exactly one party stops a call: the handler that attends it, when its client disconnects, or the timer, while it is
//! parked. A `requestState` is a random number that means nothing outside this table, so it needs no signature; it works
//! once, for the principal, the tool and the arguments that it was given for.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rmcp::model::{ClientCapabilities, InputRequest, InputRequests, InputRequiredResult, InputResponses};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::client_questions::accepts_question;
use super::progress::ProgressReporter;
use super::result::ToolResult;
use cove_core::BoxFuture;
use cove_core::error::Failure;
use cove_core::random::random_bits;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;
use cove_upstream::broker::audit::digest_arguments;
use cove_upstream::pool::questions::{ClientQuestion, QuestionError, QuestionHandler, QuestionKind};

/// Calls that may wait for input, for all principals and for each.
const MAX_PARKED: usize = 64;
const MAX_PARKED_OF_PRINCIPAL: usize = 16;
/// How long a call with a question may go on, so that questions which come together go into one answer.
const SETTLE_TIME: Duration = Duration::from_millis(50);
/// States whose calls were stopped, kept for a clear answer.
const MAX_EXPIRED: usize = 256;

/// The calls that wait for input.
#[derive(Default)]
pub(super) struct ParkedCalls {
    table: Mutex<ParkedTable>,
}

#[derive(Default)]
struct ParkedTable {
    calls: HashMap<String, ParkedCall>,
    expired: VecDeque<(String, Principal)>,
    /// Calls that asked something and have not ended, by principal.
    places: HashMap<Principal, usize>,
}

struct ParkedCall {
    attended: AttendedCall,
    timer: AbortHandle,
}

/// One of the places for calls that wait for input. A call takes it with its first question and keeps it to its end.
struct ParkingPlace {
    parked: Arc<ParkedCalls>,
    principal: Principal,
}

impl Drop for ParkingPlace {
    fn drop(&mut self) {
        let mut table = lock(&self.parked.table);
        if let Some(count) = table.places.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                table.places.remove(&self.principal);
            }
        }
    }
}

/// Why a repeated request cannot go on.
pub(super) enum RepeatedCallError {
    /// Nothing waits for this input.
    Unknown(Failure),
    /// The answers do not fit the questions. The call still waits.
    BadAnswers(String),
}

impl ParkedCalls {
    fn reserve_place(self: &Arc<Self>, principal: &Principal) -> Result<ParkingPlace, QuestionError> {
        let mut table = lock(&self.table);
        let own = table.places.get(principal).copied().unwrap_or(0);
        let limits = [(own, MAX_PARKED_OF_PRINCIPAL), (table.places.values().sum(), MAX_PARKED)];
        if let Some((_, limit)) = limits.iter().find(|(count, limit)| count >= limit) {
            return Err(QuestionError::Failed(format!("{limit} calls wait for input, which is all that may")));
        }
        table.places.insert(principal.clone(), own + 1);
        Ok(ParkingPlace { parked: Arc::clone(self), principal: principal.clone() })
    }

    /// Keeps a call until its client repeats the request with this state. After `timeout` the call is stopped.
    fn park(self: &Arc<Self>, attended: AttendedCall, timeout: Duration) -> String {
        let state = format!("{:032x}", random_bits());
        let mut table = lock(&self.table);
        let (this, key) = (Arc::clone(self), state.clone());
        let timer = tokio::spawn(async move {
            tokio::time::sleep(timeout).await;
            this.expire(&key);
        });
        table.calls.insert(state.clone(), ParkedCall { attended, timer: timer.abort_handle() });
        state
    }

    fn expire(&self, state: &str) {
        let mut table = lock(&self.table);
        let Some(expired) = table.calls.remove(state) else { return };
        if table.expired.len() >= MAX_EXPIRED {
            table.expired.pop_front();
        }
        table.expired.push_back((state.to_owned(), expired.attended.call.principal.clone()));
        // Not under the lock: the call's place is given back as it is dropped.
        drop(table);
        expired.attended.call.stop.cancel();
    }

    /// Stops every waiting call of a principal.
    pub(super) fn stop_all_of(&self, principal: &Principal) {
        let mut table = lock(&self.table);
        let is_own = |call: &ParkedCall| call.attended.call.principal == *principal;
        let stopped: Vec<ParkedCall> = table.calls.extract_if(|_, call| is_own(call)).map(|(_, call)| call).collect();
        // Not under the lock: each call's place is given back as it is dropped.
        drop(table);
        for call in stopped {
            call.timer.abort();
            call.attended.call.stop.cancel();
        }
    }

    /// Takes out the call that waits under a state, and gives it the answers. Fails if there is none for this principal,
    /// tool and arguments, or if the answers do not fit; then the call still waits.
    pub(super) fn resume(
        &self,
        principal: &Principal,
        request_digest: &str,
        state: Option<&str>,
        answers: InputResponses,
    ) -> Result<AttendedCall, RepeatedCallError> {
        let refused = |cause: &str, hint: &str| {
            let failure = Failure::usage("could not go on with a call that asked for input").because(cause);
            Err(RepeatedCallError::Unknown(failure.with_hint(hint)))
        };
        const RUN_AGAIN: &str = "nothing was run; to run the code again, call the tool without `requestState`";
        let Some(state) = state else { return refused("`requestState` is missing", "repeat it as it was given") };
        let mut table = lock(&self.table);
        let ParkedTable { calls, expired, .. } = &mut *table;
        let entry = match calls.entry(state.to_owned()) {
            Entry::Occupied(entry) if entry.get().attended.call.principal == *principal => entry,
            _ if expired.iter().any(|(known, owner)| known == state && owner == principal) => {
                return refused("input not given in time, so its cell was stopped", RUN_AGAIN);
            }
            _ => return refused("there is no such `requestState`, or it was already used", RUN_AGAIN),
        };
        let call = &entry.get().attended.call;
        if call.request_digest != request_digest {
            return refused("the tool or its arguments have changed", "repeat the call as it was; it still waits");
        }
        call.deliver(answers).map_err(RepeatedCallError::BadAnswers)?;
        let ParkedCall { attended, timer } = entry.remove();
        timer.abort();
        Ok(attended)
    }
}

/// A digest of what a request runs.
pub(super) fn digest_request(tool: &str, arguments: Option<&Map<String, Value>>) -> String {
    let empty = Map::new();
    format!("{tool} {}", digest_arguments(arguments.unwrap_or(&empty)))
}

/// A call in a task of its own, as its questions see it.
pub(super) struct DetachedCall {
    parked: Arc<ParkedCalls>,
    principal: Principal,
    request_digest: String,
    capabilities: ClientCapabilities,
    timeout: Duration,
    /// Cancelled to stop the call.
    pub(super) stop: CancellationToken,
    pub(super) progress: Arc<ProgressReporter>,
    questions: Mutex<OpenQuestions>,
    /// Notified after a question was added.
    asked: Notify,
    place: OnceLock<ParkingPlace>,
}

#[derive(Default)]
struct OpenQuestions {
    count: u64,
    open: BTreeMap<String, WaitingQuestion>,
}

struct WaitingQuestion {
    kind: QuestionKind,
    request: InputRequest,
    answer: oneshot::Sender<Value>,
}

impl DetachedCall {
    pub(super) fn new(
        parked: &Arc<ParkedCalls>,
        principal: Principal,
        request_digest: String,
        capabilities: ClientCapabilities,
        timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            parked: Arc::clone(parked),
            principal,
            request_digest,
            capabilities,
            timeout,
            stop: CancellationToken::new(),
            progress: Arc::default(),
            questions: Mutex::default(),
            asked: Notify::new(),
            place: OnceLock::new(),
        })
    }

    /// Gives answers to the questions with their keys. Questions without an answer stay open and are asked again. Fails,
    /// and gives none, if an answer does not fit its question.
    fn deliver(&self, answers: InputResponses) -> Result<(), String> {
        let mut questions = lock(&self.questions);
        let mut checked = Vec::new();
        for (key, answer) in answers {
            if let Some(question) = questions.open.get(&key) {
                let answer = question.kind.check_answer(answer).map_err(|reason| format!("`{key}`: {reason}"))?;
                checked.push((key, answer));
            }
        }
        for (key, answer) in checked {
            if let Some(question) = questions.open.remove(&key) {
                // Fails if the call behind the question has ended meanwhile.
                let _ = question.answer.send(answer);
            }
        }
        Ok(())
    }

    fn open_requests(&self) -> InputRequests {
        let questions = lock(&self.questions);
        questions.open.iter().map(|(key, question)| (key.clone(), question.request.clone())).collect()
    }

    /// Returns when a question is open.
    async fn wait_for_question(&self) {
        loop {
            let asked = self.asked.notified();
            if !lock(&self.questions).open.is_empty() {
                return;
            }
            asked.await;
        }
    }
}

impl QuestionHandler for DetachedCall {
    fn ask(&self, question: ClientQuestion) -> BoxFuture<'_, Result<Value, QuestionError>> {
        Box::pin(async move {
            let ClientQuestion { kind, params } = question;
            if !accepts_question(&self.capabilities, kind) {
                return Err(QuestionError::Unsupported);
            }
            let request = serde_json::from_value(json!({"method": kind.method(), "params": params}))
                .map_err(|_| QuestionError::Failed("the question does not fit the protocol".to_owned()))?;
            if self.place.get().is_none() {
                // If another question was faster, this place is given back.
                let _ = self.place.set(self.parked.reserve_place(&self.principal)?);
            }
            let (answer, given) = oneshot::channel();
            let key = {
                let mut questions = lock(&self.questions);
                questions.count += 1;
                let key = format!("question-{}", questions.count);
                questions.open.insert(key.clone(), WaitingQuestion { kind, request, answer });
                key
            };
            let _withdrawal = QuestionWithdrawal { call: self, key };
            self.asked.notify_one();
            // The timer of the parked call ends the wait.
            given.await.map_err(|_| QuestionError::Failed("the question was withdrawn".to_owned()))
        })
    }
}

/// Removes a question when its call no longer waits for the answer.
struct QuestionWithdrawal<'a> {
    call: &'a DetachedCall,
    key: String,
}

impl Drop for QuestionWithdrawal<'_> {
    fn drop(&mut self) {
        lock(&self.call.questions).open.remove(&self.key);
    }
}

/// The answer to one request of a call that may take several.
pub(super) enum AttendOutcome {
    Ended(ToolResult),
    InputRequired(InputRequiredResult),
}

/// A detached call with its result, owned by the handler of a request or by the table.
pub(super) struct AttendedCall {
    call: Arc<DetachedCall>,
    task: JoinHandle<ToolResult>,
}

impl AttendedCall {
    pub(super) fn new(call: Arc<DetachedCall>, task: JoinHandle<ToolResult>) -> Self {
        Self { call, task }
    }

    /// Waits until the call ends or asks something, and returns the answer to the request. Stops the call if the client
    /// disconnects, also if that drops this future.
    pub(super) async fn attend(
        mut self,
        progress: Option<ProgressReporter>,
        disconnected: &CancellationToken,
    ) -> AttendOutcome {
        let call = Arc::clone(&self.call);
        call.progress.follow(progress);
        let stop_on_drop: DropGuard = call.stop.clone().drop_guard();
        let ended = loop {
            tokio::select! {
                ended = &mut self.task => break ended,
                () = disconnected.cancelled(), if !call.stop.is_cancelled() => call.stop.cancel(),
                () = call.wait_for_question(), if !call.stop.is_cancelled() => {
                    if let Ok(ended) = tokio::time::timeout(SETTLE_TIME, &mut self.task).await {
                        break ended;
                    }
                    let requests = call.open_requests();
                    if !requests.is_empty() && !disconnected.is_cancelled() {
                        call.progress.follow(None);
                        stop_on_drop.disarm();
                        let state = call.parked.park(self, call.timeout);
                        return AttendOutcome::InputRequired(InputRequiredResult::new(Some(requests), Some(state)));
                    }
                }
            }
        };
        stop_on_drop.disarm();
        let failed = |_| ToolResult::from(Failure::internal("could not finish the call"));
        AttendOutcome::Ended(ended.unwrap_or_else(failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(parked: &Arc<ParkedCalls>, principal: &str) -> Arc<DetachedCall> {
        let capabilities = serde_json::from_value(json!({"elicitation": {}})).unwrap();
        let principal = Principal(principal.to_owned());
        DetachedCall::new(parked, principal, "tool digest".to_owned(), capabilities, Duration::from_secs(60))
    }

    fn question() -> ClientQuestion {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let Value::Object(params) = json!({"message": "s: Name?", "requestedSchema": schema}) else { unreachable!() };
        ClientQuestion { kind: QuestionKind::Form, params }
    }

    /// Starts a call that asks once and shows the answer.
    fn start(call: &Arc<DetachedCall>) -> AttendedCall {
        let asker = Arc::clone(call);
        let task = tokio::spawn(async move {
            tokio::select! {
                answer = asker.ask(question()) => ToolResult::text(format!("{answer:?}")),
                () = asker.stop.cancelled() => ToolResult::text("stopped"),
            }
        });
        AttendedCall::new(Arc::clone(call), task)
    }

    async fn park(call: AttendedCall) -> (InputRequests, String) {
        match call.attend(None, &CancellationToken::new()).await {
            AttendOutcome::InputRequired(round) => (round.input_requests.unwrap(), round.request_state.unwrap()),
            AttendOutcome::Ended(result) => panic!("{result:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cells_that_wait_for_input_are_bounded() {
        let parked = Arc::new(ParkedCalls::default());
        let mut calls = Vec::new();
        for number in 0..MAX_PARKED {
            let call = call(&parked, &format!("principal-{}", number / MAX_PARKED_OF_PRINCIPAL));
            park(start(&call)).await;
            calls.push(call);
        }
        let (full, other) = (call(&parked, "principal-0"), call(&parked, "other"));
        for (call, limit) in [(full, "16 calls wait"), (other, "64 calls wait")] {
            let refused = call.ask(question()).await.unwrap_err();
            assert!(matches!(&refused, QuestionError::Failed(reason) if reason.starts_with(limit)), "{refused:?}");
        }
        // After the timeout all of them are stopped, and their places are free.
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(calls.iter().all(|call| call.stop.is_cancelled()));
        calls.clear();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let table = lock(&parked.table);
        assert!(table.calls.is_empty() && table.places.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_works_once_and_only_for_its_own_request() {
        let parked = Arc::new(ParkedCalls::default());
        let (requests, state) = park(start(&call(&parked, "alice"))).await;
        let (alice, mallory) = (Principal("alice".into()), Principal("mallory".into()));
        let answers =
            || -> InputResponses { requests.keys().map(|key| (key.clone(), json!({"action": "decline"}))).collect() };
        let resume = |principal, digest, state| parked.resume(principal, digest, state, answers());
        let reason = |result: Result<AttendedCall, RepeatedCallError>| match result {
            Err(RepeatedCallError::Unknown(failure)) => failure.report().to_string(),
            Err(RepeatedCallError::BadAnswers(reason)) => reason,
            Ok(_) => panic!("it went on"),
        };
        assert!(reason(resume(&mallory, "tool digest", Some(&state))).contains("no such `requestState`"));
        assert!(reason(resume(&alice, "tool other", Some(&state))).contains("have changed"));
        assert!(reason(resume(&alice, "tool digest", None)).contains("is missing"));
        let wrong = requests.keys().map(|key| (key.clone(), json!({"action": "maybe"}))).collect();
        assert!(reason(parked.resume(&alice, "tool digest", Some(&state), wrong)).contains("`action`"));
        let Ok(attended) = resume(&alice, "tool digest", Some(&state)) else { panic!("it should go on") };
        assert!(reason(resume(&alice, "tool digest", Some(&state))).contains("already used"));
        let AttendOutcome::Ended(result) = attended.attend(None, &CancellationToken::new()).await else {
            panic!("it ends")
        };
        assert!(result.text.contains("decline"), "{result:?}");

        let (_, state) = park(start(&call(&parked, "alice"))).await;
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(reason(resume(&alice, "tool digest", Some(&state))).contains("input not given in time"));
        assert!(reason(resume(&mallory, "tool digest", Some(&state))).contains("no such `requestState`"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_disconnects_stops_its_call() {
        let parked = Arc::new(ParkedCalls::default());
        let call = call(&parked, "alice");
        let waiting = Arc::clone(&call);
        let task = tokio::spawn(async move {
            waiting.stop.cancelled().await;
            ToolResult::text("stopped")
        });
        let attending = AttendedCall::new(Arc::clone(&call), task);
        let gone =
            tokio::time::timeout(Duration::from_secs(1), attending.attend(None, &CancellationToken::new())).await;
        assert!(gone.is_err() && call.stop.is_cancelled(), "dropping the future stops the call");
    }
}
