//! What cells and calls are compared with in the unit of a round trip through a pipe: the round trip itself, and many calls
//! in one cell, beside a client that drives the same server by hand.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use cove_testkit::pipes::{EchoPipe, PipeClient};
use serde_json::json;

use super::code_dialects::COVE_PYTHON;
use super::code_mode::upstream;
use super::cove_rows::start_agent;
use super::{ReportRow, ReportTable};

/// How many follow one another in one turn.
pub(crate) const ROUND_TRIPS: u32 = 1000;
/// How many calls a cell makes: so many that the cell itself hardly counts.
pub(crate) const CALLS: u32 = 500;

const PYTHON_CALLS: &str = "print(sum(fixture.echo(a=n)['a'] for n in range(500)))";
const AWAITED_CALLS: &str =
    "total = 0\nfor n in range(500):\n    total += (await mcp_fixture.echo(a=n))['a']\nprint(total)";
const NODE_CALLS: &str = "{ let sum = 0; for (let n = 0; n < 500; n++) sum += (await mcp.fixture.echo({ a: n })).a; \
                          console.log(sum) }";
/// 0 + 1 + … + 499
const SUM: &str = "124750\n";

pub(crate) fn rows() -> Vec<ReportRow> {
    let (mut pipe, mut client) = (EchoPipe::start(), PipeClient::start());
    let agent = Rc::new(RefCell::new(start_agent(&upstream("fixture", &[]), "0", &COVE_PYTHON)));
    let calls = |id, name, language: &'static str, code: &'static str| {
        let agent = Rc::clone(&agent);
        ReportRow::of_cove(ReportTable::RoundTrips, id, name, move || {
            let start = Instant::now();
            let answer = agent.borrow_mut().client.call("execute_code", json!({"code": code, "language": language}));
            let taken = start.elapsed();
            assert_eq!(answer.ok(), SUM);
            taken / CALLS
        })
    };
    vec![
        ReportRow::of_other(ReportTable::RoundTrips, "pipe", "a line through a pipe and back", move || {
            let start = Instant::now();
            for _ in 0..ROUND_TRIPS {
                pipe.round_trip();
            }
            start.elapsed() / ROUND_TRIPS
        }),
        ReportRow::of_other(ReportTable::RoundTrips, "calls_alone", "a call by a client alone, by hand", move || {
            let start = Instant::now();
            for number in 0..CALLS {
                client.time_call(number as usize);
            }
            start.elapsed() / CALLS
        }),
        calls("calls_python", "Cove, a call from python", "python", PYTHON_CALLS),
        calls("calls_awaited", "Cove, an awaited call from python", "python", AWAITED_CALLS),
        calls("calls_node", "Cove, a call from node", "node", NODE_CALLS),
    ]
}
