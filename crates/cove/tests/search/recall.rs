//! How often the wanted tool is first, among the first three, and among the first five. Every other question was used
//! to choose weights and synonyms; the rest was not, and the figures are judged by it. Each question is asked alone and
//! within a paragraph that says other things too.

use serde::Deserialize;

#[derive(Deserialize)]
struct LabelledQuestion {
    query: String,
    /// Any of these tools answers it.
    wanted: Vec<String>,
}

/// Questions as the specification names them: the half, the paragraph around each, and the lower limit of each figure.
const ROWS: [(&str, usize, [&str; 2], [f64; 3]); 4] = [
    ("tuned on", 0, ALONE, [0.87, 0.97, 0.98]),
    ("untouched", 1, ALONE, [0.86, 0.92, 0.95]),
    ("tuned on, in a paragraph", 0, PARAGRAPHS, [0.50, 0.70, 0.75]),
    ("untouched, in a paragraph", 1, PARAGRAPHS, [0.40, 0.65, 0.75]),
];
const ALONE: [&str; 2] = ["{}", "{}"];
/// Used in turn.
const PARAGRAPHS: [&str; 2] = [
    "I am preparing tomorrow's release together with my team and we have very little time left before the deadline. {} — \
     please do it carefully, and tell me afterwards in one sentence what happened and whether anything went wrong.",
    "Hi! Hope you are doing well. A customer wrote to us this morning because they were confused about our product, so \
     for the next step I need you to {}. Use the right parameters, ask if anything is unclear, and keep a short summary \
     for the notes.",
];
const DEPTHS: [usize; 3] = [1, 3, 5];

#[test]
fn search_recall_matches_the_specification() {
    let catalog = super::catalog();
    let tools = catalog.view().tool_count();
    let questions: Vec<LabelledQuestion> = super::read("queries.json");
    assert!(tools >= 300 && questions.len() >= 150, "{tools} tools, {} questions", questions.len());
    let mut problems = Vec::new();
    for (name, half, paragraphs, floors) in ROWS {
        let mine: Vec<&LabelledQuestion> = questions.iter().skip(half).step_by(2).collect();
        let mut found = [0; 3];
        for (question, paragraph) in mine.iter().zip(paragraphs.into_iter().cycle()) {
            for wanted in &question.wanted {
                let (server, tool) = wanted.split_once('.').expect("server.tool");
                assert!(catalog.find_tool(server, tool).is_ok(), "`{wanted}` is no tool");
            }
            let hits = catalog.search(&paragraph.replace("{}", &question.query), 5).hits;
            let is_meant = |hit: &cove_upstream::catalog::SearchHit| {
                question.wanted.contains(&format!("{}.{}", hit.server, hit.tool))
            };
            let rank = hits.iter().position(is_meant);
            for (count, depth) in found.iter_mut().zip(DEPTHS) {
                *count += usize::from(rank.is_some_and(|rank| rank < depth));
            }
        }
        let recall = found.map(|count| f64::from(count as u32) / mine.len() as f64);
        for ((recall, floor), depth) in recall.into_iter().zip(floors).zip(DEPTHS) {
            if recall < floor {
                problems.push(format!("{name}: recall at {depth} is {recall:.3}, less than {floor}"));
            }
        }
        let [one, three, five] = recall;
        let quoted = format!("| {name} | {} | {one:.3} | {three:.3} | {five:.3} |", mine.len());
        println!("{quoted}");
        if !specification().contains(&quoted) {
            problems.push(format!("`docs/specification.md` should say `{quoted}`"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The part of the specification under `<!-- search -->`, to the next empty line.
fn specification() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/specification.md");
    let text = std::fs::read_to_string(path).expect("the specification is there");
    let (_, after) = text.split_once("<!-- search -->\n").expect("the specification has `<!-- search -->`");
    after.split("\n\n").next().unwrap_or_default().to_owned()
}
