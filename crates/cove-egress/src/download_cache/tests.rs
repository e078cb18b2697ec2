//! What is kept is given out unchanged, or not at all, and the folder stays within its limit.

use std::os::unix::fs::PermissionsExt;

use super::*;

const BODY: &[u8] = b"what the server said";

fn answer(length: usize) -> SharedAnswer {
    let (age, lifetime) = (Duration::from_secs(5), Duration::from_secs(600));
    SharedAnswer { length: length as u64, age, lifetime, fields: vec![("etag".into(), "x".into())] }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

struct TestCache {
    cache: Arc<DownloadCache>,
    folder: tempfile::TempDir,
}

impl TestCache {
    fn new(limit: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { cache: DownloadCache::new(folder.path().join("downloads"), limit, String::new()), folder }
    }

    fn keep(&self, path: &str, body: &[u8]) {
        let mut fill = self.cache.begin(self.cache.key("server", path), answer(body.len())).unwrap();
        body.chunks(7).for_each(|piece| fill.push(piece));
    }

    fn open(&self, path: &str) -> Option<(KeptAnswer, File)> {
        let found = self.cache.find(&self.cache.key("server", path))?;
        runtime().block_on(self.cache.check(found))
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        let (answer, mut file) = self.open(path)?;
        let mut body = Vec::new();
        file.read_to_end(&mut body).unwrap();
        assert_eq!(answer.length, body.len() as u64);
        Some(body)
    }

    /// Returns the files of a folder of the cache.
    fn files(&self, name: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("downloads").join(name)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn a_download_is_kept_as_a_whole_and_for_its_address_alone() {
    let test = TestCache::new(1 << 20);
    assert_eq!(test.read("/a"), None);
    test.keep("/a", BODY);
    assert_eq!(test.read("/a").as_deref(), Some(BODY));
    let (kept, _) = test.open("/a").unwrap();
    assert!(kept.fields == answer(1).fields && (5..60).contains(&kept.age()), "{kept:?}");
    assert_eq!(test.read("/b"), None);
    assert!(test.cache.find(&test.cache.key("another", "/a")).is_none());
    let others = DownloadCache::new(test.cache.folder.clone(), 1 << 20, "other authorities".into());
    assert!(others.find(&others.key("server", "/a")).is_none());
    for path in [&test.files("bodies")[0], &test.files("answers")[0]] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(fs::metadata(&test.cache.folder).unwrap().permissions().mode() & 0o777, 0o700);
    let name = hex(&digest(&SHA256, BODY));
    assert!(test.files("bodies")[0].ends_with(name), "a body has the name of its digest");
}

#[test]
fn a_download_that_breaks_off_leaves_nothing() {
    let test = TestCache::new(1 << 20);
    let begin = |length| test.cache.begin(test.cache.key("server", "/a"), answer(length)).unwrap();
    begin(BODY.len()).push(&BODY[1..]);
    begin(BODY.len() - 1).push(BODY);
    assert_eq!(test.read("/a"), None);
    assert!(["unfinished", "bodies", "answers"].iter().all(|name| test.files(name).is_empty()));
}

#[test]
fn changed_files_are_removed_and_not_given_out() {
    let test = TestCache::new(1 << 20);
    let changes: [fn(&Path, &Path); 6] = [
        |body, _| fs::write(body, b"what someone wrote..").unwrap(),
        |body, _| fs::write(body, &BODY[1..]).unwrap(),
        |body, _| fs::remove_file(body).unwrap(),
        |body, _| fs::set_permissions(body, fs::Permissions::from_mode(0o666)).unwrap(),
        |_, answer| {
            let text = fs::read_to_string(answer).unwrap().replace("etag", "link");
            fs::write(answer, text).unwrap();
        },
        |_, answer| fs::write(answer, "").unwrap(),
    ];
    for (number, change) in changes.iter().enumerate() {
        test.keep("/a", BODY);
        change(&test.files("bodies")[0], &test.files("answers")[0]);
        assert_eq!(test.read("/a"), None, "change {number}");
        assert!(test.files("answers").is_empty(), "change {number}");
    }
    // An answer under the name of another one.
    test.keep("/a", BODY);
    fs::copy(&test.files("answers")[0], test.cache.answer_path(&test.cache.key("server", "/b"))).unwrap();
    assert_eq!(test.read("/b"), None);
    assert_eq!(test.read("/a").as_deref(), Some(BODY));
}

#[test]
fn a_body_is_digested_once_and_again_when_it_has_changed() {
    let test = TestCache::new(1 << 20);
    test.keep("/a", BODY);
    let path = test.files("bodies").remove(0);
    let state = || FileState::new(&fs::metadata(&path).unwrap());
    assert_eq!(test.read("/a").as_deref(), Some(BODY));
    let busy = Arc::clone(&test.cache.digests).try_acquire_many_owned(MAX_DIGESTS as u32).unwrap();
    for _ in 0..50 {
        assert_eq!(test.read("/a").as_deref(), Some(BODY), "without a digest");
    }
    // Noting a use changes the file, and is no reason for a digest.
    File::open(&path).unwrap().set_modified(SystemTime::now() - 2 * USE_PRECISION).unwrap();
    test.cache.remember(hex(&digest(&SHA256, BODY)), state());
    let before = state();
    assert_eq!(test.read("/a").as_deref(), Some(BODY));
    assert_ne!(state(), before, "the use is noted");
    assert_eq!(test.read("/a").as_deref(), Some(BODY));
    // As often as the clock of the file system needs to go on.
    let before = state();
    while state() == before {
        fs::write(&path, b"what someone wrote..").unwrap();
    }
    let (cache, found) = (&test.cache, test.cache.find(&test.cache.key("server", "/a")).unwrap());
    let given = runtime().block_on(async {
        let mut check = std::pin::pin!(cache.check(found));
        let waiting = tokio::time::timeout(Duration::from_millis(1), check.as_mut()).await;
        assert!(waiting.is_err(), "it waits while two other bodies are digested");
        drop(busy);
        check.await
    });
    assert!(given.is_none() && test.files("bodies").is_empty());
    assert_eq!(test.read("/a"), None);
}

#[test]
fn a_body_is_digested_once_for_all_that_wait_and_not_for_one_that_has_gone() {
    let test = TestCache::new(1 << 20);
    test.keep("/a", BODY);
    let find = || test.cache.find(&test.cache.key("server", "/a")).unwrap();
    runtime().block_on(async {
        let busy = Arc::clone(&test.cache.digests).try_acquire_many_owned(MAX_DIGESTS as u32).unwrap();
        let mut checks: Vec<_> = (0..50).map(|_| Box::pin(test.cache.check(find()))).collect();
        for check in &mut checks {
            assert!(tokio::time::timeout(Duration::ZERO, check).await.is_err());
        }
        drop(busy);
        assert!(checks.remove(0).await.is_some());
        // Another digest would not match.
        fs::write(test.files("bodies").remove(0), b"what someone wrote..").unwrap();
        for check in checks {
            assert!(check.await.is_some());
        }
    });
    test.keep("/a", BODY);
    let (sender, receiver) = oneshot::channel::<()>();
    drop(receiver);
    assert!(digest_body(find().body, &sender).is_err(), "no task waits for it");
}

#[test]
fn an_answer_that_names_a_file_elsewhere_touches_none() {
    let test = TestCache::new(1 << 20);
    test.keep("/a", BODY);
    let (outside, key) = (test.folder.path().join("outside"), test.cache.key("server", "/a"));
    fs::write(&outside, "mine").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o600)).unwrap();
    let mut kept = test.cache.find(&key).unwrap().answer;
    kept.digest = "../../outside".to_owned();
    let text = serde_json::to_string(&kept).unwrap();
    fs::write(test.cache.answer_path(&key), format!("{}\n{text}", answer_digest(&key, &text))).unwrap();
    assert_eq!(test.read("/a"), None);
    assert_eq!(fs::read_to_string(outside).unwrap(), "mine");
}

#[test]
fn a_download_is_given_out_while_it_is_fresh() {
    let test = TestCache::new(1 << 20);
    let old = SharedAnswer { age: Duration::from_secs(600), lifetime: Duration::from_secs(600), ..answer(1) };
    test.cache.begin(test.cache.key("server", "/a"), old).unwrap().push(b"x");
    assert_eq!((test.files("answers").len(), test.read("/a"), test.files("answers").len()), (1, None, 0));
}

#[test]
fn the_folder_stays_within_its_limit_and_keeps_what_was_used_last() {
    let limit = 1 << 20;
    let test = TestCache::new(limit);
    let body = |number: u8| vec![number; 100_000];
    let used_long_ago = |name: &str, minutes: u64| {
        for path in test.files(name) {
            let time = SystemTime::now() - Duration::from_secs(60 * minutes);
            File::open(path).unwrap().set_modified(time).unwrap();
        }
    };
    for number in 0..30 {
        test.keep(&format!("/{number}"), &body(number));
        ["answers", "bodies"].iter().for_each(|name| used_long_ago(name, 60 - u64::from(number)));
        assert_eq!(test.read("/0"), Some(body(0)), "what is used stays");
        let sizes = ["answers", "bodies"].iter().flat_map(|name| test.files(name));
        let total: u64 = sizes.map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(total <= limit, "{total} after {number}");
    }
    assert_eq!((test.read("/1"), test.read("/29")), (None, Some(body(29))));
    assert!(test.cache.begin(test.cache.key("server", "/big"), answer(600_000)).is_none(), "half of the limit at most");
    // Very many small ones.
    for number in 0..200 {
        test.keep(&format!("/small/{number}"), &[number]);
    }
    assert!(test.files("answers").len() + test.files("bodies").len() <= (limit / FILE_ROOM) as usize);
}

#[test]
fn what_a_killed_process_left_is_removed_and_counted_until_then() {
    let test = TestCache::new(1 << 20);
    let begin = |path| test.cache.begin(test.cache.key("server", path), answer(400_000));
    let used = || fs::read_to_string(test.cache.folder.join("used")).unwrap().trim().parse::<u64>().unwrap();
    test.keep("/a", BODY);
    let before = used();
    let under_way = begin("/b").unwrap();
    let reserved = used() - before;
    // As of a process that is killed: its file stays and has no lock, and `used` stays as it was.
    let abandoned = test.folder.path().join("downloads/unfinished/abandoned");
    fs::copy(&test.files("unfinished")[0], &abandoned).unwrap();
    fs::write(test.cache.folder.join("used"), (used() + reserved).to_string()).unwrap();
    drop(begin("/c").expect("there is room"));
    assert!(!abandoned.exists() && test.files("unfinished").len() == 1, "only the file of a download under way stays");
    assert_eq!(used(), before + reserved);
    // A process may also be killed while it writes `used`.
    fs::write(test.cache.folder.join("used"), "").unwrap();
    drop(begin("/c").expect("there is room"));
    // What is reserved for an answer is more than it takes.
    assert!((reserved..=before + reserved).contains(&used()), "{} {before} {reserved}", used());
    drop(under_way);
    assert!((1..=before).contains(&used()), "{}", used());
    assert_eq!(test.read("/a").as_deref(), Some(BODY));
}

#[test]
fn downloads_of_the_same_at_once_do_not_disturb_each_other() {
    let test = TestCache::new(1 << 20);
    let begin = || test.cache.begin(test.cache.key("server", "/a"), answer(BODY.len())).unwrap();
    let (mut one, mut other) = (begin(), begin());
    for piece in BODY.chunks(3) {
        one.push(piece);
        other.push(piece);
    }
    drop(begin());
    assert_eq!(test.read("/a").as_deref(), Some(BODY));
    assert_eq!((test.files("bodies").len(), test.files("unfinished").len()), (1, 0));
}
