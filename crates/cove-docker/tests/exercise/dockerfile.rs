//! What holds for a Dockerfile, whatever it says: no image that a builder would pull escapes the check, and the lists stay
//! in proportion to the text.

use super::{BuildArguments, DockerfileNeeds, MAX_INHERITED_LINES, MAX_NOTES};

/// Reads the text with and without build arguments, and panics where what it needs breaks a promise.
pub fn exercise(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let given = [("TAG", "3.12"), ("TARGETARCH", "arm64"), ("BASE", "first")];
    let given: BuildArguments = given.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    for arguments in [&BuildArguments::new(), &given] {
        let needs = DockerfileNeeds::parse(text, arguments);
        check_needs(text, &needs);
        for image in &needs.images {
            let triggers: Vec<String> = text.lines().map(str::to_owned).collect();
            check_needs(text, &needs.needs_of_triggers(image, &triggers));
        }
        assert_eq!(needs, DockerfileNeeds::parse(text, arguments), "the same text needs the same images");
    }
    check_plain_lines(text);
}

fn check_needs(text: &str, needs: &DockerfileNeeds) {
    // A line may name an image for each of its words, and a trigger is read again in each stage that inherits it.
    let words = text.split_whitespace().count() + text.matches(',').count();
    assert!(needs.images.len() <= words + MAX_INHERITED_LINES, "{} images of {words} words", needs.images.len());
    for notes in [&needs.unresolved, &needs.problems] {
        assert!(notes.len() <= MAX_NOTES + 2, "{} notes of {words} words", notes.len());
    }
    for image in &needs.images {
        assert!(!image.name.is_empty() && !image.name.contains(['"', '\'', '\\', '$']), "{:?}", image.name);
    }
    for problem in &needs.problems {
        assert!(problem.len() <= 2_000 && !problem.chars().any(char::is_control), "{problem:?}");
    }
}

/// Compares with a reader of texts in which every line stands for itself: all that it finds must be known.
fn check_plain_lines(text: &str) {
    if text.contains(['\\', '`', '$', '"', '\'', '#', '\r', '\u{feff}']) || !text.is_ascii() {
        return;
    }
    let needs = DockerfileNeeds::parse(text, &BuildArguments::new());
    if !needs.problems.is_empty() {
        // Such a file is not built.
        return;
    }
    let is_known = |name: &str| needs.images.iter().any(|image| image.name == name);
    let mut stages: Vec<String> = Vec::new();
    let mut has_stage = false;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // An option may have spaces in its value, so what follows it needs the real reader.
            [from, option, ..] if from.eq_ignore_ascii_case("FROM") && option.starts_with("--") => return,
            [from, image, ref rest @ ..] if from.eq_ignore_ascii_case("FROM") => {
                let is_stage = stages.contains(&image.to_ascii_lowercase());
                assert!(image == "scratch" || is_stage || is_known(image), "{image:?} of {line:?} is missing");
                if let [r#as, name, ..] = rest
                    && r#as.eq_ignore_ascii_case("AS")
                {
                    stages.push(name.to_ascii_lowercase());
                }
                has_stage = true;
            }
            [copy, option, ..]
                if has_stage && (copy.eq_ignore_ascii_case("COPY") || copy.eq_ignore_ascii_case("ADD")) =>
            {
                let Some(name) = option.strip_prefix("--from=") else { continue };
                let is_stage = stages.contains(&name.to_ascii_lowercase()) || name.parse::<usize>().is_ok();
                let is_nothing = name.is_empty() || name == "scratch";
                assert!(is_nothing || is_stage || is_known(name), "{name:?} of {line:?} is missing");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_dockerfile() {
        crate::replay::replay("dockerfile", super::exercise);
    }
}
