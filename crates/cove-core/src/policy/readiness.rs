//! How many sessions are kept ready, and what Python has imported in them, before anyone asks for one. Both values come
//! from the operator: from the settings `warm` and `preload`, or from the keys of the same names in an `image.toml`.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::error::Refusal;

/// Most sessions of one language that are kept ready in front of one environment.
pub const MAX_WARM: usize = 64;
/// Most modules that are imported before a session is handed out.
pub const MAX_PRELOADED: usize = 32;
/// Longest name of a module, in bytes.
const MAX_MODULE_NAME: usize = 100;

/// What the sessions of an environment have done before a caller gets them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct SessionReadiness {
    pub warm: WarmTarget,
    /// The modules that Python has imported, by their dotted names.
    pub preload: Vec<String>,
}

/// How many sessions are kept ready for each language.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum WarmTarget {
    /// As many as callers took at once lately.
    #[default]
    Adapted,
    /// Always this many; zero keeps none.
    Fixed(usize),
}

impl WarmTarget {
    /// Parses `auto` or a number. A number above `MAX_WARM` is accepted; `SessionReadiness::within_bounds` lowers it.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text == "auto" {
            return Ok(Self::Adapted);
        }
        let right = format!("write `auto`, or how many sessions to keep ready (0 to {MAX_WARM})");
        let is_number = !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse().ok().filter(|_| is_number) {
            Some(count) => Ok(Self::Fixed(count)),
            None => Err(Refusal::of_value(text, "is not a number of sessions", right)),
        }
    }
}

impl fmt::Display for WarmTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adapted => f.write_str("auto"),
            Self::Fixed(count) => count.fmt(f),
        }
    }
}

/// Writes `"auto"` or a number, as an `image.toml` has it.
impl Serialize for WarmTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Adapted => serializer.collect_str(self),
            Self::Fixed(count) => count.serialize(serializer),
        }
    }
}

impl SessionReadiness {
    /// Returns the same with the values that Cove can use, and one sentence for each that it cannot. A server starts
    /// with what is left: sessions that are ready later or without a module are no reason not to serve.
    pub fn within_bounds(&self) -> (Self, Vec<String>) {
        let mut warnings = Vec::new();
        let warm = match self.warm {
            WarmTarget::Fixed(count) if count > MAX_WARM => {
                warnings
                    .push(format!("`warm` is {count}, and at most {MAX_WARM} sessions are kept ready: {MAX_WARM} are"));
                WarmTarget::Fixed(MAX_WARM)
            }
            usable => usable,
        };
        let (mut preload, wrong): (Vec<String>, Vec<String>) =
            self.preload.iter().cloned().partition(|module| check_module(module).is_ok());
        warnings.extend(
            wrong
                .iter()
                .filter_map(|module| check_module(module).err())
                .map(|refusal| format!("`preload` leaves a value out: {}; {}", refusal.cause, refusal.hint)),
        );
        if preload.len() > MAX_PRELOADED {
            let all = preload.len();
            warnings.push(format!("`preload` has {all} modules, and the first {MAX_PRELOADED} are imported"));
            preload.truncate(MAX_PRELOADED);
        }
        (Self { warm, preload }, warnings)
    }
}

/// Fails unless a text is the dotted name of a Python module, such as `numpy` or `os.path`.
pub fn check_module(text: &str) -> Result<(), Refusal> {
    let is_part = |part: &str| {
        let starts_well = part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        starts_well && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match text.len() <= MAX_MODULE_NAME && text.split('.').all(is_part) {
        true => Ok(()),
        false => Err(Refusal::of_value(
            text,
            "is not the name of a Python module",
            format!("write names such as `numpy` or `os.path`, of at most {MAX_MODULE_NAME} characters"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_target_is_auto_or_a_number() {
        assert_eq!(WarmTarget::parse("auto").unwrap(), WarmTarget::Adapted);
        assert_eq!(WarmTarget::parse("0").unwrap(), WarmTarget::Fixed(0));
        assert_eq!(WarmTarget::parse("100000").unwrap(), WarmTarget::Fixed(100_000));
        for wrong in ["", "-1", "1.5", "many", "+3", "9999999999", "Auto"] {
            assert!(WarmTarget::parse(wrong).unwrap_err().hint.contains("0 to 64"), "{wrong}");
        }
        assert_eq!((WarmTarget::Adapted.to_string(), WarmTarget::Fixed(3).to_string()), ("auto".into(), "3".into()));
    }

    #[test]
    fn module_names_are_plain_dotted_names() {
        for right in ["numpy", "os.path", "_x1", "a.b.c"] {
            assert!(check_module(right).is_ok(), "{right}");
        }
        let long = "x".repeat(101);
        for wrong in ["", "../../etc", "a..b", ".a", "a.", "1a", "a b", "a;b", "a\nb", "é", &long] {
            assert!(check_module(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_beyond_the_bounds_are_lowered_and_named() {
        let usable = SessionReadiness { warm: WarmTarget::Fixed(2), preload: vec!["json".into()] };
        assert_eq!(usable.within_bounds(), (usable.clone(), Vec::new()));
        let many: Vec<String> = (0..40).map(|n| format!("m{n}")).chain(["no module".into()]).collect();
        let (usable, warnings) = SessionReadiness { warm: WarmTarget::Fixed(100_000), preload: many }.within_bounds();
        assert_eq!((usable.warm, usable.preload.len()), (WarmTarget::Fixed(MAX_WARM), MAX_PRELOADED));
        assert_eq!(
            warnings,
            [
                "`warm` is 100000, and at most 64 sessions are kept ready: 64 are",
                "`preload` leaves a value out: `no module` is not the name of a Python module; write names such as \
                 `numpy` or `os.path`, of at most 100 characters",
                "`preload` has 40 modules, and the first 32 are imported",
            ]
        );
    }
}
