//! Words that people use for one another when they look for a tool. Only what is common: a rare pair would be wrong as
//! often as right.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::words::stem;

#[rustfmt::skip]
const GROUPS: &[&str] = &[
    // What is done.
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
    // What it is done to.
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

/// Stems of other words for the word with this stem.
pub(super) fn of(word: &str) -> &'static [String] {
    static ALL: OnceLock<HashMap<String, Vec<String>>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut all: HashMap<String, Vec<String>> = HashMap::new();
        for group in GROUPS {
            for word in group.split(' ') {
                let others = all.entry(stem(word).to_owned()).or_default();
                others.extend(
                    group.split(' ').filter(|other| *other != word).map(|other| stem(other).to_owned()),
                );
            }
        }
        all
    });
    all.get(word).map_or(&[], Vec::as_slice)
}
