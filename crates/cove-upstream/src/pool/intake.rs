//! One budget for everything that a server may send, counted in bytes and not only in messages. The transports of a
//! server share its [`ServerIntake`].
//!
//! Answers: a caller opens an [`AnswerSlot`], which travels inside its request like a progress sink. The transport
//! registers it under the id of the request before it writes the request. When the answer arrives, the transport reads
//! it straight into the slot, within the memory that is left, and gives rmcp an empty answer. So an answer exists once,
//! it goes with its caller, and an answer that no caller waits for is not read at all.
//!
//! Everything else is unsolicited: notifications, questions, answers without a caller, nonsense. A message of these has
//! a bound of its own, and `wait_for_pace` slows a server down that sends more of them than `PER_SECOND`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{ClientRequest, ErrorCode, GetExtensions, RequestId};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::bounded_json::{self, JsonCost, JsonShape};
use cove_core::sync::lock;

/// Memory of all answers of one server that their callers have not taken yet, and of its open questions.
pub(super) const MAX_HELD: usize = 256 << 20;
/// Bytes of all pages of one list as they arrive, and their memory once read.
pub(super) const MAX_LIST_BYTES: usize = 64 << 20;
const MAX_LIST_MEMORY: usize = 160 << 20;
/// Largest notification. Cove keeps 4 KiB of one.
pub(super) const MAX_NOTIFICATION: usize = 2 << 20;
/// Largest request of a server. The largest question that a client gets has 4 MiB.
pub(super) const MAX_SERVER_REQUEST: usize = 8 << 20;
/// Largest answer to a handshake, which rmcp keeps as long as the server runs.
pub(super) const MAX_HANDSHAKE: usize = 1 << 20;
/// Largest batch of messages, which one older revision of the protocol has.
pub(super) const MAX_BATCH_BYTES: usize = 8 << 20;
/// A body or event may grow to this size at any time. Only `MAX_LARGE` of a server grow further at once.
pub(super) const LARGE_MESSAGE: usize = 1 << 20;
const MAX_LARGE: usize = 2;
/// Requests of a server that are answered at the same time.
const MAX_SERVER_REQUESTS: usize = 32;
/// Unsolicited messages and their bytes in a second. Twice as many may come at once.
const PER_SECOND: f64 = 2_000.0;
const BYTES_PER_SECOND: f64 = (64 << 20) as f64;

/// What one server may still send.
pub(super) struct ServerIntake {
    held: Arc<AtomicUsize>,
    slots: Mutex<HashMap<RequestId, Weak<AnswerSlot>>>,
    large: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    pace: Mutex<IntakePace>,
}

/// How far a server is ahead of the pace that it may keep.
struct IntakePace {
    messages: f64,
    bytes: f64,
    since: Instant,
}

impl Default for ServerIntake {
    fn default() -> Self {
        Self {
            held: Arc::default(),
            slots: Mutex::default(),
            large: Arc::new(Semaphore::new(MAX_LARGE)),
            requests: Arc::new(Semaphore::new(MAX_SERVER_REQUESTS)),
            pace: Mutex::new(IntakePace { messages: 0.0, bytes: 0.0, since: Instant::now() }),
        }
    }
}

impl ServerIntake {
    /// Registers the slot of a request that is about to be sent, and forgets those of ended calls.
    pub(super) fn register(&self, id: &RequestId, request: &ClientRequest) {
        if let Some(AttachedSlot(slot)) = request.extensions().get() {
            let mut slots = lock(&self.slots);
            slots.retain(|_, slot| slot.strong_count() > 0);
            slots.insert(id.clone(), Weak::clone(slot));
        }
    }

    /// Returns the slot of a request, if its caller still waits for the answer. Each answer takes it once.
    pub(super) fn take_slot(&self, id: &RequestId) -> Option<Arc<AnswerSlot>> {
        lock(&self.slots).remove(id)?.upgrade()
    }

    /// Waits until a message that has grown large may grow further.
    pub(super) async fn large_turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.large).acquire_owned().await.ok()
    }

    /// Returns the right to answer one more request of the server, whose parameters have this many bytes.
    pub(super) fn admit_request(&self, bytes: usize) -> Option<(OwnedSemaphorePermit, HeldMemory)> {
        let turn = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        Some((turn, HeldMemory::reserve(&self.held, bytes)?))
    }

    /// Counts a message that no caller waits for.
    pub(super) fn note_unsolicited(&self, bytes: usize) {
        let mut pace = lock(&self.pace);
        pace.settle();
        pace.messages += 1.0;
        pace.bytes += bytes as f64;
    }

    /// Returns once the server may send more. The transport calls this before it reads on.
    pub(super) async fn wait_for_pace(&self) {
        loop {
            let ahead = {
                let mut pace = lock(&self.pace);
                pace.settle();
                (pace.messages / PER_SECOND).max(pace.bytes / BYTES_PER_SECOND) - 2.0
            };
            if ahead <= 0.0 {
                return;
            }
            tokio::time::sleep(Duration::from_secs_f64(ahead.min(1.0))).await;
        }
    }
}

impl IntakePace {
    fn settle(&mut self) {
        let passed = self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        self.messages = (self.messages - passed * PER_SECOND).max(0.0);
        self.bytes = (self.bytes - passed * BYTES_PER_SECOND).max(0.0);
    }
}

/// A share of the memory for what one server sent. Dropping it gives the share back.
pub(super) struct HeldMemory {
    held: Arc<AtomicUsize>,
    bytes: usize,
}

impl HeldMemory {
    fn reserve(held: &Arc<AtomicUsize>, bytes: usize) -> Option<Self> {
        let mut share = Self { held: Arc::clone(held), bytes: 0 };
        share.grow(bytes).then_some(share)
    }

    /// Returns false if there is not enough left.
    fn grow(&mut self, bytes: usize) -> bool {
        if self.held.fetch_add(bytes, Ordering::AcqRel) + bytes > MAX_HELD {
            self.held.fetch_sub(bytes, Ordering::AcqRel);
            return false;
        }
        self.bytes += bytes;
        true
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// What all pages of one list may still take.
#[derive(Default)]
pub(super) struct ListBudget {
    bytes: AtomicUsize,
    memory: AtomicUsize,
}

/// One page of a list, as an extension of its request: which parts Cove keeps, and what all pages together may take.
#[derive(Clone)]
pub(super) struct ListPage {
    pub(super) shape: JsonShape,
    pub(super) budget: Arc<ListBudget>,
}

/// Where the answer to one request goes. The caller owns it.
pub(super) struct AnswerSlot {
    page: Option<ListPage>,
    answer: Mutex<Option<(Result<Value, ErrorData>, HeldMemory)>>,
}

/// A slot on its way through rmcp, as an extension of its request.
#[derive(Clone)]
struct AttachedSlot(Weak<AnswerSlot>);

impl AnswerSlot {
    /// Puts the slot of a new call into its request.
    pub(super) fn attach(request: &mut ClientRequest) -> Arc<Self> {
        let slot = Arc::new(Self { page: request.extensions().get().cloned(), answer: Mutex::default() });
        request.extensions_mut().insert(AttachedSlot(Arc::downgrade(&slot)));
        slot
    }

    /// Reads the field `key` of a message into the slot: a result, or an error. Keeps an error if it does not fit.
    pub(super) fn fill(&self, intake: &ServerIntake, message: &[u8], key: &'static str) {
        let Some(mut held) = HeldMemory::reserve(&intake.held, 0) else { return };
        let answer = self.read(&mut held, message, key);
        *lock(&self.answer) = Some((answer, held));
    }

    fn read(&self, held: &mut HeldMemory, message: &[u8], key: &'static str) -> Result<Value, ErrorData> {
        let failed = |words: String| ErrorData::new(ErrorCode(0), words, None);
        let list = self.page.as_ref().map(|page| &page.budget);
        if let Some(list) = list
            && list.bytes.fetch_add(message.len(), Ordering::AcqRel) + message.len() > MAX_LIST_BYTES
        {
            let most = MAX_LIST_BYTES >> 20;
            return Err(failed(format!("its list has more than {most} MiB, which is all that Cove reads of one")));
        }
        let mut cost = JsonCost::new(|bytes| {
            let fits_list =
                list.is_none_or(|list| list.memory.fetch_add(bytes, Ordering::AcqRel) + bytes <= MAX_LIST_MEMORY);
            fits_list && held.grow(bytes)
        });
        let page = self.page.as_ref().filter(|_| key == "result");
        let shape = page.map_or(JsonShape::Whole, |page| page.shape);
        match bounded_json::read_field(message, key, shape, &mut cost) {
            Ok(value) if key == "result" => Ok(value),
            Ok(error) => Err(to_error_data(error)),
            Err(_) if cost.is_exceeded() => {
                let most = if list.is_some() { MAX_LIST_MEMORY } else { MAX_HELD } >> 20;
                Err(failed(format!("its answers need more than {most} MiB of memory, which is all that Cove keeps")))
            }
            Err(error) => {
                Err(ErrorData::new(ErrorCode::PARSE_ERROR, format!("its answer is not JSON ({error})"), None))
            }
        }
    }

    /// Returns the answer, if it has arrived.
    pub(super) fn take(&self) -> Option<Result<Value, ErrorData>> {
        lock(&self.answer).take().map(|(answer, _)| answer)
    }
}

/// Reads the error of an answer, also one that is incomplete.
pub(super) fn to_error_data(mut error: Value) -> ErrorData {
    let code = error["code"].as_i64().and_then(|code| i32::try_from(code).ok());
    let words = error["message"].as_str().unwrap_or("it did not say why").to_owned();
    let data = error.as_object_mut().and_then(|error| error.remove("data"));
    ErrorData::new(ErrorCode(code.unwrap_or(0)), words, data)
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CustomRequest, NumberOrString};

    use super::*;

    fn send(intake: &ServerIntake, id: i64, list: Option<Arc<ListBudget>>) -> Arc<AnswerSlot> {
        let mut request = ClientRequest::CustomRequest(CustomRequest::new("tools/list", None));
        let shape = JsonShape::Page { key: "tools", entry: &JsonShape::Tool };
        if let Some(budget) = list {
            request.extensions_mut().insert(ListPage { shape, budget });
        }
        let slot = AnswerSlot::attach(&mut request);
        intake.register(&NumberOrString::Number(id), &request);
        slot
    }

    fn fill(intake: &ServerIntake, id: i64, text: &str) -> bool {
        let slot = intake.take_slot(&NumberOrString::Number(id));
        slot.inspect(|slot| slot.fill(intake, text.as_bytes(), "result")).is_some()
    }

    #[tokio::test]
    async fn an_answer_belongs_to_one_waiting_caller() {
        let intake = ServerIntake::default();
        let slot = send(&intake, 1, None);
        assert!(!fill(&intake, 2, r#"{"result":{}}"#), "no caller");
        assert!(fill(&intake, 1, r#"{"result":{"a":1}}"#));
        assert!(!fill(&intake, 1, r#"{"result":{"a":2}}"#), "the first answer counts");
        assert!(intake.held.load(Ordering::Relaxed) > 0);
        assert_eq!(slot.take().unwrap().unwrap(), serde_json::json!({"a": 1}));
        assert_eq!(intake.held.load(Ordering::Relaxed), 0);
        drop(send(&intake, 3, None));
        assert!(!fill(&intake, 3, r#"{"result":{}}"#), "the caller is gone");
    }

    #[tokio::test]
    async fn memory_of_answers_is_bounded_whatever_their_text() {
        let intake = ServerIntake::default();
        let bomb = format!(r#"{{"result":[{}0]}}"#, r#"{"":0},"#.repeat(2 << 20));
        let slot = send(&intake, 1, None);
        assert!(fill(&intake, 1, &bomb));
        let error = slot.take().unwrap().unwrap_err();
        assert!(error.message.contains("256 MiB"), "{}", error.message);
        assert_eq!(intake.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_list_has_one_budget_for_all_its_pages() {
        let (intake, budget) = (ServerIntake::default(), Arc::<ListBudget>::default());
        let page = format!(r#"{{"result":{{"tools":[{{"name":"t","_meta":{{"x":"{}"}}}}]}}}}"#, "y".repeat(20 << 20));
        for number in 0..3 {
            let slot = send(&intake, number, Some(Arc::clone(&budget)));
            fill(&intake, number, &page);
            assert_eq!(slot.take().unwrap().unwrap(), serde_json::json!({"tools": [{"name": "t", "_meta": {}}]}));
        }
        let slot = send(&intake, 4, Some(budget));
        fill(&intake, 4, &page);
        assert!(slot.take().unwrap().unwrap_err().message.contains("64 MiB"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_slowed_down() {
        let intake = ServerIntake::default();
        let started = Instant::now();
        for _ in 0..40_000 {
            intake.wait_for_pace().await;
            intake.note_unsolicited(100);
        }
        assert!(started.elapsed() >= Duration::from_secs(17), "{:?}", started.elapsed());
    }
}
