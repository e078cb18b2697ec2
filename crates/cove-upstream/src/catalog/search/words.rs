//! Splits text into words for comparison: at visible boundaries, in lower case, without endings. Pure functions.

/// Words that do not distinguish tools: the usual list for English, and what questions about tools say.
#[rustfmt::skip]
const STOP_WORDS: &[&str] = &[
    "a", "about", "above", "after", "again", "against", "all", "am", "an", "and", "any", "are", "as", "at", "be",
    "because", "been", "before", "being", "below", "between", "both", "but", "by", "can", "could", "did", "do",
    "does", "doing", "don", "down", "during", "each", "few", "for", "from", "further", "given", "had", "has", "have",
    "having", "he", "her", "here", "hers", "herself", "him", "himself", "his", "how", "i", "if", "in", "into", "is",
    "it", "its", "itself", "just", "let", "me", "more", "most", "my", "myself", "need", "no", "nor", "not", "now",
    "of", "off", "on", "once", "one", "only", "or", "other", "our", "ours", "ourselves", "out", "over", "own",
    "please", "s", "same", "she", "should", "so", "some", "someone", "something", "such", "t", "than", "that", "the",
    "their", "theirs", "them", "themselves", "then", "there", "these", "they", "this", "those", "through", "to",
    "too", "tool", "tools", "under", "until", "up", "use", "using", "very", "want", "was", "we", "were", "what",
    "when", "where", "which", "while", "who", "whom", "why", "will", "with", "you", "your", "yours", "yourself",
    "yourselves",
];
/// Longer words are cut, so that one word cannot fill the index.
const MAX_WORD: usize = 32;

/// A mix of letters and digits up to this length is one word: `s3`, `ec2`, `k8s`.
const MAX_MIXED: usize = 4;

/// Calls `each` with every word of a text: `getURL2For` has `get`, `url`, `2` and `for`.
pub(super) fn split_words(text: &str, mut each: impl FnMut(&str)) {
    for run in text.split(|c: char| !c.is_alphanumeric()) {
        if run.len() <= MAX_MIXED && run.contains(|c: char| c.is_ascii_digit()) {
            if !run.is_empty() {
                each(&run.to_lowercase());
            }
        } else {
            split_run(run, &mut each);
        }
    }
}

fn split_run(text: &str, mut each: impl FnMut(&str)) {
    let mut word = String::new();
    let mut length = 0;
    let mut before: Option<CharKind> = None;
    let mut chars = text.chars().peekable();
    let mut done = |word: &mut String| {
        if !word.is_empty() {
            each(word);
            word.clear();
        }
    };
    while let Some(c) = chars.next() {
        let kind = CharKind::from_char(c);
        let boundary = match (before, kind) {
            (_, None) => true,
            (Some(CharKind::Lower), Some(CharKind::Upper)) => true,
            // The last of several capitals begins the next word: `HTTPServer`.
            (Some(CharKind::Upper), Some(CharKind::Upper)) => chars.peek().is_some_and(|next| next.is_lowercase()),
            (Some(a), Some(b)) => (a == CharKind::Digit) != (b == CharKind::Digit),
            (None, Some(_)) => false,
        };
        if boundary {
            done(&mut word);
            length = 0;
        }
        if kind.is_some() && length < MAX_WORD {
            word.extend(c.to_lowercase());
            length += 1;
        }
        before = kind;
    }
    done(&mut word);
}

#[derive(Clone, Copy, PartialEq)]
enum CharKind {
    Lower,
    Upper,
    Digit,
}

impl CharKind {
    fn from_char(c: char) -> Option<Self> {
        match c {
            _ if c.is_uppercase() => Some(Self::Upper),
            _ if c.is_alphabetic() => Some(Self::Lower),
            _ if c.is_numeric() => Some(Self::Digit),
            _ => None,
        }
    }
}

pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.binary_search(&word).is_ok()
}

/// Returns the stem of a word. It need not be a word itself, only the same for all forms of the word.
pub(super) fn stem(word: &str) -> &str {
    if word.len() <= 3 || !word.is_ascii() {
        return word;
    }
    let mut stem = word;
    if ["sses", "shes", "ches", "xes", "zes"].iter().any(|ending| word.ends_with(ending)) {
        stem = &word[..word.len() - 2];
    } else if word.ends_with('s') && !["ss", "us", "is", "ews"].iter().any(|ending| word.ends_with(ending)) {
        stem = &word[..word.len() - 1];
    }
    for ending in ["ing", "ed", "ion", "er"] {
        if let Some(rest) = stem.strip_suffix(ending)
            && rest.len() >= 3
            && rest.contains(['a', 'e', 'i', 'o', 'u', 'y'])
            && (ending != "ion" || rest.ends_with(['t', 's']))
        {
            stem = rest;
            let bytes = stem.as_bytes();
            let (last, previous) = (bytes[bytes.len() - 1], bytes[bytes.len() - 2]);
            if last == previous && !matches!(last, b'l' | b's' | b'z') {
                stem = &stem[..stem.len() - 1];
            }
            break;
        }
    }
    if stem.len() > 3 && stem.ends_with('e') {
        stem = &stem[..stem.len() - 1];
    }
    // `query` and `queries` share `quer`.
    match stem.strip_suffix("ie").or_else(|| stem.strip_suffix('y')).or_else(|| stem.strip_suffix('i')) {
        Some(rest) if rest.len() >= 3 => rest,
        _ => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_to_vec(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        split_words(text, |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn splits_names_into_words() {
        assert_eq!(split_to_vec("create_issue"), ["create", "issue"]);
        assert_eq!(split_to_vec("getURLFor2Users"), ["get", "url", "for", "2", "users"]);
        assert_eq!(split_to_vec("API-post.search/x y"), ["api", "post", "search", "x", "y"]);
        assert_eq!(split_to_vec("s3_get k8s EC2 10-K"), ["s3", "get", "k8s", "ec2", "10", "k"]);
        assert_eq!(split_to_vec("Größe ÄNDERN"), ["größe", "ändern"]);
        assert_eq!(split_to_vec("--"), Vec::<String>::new());
        assert_eq!(split_to_vec(&"x".repeat(1000))[0].len(), MAX_WORD);
    }

    #[test]
    fn forms_of_a_word_have_one_stem() {
        for forms in [
            &["issue", "issues"][..],
            &["create", "creates", "creating", "created", "creation"],
            &["query", "queries", "querying"],
            &["list", "lists", "listing"],
            &["branch", "branches"],
            &["box", "boxes"],
            &["delete", "deleting", "deletion"],
            &["message", "messages"],
            &["stop", "stopped", "stopping"],
        ] {
            for form in forms {
                assert_eq!(stem(form), stem(forms[0]), "{form}");
            }
        }
        for (one, other) in [("news", "new"), ("status", "stat"), ("class", "clas"), ("user", "us")] {
            assert_ne!(stem(one), stem(other), "{one}");
        }
        for short in ["", "s", "es", "ing", "ies", "ss", "éés"] {
            stem(short);
        }
    }

    #[test]
    fn stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted());
    }
}
