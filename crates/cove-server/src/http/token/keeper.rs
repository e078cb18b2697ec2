//! Keeps the accepted tokens equal to the token file while the server runs: a token works until its line goes from the
//! file, and a new one works at once. A file that is gone, unsafe or malformed accepts no token at all.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tracing::{error, info};

use super::super::rate_limit::RateBucket;
use super::{AcceptedToken, TokenSet, file};
use cove_core::error::Failure;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

/// A file that changed within this time may change again without another time stamp, so it is read again.
const STAMP_GRANULARITY: Duration = Duration::from_millis(100);

/// The accepted tokens and the rate of each principal.
#[derive(Debug)]
pub(in super::super) struct TokenKeeper {
    /// `None` if the tokens cannot change while the server runs.
    file: Option<PathBuf>,
    rate_limit: usize,
    state: Mutex<KeeperState>,
}

#[derive(Debug)]
struct KeeperState {
    accepted: Arc<AcceptedTokens>,
    /// `None` if the file must be read again.
    stamp: Option<TokenFileStamp>,
    /// Principals that lost their last token since [`TokenKeeper::take_removed`]. Some may have one again.
    removed: HashSet<Principal>,
}

/// What the token file says now.
#[derive(Debug)]
pub(in super::super) struct AcceptedTokens {
    pub(in super::super) tokens: TokenSet,
    rates: HashMap<Principal, Arc<RateBucket>>,
    /// The file is gone, unsafe or malformed: its report. No token is accepted.
    fault: Option<String>,
}

impl AcceptedTokens {
    /// Returns true if the file cannot be used.
    pub(in super::super) fn is_faulty(&self) -> bool {
        self.fault.is_some()
    }

    /// Returns the rate of a principal of [`AcceptedTokens::tokens`].
    pub(in super::super) fn rate(&self, token: &AcceptedToken) -> Option<&RateBucket> {
        self.rates.get(&token.principal).map(|rate| &**rate)
    }
}

/// Changes whenever the content or the safety of a file may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TokenFileStamp {
    file: Option<[i64; 9]>,
    /// Its folder: others who may write there could replace it.
    folder: Option<[i64; 4]>,
}

impl TokenFileStamp {
    fn read(path: &Path) -> Self {
        let number = |value: u64| value.cast_signed();
        let file = fs::symlink_metadata(path).ok().map(|found| {
            let owner = [i64::from(found.uid()), i64::from(found.mode())];
            let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
            let place = [number(found.dev()), number(found.ino()), number(found.size())];
            let mut all = [0; 9];
            all.iter_mut().zip(owner.into_iter().chain(times).chain(place)).for_each(|(to, from)| *to = from);
            all
        });
        let folder = fs::metadata(cove_core::private_file::folder_of(path)).ok();
        let folder = folder
            .map(|found| [i64::from(found.uid()), i64::from(found.mode()), number(found.dev()), number(found.ino())]);
        Self { file, folder }
    }

    /// Returns true if another change would give another stamp.
    fn is_settled(&self) -> bool {
        let Some([_, _, _, _, seconds, nanos, ..]) = self.file else { return false };
        let (Ok(seconds), Ok(nanos)) = (u64::try_from(seconds), u32::try_from(nanos)) else { return false };
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        changed.elapsed().is_ok_and(|age| age > STAMP_GRANULARITY)
    }
}

impl TokenKeeper {
    /// `file` is where the tokens come from, if they may change while the server runs.
    pub(in super::super) fn new(tokens: TokenSet, file: Option<PathBuf>, rate_limit: usize) -> Self {
        let keeper = Self {
            file,
            rate_limit,
            state: Mutex::new(KeeperState {
                accepted: Arc::new(AcceptedTokens { tokens: TokenSet::empty(), rates: HashMap::new(), fault: None }),
                stamp: None,
                removed: HashSet::new(),
            }),
        };
        let accepted = keeper.accept(tokens, None, &lock(&keeper.state).accepted);
        lock(&keeper.state).accepted = Arc::new(accepted);
        keeper
    }

    /// Returns the tokens that the file has now. Reads it only if it changed.
    pub(in super::super) fn current(&self) -> Arc<AcceptedTokens> {
        let mut state = lock(&self.state);
        let Some(file) = &self.file else { return Arc::clone(&state.accepted) };
        // Taken before the file is read: a change in between gives another stamp at the next look.
        let stamp = TokenFileStamp::read(file);
        if state.stamp == Some(stamp) {
            return Arc::clone(&state.accepted);
        }
        let before = Arc::clone(&state.accepted);
        let (tokens, fault) = match file::read_existing_tokens(file) {
            Ok(tokens) => (tokens, None),
            Err(failure) => (TokenSet::empty(), Some(report_fault(&failure))),
        };
        state.stamp = stamp.is_settled().then_some(stamp);
        if tokens == before.tokens && fault == before.fault {
            return before;
        }
        match &fault {
            Some(report) => error!("accepting no token until the token file can be used again: {report}"),
            None => info!("the token file changed: {}", describe_change(&before.tokens, &tokens)),
        }
        let gone = before.tokens.principals().filter(|old| !tokens.has_principal(old));
        state.removed.extend(gone.cloned());
        state.accepted = Arc::new(self.accept(tokens, fault, &before));
        Arc::clone(&state.accepted)
    }

    /// Returns the principals that lost their last token since the last time, also those that have another now: between
    /// two looks a token may have come, been used and gone.
    pub(in super::super) fn take_removed(&self) -> HashSet<Principal> {
        std::mem::take(&mut lock(&self.state).removed)
    }

    /// A principal keeps its rate when its token changes.
    fn accept(&self, tokens: TokenSet, fault: Option<String>, before: &AcceptedTokens) -> AcceptedTokens {
        let fresh = || Arc::new(RateBucket::new(self.rate_limit, 2 * self.rate_limit, Instant::now()));
        let rate = |principal: &Principal| before.rates.get(principal).map_or_else(fresh, Arc::clone);
        let mut rates: HashMap<_, _> = tokens.principals().map(|one| (one.clone(), rate(one))).collect();
        if fault.is_some() {
            // The file may be usable again in a moment, and then the rates must go on.
            rates.clone_from(&before.rates);
        }
        AcceptedTokens { tokens, rates, fault }
    }
}

fn report_fault(failure: &Failure) -> String {
    failure.report().to_string().replace('\n', "; ")
}

fn describe_change(before: &TokenSet, now: &TokenSet) -> String {
    let names = |of: &TokenSet, other: &TokenSet| {
        let gone: Vec<&str> =
            of.iter().filter(|token| !other.has(token)).map(|token| token.principal.0.as_str()).collect();
        if gone.is_empty() { "none".to_owned() } else { gone.join(", ") }
    };
    format!("tokens revoked: {}; tokens added: {}", names(before, now), names(now, before))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbb";

    fn names(keeper: &TokenKeeper) -> String {
        let accepted = keeper.current();
        let names: Vec<String> = accepted.tokens.principals().map(|principal| principal.0.clone()).collect();
        format!("{}{}", names.join(" "), if accepted.is_faulty() { "!" } else { "" })
    }

    #[test]
    fn tokens_follow_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        write(&format!("a {A}\nb {B}\n"));
        let keeper = TokenKeeper::new(file::read_existing_tokens(&path).unwrap(), Some(path.clone()), 1);
        assert_eq!(names(&keeper), "a b");
        let first = keeper.current();
        assert!(Arc::ptr_eq(&first, &keeper.current()));
        first.rate(&first.tokens.iter().next().unwrap().clone()).unwrap().take(Instant::now()).unwrap();
        write(&format!("b {B}\n"));
        assert_eq!(names(&keeper), "b");
        write(&format!("c {A}\nb {B}\n"));
        assert_eq!(names(&keeper), "c b");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(names(&keeper), "!");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(names(&keeper), "c b");
        write("nonsense with words\n");
        assert_eq!(names(&keeper), "!");
        write(&format!("b {A}\n"));
        assert_eq!(names(&keeper), "b");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(names(&keeper), "!");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(names(&keeper), "b");
        fs::remove_file(&path).unwrap();
        assert_eq!(names(&keeper), "!");
        // The same size in the same moment is another file all the same.
        for number in 0..50 {
            let token = if number % 2 == 0 { A } else { B };
            fs::write(&path, format!("b {token}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(keeper.current().tokens == TokenSet::parse(&format!("b {token}")).unwrap(), "{number}");
        }
    }
}
