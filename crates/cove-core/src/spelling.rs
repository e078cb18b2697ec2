//! Finds the known name that a misspelled one stands for. Every "did you mean" uses the same edit distance and
//! threshold.

/// How many suggestions a message can hold.
const MAX_SUGGESTIONS: usize = 3;
/// Only the start of a longer name is compared, so that a comparison stays cheap whatever the input is.
const MAX_COMPARED: usize = 64;
/// A shorter name is part of too many others to be a useful hint.
const MIN_CONTAINED: usize = 3;

/// Returns the letters and digits of a name in lower case: `from_`, `a-b`, `a_b` and `aB` differ in spelling only.
pub fn plain(name: &str) -> String {
    letters(name).collect()
}

/// Counts the letters to insert, leave out, replace, or swap with their neighbour to turn `a` into `b`.
pub fn distance(a: &str, b: &str) -> usize {
    strsim::osa_distance(a, b)
}

/// Returns the known name that `wrong` most likely stands for, if one is close enough.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    suggestions(wrong, known).into_iter().next()
}

/// Returns the known names that `wrong` may stand for, the most likely first, at most three.
pub fn suggestions<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wrong: String = letters(wrong).take(MAX_COMPARED).collect();
    let mut ranked: Vec<(usize, usize, &str)> = known
        .into_iter()
        .filter_map(|name| {
            let right: String = letters(name).take(MAX_COMPARED).collect();
            let steps = distance(&wrong, &right);
            cost(&wrong, &right, steps).map(|cost| (cost, steps, name))
        })
        .collect();
    ranked.sort_unstable();
    ranked.truncate(MAX_SUGGESTIONS);
    ranked.into_iter().map(|(_, _, name)| name).collect()
}

/// Returns how far one name is from the other, or nothing if they are too different.
fn cost(wrong: &str, right: &str, steps: usize) -> Option<usize> {
    let (wrong_length, right_length) = (wrong.chars().count(), right.chars().count());
    let (shorter, longer) = (wrong_length.min(right_length), wrong_length.max(right_length));
    if shorter >= MIN_CONTAINED {
        // Part of the other name: closer than any name that must be changed in several places.
        if right.starts_with(wrong) || wrong.starts_with(right) {
            return Some(steps.min(1));
        }
        if right.contains(wrong) || wrong.contains(right) {
            return Some(steps.min(2));
        }
    }
    (steps <= 1 + longer / 4 && steps < shorter).then_some(steps)
}

fn letters(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_names_that_are_close() {
        let names = ["create_issue", "list_issues", "get_issue", "merge_pull_request", "fork"];
        let near = |wrong| suggestions(wrong, names);
        assert_eq!(near("create_isue"), ["create_issue"]);
        assert_eq!(near("createIssues"), ["create_issue"]);
        assert_eq!(near("lsit_issues")[0], "list_issues");
        assert_eq!(near("issue").len(), 3);
        assert_eq!(near("frok"), ["fork"]);
        assert_eq!(near("zzzz"), Vec::<&str>::new());
        assert_eq!(near(""), Vec::<&str>::new());
        assert_eq!(near(&"x".repeat(1 << 20)), Vec::<&str>::new());
    }

    #[test]
    fn prefers_a_common_start_to_a_common_part() {
        assert_eq!(nearest("time", ["idle-timeout", "max-timeout", "timeout"]), Some("timeout"));
        assert_eq!(nearest("gti", ["git", "github"]), Some("git"));
        assert_eq!(nearest("all", ["amp", "zed"]), None);
    }
}
