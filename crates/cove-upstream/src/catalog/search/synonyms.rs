//! Synonyms for searches. Only common ones: a rare pair would be wrong as often as right.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::words::stem;

#[rustfmt::skip]
const GROUPS: &[&str] = &[
    // Actions.
    "create add new make insert",
    "delete remove drop destroy erase trash rm",
    "list show enumerate ls",
    "get fetch retrieve read view show see",
    "update edit modify change replace",
    "search find query lookup look",
    "send post write",
    "cancel delete abort",
    "stop kill terminate halt end",
    "start launch begin boot play",
    "run execute invoke call exec start",
    "open navigate visit go",
    "close resolve complete done finish",
    "move rename mv",
    "copy cp duplicate clone",
    "download save export fetch get",
    "upload put push",
    "mute silence pause snooze",
    "switch select checkout",
    "choose pick select",
    "clean prune purge cleanup",
    "combine merge join",
    "enqueue queue",
    "reserve book reservation booking",
    "respond reply answer",
    "write save",
    "type enter input",
    "schedule plan",
    "remember memory",
    "forget delete",
    // Objects of actions.
    "repo repository",
    "pr pull request",
    "directory folder dir mkdir",
    "file document doc",
    "database db",
    "kubernetes k8s kubectl kube cluster",
    "email mail inbox mailbox",
    "meeting event appointment",
    "user member person people",
    "contact person",
    "message chat dm",
    "image picture photo",
    "bill invoice",
    "song track music",
    "url link",
    "page website site webpage",
    "web internet online browser",
    "issue ticket bug",
    "error exception crash bug",
    "task todo",
    "deal opportunity",
    "customer client",
    "vm machine instance",
    "ci workflow pipeline",
    "spreadsheet sheet",
    "rain weather temperature",
    "available free busy",
    "overview summary summarize",
    "history log",
    "crypto cryptocurrency bitcoin",
    "discount coupon",
    "currency usd eur dollar euro",
];

/// Returns the stems of the synonyms of a word, by the word's stem.
pub(super) fn find_synonyms(word: &str) -> &'static [String] {
    static ALL: OnceLock<HashMap<String, Vec<String>>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut all: HashMap<String, Vec<String>> = HashMap::new();
        for group in GROUPS {
            for word in group.split(' ') {
                let others = all.entry(stem(word).to_owned()).or_default();
                others.extend(group.split(' ').filter(|other| *other != word).map(|other| stem(other).to_owned()));
            }
        }
        all
    });
    all.get(word).map_or(&[], Vec::as_slice)
}
